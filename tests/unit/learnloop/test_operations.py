"""What the client does step by step: no server, no waiting."""

import json
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from learnloop import Conflict, InvalidRequest, NotFound, ServiceError, TooManyRequests, Unreachable, WaitTimeout
from learnloop import operations as operation
from learnloop.steps import Emit, Open, ReadLine, Send, Wait

URL = "http://service"
LOST = httpx.ConnectError("refused", request=httpx.Request("GET", URL))


def replied(status: int, body: Any = None, **headers: str) -> httpx.Response:
    request = httpx.Request("POST", f"{URL}/learn-loop")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json=body or {}, headers=named, request=request)


class Performed:
    """Performs an operation by a script: what each request, and each line of a stream, gives."""

    def __init__(self, steps: Any, script: Iterable[Any]) -> None:
        self.sent: list[Send | Open] = []
        self.waits: list[float] = []
        self.emitted: list[Any] = []
        self.result: Any = None
        reply, error, remaining = None, None, iter(script)
        while True:
            try:
                step = steps.throw(error) if error else steps.send(reply)
            except StopIteration as ended:
                self.result = ended.value
                return
            reply = error = None
            if isinstance(step, Wait):
                self.waits.append(step.seconds)
            elif isinstance(step, Emit):
                self.emitted.append(step.item)
            else:
                if not isinstance(step, ReadLine):
                    self.sent.append(step)
                reply = next(remaining)
                if isinstance(reply, Exception):
                    reply, error = None, reply


def test_a_post_is_repeated_with_the_same_key_and_body() -> None:
    script = [
        LOST,
        replied(503),
        replied(409, retry_after="2"),
        replied(429, retry_after="7"),
        replied(202, {"run_id": "r"}),
    ]
    performed = Performed(operation.learn_loop({"iterations": 2}, None), script)
    assert performed.result == {"run_id": "r"}
    assert (
        len({(step.headers["idempotency-key"], step.content) for step in performed.sent if isinstance(step, Send)}) == 1
    )
    assert len(performed.sent) == 5
    assert performed.waits == [0.5, 1.0, 2.0, 7.0]


def test_a_given_key_is_used() -> None:
    performed = Performed(operation.learn_loop({}, "mine"), [replied(202)])
    assert performed.sent[0].headers["idempotency-key"] == "mine"


def test_a_session_is_opened_without_a_key() -> None:
    """The service keeps no secret, so that a repetition with the same key would be refused."""
    performed = Performed(operation.open_session("m", {"ttl_s": 60}), [LOST, replied(201, {"id": "s"})])
    assert len(performed.sent) == 2
    assert "idempotency-key" not in performed.sent[1].headers
    assert isinstance(second := performed.sent[1], Send)
    assert json.loads(second.content or b"") == {"model": "m", "ttl_s": 60}


def test_patience_ends() -> None:
    with pytest.raises(Unreachable, match="GET http://service failed: refused"):
        Performed(operation.run_state("r"), [LOST] * (operation.RETRIES + 1))
    with pytest.raises(ServiceError):
        Performed(operation.run_state("r"), [replied(503)] * (operation.RETRIES + 1))
    with pytest.raises(TooManyRequests):
        Performed(operation.run_state("r"), [replied(429)] * (operation.RETRIES + 1))


def test_a_command_waits_for_a_rate_limit_but_not_for_an_absent_service() -> None:
    limited = [replied(429, retry_after="7"), replied(200, {"items": []})]
    performed = Performed(operation.request("GET", "/runs", patient=False), limited)
    assert performed.result.json() == {"items": []}
    assert performed.waits == [7.0]
    with pytest.raises(Unreachable):
        Performed(operation.request("GET", "/runs", patient=False), [LOST])
    with pytest.raises(ServiceError):
        Performed(operation.request("GET", "/runs", patient=False), [replied(503, retry_after="1")])
    down = Performed(operation.request("GET", "/health/ready", accept=(503,), patient=False), [replied(503)])
    assert down.result.status_code == 503


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, NotFound), (409, Conflict), (422, InvalidRequest), (413, InvalidRequest), (500, ServiceError)],
)
def test_what_no_repetition_mends_is_raised(status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Performed(operation.run_state("r"), [replied(status)])


def test_an_error_says_what_is_wrong() -> None:
    errors = [{"loc": ["body", "judge", "name"], "msg": "Unknown judge 'x'."}]
    problem = {"title": "Invalid request", "detail": "1 field", "errors": errors}
    with pytest.raises(InvalidRequest) as raised:
        Performed(operation.learn_loop({}, None), [replied(422, problem)])
    error = raised.value
    assert str(error) == "POST /learn-loop failed (422): judge.name: Unknown judge 'x'."
    assert error.status == 422
    assert error.title == "Invalid request"
    assert error.detail == "1 field"
    assert error.errors == errors


def line(seq: int) -> str:
    return f"data: {json.dumps({'seq': seq})}"


def test_a_stream_continues_where_it_broke_off() -> None:
    script = [
        replied(200), "id: 4", line(4), 'data: {"done": 1}', line(5), LOST,
        LOST,
        replied(502),
        replied(200), ": nothing new", line(6), None,
        replied(200), None,
        replied(204),
    ]  # fmt: skip
    performed = Performed(operation.events("r", 3), script)
    assert [event["seq"] for event in performed.emitted] == [4, 5, 6]
    assert [request.headers["last-event-id"] for request in performed.sent] == ["3", "5", "5", "5", "6", "6"]
    assert performed.waits == [0.5, 1.0, 2.0, 0.5]


def test_a_stream_that_is_refused_ends() -> None:
    with pytest.raises(NotFound):
        Performed(operation.events("r", 0), [replied(404)])
    with pytest.raises(Unreachable):
        Performed(operation.events("r", 0), [LOST] * (operation.RETRIES + 1))


@pytest.mark.parametrize("status", operation.AT_REST)
def test_waiting_ends_with_the_run(status: str) -> None:
    states = [{"status": "queued"}, {"status": "running"}, {"status": status}]
    performed = Performed(operation.wait("r", None), [replied(200, state) for state in states])
    assert performed.result == {"status": status}
    assert performed.waits == [0.2, 0.4]


def test_waiting_ends_in_time() -> None:
    with pytest.raises(WaitTimeout, match="run r is still running after 0 s"):
        Performed(operation.wait("r", 0), [replied(200, {"status": "running"})])


def test_an_id_leads_nowhere_else() -> None:
    assert Performed(operation.run_state("../keys?x"), [replied(200)]).sent[0].path == "/runs/%2E%2E%2Fkeys%3Fx"

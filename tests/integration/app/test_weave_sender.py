"""What reaches Weave, when, and in which form; against a server that speaks as Weave's own client expects."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import HttpUrl
from structlog.testing import capture_logs

import app.tracing.weave_sender
from app.tracing.redaction import Redactor
from app.tracing.tracer import WeaveTracer
from app.tracing.weave_api import ProjectUnavailable, WeaveApi
from app.tracing.weave_sender import WeaveSender
from environment.trace import span, tracing
from tests.conditions import until
from tests.fakes.weave_server import WeaveServer, weave_server

PROJECT = {"team/mail"}
REFERENCE = """
import weave
client = weave.init("team/mail")
@weave.op(eager_call_start=True)
def learn_loop(run_id):
    try:
        rollout("s")
    except ValueError:
        return {"step": 1}
@weave.op
def rollout(scenario_id):
    raise ValueError("no")
learn_loop("r")
client.finish()
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again at once."""
    monkeypatch.setattr(app.tracing.weave_sender, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(app.tracing.weave_sender, "_LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(app.tracing.weave_sender, "_GATHER_S", 0.01)


def api_of(weave: WeaveServer, project: str = "team/mail") -> WeaveApi:
    return WeaveApi(project, weave.key, base_url=HttpUrl(weave.url))


@contextmanager
def traced_by(weave: WeaveServer, **limits: int) -> Iterator[WeaveTracer]:
    """Spans of the block go to a tracer; at the end all were sent, or given up."""
    sender = WeaveSender(api_of(weave), **limits)
    sender.start()
    tracer = WeaveTracer(sender, Redactor())
    try:
        with tracing(tracer):
            yield tracer
    finally:
        asyncio.run(tracer.close())


def names(weave: WeaveServer) -> list[str]:
    return sorted(call["op_name"] for call in weave.calls.values())


def test_what_is_sent_has_the_form_of_weaves_own_client(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "WANDB_API_KEY": "w" * 40,
        "WANDB_ERROR_REPORTING": "false",
    }
    with weave_server() as reference:
        environment |= {"WANDB_BASE_URL": reference.url, "WF_TRACE_SERVER_URL": f"{reference.url}/traces"}
        subprocess.run([sys.executable, "-c", REFERENCE], env=environment, cwd=tmp_path, check=True)
    with weave_server(projects=PROJECT) as weave, traced_by(weave), span("learn_loop", run_id="r") as traced:
        with pytest.raises(ValueError, match="no"), span("rollout", scenario_id="s"):
            raise ValueError("no")
        traced.output = {"step": 1}
    loop, rollout = sorted(weave.calls.values(), key=lambda call: call["op_name"])

    from weave.vendor.weave_server_sdk.types.v2_call_complete_params import Batch

    theirs = {call["op_name"].split("/")[-1].split(":")[0]: call for call in reference.calls.values()}
    for route in ("call/start", "call/end", "calls/complete"):
        [ours], [real] = weave.sent_to(route), reference.sent_to(route)
        assert ours.keys() == real.keys()
        for name, record in ours.items():
            one, other = (each[0] if isinstance(each, list) else each for each in (record, real[name]))
            assert one.keys() <= other.keys()
    assert rollout.keys() >= Batch.__required_keys__
    for name, ours in (("rollout", rollout), ("learn_loop", loop)):
        assert {key: ours[key] for key in ("project_id", "inputs", "output")} == {
            key: theirs[name][key] for key in ("project_id", "inputs", "output")
        }
    assert rollout["summary"] == theirs["rollout"]["summary"]
    assert rollout["parent_id"] == loop["id"] == loop["trace_id"] == rollout["trace_id"]
    assert theirs["rollout"]["parent_id"] == theirs["learn_loop"]["id"]
    told, reference_told = json.loads(rollout["exception"]), json.loads(theirs["rollout"]["exception"])
    assert told == reference_told | {"traceback": []}


def test_the_project_is_made_if_there_is_none() -> None:
    with weave_server() as weave, traced_by(weave), span("ask"):
        pass
    assert weave.projects == PROJECT
    assert names(weave) == ["ask"]


def test_a_project_alone_belongs_to_the_keys_own_entity() -> None:
    with weave_server() as weave:
        api = api_of(weave, "mail")
        api.open()
        api.close()
    assert api.project == "team/mail"


@pytest.mark.parametrize(("project", "entity"), [("strangers/mail", "team"), ("mail", None)])
def test_a_project_that_is_not_ours_is_named(project: str, entity: str | None) -> None:
    with weave_server(entity=entity) as weave:
        api = api_of(weave, project)
        with pytest.raises(ProjectUnavailable, match="permission denied" if entity else "no entity of its own"):
            api.open()
        api.close()
    assert api.project is None


def test_long_spans_are_shown_while_they_last() -> None:
    def ended() -> list[bool]:
        return ["ended_at" in call for call in weave.calls.values()]

    with weave_server(projects=PROJECT) as weave, traced_by(weave):
        with span("learn_loop", run_id="r"), span("iteration", iteration=1), span("rollout"):
            asyncio.run(until(lambda: len(weave.calls) == 2))
            assert names(weave) == ["iteration", "learn_loop"]
            assert ended() == [False, False]
        asyncio.run(until(lambda: ended() == [True, True, True]))


def test_what_failed_is_sent_again_when_weave_is_back() -> None:
    with weave_server(projects=PROJECT, status=500) as weave, traced_by(weave), capture_logs() as logs:
        for number in range(250):
            with span("iteration" if number % 50 == 0 else "turn", number=number):
                pass
        asyncio.run(until(lambda: len(weave.requests) > 5))
        assert weave.calls == {}
        weave.status = 200
        asyncio.run(until(lambda: len(weave.calls) == 250))
    assert {call["inputs"]["number"] for call in weave.calls.values()} == set(range(250))
    assert len(weave.sent_to("calls/complete")) >= 3
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [entry["event"] for entry in warnings] == ["traces do not reach Weave, runs go on without it"]


def test_a_full_queue_loses_the_oldest_calls_but_not_the_tree() -> None:
    with weave_server(projects=PROJECT, status=500) as weave, capture_logs() as logs, traced_by(weave, max_queued=20):
        with span("learn_loop", run_id="r"), span("iteration", iteration=1):
            for number in range(60):
                with span("turn", number=number):
                    pass
        asyncio.run(until(lambda: len(weave.requests) > 5))
        weave.status = 200
        asyncio.run(until(lambda: len(weave.calls) == 18))
    assert names(weave) == ["iteration", "learn_loop"] + 16 * ["turn"]
    assert {call["inputs"].get("number") for call in weave.calls.values()} == {None, *range(44, 60)}
    [told] = [entry for entry in logs if entry["event"] == "some traces never reached Weave"]
    assert told["lost"] == 44


def test_what_waits_for_the_first_connection_is_bounded_too() -> None:
    with weave_server(projects=PROJECT) as weave:
        sender = WeaveSender(api_of(weave), max_queued=20)
        with tracing(WeaveTracer(sender, Redactor())):
            for number in range(60):
                with span("turn", number=number):
                    pass
        sender.start()
        sender.close(20)
    assert {call["inputs"]["number"] for call in weave.calls.values()} == {*range(40, 60)}


def test_the_queue_is_bounded_in_bytes() -> None:
    with weave_server(projects=PROJECT, status=500) as weave, traced_by(weave, max_bytes=50_000):
        for _ in range(20):
            with span("turn", text="x" * 10_000):
                pass
        asyncio.run(until(lambda: len(weave.requests) > 5))
        weave.status = 200
        asyncio.run(until(lambda: len(weave.calls) == 4))
    assert len(weave.calls) == 4


def test_one_call_that_the_server_refuses_takes_no_other_with_it() -> None:
    with weave_server(projects=PROJECT, poison="poison") as weave, capture_logs() as logs, traced_by(weave):
        for number in range(40):
            with span("turn", number=number, text="poison" if number == 17 else "fine"):
                pass
    assert {call["inputs"]["number"] for call in weave.calls.values()} == {*range(40)} - {17}
    assert [entry["lost"] for entry in logs if entry["event"] == "some traces never reached Weave"] == [1]


def test_a_tools_name_is_what_the_model_wrote_and_no_more_than_a_name() -> None:
    with weave_server(projects=PROJECT) as weave, traced_by(weave), span("tool.<b>rm -rf</b> " + "x" * 500):
        pass
    [name] = names(weave)
    assert name.startswith("tool.-b-rm--rf-b-xxx")
    assert len(name) == 128


class Bad(dict[str, Any]):
    """Inputs that cannot be read."""

    def items(self) -> Any:
        raise RuntimeError("no")


def test_an_input_that_cannot_be_read_fails_nobody() -> None:
    with weave_server(projects=PROJECT) as weave, capture_logs() as logs, traced_by(weave):
        with span("rollout", bad=Bad()) as traced, span("turn"):
            traced.output = Bad(x=1)
        with span("turn") as traced:
            traced.output = Bad(x=1)
    assert names(weave) == ["turn"]
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["a span was not traced"]


def test_spans_of_many_threads_arrive_whole() -> None:
    def work(number: int) -> None:
        with tracing(tracer), span("rollout", number=number):
            for _ in range(20):
                with span("turn", number=number):
                    pass

    with weave_server(projects=PROJECT) as weave, traced_by(weave) as tracer:
        threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        asyncio.run(until(lambda: len(weave.calls) == 8 * 21))
    parents = {call["id"]: call["inputs"]["number"] for call in weave.calls.values() if call["op_name"] == "rollout"}
    turns = [call for call in weave.calls.values() if call["op_name"] == "turn"]
    assert all(parents[call["parent_id"]] == call["inputs"]["number"] for call in turns)

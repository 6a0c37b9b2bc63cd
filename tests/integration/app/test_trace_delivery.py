"""What reaches a destination, when, and in which form; against a server that speaks OTLP."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import Tracer
from structlog.testing import capture_logs

import learnloop_service.app.tracing.delivery
from learnloop_service.app.tracing.delivery import Delivery, QueueLimits
from learnloop_service.app.tracing.destinations import destinations
from learnloop_service.app.tracing.redaction import MAX_TEXT, Redactor
from learnloop_service.app.tracing.tracer import RecordedTracing, make_provider
from learnloop_service.app.weave.project import ProjectUnavailable, open_project
from learnloop_service.environment.genai_spans import execute_tool
from learnloop_service.environment.trace import span, tracing
from tests.conditions import until
from tests.fakes.trace_server import COLLECTOR, TraceServer, trace_server
from tests.integration.app.served import settings_for

PROJECT = {"team/mail"}
SECRET = "canary-of-the-tracer"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again immediately."""
    monkeypatch.setattr(learnloop_service.app.tracing.delivery, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(learnloop_service.app.tracing.delivery, "_LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(learnloop_service.app.tracing.delivery, "_GATHER_S", 0.01)


@contextmanager
def traced_by(server: TraceServer, limits: QueueLimits | None = None, **more: Any) -> Iterator[Tracer]:
    """Spans of the block are traced; at the end all were sent, or given up."""
    options = {"weave_project": "team/mail", "wandb_api_key": server.key, "wandb_base_url": server.url} | more
    settings = settings_for(Path("unused"), None, **options)
    deliveries = [
        Delivery(destination, Redactor([SECRET]), limits or QueueLimits()) for destination in destinations(settings)
    ]
    recorded = RecordedTracing(make_provider(), deliveries)
    try:
        with tracing(recorded.tracer):
            yield recorded.tracer
    finally:
        asyncio.run(recorded.close())


def names(server: TraceServer) -> list[str]:
    return sorted(span.name for span in server.spans().values())


def numbers(server: TraceServer) -> set[int]:
    return {span.attributes["learnloop.number"] for span in server.spans().values()}


def threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def test_the_project_is_made_if_there_is_none() -> None:
    with trace_server() as weave, traced_by(weave), span("ask"):
        pass
    assert weave.projects == PROJECT
    assert names(weave) == ["ask"]


def test_a_project_alone_belongs_to_the_keys_own_entity() -> None:
    with trace_server() as weave:
        assert open_project("mail", weave.key, weave.url) == "team/mail"


@pytest.mark.parametrize(("project", "entity"), [("strangers/mail", "team"), ("mail", None)])
def test_a_project_that_is_not_ours_is_named(project: str, entity: str | None) -> None:
    with (
        trace_server(entity=entity) as weave,
        pytest.raises(ProjectUnavailable, match="permission denied" if entity else "no entity of its own"),
    ):
        open_project(project, weave.key, weave.url)


@pytest.mark.parametrize(
    ("variables", "path"),
    [
        ({"otel_exporter_otlp_endpoint": "{}"}, "/v1/traces"),
        ({"otel_exporter_otlp_endpoint": "{}/otlp/"}, "/otlp/v1/traces"),
        ({"otel_exporter_otlp_traces_endpoint": "{}/api/spans"}, "/api/spans"),
        ({"otel_exporter_otlp_endpoint": "{}", "otel_exporter_otlp_traces_endpoint": "{}/own"}, "/own"),
        ({"wf_trace_server_url": "{}/elsewhere"}, "/elsewhere/otel/v1/traces"),
    ],
)
def test_spans_go_where_the_variables_say(variables: dict[str, str], path: str) -> None:
    with trace_server(projects=PROJECT, status=400) as server:
        urls: dict[str, Any] = {name: url.format(server.url) for name, url in variables.items()}
        weave: dict[str, Any] = {"weave_project": None} if "wf_trace_server_url" not in urls else {}
        with traced_by(server, **weave, **urls), span("ask"):
            pass
    assert {at for at, _, _ in server.requests} - {"/graphql"} == {path}


def test_the_headers_for_traces_come_before_the_general_ones() -> None:
    with trace_server() as collector:
        variables: dict[str, Any] = {
            "weave_project": None,
            "otel_exporter_otlp_endpoint": collector.url,
            "otel_exporter_otlp_headers": "x-a=general",
            "otel_exporter_otlp_traces_headers": "X-A=for%20traces, x-b=2",
        }
        with traced_by(collector, **variables), span("ask"):
            pass
    [(_, headers, _)] = collector.requests
    assert (headers["x-a"], headers["x-b"]) == ("for traces", "2")
    assert len(collector.spans(COLLECTOR)) == 1


def test_a_span_is_sent_when_it_ends() -> None:
    with trace_server(projects=PROJECT) as weave, traced_by(weave), span("iteration", iteration=1):
        with span("evaluate"):
            pass
        asyncio.run(until(lambda: names(weave) == ["evaluate"]))


def test_what_failed_is_sent_again_when_the_server_is_back() -> None:
    with trace_server(projects=PROJECT, status=500) as weave, traced_by(weave), capture_logs() as logs:
        for number in range(250):
            with span("turn", number=number):
                pass
        asyncio.run(until(lambda: len(weave.requests) > 5))
        assert weave.spans() == {}
        weave.status = 200
        asyncio.run(until(lambda: len(weave.spans()) == 250))
    assert numbers(weave) == set(range(250))
    assert len(weave.accepted) >= 3
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [entry["event"] for entry in warnings] == ["traces do not reach W&B Weave, runs go on without it"]


def test_a_full_queue_takes_no_more_but_what_holds_the_tree_together() -> None:
    with (
        trace_server(projects=PROJECT, status=500) as weave,
        capture_logs() as logs,
        traced_by(weave, QueueLimits(spans=20)),
    ):
        with span("iteration", iteration=1):
            for number in range(60):
                with execute_tool(f"tool{number}", call_id="c", arguments="{}"):
                    pass
        asyncio.run(until(lambda: len(weave.requests) > 5))
        weave.status = 200
        asyncio.run(until(lambda: len(weave.spans()) == 19))
    assert names(weave) == sorted(["iteration", *(f"execute_tool tool{number}" for number in range(18))])
    [warning] = [entry for entry in logs if entry["event"] == "some traces never reached W&B Weave"]
    assert warning["lost"] == 42


def test_the_queue_is_bounded_in_size() -> None:
    with (
        trace_server(projects=PROJECT, status=500) as weave,
        traced_by(weave, QueueLimits(size=50_000)),
    ):
        for number in range(20):
            with span("turn", text="x" * 9_000, number=number):
                pass
        asyncio.run(until(lambda: len(weave.requests) > 5))
        weave.status = 200
        asyncio.run(until(lambda: len(weave.spans()) == 2))
        with span("turn", number=20):
            pass
    assert numbers(weave) == {0, 1, 20}


def test_one_request_holds_no_more_than_a_server_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learnloop_service.app.tracing.delivery, "_MAX_BATCH_SIZE", 50_000)
    with trace_server(projects=PROJECT, status=500) as weave, traced_by(weave):
        for number in range(20):
            with span("turn", task={"text": "x" * 19_000}, number=number):
                pass
        asyncio.run(until(lambda: len(weave.requests) > 1))
        weave.status = 200
    assert numbers(weave) == set(range(20))
    assert max(len(body) for _, body in weave.accepted) < 60_000


def test_one_span_that_the_server_refuses_takes_no_other_with_it() -> None:
    with trace_server(projects=PROJECT, poison="poison") as weave, capture_logs() as logs, traced_by(weave):
        for number in range(40):
            with span("turn", number=number, text="poison" if number == 17 else "fine"):
                pass
    assert numbers(weave) == {*range(40)} - {17}
    assert [entry["lost"] for entry in logs if entry["event"] == "some traces never reached W&B Weave"] == [1]


def test_a_server_that_hangs_holds_nobody_up_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnloop_service.app.tracing.tracer._CLOSE_S", 0.1)
    before = threads()
    with trace_server(projects=PROJECT) as weave, capture_logs() as logs:
        weave.hanging.set()
        with traced_by(weave):
            for _ in range(250):
                with span("turn"):
                    pass
        assert weave.spans() == {}
        weave.released.set()
        asyncio.run(until(lambda: not any(thread.is_alive() for thread in threads() - before if thread.daemon)))
    [warning] = [entry for entry in logs if entry["event"] == "some traces never reached W&B Weave"]
    assert (warning["lost"], warning["still_sending"]) == (250, True)


def test_no_thread_is_left_when_tracing_is_closed() -> None:
    before = threads()
    with trace_server(projects=PROJECT) as weave:
        listening = threads()
        with traced_by(weave), span("ask"):
            assert any("Otel" in thread.name for thread in threads() - listening)
        assert not any("Otel" in thread.name or "traces" in thread.name for thread in threads() - before)


def test_a_long_text_is_cut_and_no_secret_with_it() -> None:
    """Wherever the secret stands around the cuts that the SDK and redaction make."""
    with trace_server(projects=PROJECT) as weave, traced_by(weave):
        for start in (MAX_TEXT - 5, MAX_TEXT + 5, 2 * 200_000 - 10, 2 * 200_000 + 10):
            with span("turn", task={"text": "x" * (start - len('{"task": {"text": "')) + SECRET + "y" * 1000}):
                pass
            with execute_tool("read", call_id="c", arguments="{}") as traced:
                traced.output = "x" * start + SECRET + "y" * 1000
    assert len(weave.spans()) == 8
    assert SECRET[:12] not in weave.received
    assert max(len(str(value)) for span in weave.spans().values() for value in span.attributes.values()) < 210_000


def test_a_tools_name_is_what_the_model_wrote_and_no_more_than_a_name() -> None:
    with trace_server(projects=PROJECT) as weave, traced_by(weave), span("execute_tool <b>rm -rf</b>" + "x" * 500):
        pass
    [name] = names(weave)
    assert name.startswith("execute_tool -b-rm -rf-b-xxx")
    assert len(name) == 128


class Bad(dict[str, Any]):
    """Inputs that cannot be read."""

    def items(self) -> Any:
        raise RuntimeError("no")


class Mute(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def test_what_cannot_be_read_fails_nobody() -> None:
    with trace_server(projects=PROJECT) as weave, traced_by(weave):
        with span("evaluate", bad=Bad(x=1)) as traced, span("turn"):
            traced.output = Bad(x=1)
        with pytest.raises(Mute), span("turn"):
            raise Mute
    assert names(weave) == ["evaluate", "turn", "turn"]
    assert {span.attributes.get("learnloop.untraced") for span in weave.spans().values()} == {None, "RuntimeError"}


def test_spans_of_many_threads_arrive_whole() -> None:
    def work(number: int) -> None:
        with tracing(tracer), span("rollout", number=number):
            for _ in range(20):
                with span("turn", number=number):
                    pass

    with trace_server(projects=PROJECT) as weave, traced_by(weave) as tracer:
        workers = [threading.Thread(target=work, args=[number]) for number in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    spans = weave.spans()
    turns = [span for span in spans.values() if span.name == "turn"]
    assert len(turns) == 8 * 20
    for turn in turns:
        above = spans[str(turn.parent_id)]
        assert (above.name, above.attributes["learnloop.number"]) == ("rollout", turn.attributes["learnloop.number"])

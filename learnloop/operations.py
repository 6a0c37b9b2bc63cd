"""The client's operations as sequences of actions (see `learnloop.steps`): requests, retries, reconnections."""

import json
import time
import uuid
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from learnloop.errors import APIError, LearnloopError, ServiceError, Unreachable, WaitTimeout, error_of, why_unreachable
from learnloop.steps import Emit, Feed, Open, Operation, ReadLine, Send, Wait
from learnloop.types import (
    Accepted,
    Answer,
    Demonstration,
    Demonstrations,
    Event,
    FeedbackEvent,
    FeedbackTaken,
    FeedbackType,
    Outcome,
    RunState,
    RunStatus,
    SessionAccess,
    SessionRequest,
    SessionState,
    Task,
)

Json = Any
RETRIES = 6
"""Most repetitions of a request; with the pauses below they take half a minute."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
_RETRIED = (429, 503)
_FIRST_POLL_S, _LONGEST_POLL_S = 0.2, 5.0
AT_REST: tuple[RunStatus, ...] = ("completed", "failed", "cancelled", "paused")
"""Statuses in which a run does nothing until it is asked to."""


def learn_loop(request: Mapping[str, Json], key: str | None) -> Operation[Accepted]:
    """Start a run."""
    return _call("POST", "/learn-loop", request, key)


def run_state(run_id: str) -> Operation[RunState]:
    """Get a run's current state."""
    return _call("GET", f"/runs/{segment(run_id)}")


def cancel(run_id: str) -> Operation[Accepted]:
    """Cancel a run."""
    return _call("POST", f"/runs/{segment(run_id)}/cancel")


def store_demonstrations(
    name: str, conversations: Path | Iterable[Demonstration], key: str | None
) -> Operation[Demonstrations]:
    """Store conversations, or a JSON Lines file of them, as the next version of a name."""
    if isinstance(conversations, Path):
        lines = conversations.read_bytes()
    else:
        lines = b"".join(json.dumps(conversation).encode() + b"\n" for conversation in conversations)
    return _call("POST", f"/demonstrations?name={quote(name, safe='')}", lines, key)


def store_best_rollouts(
    run_id: str, name: str, min_reward: float, per_scenario: int, key: str | None
) -> Operation[Demonstrations]:
    """Store the best rollouts of a run as demonstrations."""
    body = {"name": name, "min_reward": min_reward, "per_scenario": per_scenario}
    return _call("POST", f"/runs/{segment(run_id)}/demonstrations", body, key)


def ask(task: Task, key: str | None, **who: str) -> Operation[Answer]:
    """Give the agent of a run (`run_id`), or a model by name (`model`), a task."""
    return _call("POST", "/ask", {**who, **task}, key)


def open_session(model: str, request: SessionRequest) -> Operation[SessionAccess]:
    """Open a session. It is repeated without an idempotency key, because the service does not keep the secret in its
    answer: a session whose key was lost remains until its time limit."""
    return _call("POST", "/sessions", {"model": model, **request}, keyed=False)


def session_state(session_id: str) -> Operation[SessionState]:
    """Get a session's current state."""
    return _call("GET", f"/sessions/{segment(session_id)}")


def end_session(session_id: str, outcome: Outcome) -> Operation[SessionState]:
    """End a session with its outcome."""
    return _call("POST", f"/sessions/{segment(session_id)}/outcome", outcome)


def feedback(type: FeedbackType, event: FeedbackEvent) -> Operation[FeedbackTaken]:
    """Store a feedback event. If it has no id, one is added, so that a repeated request counts once."""
    return _call("POST", "/feedback", {"event_id": str(uuid.uuid4()), "type": type, **event}, keyed=False)


def unfinished(error: BaseException | None) -> Outcome:
    """Return the outcome of a session that was left without one."""
    if error is None:
        return {"reason": "the session was closed without an outcome"}
    return {"reason": f"the agent raised {type(error).__name__}: {error}"[:2_000]}


def wait(run_id: str, timeout_s: float | None) -> Operation[RunState]:
    """Return the run as soon as it has ended or is paused. Raises WaitTimeout."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    pause = _FIRST_POLL_S
    while True:
        state = yield from run_state(run_id)
        if state["status"] in AT_REST:
            return state
        left_s = None if until is None else until - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise WaitTimeout(f"run {run_id} is still {state['status']} after {timeout_s:g} s")
        yield Wait(pause if left_s is None else min(pause, left_s))
        pause = min(2 * pause, _LONGEST_POLL_S)


def events(run_id: str, after: int) -> Feed[Event]:
    """Emit the events of a run after a number, in order, until it has ended. A broken stream is continued."""
    newest, failures = after, 0
    while True:
        had = newest
        failure: LearnloopError | None = None
        try:
            headers = {"accept": "text/event-stream", "last-event-id": str(newest)}
            response = yield Open(f"/runs/{segment(run_id)}/events", headers)
            if response.status_code == httpx.codes.NO_CONTENT:
                return
            failure = None if response.is_success else error_of(response)
            while failure is None and (line := (yield ReadLine())) is not None:
                event = _event(line)
                if event is not None:
                    newest, failures = event["seq"], 0
                    yield Emit(event)
        except httpx.TransportError as error:
            failure = _unreachable(error)
        if failure is not None:
            failures += 1
            # Any failure in or before the service can be retried here, because reading events changes nothing.
            _raise_if_final(failure, failures, retryable=isinstance(failure, ServiceError) or _is_retryable(failure))
            yield Wait(_pause_s(failure, failures))
        elif newest == had:
            yield Wait(_FIRST_PAUSE_S)


def _event(line: str) -> Event | None:
    """Return the event in a line of the stream; None for other lines and for progress, which is not an event."""
    if not line.startswith("data: "):
        return None
    event: Event = json.loads(line.removeprefix("data: "))
    return event if "seq" in event else None


def _call(
    method: str,
    path: str,
    body: Mapping[str, Json] | bytes | None = None,
    key: str | None = None,
    *,
    keyed: bool = True,
) -> Operation[Any]:
    """Return the JSON answer to a request, which is repeated if that can help.

    A POST that is `keyed` is repeated with the same Idempotency-Key, so that it takes effect once.
    """
    if method == "POST" and keyed:
        key = key or str(uuid.uuid4())
    response = yield from request(method, path, body, key)
    return response.json()


def request(
    method: str,
    path: str,
    body: Mapping[str, Json] | bytes | None = None,
    key: str | None = None,
    *,
    accept: Container[int] = (),
    patient: bool = True,
) -> Operation[httpx.Response]:
    """Return the response to a request if it is successful or its status is in `accept`. A body of bytes is sent
    unchanged, and `key` is the Idempotency-Key.

    The request is repeated if that can help. Unless `patient`, it is repeated only if the service answered that it
    comes too early (429, or 409 with Retry-After), and not while the service is away.
    """
    headers = {"accept": "application/json"} | ({} if key is None else {"idempotency-key": key})
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    if content is not None:
        headers["content-type"] = "application/octet-stream" if isinstance(body, bytes) else "application/json"
    failures = 0
    while True:
        try:
            response: httpx.Response = yield Send(method, path, content, headers)
            if response.is_success or response.status_code in accept:
                return response
            failure: LearnloopError = error_of(response)
        except httpx.TransportError as error:
            failure = _unreachable(error)
        failures += 1
        retryable = _is_retryable(failure) and (patient or not isinstance(failure, Unreachable | ServiceError))
        _raise_if_final(failure, failures, retryable=retryable)
        yield Wait(_pause_s(failure, failures))


def _is_retryable(failure: LearnloopError) -> bool:
    """Whether a retry can help: the request could not be sent, or the service asked to try later."""
    if not isinstance(failure, APIError):
        return True
    return failure.status in _RETRIED or (failure.status == 409 and failure.retry_after_s is not None)


def _raise_if_final(failure: LearnloopError, failures: int, *, retryable: bool) -> None:
    if not retryable or failures > RETRIES:
        raise failure


def _pause_s(failure: LearnloopError, failures: int) -> float:
    retry_after_s = failure.retry_after_s if isinstance(failure, APIError) else None
    doubled = min(_FIRST_PAUSE_S * 2 ** (failures - 1), _LONGEST_PAUSE_S)
    return doubled if retry_after_s is None else retry_after_s


def _unreachable(error: httpx.TransportError) -> Unreachable:
    request = error.request
    unreachable = Unreachable(f"{request.method} {request.url} failed: {why_unreachable(error)}")
    unreachable.__cause__ = error
    return unreachable


def segment(id: str) -> str:
    """Escape an id so that it is one segment of a path: `..` would lead to another operation."""
    return quote(id, safe="").replace(".", "%2E")

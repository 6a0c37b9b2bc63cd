"""The events of a run, as pages of JSON or as server-sent events. An interrupted stream can be continued."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from fastapi import Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentFeed, CurrentStore, RunId
from learnloop_service.app.api.pages import ByNumber
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import LOCAL, Caller
from learnloop_service.app.auth.credentials import credential_of
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.run_state import TERMINAL, RunStatus
from learnloop_service.app.errors import DATABASE_DOWN, NotFound, Unauthorized
from learnloop_service.app.events.feed import EventFeed, parsed
from learnloop_service.app.events.progress import Moved
from learnloop_service.app.runs.store import RunStore
from learnloop_service.app.schemas.base import Page, ResponseModel

router = keyed_router("events")
_STREAM = "text/event-stream"


class EventOut(ResponseModel):
    """One event of a run. What `data` contains depends on the type; see docs/events.md."""

    seq: int
    """Sequence number within the run, from 1 without gaps."""
    type: str
    """What happened, such as `iteration.completed`; docs/events.md lists the types."""
    version: int
    """Version of the format of `data` for this type."""
    run_id: str
    """Id of the run."""
    iteration: int | None
    """Iteration that it belongs to; 0 is the baseline. Null if it belongs to none."""
    actor: str
    """Who caused it: an API key, a worker, or the service."""
    occurred_at: datetime
    """When it happened, by the clock of the database."""
    data: dict[str, Any]
    """What happened in detail. Its members depend on the type, and new ones can be added."""


@router.get(
    "/runs/{run_id}/events",
    response_model=Page[EventOut],
    responses={
        200: {"content": {_STREAM: {}}},
        204: {"description": "The run has ended; nothing is left to send"},
    },
)
async def list_events(
    store: CurrentStore,
    feed: CurrentFeed,
    caller: CurrentCaller,
    request: Request,
    run_id: RunId,
    paging: ByNumber,
    last_event_id: Annotated[
        str | None, Header(pattern=r"^\d{1,18}$", description="Stream events after this id, which is their `seq`")
    ] = None,
    after: Annotated[int | None, Query(ge=0, lt=2**63, description="Stream events after this `seq`")] = None,
) -> Any:
    """List the events of a run in order, or stream them.

    With `Accept: text/event-stream` the response is a stream that ends when the run does. To continue a stream that
    broke off, send the last event's id as `Last-Event-ID` or as `after`.
    """
    run = await store.get(run_id)
    if _STREAM not in request.headers.get("accept", ""):
        events = await feed.read(run_id, paging.after(), paging.fetched)
        return paging.page(events, lambda event: EventOut.model_validate(parsed(event)), lambda event: event.seq)
    since = int(last_event_id) if last_event_id is not None else after or 0
    if RunStatus(run.status) in TERMINAL and since >= run.event_seq:
        return Response(status_code=204)  # keeps an EventSource from reconnecting
    if caller is LOCAL:
        return _EventStream(_stream(feed, store, run_id, since), nullcontext())
    parts = _stream(feed, store, run_id, since, partial(request.app.state.callers.caller, credential_of(request.scope)))
    return _EventStream(parts, feed.places.taken(caller.actor))


class _EventStream(StreamingResponse):
    """A response that counts against its caller's limit of streams until it ends for any reason."""

    def __init__(self, parts: AsyncIterator[str], turn: AbstractContextManager[None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(parts, media_type=_STREAM, headers=headers)
        self._turn = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Raises TooManyRequests before anything is sent."""
        with self._turn:
            await super().__call__(scope, receive, send)


async def _stream(
    feed: EventFeed, store: RunStore, run_id: str, after: int, caller: Callable[[], Awaitable[Caller]] | None = None
) -> AsyncIterator[str]:
    """Yield events until all events of an ended run are sent or the caller's key is no longer valid. Occasional
    comments keep the connection open.

    Progress messages have no id, because they are not events: a client that reconnects continues after the last event.
    """
    async for events in feed.watch(run_id, after):
        if caller is not None and not await _is_good(caller):
            return
        if isinstance(events, Moved):
            yield f"event: progress\ndata: {events.document}\n\n"
            continue
        if not events:
            yield ": nothing new\n\n"
            continue
        yield "".join(f"id: {event.seq}\nevent: {event.type}\ndata: {event.document}\n\n" for event in events)
        if not _MAY_BE_LAST.isdisjoint(event.type for event in events) and await _is_over(
            store, run_id, events[-1].seq
        ):
            return


async def _is_good(caller: Callable[[], Awaitable[Caller]]) -> bool:
    try:
        await caller()
    except Unauthorized:
        return False
    except DATABASE_DOWN:  # checked again later
        return True
    return True


async def _is_over(store: RunStore, run_id: str, last_seq: int) -> bool:
    """Return whether the run has ended and all its events were sent. A failed run may have been retried since."""
    try:
        run = await store.get(run_id)
    except NotFound:  # deleted
        return True
    return RunStatus(run.status) in TERMINAL and last_seq >= run.event_seq


_MAY_BE_LAST = {f"run.{status}" for status in TERMINAL} | {EventType.RUN_FORKED, EventType.CHECKPOINT_PUSHED}

"""The table of moves is what the database does: every move, and everything that moves a run, from every state."""

import ast
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from sqlalchemy import delete, func, select
from ulid import ULID

from app.db.migration import migrate
from app.db.session import Sessions, make_engine, make_sessions, parse_url
from app.db.tables import Event, Run
from app.domain.run_state import Move, RunStatus, Verb, allowed
from app.errors import NotAllowed
from app.runs.leases import MAX_CLAIMS, Lease, Leases, Limits
from app.runs.moves import moving
from app.runs.store import RunStore
from tests.fakes.stored_request import stored_request

APP = Path(__file__).parents[3] / "app"
STATES = sorted(RunStatus)
Async = ast.AsyncFunctionDef
Act = Callable[[Sessions, str], Awaitable[object]]


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[Sessions]:
    engine = make_engine(parse_url(database_url))
    await migrate(engine)
    yield make_sessions(engine)
    await engine.dispose()


async def run_that_is(sessions: Sessions, status: RunStatus, claims: int = 0) -> str:
    """The only run, in that state. The lease on a running one was given with epoch 1, and has lapsed."""
    run = Run(
        id=str(ULID()),
        status=status,
        request=stored_request(),
        environment="email_search",
        judge="reference",
        backend="embedded",
        model_project="p",
        model_name=str(ULID()),
        base_model="tiny",
        iterations_total=1,
        epoch=1,
        claims=claims,
    )
    async with sessions.begin() as session:
        await session.execute(delete(Run))
        session.add(run)
    return run.id


async def status_and_events(sessions: Sessions, run_id: str) -> tuple[RunStatus, int]:
    async with sessions() as session:
        run = await session.get_one(Run, run_id)
        events = select(func.count()).select_from(Event).where(Event.run_id == run_id)
        return RunStatus(run.status), (await session.execute(events)).scalar_one()


def workers(sessions: Sessions) -> Leases:
    return Leases(sessions, "w", ttl_s=60, limits=Limits(), backends=["embedded"], engine="here")


def finish(status: RunStatus) -> Act:
    return lambda sessions, run_id: RunStore(sessions).finish(Lease(run_id, 1, "w"), status)


ACTS: dict[Move, Act] = {
    Move.CLAIM: lambda sessions, _: workers(sessions).claim(),
    Move.GIVE_UP: lambda sessions, _: workers(sessions).claim(),
    Move.RELEASE: lambda sessions, run_id: workers(sessions).release(Lease(run_id, 1, "w")),
    Move.SUSPEND: lambda sessions, run_id: RunStore(sessions).suspend(Lease(run_id, 1, "w"), "so"),
    Move.COMPLETE: finish(RunStatus.COMPLETED),
    Move.FAIL: finish(RunStatus.FAILED),
    Move.STOP: finish(RunStatus.CANCELLED),
    Move.CANCEL: lambda sessions, run_id: RunStore(sessions).cancel(run_id, "owner"),
    Move.PAUSE: lambda sessions, run_id: RunStore(sessions).pause(run_id, "owner"),
    Move.RESUME: lambda sessions, run_id: RunStore(sessions).resume(run_id, "owner"),
    Move.RETRY: lambda sessions, run_id: RunStore(sessions).retry(run_id, "owner"),
}
REQUESTS = {(Move.CANCEL, RunStatus.RUNNING), (Move.PAUSE, RunStatus.RUNNING)}
"""The worker is asked for it: an event, and no move yet."""


def test_every_move_is_tried() -> None:
    assert set(ACTS) == set(Move)


async def test_a_move_is_made_from_its_sources_only(sessions: Sessions) -> None:
    for move, status in product(Move, STATES):
        run_id = await run_that_is(sessions, status)
        async with sessions.begin() as session:
            made = (await session.execute(moving(move, Run.id == run_id).returning(Run.id))).scalar_one_or_none()
        assert (made is not None) == (status in move.sources), (move, status)
        assert await status_and_events(sessions, run_id) == (move.target if made else status, 0), (move, status)


async def test_what_moves_a_run_makes_the_drawn_moves_only(sessions: Sessions) -> None:
    for move, status in product(Move, STATES):
        run_id = await run_that_is(sessions, status, claims=MAX_CLAIMS if move is Move.GIVE_UP else 0)
        with suppress(NotAllowed):
            await ACTS[move](sessions, run_id)
        drawn = status in move.sources
        said = drawn or (move, status) in REQUESTS
        found = await status_and_events(sessions, run_id)
        assert found == (move.target if drawn else status, int(said)), (move, status)


async def test_a_verb_is_refused_where_it_is_not_offered(sessions: Sessions) -> None:
    for verb, status in product((Verb.CANCEL, Verb.PAUSE, Verb.RESUME, Verb.RETRY, Verb.DELETE), STATES):
        run_id = await run_that_is(sessions, status)
        offered = allowed(status)
        if verb in offered:
            await ask(sessions, run_id, verb)
            continue
        with pytest.raises(NotAllowed) as refused:
            await ask(sessions, run_id, verb)
        assert refused.value.allowed == offered


async def ask(sessions: Sessions, run_id: str, verb: Verb) -> None:
    async def forget_model() -> None: ...

    store = RunStore(sessions)
    await (store.delete(run_id, forget_model) if verb is Verb.DELETE else getattr(store, verb)(run_id, "owner"))


def test_nothing_else_changes_a_status() -> None:
    """Neither an UPDATE of runs that names it, nor an assignment."""
    assert [place for file in sorted(APP.rglob("*.py")) for place in status_changes(file)] == ["runs/moves.py: moving"]


def status_changes(file: Path) -> list[str]:
    functions = (each for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.FunctionDef | Async))
    return [f"{file.relative_to(APP)}: {each.name}" for each in functions if any(map(changes_status, ast.walk(each)))]


def changes_status(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return any(ast.unparse(target).endswith("run.status") for target in node.targets)
    if not isinstance(node, ast.Call) or "update(Run)" not in ast.unparse(node.func):
        return False
    given = [each.arg for each in node.keywords] + [
        each.value for argument in node.args for each in ast.walk(argument) if isinstance(each, ast.Constant)
    ]
    return "status" in given

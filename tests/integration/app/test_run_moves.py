"""The table of moves is what the database does: every move, and everything that moves a run or an evaluation, from
every state."""

import ast
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from learnloop_service.app.claims.claims import MAX_CLAIMS
from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.claims.moves import moving
from learnloop_service.app.db.database import Database
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.run_state import Move, RunStatus, Verb, allowed
from learnloop_service.app.errors import NotAllowed
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.runs.store import RunStore
from tests.integration.app.leased_work import Evaluations, Kind, Runs, kind

__all__ = ["kind"]

APP = Path(__file__).parents[3] / "app"
STATES = sorted(RunStatus)
UPDATES = ("update(Run)", "update(EvaluationJob)", "update(table)", "update(self.table)")
Async = ast.AsyncFunctionDef
Act = Callable[[Any, str], Awaitable[object]]


async def row_that_is(kind: Kind, status: RunStatus, claims: int = 0) -> str:
    """The only row, in that state. The lease on a running one was given with epoch 1, and has lapsed."""
    async with kind.database.begin() as tx:
        await tx.execute(delete(kind.table))
    return await kind.queue(status=status, epoch=1, claims=claims)


async def status_and_events(kind: Kind, id: str) -> tuple[str, int]:
    return (await kind.get(id)).status, len(await kind.log(id))


def lease(kind: Kind, id: str) -> Lease[Any]:
    return Lease(kind.table, id, 1, "w")


def store(kind: Kind) -> Any:
    return RunStore(kind.database) if isinstance(kind, Runs) else EvaluationStore(kind.database)


def finish(status: RunStatus) -> Act:
    return lambda kind, id: store(kind).finish(lease(kind, id), status)


_BY_WORKERS: Mapping[tuple[Move, ...], Act] = {
    (Move.CLAIM,): lambda kind, _: kind.worker("w").claim(),
    (Move.GIVE_UP,): lambda kind, _: kind.worker("w").claim(),
    (Move.RELEASE,): lambda kind, id: kind.worker("w").release(lease(kind, id)),
    (Move.SUSPEND,): lambda kind, id: store(kind).suspend(lease(kind, id), "so"),
    (Move.COMPLETE,): finish(RunStatus.COMPLETED),
    (Move.FAIL,): finish(RunStatus.FAILED),
    (Move.STOP,): finish(RunStatus.CANCELLED),
    (Move.CANCEL,): lambda kind, id: store(kind).cancel(id, "owner"),
}
ACTS: Mapping[type[Kind], Mapping[tuple[Move, ...], Act]] = {
    Runs: {
        **_BY_WORKERS,
        (Move.PAUSE,): lambda kind, id: store(kind).pause(id, "owner"),
        (Move.RESUME,): lambda kind, id: store(kind).resume(id, "owner"),
        (Move.RETRY,): lambda kind, id: store(kind).retry(id, "owner"),
    },
    Evaluations: {
        **_BY_WORKERS,
        (Move.RESUME, Move.RETRY, Move.REOPEN): lambda kind, id: store(kind).resume(id, "owner"),
    },
}
REQUESTS = {(Move.CANCEL, RunStatus.RUNNING), (Move.PAUSE, RunStatus.RUNNING)}
"""The worker is asked for it: an event, and no move yet."""


def test_every_move_is_tried() -> None:
    assert {move for acts in ACTS.values() for moves in acts for move in moves} == set(Move)


def test_evaluations_have_the_states_of_runs() -> None:
    assert {str(status) for status in EvaluationStatus} == {str(status) for status in RunStatus}


async def test_a_move_is_made_from_its_sources_only(kind: Kind) -> None:
    for move, status in product(Move, STATES):
        id = await row_that_is(kind, status)
        events = len(await kind.log(id))
        async with kind.database.begin() as tx:
            moved = moving(kind.table, move, kind.table.id == id).returning(kind.table.id)
            moved_id = (await tx.execute(moved)).scalar_one_or_none()
        assert (moved_id is not None) == (status in move.sources), (move, status)
        assert await status_and_events(kind, id) == (move.target if moved_id else status, events), (move, status)


async def test_what_moves_a_row_makes_the_drawn_moves_only(kind: Kind) -> None:
    for (moves, act), status in product(ACTS[type(kind)].items(), STATES):
        id = await row_that_is(kind, status, claims=MAX_CLAIMS if Move.GIVE_UP in moves else 0)
        events = len(await kind.log(id))
        with suppress(NotAllowed):
            await act(kind, id)
        drawn = next((move.target for move in moves if status in move.sources), None)
        adds_event = drawn is not None or (moves[0], status) in REQUESTS
        assert await status_and_events(kind, id) == (drawn or status, events + adds_event), (moves, status)


async def test_a_verb_is_refused_where_it_is_not_offered(database: Database) -> None:
    runs = Runs(database)
    for verb, status in product((Verb.CANCEL, Verb.PAUSE, Verb.RESUME, Verb.RETRY, Verb.DELETE), STATES):
        run_id = await row_that_is(runs, status)
        offered = allowed(status)
        if verb in offered:
            await ask(database, run_id, verb)
            continue
        with pytest.raises(NotAllowed) as refused:
            await ask(database, run_id, verb)
        assert refused.value.allowed == offered


async def ask(database: Database, run_id: str, verb: Verb) -> None:
    async def forget_model() -> None: ...

    store = RunStore(database)
    await (store.delete(run_id, forget_model) if verb is Verb.DELETE else getattr(store, verb)(run_id, "owner"))


def test_nothing_else_changes_a_status() -> None:
    """Neither an UPDATE of runs or evaluations that names it, nor an assignment."""
    assert [change for file in sorted(APP.rglob("*.py")) for change in status_changes(file)] == [
        "claims/moves.py: moving"
    ]


def status_changes(file: Path) -> list[str]:
    functions = (
        function for function in ast.walk(ast.parse(file.read_text())) if isinstance(function, ast.FunctionDef | Async)
    )
    return [
        f"{file.relative_to(APP)}: {function.name}"
        for function in functions
        if any(map(changes_status, ast.walk(function)))
    ]


def changes_status(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        targets = (ast.unparse(part) for target in node.targets for part in ast.walk(target))
        return any(text.endswith(".status") and text != "self.status" for text in targets)
    if not isinstance(node, ast.Call) or not any(name in ast.unparse(node.func) for name in UPDATES):
        return False
    arguments = [keyword.arg for keyword in node.keywords] + [
        constant.value
        for argument in node.args
        for constant in ast.walk(argument)
        if isinstance(constant, ast.Constant)
    ]
    return "status" in arguments

"""Every figure that a run stores is a metric of it, and its log says what went wrong in it, and when."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import URL, insert, update
from ulid import ULID

from benchmarks.service.dashboard import rows
from learnloop_service.app.db.tables import Event, Iteration, JudgeCall, LedgerEntry, Trajectory
from learnloop_service.app.runs.metrics import MAX_NAMES, MAX_POINTS
from tests.fakes.scripted_learning import ScriptedLoop
from tests.fixtures import MIGRATED, database
from tests.integration.app.served import served, settings_for
from tests.opened_database import opened_database

pytestmark = pytest.mark.asyncio(loop_scope="module")
_SHORT, _LONG = str(ULID()), str(ULID())
_SHORT_ITERATIONS, _LONG_ITERATIONS, _ROLLOUTS = 4, 2 * MAX_POINTS + 100, 8
_USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "seconds": 3.0}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(postgres: URL, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        database(postgres, MIGRATED) as url,
        served(settings_for(tmp_path_factory.mktemp("metrics"), url), ScriptedLoop()) as client,
    ):
        await _write(url)
        yield client


async def _write(database_url: str) -> None:
    async with opened_database(database_url) as database, database.begin() as tx:
        for table, table_rows in (*rows(_SHORT, _SHORT_ITERATIONS, _ROLLOUTS), *rows(_LONG, _LONG_ITERATIONS, 0)):
            if table_rows:
                await tx.execute(insert(table), table_rows)
        parts: dict[str, Any] = {"outcome": {"finish": "answered", "tool_errors": 2, "is_polite": True}}
        parts |= {"score_parts": {"facts": 0.25}, "reward_parts": {"answer": 0.5}}
        await tx.execute(update(Trajectory).where(Trajectory.run_id == _SHORT).values(**parts))
        failed = update(Trajectory).where(Trajectory.id == f"{_SHORT}-0")
        await tx.execute(failed.values(error="the server went away", turns=99, outcome={}))
        more = [
            row | {"id": f"failed-{number}", "error": "the server went away"} for number, row in enumerate(_failing())
        ]
        await tx.execute(insert(Trajectory), more)
        facts = {"groups": {"truncated": [1, 2], "variance": [0.5, 0.1]}}
        await tx.execute(update(Iteration).where(Iteration.run_id == _SHORT).values(facts=facts))
        call = {"run_id": _SHORT, "iteration": 1, "judge": "ruler", "model": "m/m", "requests": 1, "cached": False}
        calls = [call | _USAGE | {"cost_usd": 0.5, "error": error} for error in (None, "no verdict")]
        await tx.execute(insert(JudgeCall), calls)
        entry = {"run_id": _SHORT, "iteration": 1, "phase": "rollout", "usd": 0.5} | _USAGE
        await tx.execute(insert(LedgerEntry), [entry | {"wasted": wasted} for wasted in (False, True)])
        event = {"run_id": _SHORT, "iteration": 3, "actor": "worker", "version": 1}
        events = [
            {"seq": 101, "type": "iteration.completed", "data": {"rewards": {"mean": -0.25}}},
            {"seq": 102, "type": "iteration.no_signal", "data": {"message": "equal rewards"}},
            {"seq": 103, "type": "run.failed", "data": {"error": "out of memory"}},
        ]
        await tx.execute(insert(Event), [event | details for details in events])
        await tx.execute(
            update(Iteration).where(Iteration.run_id == _SHORT, Iteration.iteration == 4).values(failed_rollouts=3)
        )


def _failing() -> list[dict[str, Any]]:
    """Two more rollouts of the first iteration."""
    [(_, rollouts)] = [table_rows for table_rows in rows(_SHORT, 1, 2) if table_rows[0] is Trajectory]
    return rollouts


async def _metrics(client: httpx.AsyncClient, run_id: str, *names: str) -> Any:
    return (await client.get(f"/runs/{run_id}/metrics", params={"name": names})).raise_for_status().json()


async def test_every_stored_figure_is_a_metric(client: httpx.AsyncClient) -> None:
    expected = {
        "rewards.mean": [0.0, 0.001, 0.002, 0.003, 0.004],
        "success": [0.5] * 5,
        "train_metrics.loss": pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5]),
        "timing.rollout_s": [1.0, 2.0, 3.0, 4.0, 5.0],
        "skipped_groups.no_signal": [0.0, 1.0, 2.0, 0.0, 1.0],
        "rollouts.turns": [None, 3.0, 3.0, 3.0, 3.0],  # without the one that failed
        "score_parts.facts": [None, 0.25, 0.25, 0.25, 0.25],
        "reward_parts.answer": [None, 0.5, 0.5, 0.5, 0.5],
        "outcome.tool_errors": [None, 2.0, 2.0, 2.0, 2.0],
        "outcome.is_polite": [None, 1.0, 1.0, 1.0, 1.0],
        "groups.truncated": [3.0] * 5,
        "held_out.validation.sampled.success": pytest.approx([0.2, None, None, None, 0.24]),
        "judge.failures": [None, 1.0, None, None, None],
        "cost.usd": [None, 1.0, None, None, None],
        "cost.wasted_tokens": [None, 120.0, None, None, None],
        "no.such": [None] * 5,
    }
    document = await _metrics(client, _SHORT, *expected)
    assert document["iterations"] == [0, 1, 2, 3, 4]
    assert {metric["name"]: metric["values"] for metric in document["metrics"]} == expected
    assert set(document["names"]) > expected.keys() - {"no.such"}
    assert document["names"] == sorted(document["names"])
    assert "groups.variance" not in document["names"]
    assert (await _metrics(client, _SHORT))["metrics"] == []


async def test_a_long_run_shares_its_points(client: httpx.AsyncClient) -> None:
    document = await _metrics(client, _LONG, "rewards.mean")
    assert document["every"] == 3
    assert document["iterations"][:2] == [2, 5]
    assert document["iterations"][-1] == _LONG_ITERATIONS
    assert document["metrics"][0]["values"][:2] == pytest.approx([0.001, 0.004])
    assert len(document["iterations"]) <= MAX_POINTS


async def test_too_many_or_too_long_names_are_refused(client: httpx.AsyncClient) -> None:
    for names in (["success"] * (MAX_NAMES + 1), ["a" * 201]):
        assert (await client.get(f"/runs/{_SHORT}/metrics", params={"name": names})).status_code == 422
    assert (await client.get(f"/runs/{ULID()}/metrics")).status_code == 404


async def _log(client: httpx.AsyncClient, **query: Any) -> Any:
    return (await client.get(f"/runs/{_SHORT}/log", params=query)).raise_for_status().json()


def _texts(page: Any) -> list[tuple[str, str, str]]:
    return [(line["level"], line["type"], line["text"]) for line in page["items"]]


_ERRORS = [
    ("error", "rollout.failed", "The records were deleted."),
    ("error", "run.failed", "out of memory"),
    ("error", "judge.failed", "ruler: no verdict"),
    ("error", "rollout.failed", "the server went away"),
]


async def test_errors_come_first_and_can_be_shown_alone(client: httpx.AsyncClient) -> None:
    page = await _log(client, limit=6)
    assert sorted(_texts(page)[:4]) == sorted(_ERRORS)
    assert _texts(page)[3] == _ERRORS[3]  # the oldest
    assert _texts(page)[4:] == [
        ("warning", "iteration.no_signal", "equal rewards"),
        ("info", "iteration.completed", "mean reward \u22120.25"),
    ]
    assert page["counts"] == {"error": 4, "warning": 1, "info": 1 + 4 * _SHORT_ITERATIONS - 1}
    assert page["items"][3]["trajectory_id"] == f"{_SHORT}-0"
    assert [line["count"] for line in page["items"][3:5]] == [3, 1]
    errors = await _log(client, level="error")
    assert sorted(_texts(errors)) == sorted(_ERRORS)
    assert errors["next_cursor"] is None


async def test_a_log_is_read_page_by_page_and_by_its_time(client: httpx.AsyncClient) -> None:
    pages: list[Any] = []
    cursor = None
    while len(pages) == 0 or cursor:
        page = await _log(client, limit=7, order="time", **({"cursor": cursor} if cursor else {}))
        pages += page["items"]
        cursor = page["next_cursor"]
    assert len(pages) == sum(page["counts"].values())
    assert [line["at"] for line in pages] == sorted((line["at"] for line in pages), reverse=True)
    assert len({(line["seq"], line["trajectory_id"], line["type"]) for line in pages}) == len(pages)

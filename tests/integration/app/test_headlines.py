"""The headline figures in SQL are those of the verdict, whatever was evaluated."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, select

from learnloop_service.app.db.database import make_database, make_engine, parse_url
from learnloop_service.app.db.tables import Evaluation, Run
from learnloop_service.app.runs import headlines
from learnloop_service.app.statistics.verdict import headline, on_same_scenarios, verdict
from learnloop_service.training.statistics.difference import MIN_CHANGED
from tests.integration.app.emails import make_run

_SHARES = st.sampled_from((0.0, 0.125, 0.25, 0.5, 0.75, 1.0))
_ENDS = st.tuples(*[st.sampled_from((-0.5, -0.125, 0.0, 0.125, 0.5))] * 3).map(sorted)


@st.composite
def _differences(draw: st.DrawFn) -> dict[str, Any]:
    low, mean, high = draw(_ENDS)
    changed = draw(st.sampled_from((0, MIN_CHANGED - 1, MIN_CHANGED, 20)))
    return {"scenarios": 24, "changed": changed, "mean": mean, "low": low, "high": high, "smallest": 0.25}


_EVALUATIONS = st.lists(
    st.fixed_dictionaries(
        {
            "iteration": st.integers(0, 3),
            "step": st.integers(0, 2),
            "split": st.sampled_from(("validation", "test")),
            "mode": st.sampled_from(("sampled", "greedy")),
            "scenarios": st.sampled_from((8, 24)),
            "success": _SHARES,
            "difference": st.none() | _differences(),
        }
    ),
    max_size=6,
    unique_by=lambda row: tuple(row[name] for name in ("iteration", "step", "split", "mode")),
)


async def test_the_figures_in_sql_are_those_of_the_verdict(database_url: str) -> None:
    drawn: list[list[dict[str, Any]]] = []

    @given(_EVALUATIONS)
    def draw(rows: list[dict[str, Any]]) -> None:
        drawn.append(rows)

    draw()
    engine = make_engine(parse_url(database_url))
    database = make_database(engine)
    runs = {await make_run(database): rows for rows in drawn}
    others = {"mean_reward": 0.0, "malformed": 0.0, "turns": 2.0}
    columns = (headlines.FIRST, headlines.LATEST, headlines.GAIN, headlines.STATE)
    async with database.begin() as tx:
        await tx.execute(insert(Evaluation), [{"run_id": id, **row, **others} for id in runs for row in runs[id]])
        figures = (await tx.execute(headlines.with_headlines(select(Run.id, *columns)))).all()
    await engine.dispose()
    assert len(figures) == len(runs) >= 20
    for id, first, latest, gain, state in figures:
        expected, heads = verdict(runs[id]), headline(runs[id])
        assert state == expected.state, runs[id]
        assert gain == (expected.points if expected.points is None else pytest.approx(expected.points, abs=0.051))
        assert first == (heads[0]["success"] if heads else None)
        assert latest == (pytest.approx(on_same_scenarios(heads[0], heads[-1])["success"]) if heads else None)

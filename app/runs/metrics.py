"""A run's metrics over its iterations: everything that is stored as a number, under one name each.

Most names are paths in `GET /runs/RUN_ID/iterations`, such as `rewards.mean` and `train_metrics.loss`. The others are
`rollouts.`, `score_parts.`, `reward_parts.` and `outcome.` (weighted means over the training rollouts that did not
fail, without replacements, as far as their records are kept), `groups.` (sums over the groups, for diagnoses),
`held_out.SPLIT.MODE.` (evaluations), `judge.` (calls of judge models) and `cost.` (the ledger).
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Iteration
from learnloop_service.app.runs.cost import cost_of
from learnloop_service.app.schemas.metrics import MetricSeries, RunMetrics

MAX_POINTS = 1_000
MAX_NAMES = 24
"""Maximum number of metrics in one request."""
LONGEST_NAME = 200
"""Maximum number of characters of a name. What a plug-in calls its figures has no limit; longer ones are left out."""
_REWARDS = ("mean", "median", "min", "max", "count")
_PLAIN = ("success", "malformed", "failed_rollouts", "staleness")
_NESTED = ("train_metrics", "timing", "skipped_groups", "lost_rollouts")
_EVALUATION = ("success", "mean_reward", "malformed", "turns")

_ITERATIONS = select(
    Iteration.iteration,
    *(getattr(Iteration, name) for name in (*_PLAIN, *_NESTED)),
    *(getattr(Iteration, f"reward_{name}").label(name) for name in _REWARDS),
    Iteration.facts["groups"].label("groups"),
).where(Iteration.run_id == bindparam("run_id"))
_ROLLOUTS = text(
    """
    SELECT iteration, sum(turns * weight) / sum(weight) AS turns,
        sum(prompt_tokens * weight) / sum(weight) AS prompt_tokens,
        sum(completion_tokens * weight) / sum(weight) AS completion_tokens,
        sum(seconds * weight) / sum(weight) AS seconds,
        sum(score * weight) / sum(weight) FILTER (WHERE score IS NOT NULL) AS score
    FROM trajectory, LATERAL (SELECT 1 / coalesce(inclusion, 1) AS weight) AS counts
    WHERE run_id = :run_id AND kind = 'train' AND replaces IS NULL AND error IS NULL AND iteration IS NOT NULL
    GROUP BY iteration
    """
)
_PARTS = text(
    """
    SELECT iteration, of AS kind, key AS name,
        sum(CASE jsonb_typeof(value) WHEN 'number' THEN value::float ELSE value::boolean::integer END
            / coalesce(inclusion, 1)) / sum(1 / coalesce(inclusion, 1)) AS mean
    FROM trajectory, (VALUES ('score_parts'), ('reward_parts'), ('outcome')) AS kinds(of),
        jsonb_each(CASE of WHEN 'score_parts' THEN score_parts WHEN 'reward_parts' THEN reward_parts ELSE outcome END)
    WHERE run_id = :run_id AND kind = 'train' AND replaces IS NULL AND error IS NULL AND iteration IS NOT NULL
        AND jsonb_typeof(value) IN ('number', 'boolean') AND length(value::text) < 300  -- larger ones are no floats
    GROUP BY 1, 2, 3
    """
)
_EVALUATIONS = text(
    """
    SELECT iteration, split, mode, success, mean_reward, malformed, turns FROM evaluation
    WHERE run_id = :run_id ORDER BY step
    """
)
_JUDGE_CALLS = text(
    """
    SELECT iteration, count(*) AS calls, count(error) AS failures, count(*) FILTER (WHERE cached) AS cached,
        sum(seconds) AS seconds, sum(prompt_tokens)::float AS prompt_tokens,
        sum(completion_tokens)::float AS completion_tokens, sum(cost_usd) AS usd
    FROM judge_call WHERE run_id = :run_id GROUP BY iteration
    """
)
_LEDGER = text(
    """
    SELECT iteration, sum(seconds) AS seconds, sum(prompt_tokens)::float AS prompt_tokens,
        sum(completion_tokens)::float AS completion_tokens, sum(usd) AS usd,
        coalesce(sum(prompt_tokens + completion_tokens) FILTER (WHERE wasted), 0)::float AS wasted_tokens
    FROM ledger_entry WHERE run_id = :run_id GROUP BY iteration
    """
)


async def run_metrics(database: Database, run_id: str, names: Sequence[str]) -> RunMetrics:
    """Return the names of all metrics of a run, and the values of these."""
    series = _Series()
    async with database() as tx:
        price = await tx.scalar(text("SELECT machine_price_per_hour FROM run WHERE id = :run_id"), {"run_id": run_id})
        await _read_iterations(tx, run_id, series)
        await _read_rollouts(tx, run_id, series)
        for row in await _rows(tx, _EVALUATIONS, run_id):
            series.add(row["iteration"], f"held_out.{row['split']}.{row['mode']}", _named(row, _EVALUATION))
        for row in await _rows(tx, _JUDGE_CALLS, run_id):
            series.add(row.pop("iteration"), "judge", row)
        for row in await _rows(tx, _LEDGER, run_id):
            series.add(
                row.pop("iteration"), "cost", row | {"machine_usd": cost_of((), row["seconds"], price).machine_usd}
            )
    return series.response(run_id, names)


async def _rows(tx: AsyncSession, query: Any, run_id: str) -> list[dict[str, Any]]:
    return [dict(row) for row in (await tx.execute(query, {"run_id": run_id})).mappings()]


def _named(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def _is_count(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) for value in values)


async def _read_iterations(tx: AsyncSession, run_id: str, series: "_Series") -> None:
    counts: dict[int, dict[str, int]] = {}
    for row in await _rows(tx, _ITERATIONS, run_id):
        iteration = row["iteration"]
        series.iterations.append(iteration)
        series.add(iteration, "rewards", _named(row, _REWARDS))
        series.add(iteration, "", _named(row, _PLAIN))
        for prefix in _NESTED:
            series.add(iteration, prefix, row[prefix])
        if isinstance(row["groups"], Mapping):  # earlier versions stored a list
            counts[iteration] = {name: sum(of) for name, of in row["groups"].items() if _is_count(of)}
    names = {name for groups in counts.values() for name in groups}
    for iteration, groups in counts.items():  # a count that is 0 in all groups of an iteration is not stored
        series.add(iteration, "groups", dict.fromkeys(names, 0) | groups)


async def _read_rollouts(tx: AsyncSession, run_id: str, series: "_Series") -> None:
    for row in await _rows(tx, _ROLLOUTS, run_id):
        series.add(row.pop("iteration"), "rollouts", row)
    for row in await _rows(tx, _PARTS, run_id):
        series.add(row["iteration"], row["kind"], {row["name"]: row["mean"]})


class _Series:
    """Figures by name and iteration."""

    def __init__(self) -> None:
        self.iterations: list[int] = []
        self._values: defaultdict[str, dict[int, float]] = defaultdict(dict)

    def add(self, iteration: int, prefix: str, figures: Mapping[str, Any]) -> None:
        """Add figures of an iteration. What is not a finite number is left out."""
        for name, value in figures.items():
            whole = f"{prefix}.{name}" if prefix else name
            if isinstance(value, int | float) and math.isfinite(value) and len(whole) <= LONGEST_NAME:
                self._values[whole][iteration] = float(value)

    def response(self, run_id: str, names: Sequence[str]) -> RunMetrics:
        """Return the series of these names. Long ones get a point for every few iterations."""
        ordered = sorted({*self.iterations, *(iteration for values in self._values.values() for iteration in values)})
        every = -(-len(ordered) // MAX_POINTS) or 1
        bins = [ordered[start : start + every] for start in range(0, len(ordered), every)]
        return RunMetrics(
            run_id=run_id,
            every=every,
            iterations=[part[-1] for part in bins],
            names=sorted(self._values),
            metrics=[
                MetricSeries(name=name, values=[_mean(self._values.get(name, {}), part) for part in bins])
                for name in names
            ],
        )


def _mean(values: Mapping[int, float], iterations: Sequence[int]) -> float | None:
    stored = [values[iteration] for iteration in iterations if iteration in values]
    return sum(stored) / len(stored) if stored else None

"""Counts the rewards of a run's training rollouts: one histogram per iteration, all with the same bins.

Replacements are left out and the others weighted, as in other figures (training/inclusion.py): a count is the share of
the weight times the number of rollouts.
"""

from sqlalchemy import text

from learnloop_service.app.db.database import Database
from learnloop_service.app.schemas.runs import IterationRewards, RewardHistograms
from learnloop_service.training.inclusion import whole

BINS = 24
"""Number of equally wide bins between a run's lowest and highest reward."""

COUNTS = text(
    """
    WITH rewards AS (
        SELECT iteration, reward, 1 / coalesce(inclusion, 1) AS weight FROM trajectory
        WHERE run_id = :run_id AND kind = 'train' AND replaces IS NULL AND iteration IS NOT NULL AND reward IS NOT NULL
    ), bounds AS MATERIALIZED (SELECT min(reward) AS low, max(reward) AS high FROM rewards)
    SELECT low, high, iteration,
        CASE WHEN high > low THEN least(floor((reward - low) / (high - low) * :bins), :bins - 1)::integer ELSE 0 END,
        sum(weight) / sum(sum(weight)) OVER of_iteration * sum(count(*)) OVER of_iteration
    FROM rewards, bounds GROUP BY 1, 2, 3, 4 WINDOW of_iteration AS (PARTITION BY iteration) ORDER BY 3, 4
    """
)
"""The bounds are computed once. Without statistics Postgres expects a single row, and would compute them again for each
row."""


async def reward_histogram(database: Database, run_id: str) -> RewardHistograms:
    """Return the histograms. Iterations without a kept training rollout that has a reward are left out."""
    async with database() as tx:
        rows = (await tx.execute(COUNTS, {"run_id": run_id, "bins": BINS})).all()
    low, high = rows[0][:2] if rows else (None, None)
    counts: dict[int, list[float]] = {}
    for _, _, iteration, index, count in rows:
        counts.setdefault(iteration, [0.0] * BINS)[index] = float(count)
    iterations = [IterationRewards(iteration=number, counts=whole(of)) for number, of in counts.items()]
    return RewardHistograms(low=low, high=high, iterations=iterations)

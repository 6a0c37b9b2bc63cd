"""Compares stored figures with recomputed ones."""

import math
from collections.abc import Sequence
from typing import Any

from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.runs.stored_rollouts import scenario_of, stored_rollout
from learnloop_service.app.schemas.results import Difference
from learnloop_service.environment.base import Environment
from learnloop_service.judges.base import Judgement, Score
from learnloop_service.training.scoring import assign_rewards
from learnloop_service.training.types import Group

MOST_SHOWN = 100
ROUNDING = 1e-9
"""Largest difference between sums that were added in different orders."""


class VerifiedFigures:
    """Counts the figures that were compared, and keeps the first differences."""

    def __init__(self) -> None:
        self.count = self.difference_count = 0
        self.differences: list[Difference] = []

    def compare(
        self, iteration: int | None, what: str, stored: Any, recomputed: Any, trajectory_id: str | None = None
    ) -> None:
        """Compare one figure."""
        self.count += 1
        if stored == recomputed:
            return
        self.difference_count += 1
        if len(self.differences) < MOST_SHOWN:
            self.differences.append(
                Difference(
                    iteration=iteration or 0,
                    what=what,
                    trajectory_id=trajectory_id,
                    stored=stored,
                    recomputed=recomputed,
                )
            )

    def compare_group(
        self, environment: Environment, rows: Sequence[Trajectory], verdicts: Sequence[Any], where: str = ""
    ) -> Group:
        """Reward the rows of a group again, by the scores of `verdicts`, and compare the rewards with theirs.

        The verdicts are the rows themselves, or those of a rejudging, which `where` names.
        """
        rollouts = [stored_rollout(scenario_of(row), row) for row in rows]
        pairs = list(zip(rows, verdicts, strict=True))
        scores = [Score(verdict.score, verdict.score_explanation or "") for row, verdict in pairs if row.error is None]
        group = assign_rewards(environment, rollouts[0].scenario, rollouts, Judgement(scores))
        for (row, verdict), scored in zip(pairs, group.rollouts, strict=True):
            recomputed = {
                "reward": scored.reward,
                "success": scored.success,
                "advantage": unless_rounded(verdict.advantage, scored.advantage),
                "reward_parts": dict(scored.reward_parts),
            }
            for name, value in recomputed.items():
                self.compare(row.iteration, f"{name}{where}", getattr(verdict, name), value, row.id)
        return group


def unless_rounded(stored: float | None, recomputed: float | None) -> float | None:
    """Return the recomputed figure, or the stored one if they differ by rounding only: by the order of a sum."""
    if stored is None or recomputed is None:
        return recomputed
    return stored if math.isclose(stored, recomputed, rel_tol=ROUNDING, abs_tol=ROUNDING) else recomputed

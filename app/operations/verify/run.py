"""Verifies that a run's stored figures follow from its stored trajectories.

The figures are recomputed and compared exactly, except for rounding in advantages. The judge's scores and the
environment's observations (`score`, `outcome`) are taken as stored. Rewards and their parts, advantages, successes, the
figures of iterations and evaluations, and what a reflective environment learned are recomputed from them with the learn
loop's own code. So are the cost of the run (cost.py), its completed rejudgings (rejudging.py) and the answers that it
learned from (served.py).
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import defer

from learnloop_service.app.db import json_text
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Evaluation, Iteration, Reflection, Run, Trajectory
from learnloop_service.app.errors import Conflict
from learnloop_service.app.operations.named import built_environment, rebuilding
from learnloop_service.app.operations.verify.cost import verify_cost
from learnloop_service.app.operations.verify.figures import MOST_SHOWN, VerifiedFigures
from learnloop_service.app.operations.verify.rejudging import verify_rejudgings
from learnloop_service.app.operations.verify.served import verify_answers
from learnloop_service.app.runs.resume_point import begin_with, inherited_state
from learnloop_service.app.runs.stored_rollouts import scenario_of, stored_rollout
from learnloop_service.app.schemas.results import LostRollout, Verification
from learnloop_service.environment.base import Environment, Reflective
from learnloop_service.training.inclusion import included, taught_nothing
from learnloop_service.training.loop.rollout_schedule import sampled_after
from learnloop_service.training.rollout.rollout import failed, lost, total
from learnloop_service.training.scoring import (
    held_out_figures,
    malformed_share,
    rewarded,
    success_rate,
    successes,
    summarise,
)
from learnloop_service.training.statistics.difference import difference
from learnloop_service.training.types import FailureKind, Group


class _Stored(NamedTuple):
    """An iteration's rows, with the trajectories in the order in which they were saved."""

    iteration: Iteration
    evaluations: Sequence[Evaluation]
    trajectories: Sequence[Trajectory]
    reflection: Reflection | None


async def verify(database: Database, data_dir: Path, run: Run) -> Verification:
    """Verify the iterations saved so far.

    Raises Conflict if the run's environment cannot be rebuilt, or if its trajectories were deleted.
    """
    if (deleted_at := run.pruned.get("trajectories")) is not None:
        raise Conflict(
            f"The trajectories of run {run.id} were deleted at {deleted_at} because of their age "
            "(LEARNLOOP_KEEP_TRAJECTORIES_DAYS): its figures can no longer be computed again."
        )
    with rebuilding(f"The environment of run {run.id} cannot be rebuilt"):
        choice = run.stored_request.environment
        environment = await built_environment(database, data_dir, choice, run.model_project)
    with closing(environment):
        begin_with(environment, await inherited_state(database, run.id))
        check = _Check(run, environment)
        for number in range(run.next_iteration):
            stored = await _stored(database, run.id, number)
            await asyncio.to_thread(check.iteration, stored)
    await verify_answers(database, run, check.figures)
    await verify_cost(database, run, check.figures)
    rejudgings = await verify_rejudgings(database, data_dir, run, check.figures)
    return check.verification(rejudgings)


async def _stored(database: Database, run_id: str, iteration: int) -> _Stored:
    async with database() as tx:
        evaluations = await tx.execute(
            select(Evaluation).where(Evaluation.run_id == run_id, Evaluation.iteration == iteration)
        )
        trajectories = await tx.execute(
            select(Trajectory)
            .options(defer(Trajectory.messages), defer(Trajectory.tools), defer(Trajectory.additional_histories))
            .where(Trajectory.run_id == run_id, Trajectory.iteration == iteration)
            .order_by(Trajectory.seq)
        )
        return _Stored(
            await tx.get_one(Iteration, (run_id, iteration)),
            evaluations.scalars().all(),
            trajectories.scalars().all(),
            await tx.get(Reflection, (run_id, iteration)),
        )


class _Check:
    """Recomputes all iterations in order, so that the environment learns as it did in the run."""

    def __init__(self, run: Run, environment: Environment) -> None:
        self._run = run
        self._config = run.stored_request.config
        self._environment = environment
        self.figures = VerifiedFigures()
        self._iterations = self._trajectories = self._node_scores = 0
        self._lost: list[LostRollout] = []
        self._baseline: dict[tuple[str, str], dict[str, float]] = {}
        """Success by scenario, by split and mode."""
        self._idle: dict[int, Sequence[str]] = {}
        """Scenarios of the groups that taught nothing, by iteration."""

    def verification(self, rejudgings: int) -> Verification:
        """Return the result, for that number of rejudgings."""
        return Verification(
            run_id=self._run.id,
            ok=self.figures.difference_count == 0,
            iterations=self._iterations,
            trajectories=self._trajectories,
            rejudgings=rejudgings,
            figures=self.figures.count,
            node_scores=self._node_scores,
            lost_rollouts=dict(sorted(Counter(rollout.failure for rollout in self._lost).items())),
            lost=self._lost[:MOST_SHOWN],
            difference_count=self.figures.difference_count,
            differences=self.figures.differences,
            verified_at=datetime.now(UTC),
        )

    def iteration(self, stored: _Stored) -> None:
        """Compare all figures of an iteration."""
        number = stored.iteration.iteration
        self._iterations += 1
        self._trajectories += len(stored.trajectories)
        self._lost += _lost(stored.trajectories)
        try:
            groups = self._training_groups(number, _of_kind(stored, "train"))
            self._groups(_of_kind(stored, "showcase"), 1)
            self._compare_iteration(stored, groups)
            self._compare_evaluations(stored)
            self._compare_reflection(stored, groups)
        except Exception as error:  # the environment's own error, for an outcome that it cannot have produced
            self.figures.compare(
                number, "iteration", "as stored", f"cannot be computed: {type(error).__name__}: {error}"
            )

    def _groups(self, rows: Sequence[Trajectory], group_size: int) -> list[Group]:
        """Score the rows again, in groups of `group_size` rows as they were saved."""
        groups = [rows[start : start + group_size] for start in range(0, len(rows), group_size)]
        return [self.figures.compare_group(self._environment, group, group) for group in groups]

    def _training_groups(self, iteration: int, rows: Sequence[Trajectory]) -> list[Group]:
        """Score the training rollouts again, and find the groups that were replaced. Probabilities are as stored."""
        group_size = self._config.rollouts_per_group
        extra = [row for row in rows[::group_size] if row.replaces is not None]  # after those that the schedule drew
        groups = self._groups(rows, group_size)
        scheduled = groups[: len(groups) - len(extra)]
        idle = self._idle[iteration] = taught_nothing(scheduled)
        stored = tuple(row.replaces or "" for row in extra)
        replaced = self._idle.get(sampled_after(self._config, iteration), ())
        if stored and stored == idle[: len(stored)]:
            replaced = idle  # earlier versions replaced groups of the same iteration
        for row, scenario_id in zip_longest(extra, replaced[: len(extra)]):
            self.figures.compare(iteration, "replaces", row.replaces, scenario_id, row.id)
        drawn = zip(groups, rows[::group_size], strict=True)
        return [included(group, row.inclusion or 1.0, row.replaces) for group, row in drawn]

    def _compare_iteration(self, stored: _Stored, groups: Sequence[Group]) -> None:
        row = stored.iteration
        scored = [rollout for group in groups for rollout in group.rollouts]
        everything = [stored_rollout(scenario_of(trajectory), trajectory) for trajectory in stored.trajectories]
        rewards = summarise(scored)
        recomputed = {f"reward_{name}": getattr(rewards, name) for name in ("mean", "median", "min", "max", "count")}
        recomputed |= {
            "success": success_rate(scored),
            "malformed": malformed_share(scored),
            "failed_rollouts": failed(everything),
            "lost_rollouts": lost(everything),
            "skipped_groups": dict(Counter(group.skipped for group in groups if group.skipped)),
        }
        for name, value in recomputed.items():
            self.figures.compare(row.iteration, name, getattr(row, name), value)
        for name in ("prompt_tokens", "completion_tokens"):
            self.figures.compare(row.iteration, name, row.timing[name], int(total(everything, name)))

    def _compare_evaluations(self, stored: _Stored) -> None:
        number = stored.iteration.iteration
        tried: defaultdict[tuple[str, str, int | None], list[Trajectory]] = defaultdict(list)
        for row in _of_kind(stored, "evaluation"):
            tried[row.split, row.mode, row.step].append(row)
        saved = {(row.split, row.mode, row.step): row for row in stored.evaluations}
        self.figures.compare(number, "evaluations", sorted(map(list, saved)), sorted(map(list, tried)))
        for key in sorted(saved.keys() & tried.keys()):
            samples = self._config.evaluation.samples if key[1] == "sampled" else 1
            groups = self._groups(tried[key], samples)
            scored = [rollout for group in groups for rollout in group.rollouts]
            by_scenario = self._config.evaluation.is_by_scenario
            recomputed: dict[str, Any] = {
                **asdict(held_out_figures(scored, samples, by_scenario=by_scenario)),
                "turns": total([scored_rollout.rollout for scored_rollout in scored], "turns") / len(scored),
            }
            if number == 0:
                self._baseline[key[:2]] = successes(scored)
            elif saved[key].difference is not None:  # earlier versions stored none
                change = difference(self._baseline.get(key[:2], {}), successes(scored))
                recomputed["difference"] = None if change is None else asdict(change)
            for name, value in recomputed.items():
                self.figures.compare(number, f"{key[0]} {key[1]} {name}", getattr(saved[key], name), value)

    def _compare_reflection(self, stored: _Stored, groups: Sequence[Group]) -> None:
        number, environment = stored.iteration.iteration, self._environment
        self.figures.compare(number, "reflects", stored.reflection is not None, isinstance(environment, Reflective))
        if stored.reflection is None or not isinstance(environment, Reflective):
            return
        environment.reflect(rewarded(groups))
        environment.showcase(self._config.seed)  # called here because the learn loop calls it before reading the state
        state = json.loads(json_text.dumps(environment.state()))
        saved_state = dict(stored.reflection.state)
        scores, kept_scores = state.pop("node_scores", {}), saved_state.pop("node_scores", {})
        self._node_scores += len(kept_scores)
        for id in sorted(scores.keys() | kept_scores.keys()):
            self.figures.compare(number, f"node score of {id}", kept_scores.get(id), scores.get(id))
        self.figures.compare(number, "state", saved_state, state)


def _failure_kind(row: Trajectory) -> FailureKind:
    return FailureKind.OTHER if row.failure is None else FailureKind(row.failure)


def _lost(rows: Sequence[Trajectory]) -> list[LostRollout]:
    return [
        LostRollout(trajectory_id=row.id, iteration=row.iteration or 0, failure=kind, error=row.error)
        for row in rows
        if row.error is not None and (kind := _failure_kind(row)).is_lost
    ]


def _of_kind(stored: _Stored, kind: str) -> list[Trajectory]:
    return [row for row in stored.trajectories if row.kind == kind]

"""Where a run continues, read from its finished iterations."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Integer, and_, cast, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Evaluation, Iteration, Reflection, Run, Trajectory
from learnloop_service.environment.base import Environment, Reflective
from learnloop_service.training.best_checkpoint import BestCheckpoint, Validation
from learnloop_service.training.loop.rollout_schedule import sampled_after
from learnloop_service.training.types import Resume, Snapshot

INHERITED = -1
"""Iteration number of the reflection that a fork starts with, before its baseline."""
SUCCESS: ColumnElement[Decimal] = func.avg(cast(func.coalesce(Trajectory.success, False), Integer))
"""Selects the share of rollouts that succeeded. A failed rollout is no success."""
HAS_VERDICT = or_(Trajectory.reward.is_not(None), Trajectory.error.is_not(None))
"""The condition that a rollout counts in such a share."""


async def inherited_state(database: Database, run_id: str) -> Mapping[str, Any] | None:
    """Return what the environment of a fork had learned before the run; None if it starts with nothing."""
    async with database() as tx:
        reflection = await tx.get(Reflection, (run_id, INHERITED))
    return reflection.state if reflection else None


async def state_after(database: Database, where: tuple[str, int] | None) -> Mapping[str, Any] | None:
    """Return what a run's environment had learned after an iteration; None if that was nothing."""
    if where is None:
        return None
    run_id, iteration = where
    async with database() as tx:
        reflection = await tx.get(Reflection, (run_id, max(iteration, INHERITED)))
        if reflection is None and iteration < 1:
            reflection = await tx.get(Reflection, (run_id, INHERITED))
    return reflection.state if reflection else None


def begin_with(environment: Environment, state: Mapping[str, Any] | None) -> None:
    """Restore learned state into a new environment. Raises ValueError if the state does not fit it."""
    if state is not None and isinstance(environment, Reflective):
        try:
            environment.restore(state)
        except KeyError as error:
            raise ValueError(f"the saved state has no {error.args[0]}, which the environment needs") from None


async def resume_of(database: Database, run_id: str) -> Resume | None:
    """Return where a run continues; None if its baseline is not saved yet."""
    async with database() as tx:
        run = await tx.get_one(Run, run_id)
        if run.next_iteration == 0:
            return None
        assert run.step is not None
        assert run.best_step is not None
        config = run.stored_request.config
        best = BestCheckpoint(run.best_step, await _highest(tx, run_id))
        snapshots = await _snapshots(tx, run, min(run.next_iteration - 1, sampled_after(config, run.next_iteration)))
    return Resume(run.next_iteration, snapshots.pop(run.next_iteration - 1), best, snapshots)


async def _snapshots(tx: AsyncSession, run: Run, first: int) -> dict[int, Snapshot]:
    """Return, for each of the run's iterations from `first` on, what rollouts that begin after it depend on."""
    states = await tx.execute(
        select(Iteration.iteration, Iteration.step, Reflection.state)
        .outerjoin(Reflection, and_(Reflection.run_id == Iteration.run_id, Reflection.iteration == Iteration.iteration))
        .where(Iteration.run_id == run.id, Iteration.iteration >= first)
    )
    idle = await _taught_nothing(tx, run, first)
    return {iteration: Snapshot(step, state, idle.get(iteration, ())) for iteration, step, state in states}


async def _taught_nothing(tx: AsyncSession, run: Run, first: int) -> Mapping[int, Sequence[str]]:
    """Return the scenarios of the scheduled groups whose rewards are all equal, for the run's iterations from `first`
    on; none for an iteration of which single rollouts were deleted."""
    config, row = run.stored_request.config, Trajectory
    if not config.replace_groups:
        return {}
    rollouts: Iterable[Any] = await tx.execute(
        select(row.iteration, row.scenario_id, row.advantage)
        .where(row.run_id == run.id, row.iteration >= first, row.kind == "train", row.replaces.is_(None))
        .order_by(row.seq)
    )
    advantages = defaultdict[int, list[tuple[str, float | None]]](list)
    for iteration, scenario, advantage in rollouts:
        advantages[iteration].append((scenario, advantage))
    return {iteration: _idle(pairs, config.rollouts_per_group) for iteration, pairs in advantages.items()}


def _idle(advantages: Sequence[tuple[str, float | None]], size: int) -> Sequence[str]:
    """Return the scenarios of the groups of `size` rollouts whose advantages are all 0, given the scenario and the
    advantage of each rollout."""
    groups = [advantages[start : start + size] for start in range(0, len(advantages), size)]
    if any(len(group) < size or len({scenario for scenario, _ in group}) > 1 for group in groups):
        return ()
    by_group = [(group[0][0], [advantage for _, advantage in group if advantage is not None]) for group in groups]
    return [scenario for scenario, values in by_group if len(values) > 1 and not any(values)]


async def _highest(tx: AsyncSession, run_id: str) -> Validation | None:
    """Return the highest figures of the run's validations; of equal ones the first. None if there are none."""
    row = Evaluation
    query = (
        select(row.iteration, row.success, row.mean_reward, row.scenarios)
        .where(row.run_id == run_id, row.split == "validation", row.mode == "sampled")
        .order_by(row.iteration)
    )

    async def whole(iteration: int, figures: Validation) -> Validation:
        successes = await evaluated_successes(tx, run_id, iteration)
        return replace(figures, successes=successes.get(("validation", "sampled"), {}))

    highest: tuple[int, Validation] | None = None
    for iteration, success, mean_reward, scenarios in (await tx.execute(query)).all():
        figures = Validation(success, mean_reward, {}, scenarios)
        if highest is not None and highest[1].scenarios != scenarios:  # that one is a baseline that ended early
            highest, figures = (highest[0], await whole(*highest)), await whole(iteration, figures)
        if highest is None or figures.is_higher_than(highest[1]):
            highest = iteration, figures
    return None if highest is None else await whole(*highest)


async def evaluated_successes(tx: AsyncSession, run_id: str, iteration: int) -> dict[tuple[str, str], dict[str, float]]:
    """Return the success of each scenario in an iteration's evaluations, by split and mode."""
    row = Trajectory
    query = (
        select(row.split, row.mode, row.scenario_id, SUCCESS)
        .where(row.run_id == run_id, row.iteration == iteration, row.kind == "evaluation")
        .where(HAS_VERDICT)
        .group_by(row.split, row.mode, row.scenario_id)
    )
    successes: dict[tuple[str, str], dict[str, float]] = {}
    for split, mode, scenario_id, success in await tx.execute(query):
        successes.setdefault((split, mode), {})[scenario_id] = float(success)
    return successes


async def sampled_steps(tx: AsyncSession, run_id: str) -> set[int]:
    """Return the run's existing steps that its rollouts are still sampled from, or will be, and the one that it goes
    back to if the newest rollouts show that its step broke the policy."""
    run = await tx.get_one(Run, run_id)
    config = run.stored_request.config
    if run.next_iteration > config.all_iterations:
        return set()
    oldest = run.next_iteration - (config.on_collapse == "step_back")
    steps = select(Iteration.step).where(
        Iteration.run_id == run_id, Iteration.iteration >= sampled_after(config, oldest)
    )
    return set((await tx.execute(steps)).scalars())

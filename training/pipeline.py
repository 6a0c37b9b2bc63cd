"""The asynchronous pipeline: rollouts that begin before their iteration does, from a policy a few steps older.

With `max_staleness` n the rollouts of iteration i are sampled from the policy as it was after iteration i - 1 - n. They
begin as soon as that iteration is done, and go on while the n iterations before i train and are evaluated.

The lag is fixed. Sampling each rollout from whatever policy is newest when it begins would be a little fresher, but
what a run learns would depend on timing: a killed run would end with other weights, and no result could be repeated.
For the same reason a conversation stays with its policy to its end.

Without staleness rollouts begin early only where nothing is left that could change what they come to: beside the
showcase of the iteration before, or beside its saving, from the same policy in the same environment.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass

from training.collector import Report, RolloutCollector
from training.types import Group, Progress, RunConfig


def sampled_after(config: RunConfig, iteration: int) -> int:
    """The iteration that led to the policy which samples the rollouts of `iteration`."""
    return max(config.supervised_iterations, iteration - 1 - config.pipeline.max_staleness)


def sampled_during(config: RunConfig, iteration: int) -> range:
    """The iterations whose rollouts may be under way in that one: its own, and up to `max_staleness` later ones."""
    last = min(iteration + config.pipeline.max_staleness, config.all_iterations)
    return range(iteration, last + 1) if iteration > config.supervised_iterations else range(0)


@dataclass(frozen=True, slots=True)
class RolledOut:
    """The judged rollouts of an iteration, and when they were made, by the monotonic clock."""

    collector: RolloutCollector
    step: int
    """The policy's step that sampled them."""
    groups: tuple[Group, ...]
    began: float
    rolled_out: float
    judged: float

    def seconds(self, since: float) -> dict[str, float]:
        """What an iteration that began then had to wait for, by phase, and how long they had run ahead of it."""
        return {
            "ahead_s": max(0.0, since - self.began),
            "rollout_s": max(0.0, self.rolled_out - max(since, self.began)),
            "judge_s": max(0.0, self.judged - max(since, self.rolled_out)),
        }


class RolloutsAhead:
    """The rollouts of an iteration and their judging, while earlier iterations go on.

    Until it is the iteration's turn nothing is heard of them: no progress, and no failure.
    """

    def __init__(
        self, roll_out: "Callable[[RolloutsAhead], Awaitable[RolledOut]]", report: Report, context: Context
    ) -> None:
        """`roll_out` begins soon, in that context; it is given this object."""
        self.turn = asyncio.Event()
        """Set when it is the iteration's turn."""
        self._report = report
        self._last: Progress | None = None

        async def work() -> RolledOut:
            return await roll_out(self)

        self._task = asyncio.get_running_loop().create_task(work(), context=context)

    def report(self, progress: Progress) -> None:
        """Where the rollouts report to."""
        self._last = progress
        if self.turn.is_set():
            self._report(progress)

    async def take(self) -> RolledOut:
        """It is the iteration's turn: wait for the rollouts. Raises what ended them."""
        self.turn.set()
        if self._last is not None:
            self._report(self._last)
        return await self._task

    async def ended(self) -> None:
        """Wait until they have ended, whatever ended them."""
        await asyncio.wait((self._task,))

    async def stop(self) -> None:
        """Leave nothing running. What the journal has of them is not made again."""
        self._task.cancel()
        await self.ended()
        if not self._task.cancelled():
            self._task.exception()  # so that it counts as seen: its iteration will find out for itself

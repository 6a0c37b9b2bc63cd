"""The supervised iterations of a run: the demonstrations of each, their order, and the learning rates."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random

from learnloop_service.environment.base import Environment, Json, Solvable
from learnloop_service.training.backends.base import CountingPolicy, Overlong, Policy, SupervisedRequest
from learnloop_service.training.environment_check.agents import play_turns
from learnloop_service.training.environment_check.play import PlayedRollout, play
from learnloop_service.training.journal import IterationJournal
from learnloop_service.training.loop.rollout_tasks import seed_of
from learnloop_service.training.loop.run_record import Lesson, RunRecord
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.types import RunConfig, WarmStartConfig

LEFT_OUT = "overlong_demonstrations"
"""Training metric: the number of an iteration's demonstrations that are longer than the model's context."""
_WARMUP_SHARE = 0.1
"""Share of the optimizer steps during which the learning rate rises."""


class AllOverlong(ValueError):
    """No demonstration fits the model's context, so there is nothing to learn from."""

    def __init__(self, overlong: Overlong) -> None:
        super().__init__(f"None of the demonstrations can be learnt from. {overlong}")


class NoOracle(ValueError):
    """The environment cannot solve its own scenarios."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the environment {name} has no oracle (solution()) that could demonstrate anything")


def iterations_of(demonstrations: int, epochs: int, held_out: float, size: int | None) -> int:
    """Return the number of iterations for `epochs` epochs, with `size` demonstrations per iteration (None for an
    epoch)."""
    trained = demonstrations - _held_out(demonstrations, held_out)
    return -(-epochs * trained // (size or trained))


def _held_out(demonstrations: int, share: float) -> int:
    """Return the number of demonstrations to hold out. At least one is left for training."""
    return min(round(demonstrations * share), demonstrations - 1)


Demonstrations = int | Sequence[Mapping[str, Json]]
"""Conversations in OpenAI's fine-tuning format, or the number of demonstrations to get from the environment's
oracle."""


@dataclass(frozen=True, slots=True)
class RunDemonstrations(RunRecord):
    """The demonstrations of a run. Its seed determines which are held out and the order of the others."""

    config: WarmStartConfig
    seed: int
    demonstrations: Sequence[Mapping[str, Json]]
    overlong: Overlong | None = None
    """The demonstrations that are left out because they are longer than the model's context; None if the policy does
    not count tokens."""

    @property
    def left_out(self) -> list[str]:
        """Names of the demonstrations that are left out."""
        return [self.overlong.name(number) for number in sorted(self.overlong.tokens)] if self.overlong else []

    async def lesson(self, journal: IterationJournal, policy: Policy, step: int) -> Lesson:
        """Return what the iteration of the journal trains on: nothing if all of it is left out."""
        config, numbers, iteration = self.config, range(len(self.demonstrations)), journal.iteration
        held_out = _held_out(len(numbers), config.held_out)
        shuffled = Random(seed_of(self.seed, "held out")).sample(numbers, len(numbers))
        trained = sorted(shuffled[held_out:])
        size = config.demonstrations_per_iteration or len(trained)
        order = list(chain.from_iterable(self._epoch(trained, epoch) for epoch in range(config.epochs)))
        of_iteration = order[(iteration - 1) * size : iteration * size]
        long = self.overlong.tokens if self.overlong else {}
        fitting = [number for number in of_iteration if number not in long]
        aside = sorted(shuffled[:held_out])
        rates = self._rates(iteration, size, len(of_iteration), len(order))
        request = SupervisedRequest(
            demonstrations=[self._named(number) for number in fitting],
            held_out=[self._named(number) for number in aside if number not in long],
            batch_size=config.batch_size,
            learning_rates=rates[: -(-len(fitting) // config.batch_size)],
            expected_step=step,
        )
        left_out = [self.overlong.name(n) for n in sorted({*of_iteration, *aside} & long.keys()) if self.overlong]
        metrics = {"demonstrations": float(len(fitting)), LEFT_OUT: float(len(left_out))}
        used = {name: count for name, count in metrics.items() if count}
        return Lesson(request if fitting else None, used, left_out)

    def _epoch(self, trained: Sequence[int], epoch: int) -> list[int]:
        return Random(seed_of(self.seed, "epoch", epoch)).sample(trained, len(trained))

    def _named(self, number: int) -> dict[str, Json]:
        """Return a demonstration with its name for messages: its line in an uploaded file, unless the file has empty
        lines."""
        return {**self.demonstrations[number], "id": f"demonstration {number + 1}"}

    def _rates(self, iteration: int, most: int, count: int, order: int) -> list[float]:
        """Return the learning rates of an iteration's batches: linear warmup, then linear decay towards zero. The
        iteration has `count` demonstrations, of `most` in all but the last one, and all together have `order`."""
        size = self.config.batch_size
        per_iteration, last = -(-most // size), order - (self.config.iterations - 1) * most
        steps = (self.config.iterations - 1) * per_iteration + -(-last // size)
        rise = max(1, round(_WARMUP_SHARE * steps))
        begun = (iteration - 1) * per_iteration
        return [
            self.config.learning_rate * min((step + 1) / rise, (steps - step) / (steps - rise + 1))
            for step in range(begun, begun + -(-count // size))
        ]


async def record_of(
    config: RunConfig,
    environment: Environment,
    demonstrations: Demonstrations | RunRecord,
    policy: Policy,
    prompt: Prompt | None = None,
) -> RunRecord:
    """Return the record of a run, or of its warm start; the oracle's demonstrations have its prompt. Raises NoOracle,
    EpisodeFailed, AllOverlong or BackendUnavailable."""
    if not isinstance(demonstrations, int | Sequence):
        return demonstrations
    assert config.warm_start is not None
    if isinstance(demonstrations, int):
        demonstrations = await oracle_demonstrations(environment, demonstrations, config.seed, prompt)
    overlong = await policy.overlong(demonstrations) if isinstance(policy, CountingPolicy) else None
    if overlong is not None and len(overlong.tokens) == len(demonstrations):
        raise AllOverlong(overlong)
    return RunDemonstrations(config.warm_start, config.seed, demonstrations, overlong)


async def oracle_demonstrations(
    environment: Environment, count: int, seed: int, prompt: Prompt | None = None
) -> list[dict[str, Json]]:
    """Return training scenarios as solved by the environment's oracle. Raises NoOracle, EpisodeFailed."""
    if not isinstance(environment, Solvable):
        raise NoOracle(environment.name)
    demonstrations = []
    for scenario in environment.scenarios("train", count, seed):
        played = await play(environment, scenario, play_turns(environment.solution(scenario)), prompt)
        demonstrations.append(_demonstration(played))
        await asyncio.sleep(0)
    return demonstrations


def _demonstration(played: PlayedRollout) -> dict[str, Json]:
    return {"messages": list(played.messages), "tools": [tool.openai() for tool in played.tools]}

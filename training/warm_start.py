"""The supervised iterations of a run: which demonstrations each trains on, in which order, and with which rates."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random

from environment.base import Environment, Json, Solvable
from training.backends.base import SupervisedRequest
from training.environment_check.agents import play_turns
from training.environment_check.play import Played, play
from training.rollout_tasks import seed_of
from training.types import RunConfig, WarmStartConfig

_RISE = 0.1
"""Share of the optimizer steps in which the learning rate rises."""


class NoOracle(ValueError):
    """The environment cannot solve its own scenarios."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the environment {name} has no oracle (solution()) that could demonstrate anything")


def iterations_of(demonstrations: int, epochs: int, held_out: float, each: int | None) -> int:
    """How many iterations train on so many demonstrations, `each` of them in one (None: all)."""
    trained = demonstrations - _held_out(demonstrations, held_out)
    return -(-epochs * trained // (each or trained))


def _held_out(demonstrations: int, share: float) -> int:
    """At least one is trained on."""
    return min(round(demonstrations * share), demonstrations - 1)


Demonstrations = int | Sequence[Mapping[str, Json]]
"""Conversations in OpenAI's form for fine-tuning, or the number of those that the environment's oracle has."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """The demonstrations of a run, and what its seed makes of them."""

    config: WarmStartConfig
    seed: int
    demonstrations: Sequence[Mapping[str, Json]]

    def request(self, iteration: int, expected_step: int) -> SupervisedRequest:
        """What that iteration, from 1, trains on."""
        config, numbers = self.config, range(len(self.demonstrations))
        held_out = _held_out(len(numbers), config.held_out)
        shuffled = Random(seed_of(self.seed, "held out")).sample(numbers, len(numbers))
        trained = sorted(shuffled[held_out:])
        each = config.demonstrations_per_iteration or len(trained)
        order = list(chain.from_iterable(self._epoch(trained, epoch) for epoch in range(config.epochs)))
        mine = order[(iteration - 1) * each : iteration * each]
        return SupervisedRequest(
            demonstrations=[self._named(number) for number in mine],
            held_out=[self._named(number) for number in sorted(shuffled[:held_out])],
            batch_size=config.batch_size,
            learning_rates=self._rates(iteration, each, len(mine), len(order)),
            expected_step=expected_step,
        )

    def _epoch(self, trained: Sequence[int], epoch: int) -> list[int]:
        return Random(seed_of(self.seed, "epoch", epoch)).sample(trained, len(trained))

    def _named(self, number: int) -> dict[str, Json]:
        """With the name that messages about it have: its line in an uploaded file, if that has no empty ones."""
        return {**self.demonstrations[number], "id": f"demonstration {number + 1}"}

    def _rates(self, iteration: int, each: int, mine: int, order: int) -> list[float]:
        """The learning rates of an iteration's batches: a straight line up, and one down to zero."""
        size = self.config.batch_size
        per_iteration, last = -(-each // size), order - (self.config.iterations - 1) * each
        steps = (self.config.iterations - 1) * per_iteration + -(-last // size)
        rise = max(1, round(_RISE * steps))
        begun = (iteration - 1) * per_iteration
        return [
            self.config.learning_rate * min((step + 1) / rise, (steps - step) / (steps - rise + 1))
            for step in range(begun, begun + -(-mine // size))
        ]


async def warm_start_of(config: RunConfig, environment: Environment, demonstrations: Demonstrations) -> WarmStart:
    """The warm start that a run asks for. Raises NoOracle, EpisodeFailed."""
    assert config.warm_start is not None
    if isinstance(demonstrations, int):
        demonstrations = await oracle_demonstrations(environment, demonstrations, config.seed)
    return WarmStart(config.warm_start, config.seed, demonstrations)


async def oracle_demonstrations(environment: Environment, count: int, seed: int) -> list[dict[str, Json]]:
    """Training scenarios as the environment's own oracle solves them. Raises NoOracle, EpisodeFailed."""
    if not isinstance(environment, Solvable):
        raise NoOracle(environment.name)
    found = []
    for scenario in environment.scenarios("train", count, seed):
        played = await play(environment, scenario, play_turns(environment.solution(scenario)))
        found.append(_demonstration(played))
        await asyncio.sleep(0)
    return found


def _demonstration(played: Played) -> dict[str, Json]:
    return {"messages": list(played.messages), "tools": [tool.openai() for tool in played.tools]}

"""A run's default settings, given what is known of its base model, each with the reason.

Measured (24 November 2026, real mail, one H200, and benchmarks/README.md):

- A LoRA of rank 8 on 1.5B parameters learns best at 1e-4 to 2e-4 with 16 groups of 8 rollouts in 40 to 45 iterations:
  2e-4 reaches in 8 iterations what 5e-5 takes 20 for, and at 7e-4 the bound on a step's size shortens nearly every
  step. A warm start at 1e-4 was as good as one at 5e-4.
- 135M parameters, trained whole, learn at 1e-5 to 4e-5 after a warm start at 1e-4 to 3e-4.
- `learnloop/tiny`, with 2.2M parameters trained whole, learns at 7e-4 after a warm start at 5e-4.
- 24 validation scenarios are too few to choose a checkpoint. 300 rollouts of the 1.5B took 10 s.

Everything else is extrapolated: rates of other sizes lie on a straight line between the two nearest measurements in
logarithms; past the last one, rates for GRPO and for LoRA fall with the fourth root of the size and those of a warm
start of the whole model with the square root. 1e-5 for 2B parameters trained whole is common practice, not measured.
Rates are rounded to one digit, because they are not known better than that.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from learnloop_service.training.collapse import OnCollapse
from learnloop_service.training.types import RunConfig, WarmStartConfig

TINY_BASE = "learnloop/tiny"
"""The base model that ships with Learnloop."""
MOST_TEST_SCENARIOS = 152
"""Number of test scenarios with which the success of a checkpoint is known within about 8 points."""
MOST_DEMONSTRATIONS = 480
"""Number of the oracle's demonstrations after which a model of 1.5B parameters was measured to answer almost half of
the test questions, and after which reinforcement learning succeeded in every run."""
FAR_ABOVE, FAR_BELOW = 3.0, 10.0
"""Factors between a learning rate and a default that follows the base's size, from which the rate is unusual."""
FAR_FROM_A_GUESS = 100.0
"""The same factor for the tiny base, which tolerates much, and where the size is unknown and the default a guess."""
_GUESSED_RATE = 1e-5
"""Learning rate that suits most models with billions of parameters whose tuning is unknown."""
_HIGHEST_LORA_RATE = 5e-4
_GPU_VALIDATION_UP_TO = 8e9
"""Number of parameters up to which a GPU makes 256 rollouts in about ten seconds (extrapolated from 1.5B)."""
_MOST_CONCURRENT = 1_024
"""Limit of the request's field (app/schemas/run_request.py)."""
_CPU_CONCURRENCY = 64
"""The engine decodes this many conversations together unless it is started with other flags. On a CPU, rollouts that
wait for others could time out."""

_Points = Sequence[tuple[float, float]]
_WHOLE: _Points = ((1.1e6, 7e-4), (135e6, 2e-5), (2e9, 1e-5))
"""Parameters and learning rate for GRPO on the whole model."""
_WHOLE_WARM_START: _Points = ((1.1e6, 5e-4), (135e6, 2e-4))
_LORA: _Points = ((1.5e9, 2e-4),)
_LORA_WARM_START: _Points = ((1.5e9, 1e-4),)


@dataclass(frozen=True, slots=True)
class BaseModelFacts:
    """What is known of the base model that a run trains."""

    name: str
    """Name of the base model itself, also if the run starts from a checkpoint of it."""
    parameters: int | None = None
    """None if the size is unknown, as on backends that have base models of their own."""
    mode: Literal["full", "lora"] = "full"
    device: Literal["cpu", "cuda"] = "cpu"

    @property
    def is_sized(self) -> bool:
        """Whether the defaults follow its size: it is not the tiny base, and its size is known."""
        return self.name != TINY_BASE and self.parameters is not None


@dataclass(frozen=True, slots=True)
class Default:
    """The value of a setting that was not given, and why it is that value."""

    value: int | float
    reason: str


_AFTER_DEMONSTRATIONS: Mapping[str, Default] = {
    "lora": Default(
        24, "After demonstrations a LoRA on 1.5B parameters reached 95 to 98% of test questions, with three seeds."
    ),
    "full": Default(30, "After demonstrations 270M parameters trained whole still learned in iterations 20 to 30."),
}
"""Iterations of GRPO by the tuning mode."""


def defaults_of(
    base: BaseModelFacts, groups: int | None = None, rollouts: int | None = None, *, after_demonstrations: bool = False
) -> dict[str, Default]:
    """Return the defaults of a run by their paths in the request.

    `groups` and `rollouts` are the numbers per iteration, if they were given; `after_demonstrations` says whether the
    run has a warm start. `warm_start.learning_rate` is among the
    defaults whether the run has a warm start or not. Numbers of held-out scenarios are upper limits: the caller lowers
    them to what the environment has.
    """
    if base.parameters is None or base.name == TINY_BASE:
        return _of_tiny_base(base)
    defaults = _of_training(base, base.parameters) | _of_evaluation(base, base.parameters)
    if after_demonstrations:
        defaults["iterations"] = _AFTER_DEMONSTRATIONS[base.mode]
    count = (groups or int(defaults["groups_per_iteration"].value)) * (
        rollouts or int(defaults["rollouts_per_group"].value)
    )
    return defaults | {"concurrency": _concurrency(base, count)}


def demonstrations(available: int) -> Default:
    """Return how many demonstrations of an environment's oracle a base whose size is known begins with, of those that
    are available."""
    reason = (
        "The environment can show how its tasks are done. Without that, 1.5B parameters learned in two of two runs to "
        'give up on every question, which costs less than wrong answers. `"warm_start": null` leaves it out.'
    )
    return Default(min(available, MOST_DEMONSTRATIONS), reason)


def on_collapse(base: BaseModelFacts) -> OnCollapse:
    """Return what is done when a step broke the policy.

    A base of 270M parameters, trained whole, fell from 85 to 24% success in one step, and a policy whose replies are
    all malformed has no differing rewards to recover with: it goes back. `learnloop/tiny` recovers within a few
    iterations from any fall that its demos show, and keeps the figures that it always had.
    """
    return "step_back" if base.is_sized else "continue"


def usual_rate(base: BaseModelFacts) -> float:
    """Return the learning rate for GRPO that suits the base, or a guess if its size is unknown."""
    if base.parameters is None or base.name == TINY_BASE:
        return RunConfig().learning_rate if base.name == TINY_BASE else _GUESSED_RATE
    return _rate(base, base.parameters)


def factor_from_usual(rate: float, usual: float, *, is_sized: bool) -> float | None:
    """Return the factor from which a learning rate so far from `usual` counts as unusual, or None if the rate is not
    that far. `is_sized` says whether `usual` follows the size of the base."""
    factor = (FAR_ABOVE if rate > usual else FAR_BELOW) if is_sized else FAR_FROM_A_GUESS
    return factor if abs(math.log(rate / usual)) >= math.log(factor) * (1 - 1e-9) else None


def _of_tiny_base(base: BaseModelFacts) -> dict[str, Default]:
    reason = f"Suits {TINY_BASE}."
    if base.name != TINY_BASE:
        reason = f"The size of {base.name} is unknown here, so this is what suits {TINY_BASE}."
    run, evaluation = RunConfig(), RunConfig().evaluation
    values = {
        "iterations": run.iterations,
        "groups_per_iteration": run.groups_per_iteration,
        "rollouts_per_group": run.rollouts_per_group,
        "replace_groups": run.replace_groups,
        "learning_rate": run.learning_rate,
        "warmup_iterations": run.warmup_iterations,
        "concurrency": run.concurrency,
        "evaluation.every": evaluation.every,
        "evaluation.scenarios": evaluation.scenarios,
        "evaluation.samples": evaluation.samples,
        "evaluation.test_scenarios": evaluation.test_scenarios,
        "warm_start.learning_rate": WarmStartConfig(iterations=1).learning_rate,
    }
    return {path: Default(value, reason) for path, value in values.items()}


def _of_training(base: BaseModelFacts, parameters: int) -> dict[str, Default]:
    trained = f"{_size(parameters)} parameters trained {'by a LoRA' if base.mode == 'lora' else 'whole'}"
    measured = f" Rates were measured at {'1.5B' if base.mode == 'lora' else '135M'} parameters and fall with size."
    group = "A model of 1.5B parameters was measured to learn with 128 rollouts an iteration."
    if base.mode == "lora":
        of_warm_start = _extrapolated(_LORA_WARM_START, parameters, 0.25, _HIGHEST_LORA_RATE)
    else:
        of_warm_start = _extrapolated(_WHOLE_WARM_START, parameters, 0.5, _WHOLE_WARM_START[0][1])
    return {
        "iterations": Default(
            45, "Without demonstrations a model of 1.5B parameters first succeeds in iterations 16 to 20."
        ),
        "groups_per_iteration": Default(16, group),
        "rollouts_per_group": Default(8, group),
        "replace_groups": Default(
            True, "A model of 1.5B parameters was measured to learn from 2 of 16 groups at the end of a run."
        ),
        "learning_rate": Default(_rate(base, parameters), f"Suits {trained}.{measured}"),
        "warmup_iterations": Default(
            RunConfig().warmup_iterations, "Adam's first steps are its largest, whatever the base."
        ),
        "warm_start.learning_rate": Default(of_warm_start, f"Suits {trained}, on demonstrations.{measured}"),
    }


def _of_evaluation(base: BaseModelFacts, parameters: int) -> dict[str, Default]:
    if base.device == "cpu":
        scenarios, test, cost = 32, 64, "A rollout of this base on a CPU takes long."
    elif parameters > _GPU_VALIDATION_UP_TO:
        scenarios, test, cost = 64, MOST_TEST_SCENARIOS, f"A rollout of {_size(parameters)} parameters is expensive."
    else:
        scenarios, test, cost = 128, MOST_TEST_SCENARIOS, "A GPU makes these rollouts in seconds."
    seldom = "Ten iterations of training cost several times as much as one evaluation."
    return {
        "evaluation.every": Default(10, seldom),
        "evaluation.scenarios": Default(scenarios, f"{cost} More scenarios choose the best checkpoint more surely."),
        "evaluation.samples": Default(1, "More scenarios tell more than more samples of each."),
        "evaluation.test_scenarios": Default(test, f"{cost} They are used at the start and the end only."),
        "evaluation.baseline_width": Default(
            0.1, "Few scenarios say enough about a base that fails or solves nearly all of them."
        ),
    }


def _concurrency(base: BaseModelFacts, rollouts: int) -> Default:
    if base.device == "cpu":
        return Default(
            min(rollouts, _CPU_CONCURRENCY), "On a CPU more rollouts at the same time would only wait for each other."
        )
    together = "All rollouts of an iteration are made together, with those that replace others."
    return Default(min(2 * rollouts, _MOST_CONCURRENT), together)


def _rate(base: BaseModelFacts, parameters: int) -> float:
    if base.mode == "lora":
        return _extrapolated(_LORA, parameters, 0.25, _HIGHEST_LORA_RATE)
    return _extrapolated(_WHOLE, parameters, 0.25, _WHOLE[0][1])


def _extrapolated(points: _Points, parameters: int, power: float, highest: float) -> float:
    """Return the rate for a size, rounded to one digit: on a line between the points in logarithms; outside of them it
    falls with `power` of the size, and it is `highest` at most."""
    for (small, of_small), (large, of_large) in pairwise(points):
        if small <= parameters <= large:
            share = math.log(parameters / small) / math.log(large / small)
            return _one_digit(of_small * (of_large / of_small) ** share)
    size, rate = points[0] if parameters < points[0][0] else points[-1]
    return _one_digit(min(rate * (size / max(parameters, 1)) ** power, highest))


def _one_digit(rate: float) -> float:
    return float(f"{rate:.0e}")


def _size(parameters: int) -> str:
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{name}"
    return str(parameters)

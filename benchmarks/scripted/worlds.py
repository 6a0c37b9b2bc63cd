"""Worlds in which it is known which kind of change helps an agent, and how much.

A base model is named after its world and a number, by which the agents of a world differ in luck: `prompt.7`. What an
agent does at a task follows from these names, the way that its model was trained, and its prompt. So it is the same
after any crash.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from learnloop_service.environment.json_type import Json

SUPERVISED, REINFORCED = "supervised", "reinforced"
Trained = tuple[str, int]
"""How the steps of a model were made, and their number."""
_LOST = 0.06
"""Share of tasks that a changed agent fails although it solved them before, at least."""
_LEARNED = (0.6, 0.9, 1.0)
"""Share of what GRPO can reach that is reached after one, two and three steps."""
MARK = "[prompt {}]"
"""Tells prompts apart; it is part of their system message."""


@dataclass(frozen=True)
class World:
    """Success of the agent as it is, and after each kind of change; `rung` is the one that an improvement to `TARGET`
    should end at."""

    as_it_is: float
    good_prompts: float
    """Probability that a prompt is good. One that is not leaves the success as it was."""
    prompt: float
    imitation: float
    grpo: float
    rung: Literal["as_it_is", "prompt", "imitation", "grpo"] | None


TARGET = 0.8
PROMPTS = 6
"""Number of prompts that are tried, at most."""
WORLDS = {
    "solved": World(0.88, 0.0, 0.0, 0.90, 0.92, "as_it_is"),
    "prompt": World(0.25, 0.7, 0.88, 0.88, 0.95, "prompt"),
    "demonstrations": World(0.05, 0.0, 0.0, 0.88, 0.95, "imitation"),
    "grpo": World(0.10, 0.0, 0.0, 0.45, 0.92, "grpo"),
    "prompt-then-grpo": World(0.20, 0.7, 0.50, 0.50, 0.92, "grpo"),
    "nothing": World(0.02, 0.0, 0.0, 0.03, 0.03, None),
    "everything": World(0.05, 0.5, 0.36, 0.62, 0.97, "grpo"),
}
"""Those of the simulation that the gate was designed with, and one in which every kind of change helps."""


@dataclass(frozen=True)
class Agent:
    """An agent: the base model, how it was trained, and the number of its prompt (None: that of the environment)."""

    base: str
    trained: Sequence[Trained] = ()
    prompt: int | None = None

    def solves(self, task: str, seed: int | None) -> bool:
        """Return whether it solves a task: without a seed greedily, else by chance, so that attempts differ."""
        solves, success = self._skill(task)
        return solves if seed is None else _luck(self, task, seed) < success

    def _skill(self, task: str) -> tuple[bool, float]:
        """Return whether it solves the task, and its success at all tasks."""
        world = WORLDS[self.base.rpartition(".")[0]]
        success = world.as_it_is
        solves = _luck(self.base, task) < success
        if self.prompt is not None:
            is_good = _luck(self.base, "prompt", self.prompt) < world.good_prompts
            better = world.prompt if is_good else success
            solves = _changed(solves, success, better, _luck(self.base, task, "prompt", self.prompt))
            success = better
        for depth, (kind, steps) in enumerate(self.trained):
            learned = _LEARNED[min(steps, len(_LEARNED)) - 1]
            better = world.imitation if kind == SUPERVISED else success + (world.grpo - success) * learned
            luck = _luck(self.base, task, self.prompt, self.trained[:depth], kind, min(steps, len(_LEARNED)))
            solves, success = _changed(solves, success, better, luck), better
        return solves, success


def _changed(solves: bool, before: float, after: float, luck: float) -> bool:
    """Return whether an agent that solves a task or not solves it after a change of its success."""
    lost = min(max(_LOST, before - after), before, 1 - after)
    return luck < (1 - lost / before if solves else (after - before + lost) / (1 - before))


def _luck(*names: object) -> float:
    return int.from_bytes(sha256(repr(names).encode()).digest()[:8]) / 2**64


def prompt_of(number: int) -> Json:
    """Return the prompt with that number, as it is stored."""
    return {"parts": {"system": f"{{original}} {MARK.format(number)}"}}


def request_for(base: str) -> Json:
    """Return the improvement of the agent with that base model, which tries all prompts."""
    return {
        "model": {"base_model": base},
        "target": TARGET,
        "prompts": [f"p{number}" for number in range(PROMPTS)],
        "validation": 64,
        "test": 64,
        "run": {
            "iterations": len(_LEARNED),
            "groups_per_iteration": 8,
            "rollouts_per_group": 4,
            "evaluation": {"every": 1},
        },
    }

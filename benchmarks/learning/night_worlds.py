"""Worlds for simulated nights in which it is known what training does to an agent, and a scripted backend that does it.

An answer is a single token: right or wrong. A policy is how likely it answers rightly, easy questions and hard ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Literal

from learnloop_service.training.backends.base import ModelSpec, Policy
from learnloop_service.training.call_sequences import TokenSequence
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedPolicy

RIGHT, WRONG = 5, 6
"""The tokens of right and of wrong answers."""
EASY, HARD = 8, 9
"""The last token of a prompt says what kind of question it is."""
_EASIER = 0.15
"""By how much easy questions are answered better than average ones, and hard ones worse."""
Change = Literal["better", "same", "worse", "secretly worse", "new"]


@dataclass(frozen=True, slots=True)
class Skill:
    """What a checkpoint can do. Probabilities are for questions of average difficulty."""

    right: float
    """Probability that an answer in a user's first window is right."""
    later: float
    """The same in a user's second window."""
    scored: float
    """The probability that the checkpoint itself gives to right answers."""
    change: Change = "same"
    """What training has done to the checkpoint that it started from."""

    def changed(self, change: Change, effect: float) -> "Skill":
        """Return what the skill becomes by training."""
        moved = {"better": effect, "worse": -effect, "secretly worse": -effect, "new": effect}.get(change, 0.0)
        lasting = -effect if change == "new" else moved
        scored = _possible(self.scored + (0.02 if change == "secretly worse" else moved))
        return Skill(_possible(self.right + moved), _possible(self.later + lasting), scored, change)


def probability(right: float, kind: int) -> float:
    """Return the probability of a right answer to a question of that kind."""
    return _possible(right + (_EASIER if kind == EASY else -_EASIER))


def logprob(skill: Skill, kind: int, token: int) -> float:
    """Return the log-probability that a checkpoint gives to an answer."""
    right = probability(skill.scored, kind)
    return log(right if token == RIGHT else 1 - right)


def _possible(value: float) -> float:
    return min(0.95, max(0.05, value))


@dataclass(frozen=True, slots=True)
class NightWorld:
    """What training does in turn to the champion, and how the share of easy questions changes in the nights."""

    changes: Sequence[Change]
    easy: tuple[float, float] = (0.5, 0.5)
    """Share of easy questions in the first night and in the last."""

    def share_of_easy(self, night: int, nights: int) -> float:
        """Return the share of easy questions in a night."""
        first, last = self.easy
        return first + (last - first) * night / max(1, nights - 1)


WORLDS: Mapping[str, NightWorld] = {
    "helps": NightWorld(["better"]),
    "nothing": NightWorld(["same"]),
    "harms": NightWorld(["secretly worse", "worse"]),
    "drift": NightWorld(["same"], easy=(0.1, 0.9)),
    "novelty": NightWorld(["new"]),
}


class NightPolicy(ScriptedPolicy):
    """Step 0 is the checkpoint that it starts from; later steps are what the world makes of it."""

    before = after = Skill(0.0, 0.0, 0.0)

    async def score_sequences(self, step: int, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Return the log-probabilities of the sampled tokens."""
        skill = self.after if step else self.before
        return [[logprob(skill, one.ids[at - 1], one.ids[at]) for at in one.trained] for one in sequences]

    async def reply_logprobs(self, *_: object) -> list[float]:
        """Score replies of rollouts, which there are none of."""
        raise NotImplementedError


@dataclass
class NightBackend(ScriptedBackend):
    """Trains in a world. `skills` are those of all checkpoints, by name; they begin with the first champion's."""

    world: NightWorld
    effect: float
    endpoint_url: str
    skills: dict[str, Skill] = field(default_factory=dict)
    policies: dict[ModelSpec, ScriptedPolicy] = field(default_factory=dict)

    async def register(self, model: ModelSpec) -> Policy:
        """Begin a model, whose training is the world's next change, unless it is there."""
        if model not in self.policies:
            policy = self.policies[model] = NightPolicy(model, self.endpoint_url)
            policy.before = policy.after = self.skills.get(model.base_model, Skill(0.5, 0.5, 0.5))
            if model.base_model in self.skills:
                learned = sum(one.base_model in self.skills for one in self.policies) - 1
                change = self.world.changes[learned % len(self.world.changes)]
                policy.after = policy.before.changed(change, self.effect)
            name = f"{model.project}/{model.name}"
            self.skills |= {f"{name}@0": policy.before}
            self.skills |= {f"{name}@{step}": policy.after for step in range(1, 100)}
        return self.policies[model]

    def described(self) -> list[dict[str, object]]:
        """Return the models and their checkpoints as an engine does."""
        return [
            {"id": f"{model.project}/{model.name}", "project": model.project, "name": model.name}
            | {"steps": list(range(policy._step + 1)), "base_model": model.base_model}
            for model, policy in self.policies.items()
        ]

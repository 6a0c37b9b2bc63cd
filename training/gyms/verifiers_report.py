"""The report of an environment of verifiers on a rollout."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from learnloop_service.environment.base import Json


@dataclass(frozen=True, slots=True)
class GymReport:
    """The rubric's reward, its parts and metrics."""

    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    """Parts of the reward, which add up to it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Unweighted result of each function of the rubric."""
    answer: str | None = None
    stop_condition: str | None = None

    def text(self) -> str:
        """Return the report in the form that `parse` reads. Raises ValueError for a reward that is not a finite
        number."""
        if self.reward is None or not all(map(math.isfinite, (self.reward, *self.parts.values()))):
            raise ValueError(f"a reward of {self.reward}")
        return json.dumps({**asdict(self), "metrics": {name: _finite(value) for name, value in self.metrics.items()}})

    @classmethod
    def parse(cls, text: str) -> "GymReport":
        """Parse a report. Raises ValueError."""
        return cls(**json.loads(text))


def report_of(loaded: Any, output: Mapping[str, Any]) -> GymReport:
    """Return the report on an environment's `RolloutOutput`."""
    reward, metrics = float(output["reward"]), dict(output["metrics"] or {})
    parts = _parts(loaded.rubric, reward, metrics)
    return GymReport(reward, parts, metrics, _last_reply(output["completion"]), output.get("stop_condition"))


def _parts(rubric: Any, reward: float, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the weighted metrics if they add up to the reward, otherwise the reward alone."""
    names: Sequence[str] = rubric._get_reward_func_names()  # the package has no public method for it
    weights: Sequence[float] = rubric._get_reward_weights()
    pairs = [(name, weight) for name, weight in zip(names, weights, strict=True) if weight and name in metrics]
    weighted = {name: metrics[name] * weight for name, weight in pairs}
    whole = len(set(names)) == len(names) and math.isclose(math.fsum(weighted.values()), reward, abs_tol=1e-9)
    return weighted if weighted and whole else {"reward": reward}


def _last_reply(completion: Any) -> str | None:
    """Return the text of the last reply."""
    for message in reversed(completion if isinstance(completion, list) else []):
        if message.get("role") == "assistant" and isinstance(message.get("content"), str):
            return str(message["content"])
    return None


def _finite(value: float) -> Json:
    return value if math.isfinite(value) else None

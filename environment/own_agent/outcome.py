"""What an agent reports of a task that it did with its own tools: a reward, its named parts, or an output to judge."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from environment.base import Json

_KEYS = ("reward", "parts", "output", "reason")
MAX_REPORT_CHARACTERS = 1_000_000
MAX_PARTS = 64


class BadOutcome(ValueError):
    """What an agent reported is no outcome; the message says why."""


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """Without a `reward` a judge scores the `output`; without either there is no outcome, for that `reason`."""

    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    """Their sum is the reward. Empty: it has no parts."""
    output: Json = None
    reason: str | None = None

    @property
    def known(self) -> bool:
        """Whether there is anything to reward or to judge."""
        return self.reward is not None or self.output is not None

    def text(self) -> str:
        """As `read_report` takes it."""
        found = {"reward": self.reward, "parts": dict(self.parts), "output": self.output, "reason": self.reason}
        return json.dumps({"reward": self.reward} | {key: value for key, value in found.items() if value})


def read_report(text: str) -> AgentOutcome:
    """What an agent said at its end: an outcome as a JSON object, or else its output. Raises BadOutcome."""
    if len(text) > MAX_REPORT_CHARACTERS:
        raise BadOutcome(f"an outcome of more than {MAX_REPORT_CHARACTERS:,} characters")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return AgentOutcome(output=text)
    return parse_outcome(value) if is_outcome(value) else AgentOutcome(output=text)


def is_outcome(value: Json) -> bool:
    """Whether a value means to be an outcome: an object with one of its fields, and no other ones."""
    return isinstance(value, Mapping) and bool(value) and set(value) <= set(_KEYS)


def outcome_of(returned: Json) -> AgentOutcome:
    """Of what a function returned: an outcome, a number (the reward), None (there is none) or an output. Raises
    BadOutcome."""
    if returned is None:
        return AgentOutcome(reason="the agent returned None")
    if isinstance(returned, int | float) and not isinstance(returned, bool):
        return parse_outcome({"reward": returned})
    return parse_outcome(returned if is_outcome(returned) else {"output": returned})


def parse_outcome(value: Json) -> AgentOutcome:
    """The outcome in a JSON value. Raises BadOutcome."""
    if not isinstance(value, Mapping):
        raise BadOutcome(f"an outcome is an object with {', '.join(_KEYS)}, not {_shown(value)}")
    if unknown := sorted(set(value) - set(_KEYS)):
        raise BadOutcome(f"an outcome has no {', '.join(unknown)}; it has: {', '.join(_KEYS)}")
    output, reason = _json(value.get("output")), value.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise BadOutcome(f"reason is a text, not {_shown(reason)}")
    reward, parts = _number("reward", value.get("reward")), _parts(value.get("parts"))
    if parts:
        total = math.fsum(parts.values())
        if reward is not None and not math.isclose(total, reward, rel_tol=1e-6, abs_tol=1e-6):
            raise BadOutcome(f"the parts add up to {total:g}, and the reward is {reward:g}")
        reward = total
    return AgentOutcome(reward, parts, output, reason)


def _parts(value: Json) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > MAX_PARTS:
        raise BadOutcome(f"parts is an object of at most {MAX_PARTS} numbers, not {_shown(value)}")
    parts = {str(name): _number(f"the part {name!r}", part) for name, part in value.items()}
    missing = [name for name, part in parts.items() if part is None]
    if missing:
        raise BadOutcome(f"the part {missing[0]!r} is null")
    return {name: part for name, part in parts.items() if part is not None}


def _number(what: str, value: Json) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise BadOutcome(f"{what} is a finite number, not {_shown(value)}")
    return float(value)


def _json(value: Json) -> Json:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadOutcome(f"output is not JSON: {error}") from error
    return value


def _shown(value: Json) -> str:
    return repr(value)[:200]

"""What an agent reports about a task that it did with its own tools: a reward, its named parts, or an output to
judge."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Any
MAX_REWARD = 1e9
"""Largest absolute value of a reward. Sums and squares of larger ones could overflow in what is computed from them."""
_KEYS = ("reward", "parts", "output", "reason", "facts")
MAX_REPORT_CHARACTERS = 1_000_000
MAX_PARTS = 64
MAX_FACTS = 16


class BadOutcome(ValueError):
    """The agent's report is not a valid outcome; the message says why."""


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """The result of a task. Without a `reward` a judge scores the `output`; without either, `reason` says why there is
    none."""

    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named parts whose sum is the reward; empty if it has no parts."""
    output: Json = None
    reason: str | None = None
    facts: Mapping[str, bool] = field(default_factory=dict)
    """Whether milestones were reached, in the order in which a success reaches them."""

    @property
    def known(self) -> bool:
        """Whether there is a reward or an output to judge."""
        return self.reward is not None or self.output is not None

    def text(self) -> str:
        """The outcome as JSON text that `read_report` accepts."""
        fields = {"parts": dict(self.parts), "output": self.output, "reason": self.reason, "facts": dict(self.facts)}
        return json.dumps({"reward": self.reward} | {key: value for key, value in fields.items() if value})


def read_report(text: str) -> AgentOutcome:
    """Parse an agent's final message: an outcome as a JSON object, or otherwise its output. Raises BadOutcome."""
    if len(text) > MAX_REPORT_CHARACTERS:
        raise BadOutcome(f"an outcome of more than {MAX_REPORT_CHARACTERS:,} characters")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return AgentOutcome(output=text)
    return parse_outcome(value) if is_outcome(value) else AgentOutcome(output=text)


def is_outcome(value: Json) -> bool:
    """Whether a value is meant as an outcome: an object with some of its fields, and no others."""
    return isinstance(value, Mapping) and bool(value) and set(value) <= set(_KEYS)


def outcome_of(returned: Json) -> AgentOutcome:
    """Convert a function's return value: an outcome, a number (the reward), None (no result) or an output. Raises
    BadOutcome."""
    if returned is None:
        return AgentOutcome(reason="the agent returned None")
    if isinstance(returned, int | float) and not isinstance(returned, bool):
        return parse_outcome({"reward": returned})
    return parse_outcome(returned if is_outcome(returned) else {"output": returned})


def parse_outcome(value: Json) -> AgentOutcome:
    """Parse the outcome in a JSON value. Raises BadOutcome."""
    if not isinstance(value, Mapping):
        raise BadOutcome(f"an outcome is an object with {', '.join(_KEYS)}, not {_excerpt(value)}")
    if unknown := sorted(set(value) - set(_KEYS)):
        raise BadOutcome(f"an outcome has no {', '.join(unknown)}; it has: {', '.join(_KEYS)}")
    output, reason = _json(value.get("output")), value.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise BadOutcome(f"reason is a text, not {_excerpt(reason)}")
    reward, parts = _number("reward", value.get("reward")), _parts(value.get("parts"))
    if parts:
        total = math.fsum(parts.values())
        if abs(total) > MAX_REWARD:
            raise BadOutcome(f"the parts add up to {total:g}, which is beyond {MAX_REWARD:g}")
        if reward is not None and not math.isclose(total, reward, rel_tol=1e-6, abs_tol=1e-6):
            raise BadOutcome(f"the parts add up to {total:g}, and the reward is {reward:g}")
        reward = total
    return AgentOutcome(reward, parts, output, reason, _facts(value.get("facts")))


def ordered(facts: Mapping[str, bool]) -> list[list[Json]]:
    """Return facts as pairs of name and value: a database keeps the order of a list, and not that of an object."""
    return [[name, reached] for name, reached in facts.items()]


def _parts(value: Json) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > MAX_PARTS:
        raise BadOutcome(f"parts is an object of at most {MAX_PARTS} numbers, not {_excerpt(value)}")
    parts = {str(name): _number(f"the part {name!r}", part) for name, part in value.items()}
    missing = [name for name, part in parts.items() if part is None]
    if missing:
        raise BadOutcome(f"the part {missing[0]!r} is null")
    return {name: part for name, part in parts.items() if part is not None}


def _facts(value: Json) -> dict[str, bool]:
    facts = {} if value is None else value
    if not isinstance(facts, Mapping) or len(facts) > MAX_FACTS or not all(isinstance(x, bool) for x in facts.values()):
        raise BadOutcome(f"facts is an object of at most {MAX_FACTS} names, true or false, not {_excerpt(value)}")
    return {str(name): reached for name, reached in facts.items()}


def _number(what: str, value: Json) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MAX_REWARD:
        raise BadOutcome(f"{what} is a finite number from {-MAX_REWARD:g} to {MAX_REWARD:g}, not {_excerpt(value)}")
    return float(value)


def _json(value: Json) -> Json:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadOutcome(f"output is not JSON: {error}") from error
    return value


def _excerpt(value: Json) -> str:
    return repr(value)[:200]

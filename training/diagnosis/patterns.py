"""Names the pattern of a failure: how a rollout ended, refined by what it missed.

A pattern depends on its rollout alone, so it is the same in any order, after a repetition, before and after a change.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from learnloop_service.environment.json_type import Json
from learnloop_service.training.types import FailureKind

_ENDINGS = {
    "unscored": "no score",
    "malformed": "malformed reply",
    "answer": "answered without success",
    "finalized": "finished without success",
    "done": "finished without success",
    "reported": "reported without success",
    "wrong_sources": "right answer, wrong sources",
}
"""Endings whose names do not say what they mean."""
_CLEAR_KINDS = frozenset({FailureKind.TIMEOUT, FailureKind.BACKEND_AWAY, FailureKind.MODEL_NOT_FOUND})
"""Kinds of failures whose messages add nothing to a pattern."""
_PASSED = 0.5
"""Lowest value of a criterion that a rollout meets."""
_LONGEST = 80
"""Maximum number of characters of a part of a pattern."""
_STRING = re.compile(r'"(?:[^"\\]|\\.){13,}"?')
_WORD = re.compile(r"\b(?=[a-z_]*\d)\w{13,}\b|(?<!\w)'[^']{13,}'(?!\w)", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
_UNFIT = re.compile(r"[^\w.-]+")
_NO_TOOL = re.compile(r"\b(?:no|unknown) tool\b|\btool\b.*\b(?:not found|does not exist)\b", re.IGNORECASE)
_NO_CALL = re.compile(r"no tool call|without a final tool call", re.IGNORECASE)
_CUT_OFF = re.compile(r"\(length\):|was cut off at its limit")
_ERROR = re.compile(r'\W*(?:[\w.]*(?:error|exception)\b(?!"?\s*:\s*(?:null|false))|traceback|failed)', re.IGNORECASE)
"""How a tool's answer begins that is an error: `Error: ...`, `ValueError: ...` or `{"error": ...}`."""
_MESSAGE = re.compile(r'"(?:error|message|detail)"\s*:\s*"((?:[^"\\]|\\.)+)')
"""The message in an error that is JSON."""
_READ = 500
"""Number of characters of a message from which its form is read."""
_Refined = tuple[tuple[str, ...], str]
"""What a rollout with a certain ending missed: further parts of the pattern's id, and words."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A kind of failure, such as `wrong_answer/read_source`."""

    id: str
    sentence: str
    """The pattern in words."""

    @property
    def ending(self) -> str:
        """How the rollout ended: the first part of the id."""
        return self.id.partition("/")[0]


@dataclass(slots=True)
class _Call:
    """A tool call, and the text that answered it; None if nothing did."""

    tool: str
    id: Json
    answer: str | None = None


def ending_of(row: Any) -> str | None:
    """Return how the rollout of a trajectory ended; None for a success."""
    if row.error is not None:
        return "failed"
    if row.success:
        return None
    if row.reward is None:
        return "unscored"
    finish = str(row.outcome.get("finish") or "unsuccessful")
    if finish != "answered":
        return finish
    return "wrong_sources" if (row.score or 0.0) >= _PASSED else "wrong_answer"


def pattern_of(row: Any, milestones: Mapping[str, str]) -> Pattern | None:
    """Return the pattern of a trajectory with its `messages`; None for a success.

    `milestones` are facts of the outcome in the order in which one needs the other, each with a phrase for a rollout
    that missed it.
    """
    if (ending := ending_of(row)) is None:
        return None
    match ending:
        case "failed":
            parts, phrase = _failure(row)
        case "unscored":
            parts, phrase = _form(row.score_explanation or "")
        case "malformed":
            parts, phrase = _malformed(row)
        case "out_of_turns":
            parts, phrase = _out_of_turns(_calls(row.messages))
        case _:
            parts, phrase = _missed(row, milestones)
    id = "/".join(filter(None, map(_as_id, (ending, *parts))))
    return Pattern(id, ": ".join(filter(None, (_ENDINGS.get(ending, _words(ending)), phrase))))


def other_pattern(ending: str) -> Pattern:
    """Return the pattern that stands for several of an ending."""
    return Pattern(f"{ending}/others", f"{_ENDINGS.get(ending, _words(ending))}: other patterns")


def form_of(text: str) -> str:
    """Return the text without numbers and long strings: texts of one form differ in these only."""
    return _DIGITS.sub("0", _WORD.sub("...", _STRING.sub('"..."', " ".join(text.split()))))


def _failure(row: Any) -> _Refined:
    kind = str(row.failure or FailureKind.OTHER)
    parts, form = ((), "") if kind in _CLEAR_KINDS else _form(str(row.error))
    return (kind, *parts), ": ".join(filter(None, (_words(kind), form)))


def _form(text: str) -> _Refined:
    form = form_of(text[:_READ])[:_LONGEST].strip()
    return (form,), form


def _malformed(row: Any) -> _Refined:
    detail = str(row.outcome.get("detail") or "")
    if _CUT_OFF.search(detail):
        return ("cut_off",), "cut off at the limit of tokens"
    replies = [message for message in row.messages if message.get("role") == "assistant"]
    calls = _calls(row.messages)
    if _NO_CALL.search(detail) or not calls or not replies[-1].get("tool_calls"):
        return ("no_call",), "no tool call"
    if row.outcome.get("unknown_tool") or _NO_TOOL.search(detail):
        return ("unknown_tool",), "called a tool that does not exist"
    tool = next((call.tool for call in calls if call.answer is None), calls[-1].tool)
    return ("bad_arguments", tool), f"bad arguments of {tool}"


def _out_of_turns(calls: Sequence[_Call]) -> _Refined:
    counts = Counter(call.tool for call in calls)
    if not counts:
        return ("no_call",), "called no tool"
    tool = min(counts, key=lambda name: (-counts[name], name))
    if 2 * counts[tool] < len(calls):
        return ("several_tools",), "no tool has half of the calls"
    if any(_is_error(call.answer) for call in calls if call.tool == tool):
        return ("errors", tool), f"mostly called {tool}, which returned an error"
    return ("repeats", tool), f"mostly called {tool}"


def _missed(row: Any, milestones: Mapping[str, str]) -> _Refined:
    """Return the first thing that went wrong in an episode that came to an end."""
    facts = [(name, phrase, row.outcome[name]) for name, phrase in milestones.items() if name in row.outcome]
    facts += [(name, f"not {_words(name)}", reached) for name, reached in _reported_facts(row.outcome)]
    for name, phrase, reached in facts:
        if not reached:
            return (name,), phrase
    if failed := _lowest(row.score_parts, _PASSED):
        return (failed,), f"failed the criterion {failed}"
    if facts:
        return ("nothing_missed",), "although it missed no milestone"
    if lowest := _lowest(row.reward_parts, 0.0):
        return (lowest,), f"the lowest part of its reward is {lowest}"
    calls = _calls(row.messages)
    if errors := [call for call in calls if _is_error(call.answer)]:
        tool, answer = errors[-1].tool, errors[-1].answer or ""
        message = _MESSAGE.search(answer[:_READ])
        parts, form = _form(message[1] if message else answer)
        return ("error", tool, *parts), f"{tool} returned: {form}"
    if calls:
        return ("last_tool", calls[-1].tool), f"its last call was of {calls[-1].tool}"
    return ("no_call",), "called no tool"


def _reported_facts(outcome: Mapping[str, Json]) -> Iterator[tuple[str, bool]]:
    """Yield the facts that an agent elsewhere reported, in its order."""
    facts = outcome.get("facts")
    for fact in facts if isinstance(facts, list) else ():
        match fact:
            case [str(name), bool(reached)]:
                yield name, reached


def _lowest(parts: Mapping[str, Json], bound: float) -> str | None:
    """Return the name of the lowest part below the bound, the first by name of equal ones; None if there is none."""
    low = [(value, name) for name, value in parts.items() if isinstance(value, int | float) and value < bound]
    return min(low)[1] if low else None


def _calls(messages: Sequence[Mapping[str, Json]]) -> list[_Call]:
    """Return the tool calls of a conversation in order."""
    calls: list[_Call] = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            calls.append(_Call(str((call.get("function") or {}).get("name", "")), call.get("id")))
        if message.get("role") == "tool":
            for asking in [call for call in calls if call.id == message.get("tool_call_id")][-1:]:
                asking.answer = str(message.get("content") or "")
    return calls


def _is_error(answer: str | None) -> bool:
    """Return whether a tool's answer reads as an error."""
    return answer is not None and _ERROR.match(answer[:_READ]) is not None


def _as_id(text: str) -> str:
    return _UNFIT.sub("_", text[:_LONGEST]).strip("_")


def _words(name: str) -> str:
    return name.replace("_", " ")

"""The question to the judge model: which candidates, in which order, under which ids, in which words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from random import Random

from learnloop_service.environment.base import Json
from learnloop_service.judges.injection import MOST_SHOWN, quoted
from learnloop_service.judges.ruler.material import Material, canonical, digest
from learnloop_service.judges.shortening import without_middle

_PROMPTS = files("learnloop_service.judges") / "prompts"
_SYSTEM = (_PROMPTS / "ruler_system.txt").read_text(encoding="utf-8").strip()
_REPAIR = (_PROMPTS / "ruler_repair.txt").read_text(encoding="utf-8").strip()
VERSION = digest([_SYSTEM, _REPAIR])[:16]
"""The version of the prompt, part of a verdict's key in the cache: other words can give other verdicts."""

_MAX_CHARACTERS = 300_000
"""Most characters of all candidates together."""
_MIN_PART_CHARACTERS = 100
"""Fewer characters of a candidate's messages or outcome say nothing about it."""
_MAX_QUOTED_CHARACTERS = 4_000
"""Most characters of an unusable answer that are shown to the model when it is asked for a repair."""


@dataclass(frozen=True, slots=True)
class RankingQuestion:
    """The messages to send, and which id stands for which candidate's digest."""

    messages: Sequence[Mapping[str, Json]]
    digests: Mapping[str, str]

    def repaired(self, answer: str, error: str) -> "RankingQuestion":
        """Return the same question, followed by an unusable answer and the request to repair it."""
        reply = {"role": "assistant", "content": quoted(answer[:_MAX_QUOTED_CHARACTERS]) or "(nothing)"}
        repair = {"role": "user", "content": _REPAIR.format(error=error, ids=", ".join(self.digests))}
        # Only the last answer: what was wrong with those before it no longer matters.
        return RankingQuestion([*self.messages[:2], reply, repair], self.digests)


def orders(group: Sequence[Material], passes: int) -> list[list[Material]]:
    """Return an order of the group for each pass. It depends only on the members, not on how they were ordered.

    The second order is the first reversed, so that a bias linear in the position cancels; the third and fourth are
    these two rotated by half. A single candidate has one order, and one pass.
    """
    first = sorted(group, key=lambda material: material.digest)
    Random(_seed(group)).shuffle(first)
    half = len(first) // 2
    third = first[half:] + first[:half]
    return [first, first[::-1], third, third[::-1]][: passes if len(first) > 1 else 1]


def question(order: Sequence[Material], rubric: str, *, draw: int, most: int | None = None) -> RankingQuestion:
    """Ask for scores of the candidates in that order. Another `draw` gives other ids. With `most`, the middles of long
    parts are left out until the candidates take at most that many characters, as far as that is possible."""
    ids = [f"{number:05x}" for number in Random(f"{draw} {_seed(order)}").sample(range(0x10000, 0x100000), len(order))]
    limit = min(MOST_SHOWN, _MAX_CHARACTERS // len(order), most or MOST_SHOWN)
    attempts = _document(ids, order, limit)
    while most is not None and len(attempts) > most and limit > _MIN_PART_CHARACTERS:
        limit = limit * 3 // 4
        attempts = _document(ids, order, limit)
    messages = [{"role": "system", "content": _SYSTEM.format(rubric=rubric)}, {"role": "user", "content": attempts}]
    return RankingQuestion(messages, {id: material.digest for id, material in zip(ids, order, strict=True)})


def _document(ids: Sequence[str], order: Sequence[Material], limit: int) -> str:
    """Return the candidates as JSON in which no part is longer than the limit."""
    shared = _shared(order)
    document = {
        "shared": _clipped(list(order[0].messages[:shared]), limit),
        "attempts": [
            {
                "id": id,
                "messages": _clipped(list(material.messages[shared:]), limit),
                "outcome": _clipped(material.outcome, limit),
            }
            for id, material in zip(ids, order, strict=True)
        ],
    }
    return quoted(canonical(document))


def _seed(group: Sequence[Material]) -> str:
    return digest(sorted(material.digest for material in group))


def _shared(group: Sequence[Material]) -> int:
    """Return the number of messages with which all candidates begin; each one's last message never counts."""
    if len(group) == 1:
        return 0
    shortest = min(len(material.messages) for material in group)
    count = 0
    while count < shortest - 1 and all(material.messages[count] == group[0].messages[count] for material in group):
        count += 1
    return count


def _clipped(value: Json, limit: int) -> Json:
    """Return the value, or its JSON as a text without the middle if that is longer than the limit."""
    text = canonical(value)
    return value if len(text) <= limit else without_middle(text, limit)

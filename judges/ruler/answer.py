"""From what the judge model said to scores, or to the reason why it cannot be used."""

from collections.abc import Mapping

from learnloop_service.environment.base import Json
from learnloop_service.judges.json_answer import UnusableAnswer, object_in
from learnloop_service.judges.llm import Completion

SCHEMA: Mapping[str, Json] = {
    "type": "object",
    "properties": {
        "scores": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "explanation": {"type": "string"},
                    "score": {"type": "number"},
                },
                "required": ["id", "explanation", "score"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["scores"],
    "additionalProperties": False,
}
_MAX_EXPLANATION_CHARACTERS = 500

Verdict = tuple[float, str]
"""A score in [0, 1] and its explanation."""


def verdicts(completion: Completion, digests: Mapping[str, str]) -> dict[str, Verdict]:
    """The verdict on each candidate by its digest; `digests` are those of the ids that were asked for.

    Raises UnusableAnswer unless every id has exactly one score in [0, 1], and nothing else has one.
    """
    found: dict[str, Verdict] = {}
    for entry in _entries(completion, digests):
        id, verdict = _verdict(entry)
        if id not in digests:
            raise UnusableAnswer("it scores an id that was not given")
        if digests[id] in found:
            raise UnusableAnswer(f"it scores the id {id} twice")
        found[digests[id]] = verdict
    missing = [id for id, digest in digests.items() if digest not in found]
    if missing:
        raise UnusableAnswer(f"it has no score for {', '.join(missing)}")
    return found


def _entries(completion: Completion, digests: Mapping[str, str]) -> list[Json]:
    def scores_ours(document: Mapping[str, Json]) -> bool:
        found = document.get("scores")
        ids = [each.get("id") for each in found if isinstance(each, dict)] if isinstance(found, list) else []
        return any(isinstance(id, str) and id in digests for id in ids)

    entries = object_in(completion, scores_ours).get("scores")
    if not isinstance(entries, list):
        raise UnusableAnswer("it has no list named scores")
    return entries


def _verdict(entry: Json) -> tuple[str, Verdict]:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise UnusableAnswer("an entry of scores is not an object with an id")
    score, explanation = entry.get("score"), entry.get("explanation", "")
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0.0 <= score <= 1.0:
        raise UnusableAnswer("a score is not a number from 0.0 to 1.0")
    if not isinstance(explanation, str):
        raise UnusableAnswer("an explanation is not a text")
    return entry["id"], (float(score), explanation[:_MAX_EXPLANATION_CHARACTERS])

"""Turns the judge model's answer into scores, or says why it cannot be used."""

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
    """Return the verdict on each candidate by its digest; `digests` maps the ids in the question to the digests.

    Raises UnusableAnswer unless every id has exactly one score in [0, 1], and nothing else has one.
    """
    verdicts_by_digest: dict[str, Verdict] = {}
    for entry in _entries(completion, digests):
        id, verdict = _verdict(entry)
        if id not in digests:
            raise UnusableAnswer("it scores an id that was not given")
        if digests[id] in verdicts_by_digest:
            raise UnusableAnswer(f"it scores the id {id} twice")
        verdicts_by_digest[digests[id]] = verdict
    missing = [id for id, digest in digests.items() if digest not in verdicts_by_digest]
    if missing:
        raise UnusableAnswer(f"it has no score for {', '.join(missing)}")
    return verdicts_by_digest


def _entries(completion: Completion, digests: Mapping[str, str]) -> list[Json]:
    def scores_ours(document: Mapping[str, Json]) -> bool:
        scores = document.get("scores")
        ids = [entry.get("id") for entry in scores if isinstance(entry, dict)] if isinstance(scores, list) else []
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

"""The judge `grounding`: scores by rules, without a model, whether a sales email rests on what the agent read.

The score is the weighted sum of parts, each in [0, 1]:

- citations (0.25): the share of the citations that exist and were read;
- path (0.25): the share of the cited nodes from which a Product Feature can be reached, 0 unless one that the start
  leads to is cited;
- claims (0.25): how much of what the email claims the cited nodes say, the mean over its claims (`claims.py`); 0
  for an email that claims nothing;
- addressed (0.1): half for the prospect's name, half for the company's;
- length (0.05): 1 from 12 to 120 words, falling to 0 at none and at 240;
- call_to_action (0.1): the body ends with a question, or asks for the goal.

What is no plain text (HTML), and an email that speaks to its judge, earns nothing: 0.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean

from learnloop_sales.claims import asks, claims, coverage, sentences, stems
from learnloop_service.environment.base import Json, Outcome, Scenario
from learnloop_service.judges.base import Candidate, Judge, Judgement, JudgeServices, Score, take_no_settings
from learnloop_service.judges.injection import addresses_judge
from learnloop_service.judges.traits import JudgeTraits

NAME = "grounding"
TRAITS = JudgeTraits(repeatable=True, checks=True)
WEIGHTS = {
    "citations": 0.25,
    "path": 0.25,
    "claims": 0.25,
    "addressed": 0.1,
    "length": 0.05,
    "call_to_action": 0.1,
}
_MIN_WORDS, _MAX_WORDS = 12, 120
_READ_TOOL = "get_relevant_context"
_CITE = "cite: "
_LEADS, _LEADS_NOWHERE, _IS_PRODUCT = "leads to: ", "leads to: no product", "This is a Product Feature."
_NO_EMAIL = "this judge scores sales emails, and this rollout was not to write one"
_TAG = re.compile(r"<(?![\w.+-]+@)[/!?a-z]", re.IGNORECASE)
"""Matches the start of an HTML tag, which is enough for a browser, but not an address such as `<mara@x.example>`."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part's value, and what is missing in words."""

    value: float
    missing: str = ""


@dataclass(frozen=True, slots=True)
class _Read:
    """A node as the agent read it: its content, and whether a Product Feature can be reached from it."""

    content: str
    leads_to_product: bool


def build(config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """Build the judge, which has no settings. Raises ValueError if the config has any."""
    take_no_settings(NAME, config)
    return GroundingJudge()


class GroundingJudge:
    """Scores emails by outcome and messages; none for rollouts of other environments than `sales_email`."""

    name = NAME

    def lacks(self, scenario: Scenario, outcome: Outcome) -> str | None:
        return None if "email" in outcome else _NO_EMAIL

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        scores = await asyncio.to_thread(lambda: [_score(scenario.task, candidate) for candidate in candidates])
        return Judgement(scores)


def _score(task: Mapping[str, Json], candidate: Candidate) -> Score:
    outcome = candidate.outcome
    if "email" not in outcome:
        return Score(None, _NO_EMAIL)
    email = outcome["email"]
    if email is None:
        return Score(0.0, f"no email was finalised: {outcome['detail'] or outcome['finish']}")
    text = f"{email['subject']}\n{email['body']}"
    if _TAG.search(text):
        return Score(0.0, "the email holds HTML; it must be plain text")
    if phrase := addresses_judge(text):
        return Score(0.0, f"the email speaks to its judge: {phrase!r}")
    parts = _parts(task, outcome, _read(candidate.messages))
    value = min(1.0, fsum(WEIGHTS[name] * part.value for name, part in parts.items()))
    missing = [part.missing for part in parts.values() if part.missing]
    explanation = "; ".join(missing) or "it rests on what was read and leads to the product, and nothing is missing"
    return Score(value, explanation, {name: part.value for name, part in parts.items()})


def _parts(task: Mapping[str, Json], outcome: Outcome, read: Mapping[str, _Read]) -> dict[str, _Part]:
    email = outcome["email"]
    cited = [read[id] for id in email["citations"] if id in read]
    return {
        "citations": _citations(outcome),
        "path": _path(outcome, cited),
        "claims": _claims(task, email["body"], [node.content for node in cited]),
        "addressed": _addressed(outcome),
        "length": _length(len(email["body"].split())),
        "call_to_action": _call_to_action(task, email["body"]),
    }


def _citations(outcome: Outcome) -> _Part:
    count = len(outcome["email"]["citations"])
    if not count:
        return _Part(0.0, "it cites nothing")
    unknown, unread = outcome["unknown_citations"], outcome["unread_citations"]
    bad = [f"{', '.join(unknown)} do(es) not exist"] if unknown else []
    bad += [f"{', '.join(unread)} was not read"] if unread else []
    return _Part(
        max(0.0, 1 - (len(unknown) + len(unread)) / count), f"of its citations {' and '.join(bad)}" * bool(bad)
    )


def _path(outcome: Outcome, cited: Sequence[_Read]) -> _Part:
    if not outcome["cited_product"]:
        return _Part(0.0, "it cites no product feature that the start leads to")
    leading = sum(node.leads_to_product for node in cited)
    count = len(outcome["email"]["citations"])
    aside = f"{count - leading} of {count} citations are not known to lead to the product" if leading < count else ""
    return _Part(leading / count, aside)


def _claims(task: Mapping[str, Json], body: str, contents: Sequence[str]) -> _Part:
    excluded = {stem for key in ("prospect", "company", "role") for stem in stems(task.get(key) or "")}
    claimed = claims(body, excluded, set(stems(task.get("goal") or "")))
    if not claimed:
        return _Part(0.0, "it claims nothing")
    sources = [set(stems(content)) for content in contents]
    coverages = [coverage(claim, sources, excluded) for claim in claimed]
    missing = list(dict.fromkeys(word for covered in coverages if covered.share < 1 for word in covered.missing))
    fault = f"what it cites does not say: {', '.join(missing[:8])}" if missing else ""
    return _Part(fmean(covered.share for covered in coverages), fault)


def _addressed(outcome: Outcome) -> _Part:
    unnamed = [who for who in ("prospect", "company") if not outcome[f"named_{who}"]]
    return _Part(1 - len(unnamed) / 2, f"it does not name the {' and the '.join(unnamed)}" if unnamed else "")


def _length(words: int) -> _Part:
    if words < _MIN_WORDS:
        return _Part(words / _MIN_WORDS, f"it is short ({words} words)")
    if words > _MAX_WORDS:
        return _Part(max(0.0, 2 - words / _MAX_WORDS), f"it is long ({words} words)")
    return _Part(1.0)


def _call_to_action(task: Mapping[str, Json], body: str) -> _Part:
    body_sentences = sentences(body)
    if body_sentences and asks(body_sentences[-1], set(stems(task.get("goal") or ""))):
        return _Part(1.0)
    return _Part(0.0, "it ends without asking for anything")


def _read(messages: Sequence[Mapping[str, Json]]) -> dict[str, _Read]:
    """Return the nodes that the agent read, by id, from the results of the reading tool."""
    return {
        lines[1].removeprefix(_CITE): _Read(lines[0], any(map(_leads, lines[2:])))
        for lines in _read_results(messages)
        if len(lines) > 1 and lines[1].startswith(_CITE)
    }


def _leads(line: str) -> bool:
    return line == _IS_PRODUCT or (line.startswith(_LEADS) and line != _LEADS_NOWHERE)


def _read_results(messages: Sequence[Mapping[str, Json]]) -> Iterator[list[str]]:
    """Yield the lines of each result of the reading tool."""
    reading: set[Json] = set()
    for message in messages:
        for call in message.get("tool_calls") or ():
            if call.get("function", {}).get("name") == _READ_TOOL:  # custom calls have no function
                reading.add(call["id"])
        if message["role"] == "tool" and message["tool_call_id"] in reading:
            yield message["content"].split("\n")

"""The judge itself: who is asked about, what is remembered, and what becomes of a group without an answer."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import structlog

from learnloop_service.environment.base import Json, Scenario
from learnloop_service.judges.asking import Asker, CallUsage, Sleep, call_of
from learnloop_service.judges.base import (
    Candidate,
    Judge,
    JudgeCall,
    Judgement,
    JudgeModel,
    JudgeQuestion,
    NoCache,
    Score,
    VerdictCache,
)
from learnloop_service.judges.json_answer import UnusableAnswer
from learnloop_service.judges.llm import JudgeUnavailable
from learnloop_service.judges.ruler.answer import SCHEMA, Verdict, verdicts
from learnloop_service.judges.ruler.material import Material, digest, material_of, order_to_judge
from learnloop_service.judges.ruler.question import VERSION, RankingQuestion, orders, question
from learnloop_service.judges.shortening import SHORTENINGS, shortened

log = structlog.get_logger(__name__)

NAME = "ruler"
REPAIRS = 2
"""How often the model is asked to repair an unusable answer; each time it is shown the error."""
CONVERSATIONS = 2
"""How many conversations are tried. If the repairs fail, a new one starts without the answers that misled the model."""


class RulerJudge:
    """Scores the candidates at a scenario relative to each other.

    A candidate that tries to instruct the judge scores 0.0 and is not shown. If the model gives no verdict the fallback
    judges the group, and without one the group has no scores.
    """

    name = NAME

    def __init__(
        self,
        model: JudgeModel,
        rubric: str,
        *,
        passes: int = 2,
        fallback: Judge | None = None,
        cache: VerdictCache | None = None,
        temperature: float | None = 0.0,
        timeout_s: float = 120.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`timeout_s` limits one request; `sleep` waits out the pauses between requests."""
        self._model = model
        self._rubric = rubric
        self._passes = passes
        self._fallback = fallback
        self._cache = cache or NoCache()
        self._asker = Asker(model, SCHEMA, temperature=temperature, timeout_s=timeout_s, sleep=sleep)
        self._basis = [VERSION, model.name, model.base_url, rubric, passes, temperature]

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        """Return one Score for each candidate, in their order."""
        phrases = await asyncio.to_thread(lambda: list(map(order_to_judge, candidates)))
        honest = [candidate for candidate, phrase in zip(candidates, phrases, strict=True) if phrase is None]
        judged = await self._judge(scenario, honest) if honest else Judgement([])
        scores = iter(judged.scores)
        return Judgement(
            [
                next(scores) if phrase is None else Score(0.0, f"it speaks to the judge: {phrase!r}")
                for phrase in phrases
            ],
            judged.calls,
        )

    def questions(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Sequence[JudgeQuestion]:
        """Return one question for each pass, about all candidates that do not address the judge."""
        materials = [material_of(candidate) for candidate in candidates if order_to_judge(candidate) is None]
        if not materials:
            return ()
        return [
            JudgeQuestion(NAME, self._model.name, self._question(order, number).messages)
            for number, order in enumerate(orders(_different(materials), self._passes))
        ]

    async def _judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        materials = await asyncio.to_thread(lambda: list(map(material_of, candidates)))
        group = _different(materials)
        verdicts_by_digest, call = await self._verdicts(scenario, group)
        if verdicts_by_digest is not None:
            scores = [Score(*verdicts_by_digest[material.digest]) for material in materials]
            return Judgement(scores, [call])
        reason = f"the judge model gave no verdict: {call.error}"
        if self._fallback is None:
            return Judgement([Score(None, reason)] * len(candidates), [call])
        name = self._fallback.name
        try:
            instead = await self._fallback.judge(scenario, candidates)
        except Exception as error:
            failed = f"{reason}; and {name} failed: {type(error).__name__}: {error}"
            return Judgement([Score(None, failed)] * len(candidates), [call])
        why = f"scored by {name}, because {reason}: "
        scores = [replace(score, explanation=why + score.explanation) for score in instead.scores]
        return Judgement(scores, [call, *instead.calls])

    async def _verdicts(
        self, scenario: Scenario, group: Sequence[Material]
    ) -> tuple[Mapping[str, Verdict] | None, JudgeCall]:
        """Return a verdict for each digest, from the cache or the model. Without verdicts, the call says why."""
        clock, usage = time.monotonic(), CallUsage()
        digests = sorted(material.digest for material in group)
        key = digest([*self._basis, digests, dict(scenario.task)])
        remembered = _remembered(await self._cache.get(key), digests)
        if remembered is not None:
            return remembered, self._call(usage, clock, cached=True)
        try:
            verdicts_by_digest = await self._ask(group, usage)
        except (JudgeUnavailable, UnusableAnswer) as error:
            reason = str(error) if isinstance(error, JudgeUnavailable) else f"its answer is unusable: {error}"
            log.warning("judge model gave no verdict", model=self._model.name, scenario_id=scenario.id, error=reason)
            return None, self._call(usage, clock, error=reason)
        await self._cache.put(key, {name: list(verdict) for name, verdict in verdicts_by_digest.items()})
        return verdicts_by_digest, self._call(usage, clock)

    async def _ask(self, group: Sequence[Material], usage: CallUsage) -> dict[str, Verdict]:
        """Return each candidate's mean score over all passes, with the explanation of the first pass."""
        passes = [self._pass(order, number, usage) for number, order in enumerate(orders(group, self._passes))]
        results = await asyncio.gather(*passes, return_exceptions=True)
        by_pass: list[dict[str, Verdict]] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            by_pass.append(result)
        return {name: (fmean(one[name][0] for one in by_pass), by_pass[0][name][1]) for name in by_pass[0]}

    async def _pass(self, order: Sequence[Material], number: int, usage: CallUsage) -> dict[str, Verdict]:
        """Return the verdicts of one pass. A question that is too long for the model is shortened."""
        most = None
        for _ in range(SHORTENINGS):
            try:
                return await self._conversations(order, number, usage, most)
            except JudgeUnavailable as error:
                material = self._question(order, number, most=most).messages[1]["content"]
                most = shortened(len(material), error)
        return await self._conversations(order, number, usage, most)

    async def _conversations(
        self, order: Sequence[Material], number: int, usage: CallUsage, most: int | None
    ) -> dict[str, Verdict]:
        failure = UnusableAnswer("nothing was asked")
        for conversation in range(CONVERSATIONS):
            question = self._question(order, number, conversation, most)
            for _ in range(1 + REPAIRS):
                completion = await self._asker.ask(question.messages, usage)
                try:
                    return verdicts(completion, question.digests)
                except UnusableAnswer as error:
                    failure = error
                    question = question.repaired(completion.text or completion.refusal or "", str(error))
        raise failure

    def _question(
        self, order: Sequence[Material], number: int, conversation: int = 0, most: int | None = None
    ) -> RankingQuestion:
        return question(order, self._rubric, draw=number * CONVERSATIONS + conversation, most=most)

    def _call(self, usage: CallUsage, clock: float, *, cached: bool = False, error: str | None = None) -> JudgeCall:
        return call_of(NAME, self._model, usage, time.monotonic() - clock, cached=cached, error=error)


def _different(materials: Sequence[Material]) -> list[Material]:
    """Return the candidates without duplicates."""
    return list({material.digest: material for material in materials}.values())


def _remembered(value: Json, digests: Sequence[str]) -> dict[str, Verdict] | None:
    """Return the verdicts in a cached value; None if the value is not one of ours."""
    try:
        return {name: (Score(float(value[name][0]), "").value or 0.0, str(value[name][1])) for name in digests}
    except (TypeError, KeyError, IndexError, ValueError):
        return None

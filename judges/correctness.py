"""The judge `correctness`: a language model compares an answer with the scenario's reference answer.

As ART-E's judge (OpenPipe ART, `examples/art-e`, `determine_if_answer_is_correct`) it sees the question, the reference
and the answer, and nothing else of the rollout; the prompt is our own. Each different answer is one verdict.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files

import structlog

from learnloop_service.environment.base import Json, Outcome, Scenario
from learnloop_service.judges.asking import Asker, CallUsage, Sleep, call_of
from learnloop_service.judges.base import (
    Candidate,
    Judge,
    JudgeCall,
    Judgement,
    JudgeModel,
    JudgeQuestion,
    JudgeServices,
    NoCache,
    Score,
    VerdictCache,
)
from learnloop_service.judges.injection import addresses_judge, asks_for_form, quoted
from learnloop_service.judges.json_answer import UnusableAnswer, object_in
from learnloop_service.judges.llm import Completion, JudgeUnavailable
from learnloop_service.judges.model_settings import ModelSettings, check_names
from learnloop_service.judges.reference import NO_REFERENCE
from learnloop_service.judges.ruler.material import canonical, digest
from learnloop_service.judges.shortening import SHORTENINGS, shortened, without_middle

log = structlog.get_logger(__name__)

NAME = "correctness"
REPAIRS = 2
"""How often the model is asked to repair an unusable answer; each time it is shown the error."""
_KNOWN = ("model", "fallback", "temperature", "timeout_s")
_PROMPTS = files("learnloop_service.judges") / "prompts"
_SYSTEM = (_PROMPTS / "correctness_system.txt").read_text(encoding="utf-8").strip()
_REPAIR = (_PROMPTS / "correctness_repair.txt").read_text(encoding="utf-8").strip()
_VERSION = digest([_SYSTEM, _REPAIR])[:16]
_MAX_CHARACTERS = 8_000
"""Most characters of a question, a reference or an answer that the model is shown."""
_MAX_EXPLANATION_CHARACTERS = 500
SCHEMA: Mapping[str, Json] = {
    "type": "object",
    "properties": {"explanation": {"type": "string"}, "correct": {"type": "boolean"}},
    "required": ["explanation", "correct"],
    "additionalProperties": False,
}


def build(config: Mapping[str, Json], services: JudgeServices) -> "CorrectnessJudge":
    """Build the judge. Raises ValueError for a bad config or without a model, UnknownJudge for an unknown fallback."""
    check_names(NAME, config, _KNOWN)
    settings = ModelSettings(**config)
    settings.check(NAME)
    return CorrectnessJudge(settings.model_for(NAME, services), **settings.asking(services))


class CorrectnessJudge:
    """Scores 1.0 for an answer that the model finds correct, 0.0 for any other.

    Some answers need no request: one that is missing or addresses the judge scores 0.0, one that repeats the reference
    word for word scores 1.0. There is no score if the scenario has no reference, or if the model gives no verdict and
    there is no fallback.
    """

    name = NAME

    def __init__(
        self,
        model: JudgeModel,
        *,
        fallback: Judge | None = None,
        cache: VerdictCache | None = None,
        temperature: float | None = 0.0,
        timeout_s: float = 60.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`timeout_s` limits one request; `sleep` waits out the pauses between requests."""
        self._model = model
        self._fallback = fallback
        self._cache = cache or NoCache()
        self._asker = Asker(model, SCHEMA, temperature=temperature, timeout_s=timeout_s, sleep=sleep)
        self._basis = [NAME, _VERSION, model.name, model.base_url, temperature]

    def lacks(self, scenario: Scenario, outcome: Outcome) -> str | None:
        return None if isinstance(scenario.reference.get("answer"), str) else NO_REFERENCE

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        """Return one Score for each candidate, in their order."""
        reference = scenario.reference.get("answer")
        if not isinstance(reference, str):
            return Judgement([Score(None, NO_REFERENCE)] * len(candidates))
        answers = [candidate.outcome.get("answer") for candidate in candidates]
        forms = _forms(scenario, reference)
        obvious = await asyncio.to_thread(lambda: [_obvious(answer, reference, forms=forms) for answer in answers])
        by_answer = {
            _text(candidate): candidate for candidate, score in zip(candidates, obvious, strict=True) if score is None
        }
        verdicts = await asyncio.gather(*(self._verdict(scenario, reference, answer) for answer in by_answer))
        scores = {answer: score for answer, (score, _) in zip(by_answer, verdicts, strict=True)}
        calls = [call for _, call in verdicts]
        unscored = [candidate for answer, candidate in by_answer.items() if scores[answer].value is None]
        if unscored and self._fallback is not None:
            instead = await self._instead(self._fallback, scenario, unscored, scores)
            calls += instead
        return Judgement(
            [
                score if score is not None else scores[_text(candidate)]
                for candidate, score in zip(candidates, obvious, strict=True)
            ],
            calls,
        )

    def questions(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Sequence[JudgeQuestion]:
        """Return one question for each distinct answer that is not obviously right or wrong."""
        reference = scenario.reference.get("answer")
        if not isinstance(reference, str):
            return ()
        forms = _forms(scenario, reference)
        unclear = [
            candidate
            for candidate in candidates
            if _obvious(candidate.outcome.get("answer"), reference, forms=forms) is None
        ]
        answers = list(map(_text, unclear))
        task = str(scenario.task.get("question", ""))
        return [
            JudgeQuestion(NAME, self._model.name, _question(task, reference, answer))
            for answer in dict.fromkeys(answers)
        ]

    async def _instead(
        self, fallback: Judge, scenario: Scenario, unscored: Sequence[Candidate], scores: dict[str, Score]
    ) -> Sequence[JudgeCall]:
        """Let the fallback score the candidates that the model did not, and return its calls."""
        try:
            judgement = await fallback.judge(scenario, unscored)
        except Exception as error:
            for candidate in unscored:
                why = scores[_text(candidate)].explanation
                failed = f"{why}; and {fallback.name} failed: {type(error).__name__}: {error}"
                scores[_text(candidate)] = Score(None, failed)
            return ()
        for candidate, score in zip(unscored, judgement.scores, strict=True):
            why = scores[_text(candidate)].explanation
            explanation = f"scored by {fallback.name}, because {why}: {score.explanation}"
            scores[_text(candidate)] = replace(score, explanation=explanation)
        return judgement.calls

    async def _verdict(self, scenario: Scenario, reference: str, answer: str) -> tuple[Score, JudgeCall]:
        """Return the score of one answer, from the cache or the model, and the call that it took."""
        clock, usage = time.monotonic(), CallUsage()
        question = str(scenario.task.get("question", ""))
        key = digest([*self._basis, question, reference, answer])
        remembered = _remembered(await self._cache.get(key))
        if remembered is not None:
            return remembered, call_of(NAME, self._model, usage, time.monotonic() - clock, cached=True)
        try:
            correct, explanation = await self._ask(question, reference, answer, usage)
        except (JudgeUnavailable, UnusableAnswer) as error:
            reason = str(error) if isinstance(error, JudgeUnavailable) else f"its answer is unusable: {error}"
            log.warning("judge model gave no verdict", model=self._model.name, scenario_id=scenario.id, error=reason)
            call = call_of(NAME, self._model, usage, time.monotonic() - clock, error=reason)
            return Score(None, f"the judge model gave no verdict: {reason}"), call
        await self._cache.put(key, {"correct": correct, "explanation": explanation})
        return _score(correct, explanation), call_of(NAME, self._model, usage, time.monotonic() - clock)

    async def _ask(self, question: str, reference: str, answer: str, usage: CallUsage) -> tuple[bool, str]:
        """Return whether the answer is correct, and why. A question that is too long for the model is shortened."""
        messages = _question(question, reference, answer)
        length = min(_MAX_CHARACTERS, max(map(len, (question, reference, answer))))
        for _ in range(SHORTENINGS):
            try:
                return await self._ask_with_repairs(messages, usage)
            except JudgeUnavailable as error:
                length = shortened(length, error)
                messages = _question(*(without_middle(text, length) for text in (question, reference, answer)))
        return await self._ask_with_repairs(messages, usage)

    async def _ask_with_repairs(self, messages: list[dict[str, str]], usage: CallUsage) -> tuple[bool, str]:
        conversation = messages
        for _ in range(REPAIRS):
            completion = await self._asker.ask(conversation, usage)
            try:
                return _parsed(completion)
            except UnusableAnswer as error:
                unusable = completion.text or completion.refusal or "(nothing)"
                conversation = [
                    *messages,
                    {"role": "assistant", "content": quoted(unusable[:_MAX_CHARACTERS])},
                    {"role": "user", "content": _REPAIR.format(error=error)},
                ]
        return _parsed(await self._asker.ask(conversation, usage))


def _question(question: str, reference: str, answer: str) -> list[dict[str, str]]:
    texts = {"question": question, "correct_answer": reference, "agent_answer": answer}
    material = quoted(canonical({name: text[:_MAX_CHARACTERS] for name, text in texts.items()}))
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": material}]


def _forms(scenario: Scenario, reference: str) -> bool:
    """Return whether forms such as JSON are suspect in an answer: neither question nor reference mentions them."""
    return not asks_for_form(f"{scenario.task.get('question', '')} {reference}")


def _obvious(answer: Json, reference: str, *, forms: bool) -> Score | None:
    """Return the score of an answer that needs no model to judge it; None if it needs one."""
    if not isinstance(answer, str) or not answer.strip():
        return Score(0.0, "no answer was given")
    if (phrase := addresses_judge(answer, forms=forms)) is not None:
        return Score(0.0, f"it speaks to the judge: {phrase!r}")
    if " ".join(answer.casefold().split()) == " ".join(reference.casefold().split()):
        return Score(1.0, "it repeats the reference answer")
    return None


def _text(candidate: Candidate) -> str:
    return str(candidate.outcome.get("answer"))


def _score(correct: bool, explanation: str) -> Score:
    return Score(1.0 if correct else 0.0, explanation)


def _parsed(completion: Completion) -> tuple[bool, str]:
    """Return whether the answer is correct, and why, as the model said. Raises UnusableAnswer."""
    document = object_in(completion, lambda document: isinstance(document.get("correct"), bool))
    correct, explanation = document.get("correct"), document.get("explanation", "")
    if not isinstance(correct, bool):
        raise UnusableAnswer("correct is not true or false")
    if not isinstance(explanation, str):
        raise UnusableAnswer("the explanation is not a text")
    return correct, explanation[:_MAX_EXPLANATION_CHARACTERS]


def _remembered(value: Json) -> Score | None:
    """Return the score in a cached value; None if the value is not one of ours."""
    if isinstance(value, Mapping) and isinstance(value.get("correct"), bool):
        return _score(value["correct"], str(value.get("explanation", "")))
    return None

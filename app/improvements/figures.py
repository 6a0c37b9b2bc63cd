"""The figures of an improvement that its sentence, tables and lines are written from."""

from collections.abc import Sequence
from dataclasses import dataclass

from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.schemas.improvements import CandidateOut, EvidenceOut, ImprovementOut
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.training.statistics.bootstrap import Interval


@dataclass(frozen=True, slots=True)
class PairedTasks:
    """Tasks that a candidate and the champion of that time both did."""

    won: int
    lost: int
    tasks: int


@dataclass(frozen=True, slots=True)
class AnswerPrice:
    """What an answer takes; None where it is unknown."""

    tokens: float | None = None
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class CandidateFigures:
    """What was tried, what it reached, and what trying it took."""

    rung: Rung
    state: CandidateState
    name: str = ""
    """Name of its prompt or listed model."""
    reason: str | None = None
    """Why it was refused, skipped or failed."""
    validation: Interval | None = None
    test: Interval | None = None
    """Success on test tasks; None unless it was champion of its rung when the improvement ended."""
    screening: PairedTasks | None = None
    gate: PairedTasks | None = None
    minutes: float | None = None
    """None if that is unknown."""
    usd: float | None = None
    answer: AnswerPrice = AnswerPrice()


@dataclass(frozen=True, slots=True)
class PilotFigures:
    """What the agent does as it is on training tasks, with several attempts at each."""

    tasks: int
    samples: int
    success: float
    solved_once: float
    """Share of tasks that were solved in at least one attempt."""
    groups_differ: float
    """Share of tasks whose attempts have different rewards."""
    inconsistent: float
    """Share of tasks on which two attempts differ in success."""


@dataclass(frozen=True, slots=True)
class LargestPattern:
    """The largest pattern of the failures that remain, in numbers of tasks."""

    sentence: str
    tasks: int
    failures: int
    """Tasks that fail, by any pattern."""
    rollouts: Sequence[str] = ()
    """Ids of some of its rollouts."""


@dataclass(frozen=True, slots=True)
class ImprovementFigures:
    """An improvement. Candidates are in the order of their numbers; the first one is the agent as it is."""

    status: ImprovementStatus
    candidates: Sequence[CandidateFigures]
    target: float | None
    validation_tasks: int
    test_tasks: int = 0
    test_looks: int = 1
    """How often test tasks were looked at, the last time included."""
    reason: str | None = None
    """Why it failed."""
    minutes: float | None = None
    """What all of it took, with the pilot and the test tasks; None for the sum over the candidates."""
    usd: float | None = None
    pilot: PilotFigures | None = None
    pattern: LargestPattern | None = None
    environment: str | None = None
    """What the check of the environment says is broken; None if nothing is."""
    judge_agreement: float | None = None
    """Intraclass correlation of an LLM judge that scored the pilot's rollouts twice; None if it was not measured."""
    causes: Sequence[str] = ()
    """What the diagnosis of its runs says, the cause that explains the others first."""
    smallest_gain: float | None = None
    """Gain that the validation tasks show with 80% probability; None if there is no such gain."""

    @property
    def accepted(self) -> list[CandidateFigures]:
        """The newest accepted candidate of each rung, in the order of the rungs."""
        newest = {candidate.rung: candidate for candidate in self.candidates if candidate.state == "accepted"}
        return [newest[rung] for rung in Rung if rung in newest and rung is not Rung.AS_IT_IS]

    @property
    def champion(self) -> CandidateFigures:
        """The best candidate so far."""
        return [self.candidates[0], *self.accepted][-1]

    @property
    def is_tested(self) -> bool:
        """Whether there are test figures of the agent as it is and of the champion of each rung."""
        return all(candidate.test is not None for candidate in (self.candidates[0], *self.accepted))


def figures_of(shown: ImprovementOut) -> ImprovementFigures:
    """Return the figures of an improvement as the API shows it."""
    pilot, pattern, request = shown.pilot, shown.pattern, shown.request
    return ImprovementFigures(
        status=shown.status,
        candidates=[_candidate(candidate) for candidate in shown.tried],
        target=shown.target,
        validation_tasks=request["validation"],
        test_tasks=request["test"],
        test_looks=max(1, shown.test_looks),
        reason=shown.reason,
        minutes=shown.price.minutes,
        usd=shown.price.usd,
        pilot=None if pilot is None else PilotFigures(**pilot.model_dump(exclude={"evaluation_id"})),
        pattern=None if pattern is None else LargestPattern(**pattern.model_dump()),
        smallest_gain=shown.smallest_gain,
    )


def _candidate(shown: CandidateOut) -> CandidateFigures:
    prompt, answer = shown.prompt, shown.answer
    names = {Rung.MODEL: "" if shown.state is CandidateState.SKIPPED else shown.model}
    if prompt is not None:
        names[Rung.PROMPT] = prompt.sha256[:12] if prompt.name is None else f"{prompt.name}@{prompt.version}"
    return CandidateFigures(
        rung=shown.rung,
        state=shown.state,
        name=names.get(shown.rung, ""),
        reason=shown.reason,
        validation=_interval(shown.success),
        test=_interval(shown.test),
        screening=_pairs(shown.screening),
        gate=_pairs(shown.evidence),
        minutes=shown.price.minutes,
        usd=shown.price.usd,
        answer=AnswerPrice() if answer is None else AnswerPrice(answer.tokens, answer.usd),
    )


def _interval(shown: IntervalOut | None) -> Interval | None:
    return None if shown is None else Interval(shown.mean, shown.low, shown.high)


def _pairs(shown: EvidenceOut | None) -> PairedTasks | None:
    return None if shown is None else PairedTasks(shown.won, shown.lost, shown.tasks)

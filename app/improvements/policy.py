"""The policy of an improvement: rows in, the next move out. It is pure, so a process that takes over decides alike.

The order of the rungs is fixed, prompt, model, imitation, GRPO, because weights are trained with the prompt. Every
candidate is compared with the champion of its time on the same validation tasks. What is accepted is the new champion,
and the improvement ends when the champion's success reaches the target.

All comparisons together accept a candidate that is not better with a probability of at most 5%: see
training/statistics/error_shares.py. GRPO is one planned test, whose share its evaluated checkpoints divide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.environment.wording import counted
from learnloop_service.training.statistics.error_shares import error_shares

SCREENING_TASKS = 32
"""Training tasks that a prompt does before it may use up validation tasks and error."""
MODEL_SCREENING_TASKS = 16
SCREENING_LEAD = 3
"""How many more of them a prompt must win than lose."""
MODEL_SCREENING_LEAD = 2
REFUSALS = 3
"""Prompts in a row that are not accepted, after which the other kinds of change are tried."""
PILOT_TASKS, PILOT_SAMPLES = 64, 8
"""Training tasks of the pilot, but not more than there are validation tasks, and attempts at each."""
FEWEST_SOLVED = 0.1
"""Share of training tasks that the agent must solve at least once to imitate its own rollouts."""
PLANNED = (Rung.MODEL, Rung.IMITATION, Rung.GRPO)
"""Rungs whose number of candidates is known beforehand, in their order."""


@dataclass(frozen=True, slots=True)
class CandidateFacts:
    """What the policy knows of a candidate."""

    number: int
    rung: Rung
    state: CandidateState
    listed: bool = False
    error_share: float | None = None
    success: float | None = None
    """Share of the validation tasks; None before they were done."""
    screened: bool = False
    """Whether it passed its screening on training tasks."""


@dataclass(frozen=True, slots=True)
class PilotFacts:
    """What the agent does on training tasks."""

    solved_once: float
    groups_differ: float


@dataclass(frozen=True, slots=True)
class Situation:
    """What the policy decides on, while no job is in progress."""

    candidates: Sequence[CandidateFacts]
    champion: int
    pilot: PilotFacts | None
    target: float | None
    rungs: frozenset[Rung]
    models: int
    """Number of listed models in the request."""
    has_oracle: bool
    """Whether imitation may use the environment's demonstrations."""
    may_imitate_itself: bool
    trainable: bool
    """Whether the agent's model can be trained here."""
    proposals_open: bool
    """Whether there is still time for prompts to be proposed."""
    test_tasks: int
    tested: bool
    """Whether the test tasks were done since the champion last changed."""
    is_broken: bool
    """Whether the check of the environment found that its figures mean nothing."""
    too_dear: Mapping[Rung, str]
    """Rungs that the budget does not permit, with the reason."""
    is_used_up: bool = False
    """Whether a limit of the budget was reached, so that no job can be started."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Let the agent as it is do the validation tasks."""


@dataclass(frozen=True, slots=True)
class Pilot:
    """Let the agent as it is do training tasks, several times each."""


@dataclass(frozen=True, slots=True)
class Screen:
    """Let a candidate and the champion do training tasks."""

    number: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Compare:
    """Let a candidate and the champion do validation tasks, until it is decided whether the candidate is better."""

    number: int
    error: float


@dataclass(frozen=True, slots=True)
class Train:
    """Start the run of a candidate."""

    number: int
    error: float


@dataclass(frozen=True, slots=True)
class Add:
    """Add a candidate that the request names: listed model `index`, or a run."""

    rung: Rung
    index: int = 0


@dataclass(frozen=True, slots=True)
class Skip:
    """Do not try a rung, or a proposed candidate of it."""

    rung: Rung
    reason: str
    number: int | None = None


@dataclass(frozen=True, slots=True)
class WaitForPrompts:
    """Wait for prompts."""


@dataclass(frozen=True, slots=True)
class Test:
    """Let the champions do the test tasks."""


@dataclass(frozen=True, slots=True)
class End:
    """The improvement ends."""

    status: ImprovementStatus


Move = Measure | Pilot | Screen | Compare | Train | Add | Skip | WaitForPrompts | Test | End


def next_move(situation: Situation) -> Move:
    """Return what to do next."""
    if situation.is_broken:
        return End(ImprovementStatus.NOTHING_HELPS)
    as_it_is = situation.candidates[0]
    if as_it_is.state is CandidateState.PROPOSED and not situation.is_used_up:
        return Measure()
    champion = situation.candidates[situation.champion]
    reached = situation.target is not None and champion.success is not None and champion.success >= situation.target
    if not reached:
        if situation.is_used_up:
            return End(ImprovementStatus.BUDGET)
        if situation.pilot is None and situation.rungs:
            return Pilot()
        for rung in (Rung.PROMPT, *PLANNED):
            if rung in situation.rungs and (move := _move_on(rung, situation)) is not None:
                return move
    if situation.test_tasks and not situation.tested and not situation.is_used_up:
        return Test()
    if reached:
        return End(ImprovementStatus.REACHED)
    if situation.champion:
        return End(ImprovementStatus.BEST_SO_FAR)
    return End(ImprovementStatus.BUDGET if situation.too_dear else ImprovementStatus.NOTHING_HELPS)


def _move_on(rung: Rung, situation: Situation) -> Move | None:
    """Return the next move on a rung; None if it is done."""
    of_rung = [candidate for candidate in situation.candidates if candidate.rung is rung]
    proposed = next((candidate for candidate in of_rung if candidate.state is CandidateState.PROPOSED), None)
    if proposed is None:
        return _begin(rung, situation, of_rung)
    if rung is Rung.PROMPT and _refused_in_a_row(of_rung) >= REFUSALS:
        return Skip(rung, f"The {REFUSALS} prompts before it were not better.", proposed.number)
    if (reason := situation.too_dear.get(rung)) is not None:
        return Skip(rung, reason, proposed.number)
    if rung in (Rung.PROMPT, Rung.MODEL) and not proposed.screened:
        return Screen(proposed.number, SCREENING_TASKS if rung is Rung.PROMPT else MODEL_SCREENING_TASKS)
    error = error_share(proposed, situation)
    return Compare(proposed.number, error) if rung in (Rung.PROMPT, Rung.MODEL) else Train(proposed.number, error)


def _begin(rung: Rung, situation: Situation, of_rung: Sequence[CandidateFacts]) -> Move | None:
    """Return the move that begins a rung, or its next candidate; None if all of it was tried."""
    if rung is Rung.PROMPT:
        if situation.proposals_open and _refused_in_a_row(of_rung) < REFUSALS:
            return WaitForPrompts()
        return None if of_rung else Skip(rung, "No prompt was proposed. Give --prompts, or: learnloop improve material")
    if rung is Rung.MODEL and situation.models:
        return Add(rung, len(of_rung)) if len(of_rung) < situation.models else None
    if of_rung:
        return None
    reason = _why_not(rung, situation) or situation.too_dear.get(rung)
    return Add(rung) if reason is None else Skip(rung, reason)


def _why_not(rung: Rung, situation: Situation) -> str | None:
    """Return why there is nothing to try on a rung of `PLANNED`; None if there is."""
    if rung is Rung.MODEL:
        return "No listed model was named."
    if not situation.trainable:
        return "The agent's model cannot be trained here."
    pilot = situation.pilot
    assert pilot is not None  # it is made before any rung
    imitated = any(
        candidate.rung is Rung.IMITATION and candidate.state is CandidateState.ACCEPTED
        for candidate in situation.candidates
    )
    if rung is Rung.IMITATION and not situation.has_oracle:
        if not situation.may_imitate_itself:
            return "There are no demonstrations: the environment shows none, and its own rollouts are not a source."
        if pilot.solved_once < FEWEST_SOLVED:
            return f"There are no demonstrations: only {pilot.solved_once:.0%} of the training tasks were ever solved."
    if rung is Rung.GRPO and not pilot.groups_differ and not imitated:
        return "All attempts at each training task have the same reward, so there is nothing to learn from."
    return None


def _refused_in_a_row(of_rung: Sequence[CandidateFacts]) -> int:
    """Return how many of the latest decided prompts were not accepted."""
    row = 0
    for candidate in of_rung:
        if candidate.state is CandidateState.ACCEPTED:
            row = 0
        elif candidate.state in (CandidateState.REFUSED, CandidateState.UNREACHABLE, CandidateState.FAILED):
            row += 1
    return row


def error_share(candidate: CandidateFacts, situation: Situation) -> float:
    """Return the candidate's share of the error. The checkpoints of a run divide it."""
    tested = [other for other in situation.candidates if other.error_share is not None and other is not candidate]
    planned = situation.models + sum(rung in situation.rungs for rung in (Rung.IMITATION, Rung.GRPO))
    tests: list[Literal["prompt", "planned"] | None] = [
        "planned" if other.rung in PLANNED else "prompt" for other in (*tested, candidate)
    ]
    share = error_shares(tests, planned)[-1]
    assert share is not None  # each of them is a test
    return share


def passed(rung: Rung, won: int, lost: int, tasks: int) -> str | None:
    """Return why a candidate did not pass its screening on training tasks; None if it did."""
    lead = SCREENING_LEAD if rung is Rung.PROMPT else MODEL_SCREENING_LEAD
    if won - lost >= lead:
        return None
    return f"not better on {counted(tasks, 'training task')} ({won} won, {lost} lost)"

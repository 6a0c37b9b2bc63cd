"""The policy of an improvement: rows in, the next move out. It is pure, so a process that takes over decides alike.

The order of the rungs is fixed, prompt, model, imitation, GRPO, because weights are trained with the prompt. Every
candidate is compared with the champion of its time on the same validation tasks. What is accepted is the new champion,
and the improvement ends when the champion's success reaches the target.

All comparisons together accept a candidate that is not better with a probability of at most 5%: see
training/statistics/error_shares.py. GRPO is one planned test, whose share its evaluated checkpoints divide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from learnloop_service.app.db.tables import Candidate
from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.improvements.store import ImprovementRecord
from learnloop_service.environment.wording import counted
from learnloop_service.training.statistics.error_shares import error_shares

SCREENING = {Rung.PROMPT: (32, 3), Rung.MODEL: (16, 2)}
"""Training tasks that a candidate does before it may use up validation tasks and error, and how many more of them it
must win than lose."""
REFUSALS = 3
"""Prompts in a row that are not accepted, after which the other kinds of change are tried."""
PILOT_TASKS, PILOT_SAMPLES = 64, 8
"""Training tasks of the pilot, but not more than there are validation tasks, and attempts at each."""
FEWEST_SOLVED = 0.1
"""Share of training tasks that the agent must solve at least once to imitate its own rollouts."""
PLANNED = (Rung.MODEL, Rung.IMITATION, Rung.GRPO)
"""Rungs whose number of candidates is known beforehand, in their order."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the policy decides on besides the rows."""

    proposals_open: bool = False
    """Whether there is still time for prompts to be proposed."""
    too_dear: Mapping[Rung, str] = field(default_factory=dict)
    """Rungs that the budget does not permit, with the reason."""
    is_used_up: bool = False
    """Whether a limit of the budget was reached, so that no job can be started."""


@dataclass(frozen=True, slots=True)
class NextMove:
    """What to do next. Fields that do not matter to a kind of move have their defaults."""

    kind: Literal["measure", "pilot", "screen", "compare", "train", "add", "skip", "wait", "test", "end"]
    """`measure`: the agent as it is does the validation tasks. `pilot`: it does training tasks, several times each.
    `screen`, `compare`: a candidate and the champion do training or validation tasks. `train`: the run of a candidate.
    `add`: a candidate that the request names. `skip`: a rung, or a proposed candidate of it. `wait`: for prompts.
    `test`: the champions do the test tasks."""
    number: int | None = None
    """Number of the candidate."""
    rung: Rung = Rung.AS_IT_IS
    error: float = 0.0
    """The candidate's share of the error."""
    reason: str = ""
    status: ImprovementStatus = ImprovementStatus.RUNNING
    """How the improvement ends."""


def next_move(record: ImprovementRecord, outlook: Outlook) -> NextMove:
    """Return what to do next, while no job is in progress."""
    improvement, request = record.improvement, record.improvement.request
    if improvement.facts.get("broken"):
        return _end(ImprovementStatus.NOTHING_HELPS)
    if record.candidates[0].state == CandidateState.PROPOSED and not outlook.is_used_up:
        return NextMove("measure", 0)
    figures, target = record.champion.figures, request["target"]
    reached = target is not None and figures is not None and figures["success"]["mean"] >= target
    if not reached:
        if outlook.is_used_up:
            return _end(ImprovementStatus.BUDGET)
        if improvement.pilot is None and request["rungs"]:
            return NextMove("pilot")
        for rung in (Rung.PROMPT, *PLANNED):
            if rung in request["rungs"] and (move := _move_on(rung, record, outlook)) is not None:
                return move
    is_tested = improvement.final is not None and improvement.final["champion"] == improvement.champion
    if request["test"] and not is_tested and not outlook.is_used_up:
        return NextMove("test")
    if reached:
        return _end(ImprovementStatus.REACHED)
    if improvement.champion:
        return _end(ImprovementStatus.BEST_SO_FAR)
    return _end(ImprovementStatus.BUDGET if outlook.too_dear else ImprovementStatus.NOTHING_HELPS)


def _end(status: ImprovementStatus) -> NextMove:
    return NextMove("end", status=status)


def _move_on(rung: Rung, record: ImprovementRecord, outlook: Outlook) -> NextMove | None:
    """Return the next move on a rung; None if it is done."""
    of_rung = [row for row in record.candidates if row.rung == rung]
    proposed = next((row for row in of_rung if row.state == CandidateState.PROPOSED), None)
    if proposed is None:
        return _begin(rung, record, outlook, of_rung)
    if rung is Rung.PROMPT and _refused_in_a_row(of_rung) >= REFUSALS:
        return NextMove("skip", proposed.number, rung, reason=f"The {REFUSALS} prompts before it were not better.")
    if (reason := outlook.too_dear.get(rung)) is not None:
        return NextMove("skip", proposed.number, rung, reason=reason)
    if rung not in SCREENING:
        return NextMove("train", proposed.number, rung, error_share(proposed, record))
    if "training" not in (proposed.evidence or {}):
        return NextMove("screen", proposed.number, rung)
    return NextMove("compare", proposed.number, rung, error_share(proposed, record))


def _begin(rung: Rung, record: ImprovementRecord, outlook: Outlook, of_rung: Sequence[Candidate]) -> NextMove | None:
    """Return the move that begins a rung, or its next candidate; None if all of it was tried."""
    if rung is Rung.PROMPT and outlook.proposals_open and _refused_in_a_row(of_rung) < REFUSALS:
        return NextMove("wait")
    if rung is Rung.MODEL and (models := record.improvement.request["models"]):
        return NextMove("add", rung=rung) if len(of_rung) < len(models) else None
    if of_rung:
        return None
    reason = why_not(rung, record) or outlook.too_dear.get(rung)
    return NextMove("add", rung=rung) if reason is None else NextMove("skip", rung=rung, reason=reason)


def why_not(rung: Rung, record: ImprovementRecord) -> str | None:
    """Return why there is nothing to try on a rung without candidates; None if there is."""
    if rung is Rung.PROMPT:
        return "No prompt was proposed. Give --prompts, or: learnloop improve material"
    if rung is Rung.MODEL:
        return "No listed model was named."
    improvement, pilot = record.improvement, record.improvement.pilot
    if not improvement.facts["trainable"]:
        return "The agent's model cannot be trained here."
    assert pilot is not None  # it is made before any rung
    if rung is Rung.GRPO:
        if pilot["groups_differ"] or Rung.IMITATION in record.accepted:
            return None
        return "All attempts at each training task have the same reward, so there is nothing to learn from."
    sources = improvement.request["imitation"]["sources"]
    if "oracle" in sources and improvement.facts["oracle"]:
        return None
    if "own" not in sources:
        return "There are no demonstrations: the environment shows none, and its own rollouts are not a source."
    if pilot["solved_once"] < FEWEST_SOLVED:
        return f"There are no demonstrations: only {pilot['solved_once']:.0%} of the training tasks were ever solved."
    return None


def _refused_in_a_row(of_rung: Sequence[Candidate]) -> int:
    """Return how many of the latest decided prompts were not accepted."""
    row = 0
    for candidate in of_rung:
        if candidate.state == CandidateState.ACCEPTED:
            row = 0
        elif candidate.state in (CandidateState.REFUSED, CandidateState.UNREACHABLE, CandidateState.FAILED):
            row += 1
    return row


def error_share(candidate: Candidate, record: ImprovementRecord) -> float:
    """Return the candidate's share of the error. The checkpoints of a run divide it."""
    rungs, models = record.improvement.request["rungs"], record.improvement.request["models"]
    planned = sum(rung in rungs for rung in (Rung.IMITATION, Rung.GRPO)) + len(models) * (Rung.MODEL in rungs)
    tested = [row for row in record.candidates if row.error_share is not None and row is not candidate]
    return error_shares([row.rung in PLANNED for row in (*tested, candidate)], planned)[-1]


def passed(rung: Rung, won: int, lost: int, tasks: int) -> str | None:
    """Return why a candidate did not pass its screening on training tasks; None if it did."""
    if won - lost >= SCREENING[rung][1]:
        return None
    return f"not better on {counted(tasks, 'training task')} ({won} won, {lost} lost)"

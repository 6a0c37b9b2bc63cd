"""An improvement as lines of a terminal, and its prices as a table in Markdown."""

from collections.abc import Iterable

from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.improvements.amounts import clock, duration, percent, price, with_interval
from learnloop_service.app.reports.format import NONE, dollars
from learnloop_service.app.schemas.improvements import (
    AnswerPriceOut,
    CandidateOut,
    EvidenceOut,
    ImprovementOut,
    ImprovementPlan,
    PilotOut,
    PlannedRungOut,
    RungForecastOut,
)
from learnloop_service.environment.wording import counted

_WIDTH = 16
"""Width of the first column of lines."""
_ANSWERS = 1_000
_ALIKE = 0.05
"""Relative difference between prices of answers up to which they count as equal."""
_IN_PROGRESS = {
    CandidateState.PROPOSED: "waits for its turn",
    CandidateState.SCREENING: "does training tasks",
    CandidateState.MEASURING: "does validation tasks",
    CandidateState.TRAINING: "is trained",
}


def decided(improvement: ImprovementOut) -> list[str]:
    """Return the lines about what can be shown, what was decided, and what is waited for."""
    candidates = [
        candidate_line(row, improvement.target)
        for row in improvement.tried
        if row.decided_at is not None or row.state is CandidateState.SKIPPED
    ]
    pilot = [pilot_line(improvement.pilot)] if improvement.pilot is not None else []
    waits = [line("waits", improvement.reason)] if improvement.reason and improvement.status == "running" else []
    forecasts = [forecast_line(forecast) for forecast in improvement.forecast]
    first = (f"Improvement {improvement.id}", *improvement.can_show)
    return [*first, *candidates[:1], *pilot, *forecasts, *candidates[1:], *waits]


def ended(improvement: ImprovementOut) -> list[str]:
    """Return the lines about what came of an improvement that has ended."""
    reason = None if improvement.status is ImprovementStatus.FAILED else improvement.reason  # the sentence has it
    lines = (improvement.sentence, reason, price_line(improvement), failures_line(improvement))
    return [line for line in lines if line is not None]


def label(candidate: CandidateOut) -> str:
    """Return what a candidate is called: its rung, with the name of the prompt or listed model that it tries."""
    prompt, name = candidate.prompt, ""
    if candidate.rung is Rung.PROMPT and prompt is not None:
        name = prompt.sha256[:12] if prompt.name is None else f"{prompt.name}@{prompt.version}"
    elif candidate.rung is Rung.MODEL and candidate.state is not CandidateState.SKIPPED:
        name = candidate.model
    return f"{_called(candidate.rung)} {name}".strip()


def _called(rung: Rung) -> str:
    return "GRPO" if rung is Rung.GRPO else rung.replace("_", " ")


def candidate_line(candidate: CandidateOut, target: float | None = None) -> str:
    """Return the line of a candidate: its success, how it was decided and how long it took."""
    parts = [with_interval(candidate.success, target)] if candidate.success else []
    match candidate.state:
        case CandidateState.ACCEPTED if candidate.evidence:
            parts.append(f"accepted: {_pairs(candidate.evidence)}")
        case CandidateState.REFUSED if candidate.evidence:
            parts.append(f"not shown to be better: {_pairs(candidate.evidence)}")
        case CandidateState.REFUSED if candidate.screening:
            parts.append(f"not better on training tasks: {_pairs(candidate.screening)}")
        case CandidateState.REFUSED | CandidateState.UNREACHABLE | CandidateState.SKIPPED | CandidateState.FAILED:
            parts.append(f"{candidate.state}{f': {candidate.reason}' if candidate.reason else ''}")
        case CandidateState.ACCEPTED:
            pass
        case state:
            parts.append(_IN_PROGRESS[state])
    if candidate.price.minutes:
        parts.append(clock(candidate.price.minutes))
    return line(label(candidate), "   ".join(parts))


def line(name: str, text: str) -> str:
    """Return a line of two columns."""
    return f"{name:{_WIDTH}} {text}".rstrip()


def pilot_line(pilot: PilotOut) -> str:
    """Return the line about the attempts at training tasks."""
    shares = (
        f"{percent(pilot.success)} sampled",
        f"{percent(pilot.solved_once)} of the tasks solved in one of {counted(pilot.samples, 'attempt')}",
        f"{percent(pilot.groups_differ)} of groups differ",
    )
    return line("pilot", f"on {counted(pilot.tasks, 'training task')}: {', '.join(shares)}")


def forecast_line(forecast: RungForecastOut) -> str:
    """Return the line about what a rung will take."""
    return line("forecast", f"{_called(forecast.rung)} {_range(forecast.minutes, forecast)}")


def planned(plan: ImprovementPlan) -> list[str]:
    """Return the lines about what an improvement would do and take."""
    lines = list(plan.can_show)
    for rung in plan.rungs:
        takes = _range(rung.minutes, rung) if rung.minutes else "its time is known after the pilot"
        lines.append(line(_called(rung.rung), f"skipped: {rung.why_not}" if rung.why_not else takes))
    return lines


def _range(minutes: tuple[float, float], forecast: RungForecastOut | PlannedRungOut) -> str:
    gain = f"; {forecast.gain}" if forecast.gain else ""
    return f"{clock(minutes[0])} to {clock(minutes[1])} ({forecast.source}{gain})"


def price_line(improvement: ImprovementOut) -> str:
    """Return what all of it took, and what answers of the champion will take."""
    later = _answers(improvement.tried[improvement.champion].answer, improvement.tried[0].answer)
    in_all = improvement.price
    paid = f" and {dollars(in_all.usd)}" if in_all.usd else ""
    return f"Price: {duration(in_all.minutes)}{paid} in all.{later}"


def failures_line(improvement: ImprovementOut) -> str | None:
    """Return the line about the validation tasks that the champion fails; None if that is unknown."""
    if (pattern := improvement.pattern) is None:
        return None
    fail = "fails" if pattern.failures == 1 else "fail"
    return (
        f"Remaining: {pattern.failures} of {counted(improvement.request['validation'], 'task')} {fail}, "
        f'{pattern.tasks} of them "{pattern.sentence}".'
    )


def price_table(improvement: ImprovementOut) -> str:
    """Return candidates, their success and their prices as a table in Markdown."""
    heads = ("", "", "validation", "test", "won, lost", "price", f"{_ANSWERS:,} answers")
    rows = [
        (
            label(candidate),
            str(candidate.state),
            with_interval(candidate.success, improvement.target) if candidate.success else NONE,
            with_interval(candidate.test, improvement.target) if candidate.test else NONE,
            f"{candidate.evidence.won}, {candidate.evidence.lost}" if candidate.evidence else NONE,
            price(candidate.price),
            _amount(candidate.answer) or NONE,
        )
        for candidate in improvement.tried
    ]
    rows.append(("all", "", "", "", "", price(improvement.price), ""))
    return "\n".join([_row(heads), _row("---" for _ in heads), *map(_row, rows)])


def _row(cells: Iterable[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _pairs(pairs: EvidenceOut) -> str:
    return f"{pairs.won:,} won, {pairs.lost:,} lost of {pairs.tasks:,}"


def _answers(now: AnswerPriceOut | None, before: AnswerPriceOut | None) -> str:
    """Return a sentence about what answers take, beside what they took before the improvement."""
    if now is None or (amount := _amount(now)) is None:
        return ""
    if before is None or (earlier := _amount(before)) is None:
        return f" {_ANSWERS:,} answers: {amount}."
    alike = _are_alike(now.tokens, before.tokens) and _are_alike(now.usd, before.usd)
    return f" {_ANSWERS:,} answers: {amount}, {'as before' if alike else f'instead of {earlier}'}."


def _are_alike(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _ALIKE * max(one, other)


def _amount(answer: AnswerPriceOut | None) -> str | None:
    """Return what 1,000 answers take, with two digits of tokens, because the mean of a few answers has no more."""
    if answer is None:
        return None
    tokens = None if answer.tokens is None else float(f"{_ANSWERS * answer.tokens:.2g}")
    parts = [] if tokens is None else [f"{tokens:,.0f} tokens"]
    if answer.usd:
        parts.append(dollars(_ANSWERS * answer.usd))
    return " and ".join(parts) or None

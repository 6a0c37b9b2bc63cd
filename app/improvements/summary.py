"""What came of an improvement, in a sentence or two, and why nothing helped."""

from collections.abc import Sequence

from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.improvements.amounts import exactly, paid, percent, with_interval
from learnloop_service.app.schemas.improvements import CandidateOut, ImprovementOut, PriceOut
from learnloop_service.environment.wording import counted

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_CALLED = {Rung.PROMPT: "a prompt", Rung.MODEL: "another model", Rung.IMITATION: "imitation", Rung.GRPO: "GRPO"}
_LOOKS = {1: "once", 2: "twice"}
_INCONSISTENT = 0.3
"""Share of tasks on which an agent differs from itself, from which small gains are hidden."""
_PRECISE = "Next: add validation tasks, so that smaller gains can be shown."


def sentence(improvement: ImprovementOut, broken: Sequence[str] = (), causes: Sequence[str] = ()) -> str:
    """Return what came of an improvement: how it ended, what showed no gain, what each rung reached and for which
    price, and which tasks the figures are from. What the check of the environment says is broken, and the causes that
    the diagnosis of its runs names, first the one that explains the others, can explain that nothing helped."""
    if improvement.status is ImprovementStatus.NOTHING_HELPS:
        parts = [*_without_gain(improvement.tried), nothing_helps(improvement, broken, causes)]
    else:
        parts = [*_end(improvement), *_without_gain(improvement.tried), *_climb(improvement)]
    return " ".join([*parts, *_basis(improvement)])


def nothing_helps(improvement: ImprovementOut, broken: Sequence[str] = (), causes: Sequence[str] = ()) -> str:
    """Return why nothing helped, the first reason that fits, and one thing to do next."""
    pilot, pattern = improvement.pilot, improvement.pattern
    if broken:
        return f"Nothing can help before the environment is repaired: {broken[0]}. Next: repair it."
    if pilot is not None and not pilot.groups_differ:
        other = "another judge" if pilot.solved_once else "demonstrations"
        return (
            f"Nothing helped: all attempts at a task had the same reward, so there is nothing to learn from. "
            f"Next: try {other}."
        )
    if pilot is not None and pilot.inconsistent > _INCONSISTENT:
        return (
            "Nothing helped: two attempts of the same agent differ on "
            f"{percent(pilot.inconsistent)} of the tasks, which hides small gains. {_PRECISE}"
        )
    if causes:
        return f"Nothing helped. The diagnosis says: {causes[0].rstrip('.')}. Next: remove this cause."
    if pattern is not None and 2 * pattern.tasks > pattern.failures:
        example = f" (for example rollout {pattern.rollouts[0]})" if pattern.rollouts else ""
        return (
            f'Nothing helped: {pattern.tasks} of {counted(pattern.failures, "failure")} are "{pattern.sentence}"'
            f"{example}. Next: demonstrate these tasks."
        )
    gain = improvement.smallest_gain
    certain = f" A gain of {100 * gain:.0f} points would have been shown with 80% probability." if gain else ""
    return (
        "Nothing helped: gains, if there are any, are below what "
        f"{counted(improvement.request['validation'], 'validation task')} can show.{certain} {_PRECISE}"
    )


def _accepted(improvement: ImprovementOut) -> list[CandidateOut]:
    """Return the newest accepted candidate of each rung, in the order of the rungs."""
    newest = {row.rung: row for row in improvement.tried if row.state is CandidateState.ACCEPTED}
    return [newest[rung] for rung in Rung if rung in newest and rung is not Rung.AS_IT_IS]


def _is_tested(improvement: ImprovementOut) -> bool:
    """Whether there are test figures of the agent as it is and of the champion of each rung."""
    return all(row.test is not None for row in (improvement.tried[0], *_accepted(improvement)))


def _end(improvement: ImprovementOut) -> list[str]:
    """Return how it ended; nothing if the target was reached and test tasks, if there are any, confirm it."""
    target, best = improvement.target, improvement.tried[improvement.champion]
    aim = "" if target is None else f" before the target of {exactly(target)} was reached"
    match improvement.status:
        case ImprovementStatus.REACHED if target is not None and best.test and best.test.mean < target:
            by = f" with {percent(best.success.mean, target)}" if best.success else ""
            return [
                f"The target of {exactly(target)} was reached on validation tasks{by}, and is not confirmed: "
                f"{with_interval(best.test, target)} on test tasks."
            ]
        case ImprovementStatus.BEST_SO_FAR if target is not None:
            return [f"The target of {exactly(target)} was not reached by all that there was to try."]
        case ImprovementStatus.BEST_SO_FAR:
            return ["Everything was tried."]
        case ImprovementStatus.BUDGET:
            return [f"The budget was used up{aim}."]
        case ImprovementStatus.CANCELLED:
            return [f"It was cancelled{aim}."]
        case ImprovementStatus.FAILED:
            return [f"It failed{f': {improvement.reason}' if improvement.reason else ''}".rstrip(".") + "."]
        case ImprovementStatus.RUNNING | ImprovementStatus.PAUSED:
            return ["It has not ended."]
    return []


def _without_gain(candidates: Sequence[CandidateOut]) -> list[str]:
    """Return sentences about the rungs of which nothing was accepted."""
    ends = {
        CandidateState.REFUSED: "showed no gain",
        CandidateState.UNREACHABLE: "did not reach the model, and so could not be tried",
        CandidateState.FAILED: "failed",
    }
    climbed = {candidate.rung for candidate in candidates if candidate.state == CandidateState.ACCEPTED}
    sentences = []
    for state, end in ends.items():
        counts = {
            rung: sum(candidate.rung == rung and candidate.state == state for candidate in candidates)
            for rung in _CALLED
            if rung not in climbed
        }
        tried = [_number_of(rung, count) for rung, count in counts.items() if count]
        if tried:
            listed = tried[0] if len(tried) == 1 else f"{', '.join(tried[:-1])} and {tried[-1]}"
            sentences.append(f"{listed[0].upper()}{listed[1:]} {end}.")
    return sentences


def _number_of(rung: Rung, count: int) -> str:
    if count == 1 or rung in (Rung.IMITATION, Rung.GRPO):
        return _CALLED[rung]
    return f"{_NUMBERS[count] if count < len(_NUMBERS) else f'{count:,}'} {rung}s"


def _climb(improvement: ImprovementOut) -> list[str]:
    """Return what the accepted candidate of each rung reached, and what the rung took, as one sentence."""
    is_enough = improvement.status is ImprovementStatus.REACHED and not _end(improvement)
    climbed = _accepted(improvement)
    if not climbed:
        success = _success(improvement, improvement.tried[0])
        if success is None:
            return []
        return [f"The agent reaches {success} as it is{'; nothing was needed' if is_enough else ''}."]
    clauses: list[str] = []
    has_usd = has_time = False
    for candidate in climbed:
        spent = PriceOut.total(other.price for other in improvement.tried if other.rung == candidate.rung)
        called = "a prompt alone" if candidate.rung is Rung.PROMPT else _CALLED[candidate.rung]
        verb = "" if clauses else " reached"
        price = paid(spent, more_usd=has_usd, more_time=has_time)
        clauses.append(f"{called}{verb} {_success(improvement, candidate) or 'an unknown success'} {price}")
        has_usd, has_time = has_usd or bool(spent.usd), has_time or not spent.usd
    if is_enough:
        clauses.append("nothing else was needed")
    climb = "; ".join(clauses)
    return [f"{climb[0].upper()}{climb[1:]}."]


def _basis(improvement: ImprovementOut) -> list[str]:
    """Return in parentheses which tasks the figures are from, what the agent reaches as it is, and the target."""
    first, climbed = _success(improvement, improvement.tried[0]), _accepted(improvement)
    if first is None:
        return []
    if _is_tested(improvement):
        count = improvement.request["test"]
        before, were = improvement.test_looks - 1, "was" if count == 1 else "were"
        use = f"{were} looked at {_LOOKS.get(before, f'{before} times')} before" if before else "no decision has used"
        tasks = f"{counted(count, 'test task')} that {use}"
    else:
        tasks = counted(improvement.request["validation"], "validation task")
        tasks += " that also decided, so expect less on others" if climbed else ""
    if climbed or improvement.status is ImprovementStatus.NOTHING_HELPS:
        tasks += f"; {first} as it is"
    return [f"({tasks}{'' if improvement.target is None else f'; target {exactly(improvement.target)}'}.)"]


def _success(improvement: ImprovementOut, candidate: CandidateOut) -> str | None:
    """Return a success on the tasks that all figures of the sentence are from; None if it was not measured."""
    success = candidate.test if _is_tested(improvement) else candidate.success
    return None if success is None else percent(success.mean, improvement.target)

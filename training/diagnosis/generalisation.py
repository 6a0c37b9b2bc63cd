"""Causes that show on held-out scenarios: success falls there, or what the base could do is lost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.diagnosis.detector import AllFacts, Detector
from learnloop_service.training.diagnosis.diagnosis import CausePeriod, Remedy, Severity
from learnloop_service.training.diagnosis.facts import Facts
from learnloop_service.training.diagnosis.held_out import evaluations, evidence_of_fall, training_success
from learnloop_service.training.diagnosis.spans import spans_while
from learnloop_service.training.statistics.shares import newcombe, wilson, z_of

_THRESHOLD = 800.0
"""Evidence at which a fall is named, times the number of evaluations (training/diagnosis/shares.py)."""
_FEW_SCENARIOS = 64
"""With fewer scenarios only a very deep fall can be shown."""
_COMPARED = 3
_RISE = 0.1
"""Rise of success on training scenarios, or smallest gap between those that were seen and held-out ones."""
_FALSE_ALARMS = 0.02
"""Share of runs without a gap in which one is named, at most."""
_FORGOTTEN = 0.3
"""Share of the scenarios that the base solved greedily which may fail later."""
_FEWEST_FORGOTTEN = 3


class Overfits(Detector):
    """Held-out success falls while success on training scenarios rises, or is below that on scenarios that were
    demonstrated or rolled out before."""

    severity = Severity.NOTE

    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        gaps = ((iteration.iteration, gap.is_shown) for iteration, gap in self._gaps(facts))
        return spans_while(self._holds(facts)) or spans_while(gaps)

    def _gaps(self, facts: AllFacts) -> Iterator[tuple[Facts, "_Gap"]]:
        """Yield the iterations that rolled out scenarios again with a policy that was evaluated, and what they show."""
        z = z_of(1 - _FALSE_ALARMS / self._evaluations())
        sampled = {iteration.step: iteration.held_out.sampled for iteration in evaluations(facts) if iteration.held_out}
        familiar = {id for iteration in facts for id in iteration.demonstrated}
        for iteration in facts:
            again = [
                group.successes / group.scored
                for group in iteration.groups
                if group.scenario in familiar and group.scored
            ]
            held_out = sampled.get(iteration.sampled_step) if iteration.sampled_step is not None else None
            if again and held_out:
                yield iteration, _Gap.of(again, list(held_out.values()), z)
            familiar |= {group.scenario for group in (*iteration.groups, *iteration.replacements)} - {""}

    def _gap(self, facts: AllFacts, span: CausePeriod) -> "_Gap | None":
        """Return the latest gap of a span that a gap began; None if a fall did."""
        if spans_while(self._holds(facts)):
            return None
        return next(
            (gap for iteration, gap in reversed([*self._gaps(facts)]) if iteration.iteration >= span.first), None
        )

    def _holds(self, facts: AllFacts) -> Iterator[tuple[int, bool | None]]:
        evaluated = evaluations(facts)
        for count, iteration in enumerate(evaluated[1:], 2):
            fallen = evidence_of_fall(evaluated[:count])
            has_fallen = fallen >= self._threshold() and self._rose(facts, iteration)
            yield iteration.iteration, True if has_fallen else False if fallen < 1 else None

    def _threshold(self) -> float:
        return _THRESHOLD * self._evaluations()

    def _evaluations(self) -> int:
        return max(1, self.config.all_iterations // self.config.evaluation.every)

    def _rose(self, facts: AllFacts, until: Facts) -> bool:
        rates = [
            training_success(iteration)
            for iteration in facts
            if iteration.groups and iteration.iteration <= until.iteration
        ]
        return len(rates) > _COMPARED and fmean(rates[-_COMPARED:]) - fmean(rates[:_COMPARED]) >= _RISE

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        if gap := self._gap(facts, span):
            return (
                f"Success is {gap.seen:.0%} on training scenarios that were demonstrated or rolled out before, and "
                f"{gap.held_out:.0%} on held-out ones: part of it is learned by heart."
            )
        return "Success on training scenarios rises, and on held-out ones it has fallen."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        if gap := self._gap(facts, span):
            return asdict(gap)
        curve = {
            str(iteration.iteration): round(_mean(iteration.held_out.sampled), 4)
            for iteration in evaluations(facts)
            if iteration.held_out
        }
        return {"held_out_success": curve, "bound": self._threshold()}

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        if self._gap(facts, span):
            return Remedy(
                "More training scenarios would help a new run, or fewer epochs of demonstrations (warm_start)."
            )
        return Remedy("Stop: /ask uses the best checkpoint already. More training scenarios would help a new run.")

    def not_examined(self, facts: AllFacts) -> str | None:
        evaluated = evaluations(facts)
        scenarios = max((len(iteration.held_out.sampled) for iteration in evaluated if iteration.held_out), default=0)
        if not scenarios:
            return "The run has no validation scenarios."
        if scenarios < _FEW_SCENARIOS:
            few = counted(scenarios, "validation scenario")
            return f"With {few} only a deep fall shows; {_FEW_SCENARIOS} show one of 40 points."
        return None


@dataclass(frozen=True, slots=True)
class _Gap:
    """Success of one policy on scenarios that it has seen, and on held-out ones."""

    seen: float
    groups: int
    held_out: float
    scenarios: int
    low: float
    """Lower end of the interval of the difference: Newcombe's, where a group or scenario counts as one trial."""

    @classmethod
    def of(cls, familiar: Sequence[float], held_out: Sequence[float], z: float) -> "_Gap":
        rate, held_out_rate = fmean(familiar), fmean(held_out)
        intervals = wilson(held_out_rate, len(held_out), z), wilson(rate, len(familiar), z)
        low, _ = newcombe(held_out_rate, *intervals[0], rate, *intervals[1])
        return cls(round(rate, 4), len(familiar), round(held_out_rate, 4), len(held_out), round(low, 4))

    @property
    def is_shown(self) -> bool:
        return self.low > 0 and self.seen - self.held_out >= _RISE


class Forgets(Detector):
    """Scenarios that the base model solved fail now."""

    severity = Severity.NOTE

    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        most = max(_FEWEST_FORGOTTEN, _FORGOTTEN * len(_solved(facts)))
        return spans_while(
            (iteration.iteration, len(self._lost(facts, iteration)) >= most) for iteration in evaluations(facts)[1:]
        )

    def _lost(self, facts: AllFacts, iteration: Facts) -> list[str]:
        now = iteration.held_out.greedy if iteration.held_out else {}
        return [id for id in _solved(facts) if now.get(id) == 0.0]

    def _newest(self, facts: AllFacts) -> Facts:
        return evaluations(facts)[-1]

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        lost, solved = self._lost(facts, self._newest(facts)), _solved(facts)
        return f"Of {counted(len(solved), 'held-out scenario')} that the base model solved, now failing: {len(lost)}."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        return {
            "scenarios": self._lost(facts, self._newest(facts))[:10],
            "solved_before": len(_solved(facts)),
            "bound": _FORGOTTEN,
        }

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        text = "Go back to the checkpoint before it, and keep the policy close to its base (kl_penalty_coef)."
        return self.fork(facts, span, text, train_options={"kl_penalty_coef": 0.05})


def _solved(facts: AllFacts) -> list[str]:
    """Return the scenarios that the base model solved greedily."""
    first = next(iter(evaluations(facts)), None)
    return [id for id, success in first.held_out.greedy.items() if success == 1.0] if first and first.held_out else []


def _mean(rates: Mapping[str, float]) -> float:
    return fmean(rates.values()) if rates else 0.0

"""Figures that stay beyond a threshold for several iterations, while held-out success is not shown to rise.

No theorem bounds how often healthy runs do this, so these are notes: they are shown, and never are an alarm.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from statistics import fmean, median

from learnloop_service.environment.json_type import Json
from learnloop_service.training.diagnosis import request_limits
from learnloop_service.training.diagnosis.contradictions import lowered_rate, raised_rate
from learnloop_service.training.diagnosis.detector import AllFacts, Detector
from learnloop_service.training.diagnosis.diagnosis import CausePeriod, Remedy, Severity
from learnloop_service.training.diagnosis.facts import Facts
from learnloop_service.training.diagnosis.held_out import is_rising, training_success
from learnloop_service.training.diagnosis.spans import spans_while

_CLEAR_AFTER = 3
"""Iterations in a row within the bound after which a trend has ended."""


class TrendDetector(Detector):
    """Detects that something holds in several iterations in a row of a run that is not rising."""

    severity = Severity.NOTE
    lasts = 3
    """Number of iterations in which it must hold."""
    bound: float
    is_low = True
    """Whether figures below the bound are beyond it, or those from the bound up."""

    @abstractmethod
    def figure(self, before: AllFacts, iteration: Facts) -> float | None:
        """Return an iteration's figure, given those before it; None if it has none."""

    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        return spans_while(self._holds(facts), lasts=self.lasts, clear_after=_CLEAR_AFTER)

    def _holds(self, facts: AllFacts) -> Iterator[tuple[int, bool | None]]:
        for number, iteration in enumerate(facts):
            if (figure := self.figure(facts[:number], iteration)) is None:
                yield iteration.iteration, None
                continue
            is_beyond = figure < self.bound if self.is_low else figure >= self.bound
            yield iteration.iteration, is_beyond and not is_rising(facts[: number + 1])

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        figures = self._figures(facts, span)
        return {"figures": [round(figure, 8) for figure in figures[:5]], "bound": self.bound}

    def latest(self, facts: AllFacts, span: CausePeriod) -> float:
        """Return the median figure since the span began."""
        return median(self._figures(facts, span))

    def _figures(self, facts: AllFacts, span: CausePeriod) -> list[float]:
        since = [
            (facts[:number], iteration) for number, iteration in enumerate(facts) if iteration.iteration >= span.first
        ]
        return [figure for before, iteration in since if (figure := self.figure(before, iteration)) is not None]

    def not_examined(self, facts: AllFacts) -> str | None:
        has_one = any(self.figure(facts[:number], iteration) is not None for number, iteration in enumerate(facts))
        return None if has_one else self.unknown

    unknown: str | None = None
    """Why no iteration has a figure; None if that says nothing."""


class StaleRollouts(TrendDetector):
    """Rollouts are too old for how far each step moves the policy."""

    bound = 0.03
    """Nats per token. Runs of the tiny model learned at 0.003 and partly unlearned at 0.033 (benchmarks/README.md)."""
    is_low = False

    def figure(self, before: AllFacts, iteration: Facts) -> float | None:
        return iteration.kl_div if iteration.staleness else None

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"The trained policy is {self.latest(facts, span):.3f} nats a token away from the one that sampled."

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        most = self.config.pipeline.max_staleness
        if most >= 4:
            options = {"importance_sampling_level": "sequence", "epsilon_high": 1.0}
            text = "Weigh whole rollouts by how likely the policy still finds them, or allow less staleness."
            return self.fork(facts, span, text, train_options=options)
        fewer = max(0, most - 1)
        text = f"Allow a staleness of {fewer} instead of {most}."
        return self.fork(facts, span, text, pipeline={"max_staleness": fewer})


class EntropyCollapse(TrendDetector):
    """The policy became deterministic before it solved the task."""

    bound = 0.2
    """Share of the first two steps' entropy (Cui et al. 2025, arXiv 2505.22617: reward is bought with entropy)."""
    unknown = "The backend does not report the entropy of its policy."

    def figure(self, before: AllFacts, iteration: Facts) -> float | None:
        first = [earlier.metrics["entropy"] for earlier in before if "entropy" in earlier.metrics][:2]
        entropy = iteration.metrics.get("entropy")
        if entropy is None:
            return None
        if (
            len(first) < 2
            or not (start := fmean(first))
            or training_success(iteration) >= 0.8
            or _without_signal(iteration) < 0.5
        ):
            return 1.0
        return entropy / start

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        share = 100 * self.latest(facts, span)
        return f"The policy's entropy is {share:.0f}% of that at the beginning, and most groups have no signal."

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        rate = lowered_rate(self.settings, facts, self.config.learning_rate / 2)
        text = f"Go back to the checkpoint before it, and use the learning rate {rate:g}."
        return self.fork(facts, span, text, learning_rate=rate)


class StepsShortened(TrendDetector):
    """The bound on how far a step moves the policy cuts every step: the learning rate is too high."""

    lasts = 5
    bound = 0.5
    unknown = "Steps are only shortened by train_options.max_kl, which this run does not have."

    def figure(self, before: AllFacts, iteration: Facts) -> float | None:
        share = iteration.metrics.get("step_share")
        warms_up = iteration.iteration - self.config.supervised_iterations <= self.config.warmup_iterations
        return 1.0 if share is not None and warms_up else share

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"Of a step, {100 * self.latest(facts, span):.0f}% remain when it is shortened to max_kl."

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        rate = lowered_rate(self.settings, facts, self.config.learning_rate * self.latest(facts, span))
        text = f"Use the learning rate {rate:.2g}, which needs less shortening."
        return self.fork(facts, span, text, learning_rate=float(f"{rate:.2g}"))


class StepsTooSmall(TrendDetector):
    """There is a training signal, and the policy hardly moves."""

    lasts = 5
    bound = 1e-8
    """Nats per token. Steps of the tiny model move it by about 0.003, those of a LoRA that learns by 1e-6."""
    unknown = "How far a step moves the policy is only measured with train_options.max_kl."

    def figure(self, before: AllFacts, iteration: Facts) -> float | None:
        return iteration.metrics.get("step_kl")

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"A step moves the policy by {self.latest(facts, span):.1g} nats a token, which is next to nothing."

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        rate = raised_rate(self.settings, facts)
        return self.fork(facts, span, f"Raise the learning rate to {rate:g}.", learning_rate=rate)


class FewGroupsDecide(TrendDetector):
    """One or two groups make the whole gradient."""

    bound = 1.5
    """Effective number of groups: (sum of weights)^2 / sum of squared weights."""

    def figure(self, before: AllFacts, iteration: Facts) -> float | None:
        weights = [group.weight for group in (*iteration.groups, *iteration.replacements)]
        return sum(weights) ** 2 / sum(weight**2 for weight in weights) if len(weights) >= 4 and any(weights) else None

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"The gradient is that of {self.latest(facts, span):.1f} groups: the others have little or no signal."

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        more = min(2 * self.config.groups_per_iteration, request_limits.GROUPS)
        return self.fork(facts, span, f"Roll out {more} scenarios in an iteration.", groups_per_iteration=more)


class LengthGrowth(TrendDetector):
    """Rollouts grow longer, and not better."""

    bound = 1.5
    """Times the median number of sampled tokens of the first three iterations."""
    is_low = False

    def figure(self, before: AllFacts, iteration: Facts) -> float | None:
        first = [earlier.completion_tokens for earlier in before if earlier.completion_tokens][:3]
        if iteration.completion_tokens is None:
            return None
        return iteration.completion_tokens / fmean(first) if len(first) == 3 else 1.0

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"Rollouts are {self.latest(facts, span):.1f} times as long as in the first iterations, and not better."

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        if self.config.train_options.get("token_weighting") == "token":
            text = "Weigh rollouts equally instead of their tokens: long ones weigh more today."
            return self.fork(facts, span, text, train_options={"token_weighting": "trajectory"})
        limit = max(1, self.config.max_completion_tokens // 2)
        return self.fork(facts, span, f"Limit a reply to {limit} tokens.", max_completion_tokens=limit)


def _without_signal(iteration: Facts) -> float:
    whole = sum(group.represents for group in iteration.groups)
    return sum(group.represents for group in iteration.groups if not group.weight) / whole if whole else 0.0

"""The detectors: for each cause, when the facts show it, what they show, and what to change."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean

from environment.json_type import Json
from training.diagnosis.diagnosis import DiagnosisSettings, Remedy, Severity, Span
from training.diagnosis.facts import MAX_EXAMPLES, Facts, Form, GroupFacts, Probe, Readings
from training.diagnosis.shares import Observed, share_spans
from training.protocol.tool_calls import PARSER

_CLEAR_AFTER = 3
"""Iterations in a row whose records agree, after which a contradiction is cleared."""
_MOST_TOKENS = 32_768
_LONGEST_S = 86_400
_HIGHEST_RATE = 0.1
"""Limits of the request's fields (app/schemas/run_request.py)."""
_FAR = 100
"""Factor between a learning rate and its base's default from which it is named."""
_DEFAULT_RATES = {"learnloop/tiny": 7e-4}
_DEFAULT_RATE = 1e-5
"""Default of base models with billions of parameters."""
_STALE_KL = 0.03
"""Nats per token between the sampling and the trained policy: of our own runs, 0.003 learned and 0.033 unlearned."""

_FAULTY_SHARE = 0.5
"""Of how far a step moved the policy, the share that a sampler may be away from the trained weights."""
_CLEAR_MOVE = 5.0
"""How many times the noise a step must move the policy to show which weights the sampler has."""
_LEAST_NOISE = 1e-6
"""Nats: float32 sums in another order differ by less."""

Facts_ = Sequence[Facts]


def share_of_groups(facts: Facts_, count: Callable[[GroupFacts], int]) -> list[Observed]:
    """Return the share of each group's rollouts with a symptom, for iterations with groups."""
    return [
        Observed(each.iteration, tuple(count(group) / group.rollouts for group in each.groups))
        for each in facts
        if each.groups
    ]


def share_figures(facts: Facts_, span: Span, count: Callable[[GroupFacts], int], bound: float) -> dict[str, Json]:
    """Return the share of rollouts with a symptom since the span began, and its bound."""
    groups = [group for each in facts if each.iteration >= span.first for group in each.groups]
    affected, rollouts = sum(map(count, groups)), sum(group.rollouts for group in groups)
    return {"share": round(affected / rollouts, 4), "bound": bound, "affected": affected, "rollouts": rollouts}


def examples_of(facts: Facts_, span: Span, symptom: str) -> list[str]:
    """Return ids of up to five trajectories with a symptom, newest iteration first."""
    found = [id for each in reversed(facts) if each.iteration >= span.first for id in each.examples.get(symptom, ())]
    return found[:MAX_EXAMPLES]


def contradiction_spans(facts: Facts_, contradicts: Callable[[Facts], bool | None]) -> list[Span]:
    """Return when records that must agree did not. `contradicts` returns None where it cannot tell."""
    spans: list[Span] = []
    current, agreed = None, 0
    for each in facts:
        found = contradicts(each)
        if found:
            current, agreed = current or Span(each.iteration, each.iteration), 0
        elif found is False:
            agreed += 1
        if current is not None and agreed >= _CLEAR_AFTER:
            spans.append(Span(current.first, current.named, each.iteration))
            current = None
    return [*spans, current] if current is not None else spans


def step_before(facts: Facts_, iteration: int) -> int:
    """Return the policy's step before an iteration, for a fork that starts before the cause."""
    return next((each.step for each in reversed(facts) if each.iteration < iteration), facts[0].step)


class Detector:
    """Detects one cause. Subclasses say when it is true, how serious it is, what the facts show, and the remedy."""

    severity = Severity.FAULT

    def __init__(self, settings: DiagnosisSettings) -> None:
        self.settings = settings
        self.config = settings.config

    def spans(self, facts: Facts_) -> list[Span]:
        """Return when the cause was true."""
        raise NotImplementedError

    def summary(self, facts: Facts_, span: Span) -> str:
        """Return one sentence for people."""
        raise NotImplementedError

    def evidence(self, facts: Facts_, span: Span) -> Mapping[str, Json]:
        """Return the figures, their bounds, and trajectory ids."""
        raise NotImplementedError

    def remedy(self, facts: Facts_, span: Span) -> Remedy:
        """Return what to change."""
        raise NotImplementedError

    def not_examined(self, facts: Facts_) -> str | None:
        """Return why the cause cannot be examined, or None if it is."""
        return None


class InfrastructureFailures(Detector):
    """Rollouts fail because a server, the network or a sandbox failed."""

    severity = Severity.WARNING
    bound = 0.1

    def spans(self, facts: Facts_) -> list[Span]:
        return share_spans(share_of_groups(facts, _infrastructure), self.bound, self.config.all_iterations)

    def summary(self, facts: Facts_, span: Span) -> str:
        figures = share_figures(facts, span, _infrastructure, self.bound)
        return (
            f"{_percent(figures['share'])} of the rollouts failed because a server, the network or a limit of time did."
        )

    def evidence(self, facts: Facts_, span: Span) -> Mapping[str, Json]:
        since = [each for each in facts if each.iteration >= span.first]
        errors = list(dict.fromkeys(error for each in reversed(since) for error in each.errors))[:3]
        return share_figures(facts, span, _infrastructure, self.bound) | {
            "timeouts": sum(each.timeouts for each in since),
            "errors": errors,
            "trajectories": examples_of(facts, span, "infrastructure"),
        }

    def remedy(self, facts: Facts_, span: Span) -> Remedy:
        since = [each for each in facts if each.iteration >= span.first]
        failures = sum(group.infrastructure for each in since for group in each.groups)
        checkpoint = step_before(facts, span.first)
        if 2 * sum(each.timeouts for each in since) >= failures:
            limit = min(2 * self.config.rollout_timeout_s, _LONGEST_S)
            text = f"Give rollouts more time: {limit:g} s instead of {self.config.rollout_timeout_s:g} s."
            return Remedy(text, {"checkpoint": checkpoint, "rollout_timeout_s": limit})
        fewer = max(1, self.config.concurrency // 2)
        text = f"Make fewer rollouts simultaneously: {fewer} instead of {self.config.concurrency}."
        return Remedy(text, {"checkpoint": checkpoint, "concurrency": fewer})


class SamplerIsNotTrainer(Detector):
    """The rollouts come from other weights than those that are trained."""

    def spans(self, facts: Facts_) -> list[Span]:
        first = next((each.probe for each in facts if each.probe and each.staleness == 0), None)
        noise = max(first.noise if first else 0.0, _LEAST_NOISE)

        def contradicts(each: Facts) -> bool | None:
            probe = each.probe
            if first is None or probe is None or probe.moved <= _CLEAR_MOVE * noise:
                return None  # the step moved the policy too little to tell
            return probe.sampler_after > _FAULTY_SHARE * probe.moved

        return contradiction_spans(facts, contradicts)

    def _probe(self, facts: Facts_, span: Span) -> tuple[Facts, Probe]:
        found = next(each for each in facts if each.iteration == span.first)
        assert found.probe is not None
        return found, found.probe

    def summary(self, facts: Facts_, span: Span) -> str:
        found, probe = self._probe(facts, span)
        has_before = probe.sampler_before < _FAULTY_SHARE * probe.moved
        has = "still has the weights of the step before" if has_before else "has other weights"
        return f"The sampler was asked for step {found.step} and {has}."

    def evidence(self, facts: Facts_, span: Span) -> Mapping[str, Json]:
        found, probe = self._probe(facts, span)
        return {"step": found.step, **asdict(probe), "ratio": probe.sampler_after / probe.moved, "bound": _FAULTY_SHARE}

    def remedy(self, facts: Facts_, span: Span) -> Remedy:
        return Remedy(
            "Restart the process that samples (the engine, or the vLLM that it asks), and make sure that trained "
            "weights reach it: since the first iteration of this diagnosis, what was sampled is not what was trained."
        )

    def not_examined(self, facts: Facts_) -> str | None:
        probed = any(each.probe for each in facts)
        return None if probed else "The backend does not compute log-probabilities of given tokens."


class WeightsUnchanged(Detector):
    """The policy's step rose, and its weights are the same."""

    def spans(self, facts: Facts_) -> list[Span]:
        before = dict(zip((each.iteration for each in facts[1:]), facts, strict=False))

        def contradicts(each: Facts) -> bool | None:
            earlier = before.get(each.iteration)
            if earlier is None or each.step == earlier.step or None in (each.weights_sha256, earlier.weights_sha256):
                return None
            return each.weights_sha256 == earlier.weights_sha256

        return contradiction_spans(facts, contradicts)

    def summary(self, facts: Facts_, span: Span) -> str:
        step = next(each.step for each in facts if each.iteration == span.first)
        return f"Step {step} was trained, and its weights are exactly those of the step before."

    def evidence(self, facts: Facts_, span: Span) -> Mapping[str, Json]:
        hashes = {each.step: each.weights_sha256 for each in facts if each.iteration >= span.first - 1}
        last = dict(list(hashes.items())[:5])
        return {"weights_sha256": {str(step): found for step, found in last.items()}}

    def remedy(self, facts: Facts_, span: Span) -> Remedy:
        rate, usual = self.config.learning_rate, default_rate(self.settings, facts)
        raised = min(max(10 * rate, usual), _HIGHEST_RATE)
        text = (
            f"Raise the learning rate from {rate:g} to {raised:g}: an update below the precision of the weights is "
            "lost. If the rate is not small, the trainer does not apply its steps."
        )
        return Remedy(text, {"checkpoint": step_before(facts, span.first), "learning_rate": raised})

    def not_examined(self, facts: Facts_) -> str | None:
        reported = any(each.weights_sha256 for each in facts)
        return None if reported else "The backend does not report hashes of its weights."


class UnusualLearningRate(Detector):
    """The learning rate is far from the base model's default."""

    severity = Severity.WARNING

    def spans(self, facts: Facts_) -> list[Span]:
        first = next((each.iteration for each in facts if each.groups), None)
        ratio = self.config.learning_rate / default_rate(self.settings, facts)
        far = abs(math.log(ratio)) >= math.log(_FAR) * (1 - 1e-9)
        return [Span(first, first)] if first is not None and far else []

    def summary(self, facts: Facts_, span: Span) -> str:
        usual = default_rate(self.settings, facts)
        much = "above" if self.config.learning_rate > usual else "below"
        return f"The learning rate {self.config.learning_rate:g} is far {much} {usual:g}, which suits this base model."

    def evidence(self, facts: Facts_, span: Span) -> Mapping[str, Json]:
        usual = default_rate(self.settings, facts)
        return {"learning_rate": self.config.learning_rate, "default": usual, "factor": _FAR}

    def remedy(self, facts: Facts_, span: Span) -> Remedy:
        usual = default_rate(self.settings, facts)
        request = {"checkpoint": step_before(facts, span.first), "learning_rate": usual}
        return Remedy(f"Use the learning rate {usual:g}.", request)


class StalePolicy(Detector):
    """Rollouts come from an older policy than the run allows."""

    def spans(self, facts: Facts_) -> list[Span]:
        most = self.config.pipeline.max_staleness

        def contradicts(each: Facts) -> bool | None:
            return None if each.staleness is None else each.staleness > most

        return contradiction_spans(facts, contradicts)

    def summary(self, facts: Facts_, span: Span) -> str:
        oldest = max(each.staleness or 0 for each in facts if each.iteration >= span.first)
        allowed = self.config.pipeline.max_staleness
        return f"Rollouts were sampled from a policy {oldest} steps old, and pipeline.max_staleness allows {allowed}."

    def evidence(self, facts: Facts_, span: Span) -> Mapping[str, Json]:
        since = [each for each in facts if each.iteration >= span.first]
        diverged = [each.kl_div for each in since if each.kl_div is not None]
        return {
            "staleness": [each.staleness for each in since][:5],
            "bound": self.config.pipeline.max_staleness,
            "mean_kl_div": fmean(diverged) if diverged else None,
        }

    def remedy(self, facts: Facts_, span: Span) -> Remedy:
        request = {"checkpoint": step_before(facts, span.first), "pipeline": {"max_staleness": 0}}
        return Remedy("Sample each iteration with the newest policy.", request)


class ParserDrift(Detector):
    """Tool calls were recorded that are not what this service reads in the same replies."""

    def spans(self, facts: Facts_) -> list[Span]:
        def contradicts(each: Facts) -> bool | None:
            return any(found.different for found in each.readings.values()) if each.readings else None

        return contradiction_spans(facts, contradicts)

    def _newest(self, facts: Facts_, span: Span) -> tuple[str, Readings]:
        """Return the readings that differ in the span's first iteration, and of what."""
        readings = next(each.readings for each in facts if each.iteration == span.first)
        return next((kind, found) for kind, found in readings.items() if found.different)

    def summary(self, facts: Facts_, span: Span) -> str:
        kind, found = self._newest(facts, span)
        return (
            f"{found.different} of {found.read} replies of {kind} rollouts were recorded with other tool calls than "
            f"the parser {PARSER} reads in them."
        )

    def evidence(self, facts: Facts_, span: Span) -> Mapping[str, Json]:
        readings = next(each.readings for each in facts if each.iteration == span.first)
        _, found = self._newest(facts, span)
        return {
            "parser": PARSER,
            **{kind: {"read": each.read, "different": each.different} for kind, each in readings.items()},
            "text": found.text,
            "trajectories": [found.trajectory_id],
        }

    def remedy(self, facts: Facts_, span: Span) -> Remedy:
        return Remedy(
            "Have training, evaluation and questions served by engines of the same version: one of them reads tool "
            "calls in another way."
        )

    def not_examined(self, facts: Facts_) -> str | None:
        read = any(each.readings for each in facts)
        return None if read else "The backend has a parser of its own, or does not report the bytes of its tokens."


class TruncatedReplies(Detector):
    """Replies are cut off at the token limit."""

    severity = Severity.WARNING
    bound = 0.1

    def spans(self, facts: Facts_) -> list[Span]:
        return share_spans(share_of_groups(facts, _truncated), self.bound, self.config.all_iterations)

    def summary(self, facts: Facts_, span: Span) -> str:
        figures = share_figures(facts, span, _truncated, self.bound)
        limit = self.config.max_completion_tokens
        return f"{_percent(figures['share'])} of the rollouts have a reply that was cut off at {limit} tokens."

    def evidence(self, facts: Facts_, span: Span) -> Mapping[str, Json]:
        return share_figures(facts, span, _truncated, self.bound) | {
            "max_completion_tokens": self.config.max_completion_tokens,
            "trajectories": examples_of(facts, span, "truncated"),
        }

    def remedy(self, facts: Facts_, span: Span) -> Remedy:
        limit = min(2 * self.config.max_completion_tokens, _MOST_TOKENS)
        request = {"checkpoint": step_before(facts, span.first), "max_completion_tokens": limit}
        return Remedy(f"Allow replies of {limit} tokens.", request)


class MalformedReplies(Detector):
    """Most replies are no valid tool calls."""

    severity = Severity.WARNING

    def spans(self, facts: Facts_) -> list[Span]:
        return share_spans(share_of_groups(facts, _malformed), self._bound(facts), self.config.all_iterations)

    def _bound(self, facts: Facts_) -> float:
        """Return the bound: above the baseline's share, because a base can begin badly and recover, but at most 0.6."""
        baseline = facts[0].evaluated_malformed or 0.0
        return round(min(max(0.4, baseline + 0.1), 0.6), 4)

    def summary(self, facts: Facts_, span: Span) -> str:
        figures = share_figures(facts, span, _malformed, self._bound(facts))
        return f"{_percent(figures['share'])} of the rollouts ended with a reply that is not a valid tool call."

    def evidence(self, facts: Facts_, span: Span) -> Mapping[str, Json]:
        forms = commonest(form for each in facts if each.iteration >= span.first for form in each.forms)
        return share_figures(facts, span, _malformed, self._bound(facts)) | {
            "forms": [{"count": form.count, "text": form.text, "trajectory_id": form.trajectory_id} for form in forms],
            "trajectories": examples_of(facts, span, "malformed"),
        }

    def remedy(self, facts: Facts_, span: Span) -> Remedy:
        from_the_start = span.first <= self.config.supervised_iterations + 1
        if not from_the_start:
            text = "Go back to the checkpoint before it, and let each step move the policy less (max_kl)."
            return Remedy(text, {"checkpoint": step_before(facts, span.first), "train_options": {"max_kl": 0.005}})
        if facts[-1].has_oracle:
            text = "Learn the form of tool calls from the environment's own demonstrations first (warm_start)."
            return Remedy(text, {"checkpoint": facts[0].step, "warm_start": {"demonstrations": {"oracle": 64}}})
        return Remedy(
            "Show the model the form of tool calls first: store demonstrations and name them in warm_start, or start "
            "from a base model that can call tools."
        )


def commonest(forms: Iterable[Form]) -> list[Form]:
    """Return the three commonest forms; those whose examples are equal are added up."""
    found: dict[str, Form] = {}
    for form in forms:
        known = found.get(form.text)
        found[form.text] = form if known is None else Form(known.count + form.count, known.text, known.trajectory_id)
    return sorted(found.values(), key=lambda form: (-form.count, form.text))[:3]


def default_rate(settings: DiagnosisSettings, facts: Facts_) -> float:
    """Return the learning rate that suits the run's base model."""
    known = next((each.base_model for each in reversed(facts) if each.base_model), settings.base_model)
    return _DEFAULT_RATES.get(known, _DEFAULT_RATE)


def _infrastructure(group: GroupFacts) -> int:
    return group.infrastructure


def _truncated(group: GroupFacts) -> int:
    return group.truncated


def _malformed(group: GroupFacts) -> int:
    return group.malformed


def _percent(share: Json) -> str:
    return f"{100 * float(share):.0f}%"

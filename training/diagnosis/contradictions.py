"""Causes that contradict a record or a default: one contradiction is enough to name them."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from statistics import fmean

from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.bases.defaults import BaseModelFacts, factor_from_usual, usual_rate
from learnloop_service.training.diagnosis import request_limits
from learnloop_service.training.diagnosis.detector import AllFacts, Detector
from learnloop_service.training.diagnosis.diagnosis import CausePeriod, DiagnosisSettings, Remedy, Severity
from learnloop_service.training.diagnosis.facts import Facts, Probe, Readings, Replay
from learnloop_service.training.diagnosis.spans import spans_while
from learnloop_service.training.types import RunConfig

_CLEAR_AFTER = 3
"""Iterations in a row whose records agree, after which a contradiction is cleared."""
_FAULTY_SHARE = 0.5
"""How far the sampler may be away from the trained weights, as a share of how far the step moved them."""
_CLEAR_MOVE = 5.0
"""How many times the noise a step must move the policy to show which weights the sampler has."""
_LOW_TEMPERATURE = 0.3
"""Temperature below which the rollouts of a group are alike because of it."""
_LEAST_NOISE = 1e-6
"""Nats: float32 sums in another order differ by less."""


class Contradiction(Detector):
    """Detects that the records of an iteration contradict each other."""

    @abstractmethod
    def contradicts(self, iteration: Facts) -> bool | None:
        """Return whether an iteration's records contradict each other; None if they cannot show it."""

    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        return contradiction_spans(facts, self.contradicts)


class SamplerIsNotTrainer(Detector):
    """The rollouts come from other weights than those that are trained."""

    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        noise: float | None = None

        def contradicts(iteration: Facts) -> bool | None:
            nonlocal noise
            probe = iteration.probe
            if probe is None:
                return None
            if noise is None:
                if iteration.staleness != 0:
                    return None  # what was sampled comes from an older step, and shows no noise
                noise = max(probe.noise, _LEAST_NOISE)
            clearly_moved = probe.moved > _CLEAR_MOVE * noise
            is_away = probe.sampler_after > _FAULTY_SHARE * probe.moved
            if iteration.staleness == 0 and clearly_moved and not is_away:
                noise = max(noise, probe.noise)  # the few tokens of one probe show little of it
            return is_away if clearly_moved else None

        return contradiction_spans(facts, contradicts)

    def _probe(self, facts: AllFacts, span: CausePeriod) -> tuple[Facts, Probe]:
        first = next(iteration for iteration in facts if iteration.iteration == span.first)
        assert first.probe is not None
        return first, first.probe

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        first, probe = self._probe(facts, span)
        has_before = probe.sampler_before < _FAULTY_SHARE * probe.moved
        has = "still has the weights of the step before" if has_before else "has other weights"
        return f"The sampler was asked for step {first.step} and {has}."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        first, probe = self._probe(facts, span)
        return {"step": first.step, **asdict(probe), "ratio": probe.sampler_after / probe.moved, "bound": _FAULTY_SHARE}

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        return Remedy(
            "Restart the process that samples (the engine, or the vLLM that it asks), and make sure that trained "
            "weights reach it: since the first iteration of this diagnosis, what was sampled is not what was trained."
        )

    def not_examined(self, facts: AllFacts) -> str | None:
        probed = any(iteration.probe for iteration in facts)
        return None if probed else "The backend does not compute log-probabilities of given tokens."


class WeightsUnchanged(Detector):
    """The policy's step rose, and its weights are the same."""

    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        before = dict(zip((iteration.iteration for iteration in facts[1:]), facts, strict=False))

        def contradicts(iteration: Facts) -> bool | None:
            earlier = before.get(iteration.iteration)
            if (
                earlier is None
                or iteration.step == earlier.step
                or None in (iteration.weights_sha256, earlier.weights_sha256)
            ):
                return None
            return iteration.weights_sha256 == earlier.weights_sha256

        return contradiction_spans(facts, contradicts)

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        step = next(iteration.step for iteration in facts if iteration.iteration == span.first)
        return f"Step {step} was trained, and its weights are exactly those of the step before."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        hashes = {
            iteration.step: iteration.weights_sha256 for iteration in facts if iteration.iteration >= span.first - 1
        }
        last = dict(list(hashes.items())[:5])
        return {"weights_sha256": {str(step): sha256 for step, sha256 in last.items()}}

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        rate, raised = self.config.learning_rate, raised_rate(self.settings, facts)
        text = (
            f"Raise the learning rate from {rate:g} to {raised:g}: an update below the precision of the weights is "
            "lost. If the rate is not small, the trainer does not apply its steps."
        )
        return self.fork(facts, span, text, learning_rate=raised)

    def not_examined(self, facts: AllFacts) -> str | None:
        reported = any(iteration.weights_sha256 for iteration in facts)
        return None if reported else "The backend does not report hashes of its weights."


class UnusualLearningRate(Detector):
    """The learning rate is far from the base model's default."""

    severity = Severity.WARNING

    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        first = next((iteration.iteration for iteration in facts if iteration.groups), None)
        return [CausePeriod(first, first)] if first is not None and self._factor(facts) is not None else []

    def _factor(self, facts: AllFacts) -> float | None:
        is_sized = self.settings.usual_learning_rate is not None
        return factor_from_usual(self.config.learning_rate, default_rate(self.settings, facts), is_sized=is_sized)

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        usual = default_rate(self.settings, facts)
        much = "above" if self.config.learning_rate > usual else "below"
        return f"The learning rate {self.config.learning_rate:g} is far {much} {usual:g}, which suits this base model."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        usual = default_rate(self.settings, facts)
        return {"learning_rate": self.config.learning_rate, "default": usual, "factor": self._factor(facts)}

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        usual = default_rate(self.settings, facts)
        return self.fork(facts, span, f"Use the learning rate {usual:g}.", learning_rate=usual)


class NothingVaries(Contradiction):
    """The temperature is so low that the rollouts of a group are alike."""

    severity = Severity.WARNING

    def contradicts(self, iteration: Facts) -> bool | None:
        alike, groups = _alike(iteration)
        return 2 * alike > groups if self.config.temperature < _LOW_TEMPERATURE and groups else None

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        alike, groups = self._counted(facts, span)
        return (
            f"At temperature {self.config.temperature:g} nothing varies: in {alike} of {counted(groups, 'group')} the "
            "rollouts got the same reward, so there is nothing to learn from."
        )

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        alike, groups = self._counted(facts, span)
        return {"temperature": self.config.temperature, "bound": _LOW_TEMPERATURE, "alike": alike, "groups": groups}

    def _counted(self, facts: AllFacts, span: CausePeriod) -> tuple[int, int]:
        counts = [_alike(iteration) for iteration in facts if iteration.iteration >= span.first]
        return sum(alike for alike, _ in counts), sum(groups for _, groups in counts)

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        usual = RunConfig().temperature
        return self.fork(facts, span, f"Sample at temperature {usual:g}.", temperature=usual)


def _alike(iteration: Facts) -> tuple[int, int]:
    """Return how many of the groups with several scored rollouts have no training signal, and how many there are."""
    groups = [group for group in iteration.groups if group.scored > 1]
    return sum(not group.weight for group in groups), len(groups)


class StalePolicy(Contradiction):
    """Rollouts come from an older policy than the run allows."""

    def contradicts(self, iteration: Facts) -> bool | None:
        return None if iteration.staleness is None else iteration.staleness > self.config.pipeline.max_staleness

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        oldest = max(iteration.staleness or 0 for iteration in facts if iteration.iteration >= span.first)
        allowed = self.config.pipeline.max_staleness
        age = counted(oldest, "step")
        return f"Rollouts were sampled from a policy {age} old, and pipeline.max_staleness allows {allowed}."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        since = [iteration for iteration in facts if iteration.iteration >= span.first]
        diverged = [iteration.kl_div for iteration in since if iteration.kl_div is not None]
        return {
            "staleness": [iteration.staleness for iteration in since][:5],
            "bound": self.config.pipeline.max_staleness,
            "mean_kl_div": fmean(diverged) if diverged else None,
        }

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        text = "Sample each iteration with the newest policy."
        return self.fork(facts, span, text, pipeline={"max_staleness": 0})


class ParserDrift(Contradiction):
    """Tool calls were recorded that are not what this service reads in the same replies."""

    def contradicts(self, iteration: Facts) -> bool | None:
        return any(readings.different for readings in iteration.readings.values()) if iteration.readings else None

    def _first_drift(self, facts: AllFacts, span: CausePeriod) -> tuple[str, Readings]:
        """Return the first readings of the span's first iteration that differ, after their kind of rollouts."""
        by_kind = next(iteration.readings for iteration in facts if iteration.iteration == span.first)
        return next((kind, readings) for kind, readings in by_kind.items() if readings.different)

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        kind, drift = self._first_drift(facts, span)
        return (
            f"In {kind} rollouts, {drift.different} of {drift.read} recorded replies have other tool calls than "
            f"the format {drift.tool_format} has in them."
        )

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        by_kind = next(iteration.readings for iteration in facts if iteration.iteration == span.first)
        _, drift = self._first_drift(facts, span)
        return {
            "tool_format": drift.tool_format,
            **{kind: {"read": readings.read, "different": readings.different} for kind, readings in by_kind.items()},
            "text": drift.text,
            "trajectories": [drift.trajectory_id],
        }

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        return Remedy(
            "Have training, evaluation and questions served by engines of the same version: one of them reads tool "
            "calls in another way."
        )

    def not_examined(self, facts: AllFacts) -> str | None:
        read = any(iteration.readings for iteration in facts)
        return None if read else "The backend has a parser of its own, or does not report the bytes of its tokens."


class EnvironmentFlaky(Contradiction):
    """The environment answered the same tool calls differently."""

    severity = Severity.WARNING

    def contradicts(self, iteration: Facts) -> bool | None:
        return None if iteration.replay is None else iteration.replay.differs

    def _replay(self, facts: AllFacts, span: CausePeriod) -> Replay:
        replay = next(iteration.replay for iteration in facts if iteration.iteration == span.first)
        assert replay is not None
        return replay

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        replay = self._replay(facts, span)
        what = f"the result of {replay.tool} in turn {replay.turn}" if replay.tool else "what the agent is shown"
        return f"The tool calls of a rollout were made again, and {what} was another one."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        replay = self._replay(facts, span)
        difference = {"turn": replay.turn, "tool": replay.tool, "recorded": replay.recorded, "found": replay.found}
        return difference | {"trajectories": [replay.trajectory_id]}

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        return Remedy(
            "Make the environment answer equal calls equally (seed its random numbers, fix its clock), or no longer "
            "declare TRAITS.repeats: rewards of a group differ by chance now, and what-ifs compare different worlds."
        )

    def not_examined(self, facts: AllFacts) -> str | None:
        if any(iteration.replay for iteration in facts):
            return None
        return (
            "Calls are only made again in an environment that declares TRAITS.repeats and does not learn, with the "
            "built-in loop."
        )


def contradiction_spans(facts: AllFacts, contradicts: Callable[[Facts], bool | None]) -> list[CausePeriod]:
    """Return when records that must agree did not. `contradicts` returns None for iterations that cannot show it."""
    return spans_while(((iteration.iteration, contradicts(iteration)) for iteration in facts), clear_after=_CLEAR_AFTER)


def raised_rate(settings: DiagnosisSettings, facts: AllFacts) -> float:
    """Return the learning rate to try where the run's is too low: what suits the base, unless the run has that."""
    rate, usual = settings.config.learning_rate, default_rate(settings, facts)
    return usual if rate < usual else min(10 * rate, request_limits.LEARNING_RATE)


def lowered_rate(settings: DiagnosisSettings, facts: AllFacts, rate: float) -> float:
    """Return `rate`, to try where the run's is too high, or what suits the base if the run's is unusually far away."""
    is_sized = settings.usual_learning_rate is not None
    usual = default_rate(settings, facts)
    return usual if factor_from_usual(settings.config.learning_rate, usual, is_sized=is_sized) else rate


def default_rate(settings: DiagnosisSettings, facts: AllFacts) -> float:
    """Return the learning rate that suits the run's base model."""
    if settings.usual_learning_rate is not None:
        return settings.usual_learning_rate
    base_model = next(
        (iteration.base_model for iteration in reversed(facts) if iteration.base_model), settings.base_model
    )
    return usual_rate(BaseModelFacts(base_model))

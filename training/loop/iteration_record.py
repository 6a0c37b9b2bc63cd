"""The record of an iteration in progress, and its result."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from learnloop_service.training.loop.rollout_schedule import JudgedRollouts
from learnloop_service.training.phases import Phase
from learnloop_service.training.rollout.rollout import failed, lost, total
from learnloop_service.training.scoring import malformed_share, success_rate, successes, summarise
from learnloop_service.training.statistics.learning_curve import CurvePoint
from learnloop_service.training.types import Evaluation, Group, IterationReflection, IterationResult, Timing


@dataclass
class IterationRecord:
    """An iteration so far. Its clock starts when it is created."""

    iteration: int
    groups: tuple[Group, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    reflection: IterationReflection | None = None
    evaluations: Sequence[Evaluation] = ()
    sampled_step: int | None = None
    staleness: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    """Names of demonstrations that are longer than the model's context."""
    began: float = field(default_factory=time.monotonic)

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """Add the duration of the block to the phase's."""
        clock = time.monotonic()
        try:
            yield
        finally:
            name = f"{phase}_s"
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - clock

    def rolled_out(self, judged: JudgedRollouts, step: int) -> None:
        """Record the rollouts; `step` is the step of the policy that is about to be trained on them."""
        self.groups = judged.groups
        self.sampled_step, self.staleness = judged.step, step - judged.step
        self.seconds |= judged.seconds(self.began)

    def point(self) -> CurvePoint:
        """Return the iteration's success, as it is read from what is saved of it."""
        scored = [rollout for group in self.groups for rollout in group.rollouts]
        validated = (e.rollouts for e in self.evaluations if (e.split, e.mode) == ("validation", "sampled"))
        rates = next((successes(rollouts) for rollouts in validated), None)
        held_out = rates and {id: round(rate, 4) for id, rate in rates.items()}  # as facts keep them
        return CurvePoint(self.iteration, success_rate(scored), summarise(scored).count, held_out)

    def result(self, step: int, model: str, best_step: int) -> IterationResult:
        """Return the result of the iteration, whose policy is at `step`."""
        scored = [rollout for group in self.groups for rollout in group.rollouts]
        rollouts = [r.rollout for r in scored] + [r.rollout for e in self.evaluations for r in e.rollouts]
        if self.reflection is not None:
            rollouts.append(self.reflection.showcase.rollout)
        return IterationResult(
            iteration=self.iteration,
            step=step,
            model=model,
            groups=self.groups,
            rewards=summarise(scored),
            success=success_rate(scored),
            malformed=malformed_share(scored),
            failed_rollouts=failed(rollouts),
            skipped_groups=Counter(group.skipped for group in self.groups if group.skipped),
            train_metrics=self.metrics,
            evaluations=tuple(self.evaluations),
            best_step=best_step,
            timing=Timing(
                **self.seconds,
                total_s=time.monotonic() - self.began,
                prompt_tokens=int(total(rollouts, "prompt_tokens")),
                completion_tokens=int(total(rollouts, "completion_tokens")),
            ),
            reflection=self.reflection,
            sampled_step=self.sampled_step,
            staleness=self.staleness,
            lost_rollouts=lost(rollouts),
            left_out=tuple(self.left_out),
        )

"""One GRPO step: micro-batches forward and backward, one optimizer step, and its metrics.

The step is a generator, so its driver can sample between micro-batches.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learnloop_service.training.engine.trainer.grpo_loss import TrainedTokens, TrainOptions, policy_loss
from learnloop_service.training.engine.trainer.optimizer import NonFiniteGradient
from learnloop_service.training.engine.trainer.padded_batches import Batch
from learnloop_service.training.engine.trainer.policy import Policy
from learnloop_service.training.engine.trainer.trajectories import TrainSequence, normalised
from learnloop_service.training.engine.trainer.trust_region import keep_within


@dataclass(frozen=True, slots=True)
class StepProgress:
    """Number of finished pieces of work, out of the total (0 while unknown). `metrics` are set when an optimizer step
    has finished, and when `trained` is."""

    finished: int
    total: int
    metrics: dict[str, float] | None = None
    trained: int | None = None
    """The step of the trained weights, once they can be sampled. Their checkpoint is still being written."""


def grpo_step(
    policy: Policy, items: Sequence[TrainSequence], options: TrainOptions, *, micro_batch_tokens: int | None
) -> Generator[StepProgress, None, dict[str, float]]:
    """Change the policy's weights by one step and return metrics. Yields after every micro-batch.

    Raises NothingToTrain, or NonFiniteGradient with the weights unchanged.
    """
    started = time.perf_counter()
    policy.optimizer.pursue("grpo")
    scaled = normalised(
        items,
        advantage_balance=options.advantage_balance,
        by_trajectory=options.token_weighting == "trajectory",
    )
    step = _Step(policy, items, scaled, options, micro_batch_tokens)
    try:
        if step.needs_first_pass:
            yield from step.first_pass()
        yield from step.backward()
        metrics = yield from step.metrics()
        metrics["grad_norm"] = policy.optimizer.step(
            learning_rate=options.learning_rate, max_grad_norm=options.max_grad_norm
        )
        if options.max_kl is not None:
            metrics |= yield from keep_within(
                policy,
                items,
                step.new,
                options.max_kl,
                StepProgress(0, 0),
                options.max_rollout_kl,
                micro_batch_tokens=micro_batch_tokens,
            )
    finally:
        policy.optimizer.discard()
    return {**metrics, "learning_rate": options.learning_rate, "seconds": time.perf_counter() - started}


class _Step:
    """The passes of one step, and the sums and tensors from which its metrics are computed.

    Each of the policy's peers computes a share of the sequences; sums over all of them are exchanged.
    """

    def __init__(
        self,
        policy: Policy,
        items: Sequence[TrainSequence],
        scaled: Sequence[tuple[float, float]],
        options: TrainOptions,
        micro_batch_tokens: int | None,
    ) -> None:
        """`scaled` has the advantage and the weight of each sequence. `micro_batch_tokens` limits the tokens of a
        micro-batch; None leaves the limit to the policy."""
        self.needs_first_pass = options.precalculate_logprobs or options.kl_penalty_coef > 0
        self.new: dict[int, Tensor] = {}
        """Log-probabilities of the trained tokens before the step, by sequence number."""
        self._policy = policy
        self._items = items
        self._scaled = scaled
        self._options = options
        self._micro_batch_tokens = micro_batch_tokens
        self._share = policy.peers.share([item.ids for item in items])
        self._precalculated: dict[int, Tensor] = {}
        self._references: dict[int, Tensor] = {}
        self._mean_kl: float | None = None
        self._total = sum(len(item.trained) for item in items)
        self._loss = 0.0
        self._entropy = 0.0
        self._compared: list[Tensor] = []
        """Old and new log-probabilities of the trained tokens of each batch, and their ratios, [3, N]."""

    def first_pass(self) -> Generator[StepProgress, None, None]:
        """Compute log-probabilities before the step: as the old ones if requested, and for the average divergence from
        the base.

        ART centres the KL penalty on the average of one packed row. The average of the whole step makes the result
        independent of how the step is cut into micro-batches.
        """
        kl = yield from self._in_batches(self._look)
        if self._options.kl_penalty_coef > 0:
            [kl] = yield from self._policy.peers.totals([kl], StepProgress(0, 0))
            self._mean_kl = kl / (self._total + 1e-6)

    def backward(self) -> Generator[StepProgress, None, None]:
        """Accumulate the gradient of the mean loss over all trained tokens of the step."""
        yield from self._in_batches(self._accumulate)
        yield from self._policy.peers.add_gradients(self._policy.optimizer.parameters, StepProgress(0, 0))

    def _in_batches(
        self, work: Callable[[Sequence[Batch]], Generator[StepProgress, None, float]]
    ) -> Generator[StepProgress, None, float]:
        share = [self._items[number] for number in self._share]
        ids, trained = [item.ids for item in share], [item.trained for item in share]
        return (yield from self._policy.in_batches(ids, trained, self._micro_batch_tokens, work))

    def _look(self, batches: Sequence[Batch]) -> Generator[StepProgress, None, float]:
        kl = 0.0
        for finished, batch in enumerate(batches, 1):
            with torch.no_grad():
                now, _ = batch.logprobs(self._policy.model)
                if self._options.kl_penalty_coef > 0:
                    with self._policy.reference() as reference:
                        base, _ = batch.logprobs(reference)
                    self._references |= self._by_sequence(batch, base)
                    kl += float((now - base).sum())
            if self._options.precalculate_logprobs:
                self._precalculated |= self._by_sequence(batch, now)
            yield StepProgress(finished, 2 * len(batches))
        return kl

    def _accumulate(self, batches: Sequence[Batch]) -> Generator[StepProgress, None, float]:
        self._loss, self._entropy, self._compared = 0.0, 0.0, []
        before = len(batches) if self.needs_first_pass else 0
        computed = zip(batches, self._policy.backward(batches, self._loss_of), strict=True)
        for finished, (batch, (loss, entropy, compared)) in enumerate(computed, before + 1):
            self._loss += loss
            self._entropy += entropy
            self.new |= self._by_sequence(batch, compared[1])
            self._compared.append(compared.to(self._policy.device))
            yield StepProgress(finished, before + len(batches))
        return self._loss

    def _loss_of(
        self, batch: Batch, new_logprobs: Tensor, entropy: Tensor
    ) -> tuple[Tensor, tuple[float, float, Tensor]]:
        """Return a batch's part of the step's mean loss, as a tensor and as a number, its part of the mean entropy, and
        its entry in `_compared`. Raises NonFiniteGradient."""
        tokens = self._tokens(batch)
        references = [self._references[number] for number in self._members(batch)] if self._references else None
        loss = policy_loss(
            tokens,
            new_logprobs,
            self._options,
            ref_logprobs=None if references is None else torch.cat(references),
            mean_kl=self._mean_kl,
        )
        mean = loss.total / (self._total + 1e-6)
        if not torch.isfinite(mean):
            raise NonFiniteGradient(f"the loss is {mean.item()}")
        mean_entropy = float((entropy.detach() * tokens.weights).sum()) / (self._total + 1e-6)
        compared = torch.stack([tokens.old_logprobs, new_logprobs.detach(), loss.ratio])
        return mean, (mean.item(), mean_entropy, compared)

    def _members(self, batch: Batch) -> list[int]:
        return [self._share[number] for number in batch.members]

    def _by_sequence(self, batch: Batch, values: Tensor) -> dict[int, Tensor]:
        """Split values of the batch's trained tokens by their sequence's number in the step."""
        members = self._members(batch)
        sizes = [len(self._items[number].trained) for number in members]
        return dict(zip(members, torch.split(values, sizes), strict=True))

    def _tokens(self, batch: Batch) -> TrainedTokens:
        members, device = self._members(batch), batch.sequence.device

        def spread(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[batch.sequence]

        recorded = [value for number in members for value in self._items[number].logprobs]
        old, original = torch.tensor(recorded, dtype=torch.float32, device=device), None
        if self._precalculated:
            old, original = torch.cat([self._precalculated[number] for number in members]), old
        return TrainedTokens(
            old,
            advantages=spread([self._scaled[number][0] for number in members]),
            weights=spread([self._scaled[number][1] for number in members]),
            sequence=batch.sequence,
            original_logprobs=original,
        )

    def metrics(self) -> Generator[StepProgress, None, dict[str, float]]:
        """Return metrics of the policy before the step, over all trained tokens."""
        peers, waiting = self._policy.peers, StepProgress(0, 0)
        compared = torch.cat([torch.zeros(3, 0, device=self._policy.device), *self._compared], dim=1)
        old, new, ratio = yield from peers.joined(compared, waiting)
        loss, entropy = yield from peers.totals([self._loss, self._entropy], waiting)
        low, high = self._options.clip_range
        correlation = torch.corrcoef(torch.stack([old.exp(), new.exp()]))[0, 1]
        metrics = {
            "loss": loss,
            "policy_loss": loss,
            "entropy": entropy,
            # Schulman's k3 estimate of KL(old || new) from samples of the old policy.
            "kl_div": float((torch.expm1(new - old) - (new - old)).mean()),
            "clipped_share": float(((ratio < low) | (ratio > high)).float().mean()),
            "num_trainable_tokens": float(self._total),
        }
        if torch.isfinite(correlation):  # undefined for a single token or constant probabilities
            metrics["probs_corr"] = float(correlation)
        if self._mean_kl is not None:
            metrics["kl_policy_ref"] = self._mean_kl
        return metrics

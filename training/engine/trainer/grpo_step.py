"""One GRPO step: micro-batches forward and backward, one optimizer step, and the figures of it.

A generator, so that whoever drives it can sample between micro-batches.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.engine.trainer.grpo_loss import TrainedTokens, TrainOptions, policy_loss
from training.engine.trainer.optimizer import NonFiniteGradient
from training.engine.trainer.padded_batches import Batch
from training.engine.trainer.policy import Policy
from training.engine.trainer.trajectories import TrainSequence, normalised
from training.engine.trainer.trust_region import keep_within


@dataclass(frozen=True, slots=True)
class Progress:
    """Pieces of work done, of how many (0 while that is not known). `metrics` come with a finished optimizer step."""

    done: int
    total: int
    metrics: dict[str, float] | None = None


def grpo_step(
    policy: Policy, items: Sequence[TrainSequence], options: TrainOptions, *, micro_batch_tokens: int | None
) -> Generator[Progress, None, dict[str, float]]:
    """Change the policy's weights by one step and return metrics; yields after every micro-batch.

    Raises NothingToTrain, and NonFiniteGradient with the weights unchanged.
    """
    started = time.perf_counter()
    scaled = normalised(
        items,
        advantage_balance=options.advantage_balance,
        by_trajectory=options.token_weighting == "trajectory",
    )
    try:
        step = yield from policy.in_batches(
            [item.ids for item in items],
            [item.trained for item in items],
            micro_batch_tokens,
            lambda batches: _passes(_Step(policy, items, scaled, options, batches)),
        )
        metrics = step.metrics()
        metrics["grad_norm"] = policy.optimizer.step(
            learning_rate=options.learning_rate, max_grad_norm=options.max_grad_norm
        )
        if options.max_kl is not None:
            before, limit = step.logprobs(), options.max_kl
            metrics |= yield from keep_within(
                policy, items, before, limit, Progress(0, 0), micro_batch_tokens=micro_batch_tokens
            )
    finally:
        policy.optimizer.discard()
    return {**metrics, "learning_rate": options.learning_rate, "seconds": time.perf_counter() - started}


def _passes(step: "_Step") -> Generator[Progress, None, "_Step"]:
    total = len(step.batches) * (2 if step.needs_first_pass else 1)
    done = 0
    for part in (step.first_pass(), step.backward()) if step.needs_first_pass else (step.backward(),):
        for _ in part:
            done += 1
            yield Progress(done, total)
    return step


class _Step:
    """The state of one step between its micro-batches."""

    def __init__(
        self,
        policy: Policy,
        items: Sequence[TrainSequence],
        scaled: Sequence[tuple[float, float]],
        options: TrainOptions,
        batches: Sequence[Batch],
    ) -> None:
        self.needs_first_pass = options.precalculate_logprobs or options.kl_penalty_coef > 0
        self._policy = policy
        self._items = items
        self._options = options
        self.batches = batches
        self._tokens = [_trained_tokens(batch, items, scaled) for batch in batches]
        self._references: list[Tensor | None] = [None] * len(batches)
        self._mean_kl: float | None = None
        self._total = sum(len(tokens.weights) for tokens in self._tokens)
        self._loss = 0.0
        self._new: list[Tensor] = []
        self._ratio: list[Tensor] = []
        self._entropy = 0.0

    def first_pass(self) -> Iterator[None]:
        """Log-probabilities before the step: as the old ones if asked for, and the average distance to the base.

        ART centres the KL penalty on the average of one packed row; the average of the whole step makes the result
        independent of how the step is cut into micro-batches.
        """
        options, kl = self._options, 0.0
        for number, batch in enumerate(self.batches):
            with torch.no_grad():
                now, _ = batch.logprobs(self._policy.model)
                if options.kl_penalty_coef > 0:
                    with self._policy.reference() as reference:
                        base, _ = batch.logprobs(reference)
                    self._references[number] = base
                    kl += float((now - base).sum())
            if options.precalculate_logprobs:
                old = self._tokens[number]
                self._tokens[number] = TrainedTokens(
                    now, old.advantages, old.weights, old.sequence, original_logprobs=old.old_logprobs
                )
            yield
        if options.kl_penalty_coef > 0:
            self._mean_kl = kl / (self._total + 1e-6)

    def backward(self) -> Iterator[None]:
        """Accumulate the gradient of the mean loss over all trained tokens of the step."""
        for number, batch in enumerate(self.batches):
            tokens = self._tokens[number]
            new_logprobs, entropy = batch.logprobs(self._policy.model)
            loss = policy_loss(
                tokens, new_logprobs, self._options, ref_logprobs=self._references[number], mean_kl=self._mean_kl
            )
            mean = loss.total / (self._total + 1e-6)
            if not torch.isfinite(mean):
                raise NonFiniteGradient(f"the loss is {mean.item()}")
            mean.backward()  # type: ignore[no-untyped-call]
            self._loss += mean.item()
            self._entropy += float((entropy * tokens.weights).sum()) / (self._total + 1e-6)
            self._new.append(new_logprobs.detach())
            self._ratio.append(loss.ratio)
            yield

    def logprobs(self) -> list[Tensor]:
        """Of each sequence's trained tokens, before the step."""
        found: dict[int, Tensor] = {}
        for batch, new in zip(self.batches, self._new, strict=True):
            sizes = [len(self._items[number].trained) for number in batch.members]
            found |= zip(batch.members, torch.split(new, sizes), strict=True)
        return [found[number] for number in range(len(self._items))]

    def metrics(self) -> dict[str, float]:
        """Figures of the policy before the step, over all trained tokens."""
        old = torch.cat([tokens.old_logprobs for tokens in self._tokens])
        new, ratio = torch.cat(self._new), torch.cat(self._ratio)
        low, high = self._options.clip_range
        correlation = torch.corrcoef(torch.stack([old.exp(), new.exp()]))[0, 1]
        metrics = {
            "loss": self._loss,
            "policy_loss": self._loss,
            "entropy": self._entropy,
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


def _trained_tokens(
    batch: Batch, items: Sequence[TrainSequence], scaled: Sequence[tuple[float, float]]
) -> TrainedTokens:
    def spread(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=batch.sequence.device)[batch.sequence]

    logprobs = [value for number in batch.members for value in items[number].logprobs]
    return TrainedTokens(
        old_logprobs=torch.tensor(logprobs, dtype=torch.float32, device=batch.sequence.device),
        advantages=spread([scaled[number][0] for number in batch.members]),
        weights=spread([scaled[number][1] for number in batch.members]),
        sequence=batch.sequence,
    )

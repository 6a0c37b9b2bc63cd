"""GRPO's policy loss with ART's semantics and options, over the trained tokens of a batch laid out flat.

Formulas and defaults are those of `art.loss.loss_fn` (openpipe-art 0.5.18), which works on padded, packed rows. Here
every tensor has one entry per trained token, so context and padding cost nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from learnloop_service.training.protocol.validation_message import message_of


class BadOptions(ValueError):
    """A train option is unknown or out of range. The message names it."""


class TrainOptions(BaseModel):
    """Options of a GRPO step, named as in ART's train config. None selects ART's default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    learning_rate: float = Field(default=5e-6, ge=0)
    ppo: bool = False
    """Use PPO's clipped objective instead of CISPO (clipped importance weights times log-probabilities)."""
    epsilon: float | None = Field(default=None, ge=0)
    """Lower clipping bound of the ratio as a distance from 1. Default: 1.0 for CISPO, 0.2 for PPO."""
    epsilon_high: float | None = Field(default=None, ge=0)
    """Upper clipping bound of the ratio as a distance from 1. Default: 4.0 for CISPO, `epsilon` for PPO."""
    importance_sampling_level: Literal["token", "sequence", "average", "geometric_average"] = "token"
    mask_prob_ratio: bool = False
    """Set the ratio of tokens outside the clip range to 0. CISPO clips it again, to 1 - `epsilon`: only with `epsilon`
    at 1, its default, such tokens are ignored."""
    min_probability: float = Field(default=0.0, ge=0, lt=1)
    """Ignore tokens whose old probability is below this. Their gradients are the largest, and raise what the policy
    would hardly ever sample: a secret of eight such tokens rises by nats when it is trained on once."""
    max_negative_advantage_importance_sampling_weight: float | None = Field(default=None, gt=0)
    """Upper bound of the ratio. As in ART, it applies whatever the sign of the advantage."""
    kimi_k2_tau: float | None = Field(default=None, gt=0)
    truncated_importance_sampling: float | None = Field(default=None, gt=0)
    """Multiply the loss by the detached ratio, truncated at this bound. With `precalculate_logprobs`, the ratio
    compares the trainer's log-probabilities with the sampler's."""
    precalculate_logprobs: bool = False
    """Take the old log-probabilities from a forward pass before the step instead of from the sampler."""
    kl_penalty_coef: float = Field(default=0.0, ge=0)
    """Coefficient of a penalty on tokens that diverge from the base model more than the average token does."""
    scale_rewards: bool = True
    """Divide advantages by the group's standard deviation."""
    least_spread: float = Field(default=0.0, ge=0)
    """A smaller standard deviation of a group's rewards counts as this. In a request it is a share of their range."""
    advantage_balance: float = Field(default=0.0, ge=-1, le=1)
    """Balance of signs: -1 trains on negative advantages only, 1 on positive ones only."""
    token_weighting: Literal["trajectory", "token"] = "trajectory"
    """`trajectory` (ART) gives all trajectories the same weight; `token` gives all tokens the same weight."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_kl: float | None = Field(default=None, gt=0)
    """Largest KL divergence of one step. A step that moves the policy further is shortened (`trust_region.py`)."""
    max_rollout_kl: float | None = Field(default=None, gt=0)
    """Largest mean, over conversations, of the sum of a step's divergences over their tokens; needs `max_kl`."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> "TrainOptions":
        """Options from a request's `experimental_config`, where None means unset. Raises BadOptions."""
        options = {name: value for name, value in (config or {}).items() if value is not None}
        if unknown := sorted(options.keys() - cls.model_fields.keys()):
            raise BadOptions(f"unknown train options: {', '.join(unknown)}")
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            faults = (f"{fault['loc'][0]}: {message_of(fault)}" for fault in error.errors())
            raise BadOptions(f"bad train options: {'; '.join(faults)}") from error

    @property
    def clip_range(self) -> tuple[float, float]:
        """Lowest and highest ratio that is not clipped."""
        epsilon = self.epsilon if self.epsilon is not None else (0.2 if self.ppo else 1.0)
        if self.epsilon_high is not None:
            return 1 - epsilon, 1 + self.epsilon_high
        return 1 - epsilon, 1 + (epsilon if self.ppo else 4.0)


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """The N sampled tokens of a batch. All tensors are [N] and float32, except `sequence` (int64).

    `sequence` is the number of each token's conversation in this batch, from 0. `original_logprobs` are the sampler's
    log-probabilities if `old_logprobs` were precalculated, else None.
    """

    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    sequence: Tensor
    original_logprobs: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of a batch. `total` is summed over the batch's tokens; divide it by the number of tokens of the whole
    step.

    `ratio` [N] is each token's new-to-old probability ratio, detached.
    """

    total: Tensor
    ratio: Tensor


def policy_loss(
    tokens: TrainedTokens,
    new_logprobs: Tensor,
    options: TrainOptions,
    *,
    ref_logprobs: Tensor | None = None,
    mean_kl: float | None = None,
) -> PolicyLoss:
    """Return the loss of a batch, given its tokens' current log-probabilities `new_logprobs` [N] (with gradient) and
    those of the base, `ref_logprobs` [N].

    `mean_kl` is the average of new - ref on which the KL penalty is centred. None takes the average of this batch.
    """
    low, high = options.clip_range
    difference = new_logprobs - tokens.old_logprobs
    token_ratio = torch.exp(difference)
    ratio = _at_level(token_ratio, difference, tokens.sequence, options.importance_sampling_level)
    if bound := options.max_negative_advantage_importance_sampling_weight:
        ratio = torch.clamp(ratio, max=bound)
    if options.mask_prob_ratio:
        ratio = torch.where((ratio > low) & (ratio < high), ratio, 0.0)
    advantages = tokens.advantages
    if options.kimi_k2_tau:
        advantages = advantages - options.kimi_k2_tau * difference.detach()
    if options.kl_penalty_coef > 0 and ref_logprobs is not None:
        kl = (new_logprobs - ref_logprobs).detach()
        centre = kl.sum() / (kl.numel() + 1e-6) if mean_kl is None else mean_kl
        advantages = advantages + options.kl_penalty_coef * (centre - kl)
    if options.ppo:
        loss = -torch.min(ratio * advantages, torch.clip(ratio, low, high) * advantages)
    else:
        loss = -(torch.clip(ratio.detach(), low, high) * advantages * new_logprobs)
    if bound := options.truncated_importance_sampling:
        if tokens.original_logprobs is not None:
            ratio = torch.exp(tokens.old_logprobs - tokens.original_logprobs)
        loss = loss * torch.clamp(ratio, max=bound).detach()
    weights = torch.where(tokens.old_logprobs.exp() < options.min_probability, 0.0, tokens.weights)
    return PolicyLoss((loss * weights).sum(), token_ratio.detach())


def _at_level(token_ratio: Tensor, difference: Tensor, sequence: Tensor, level: str) -> Tensor:
    """Return every token's importance ratio [N] at the given level. A sequence's ratio is the geometric mean of its
    tokens' ratios."""
    if level == "token":
        return token_ratio
    sequences = int(sequence.max()) + 1
    total = difference.new_zeros(sequences).index_add(0, sequence, difference)
    count = difference.new_zeros(sequences).index_add(0, sequence, torch.ones_like(difference))
    sequence_ratio = torch.exp(total / (count + 1e-8))[sequence]
    if level == "sequence":
        return sequence_ratio
    if level == "average":
        return (token_ratio + sequence_ratio) / 2
    return torch.sqrt(token_ratio) * torch.sqrt(sequence_ratio)

"""The options of GRPO steps in a request."""

from pydantic import Field

from learnloop_service.app.schemas.base import RequestPart
from learnloop_service.training.backends.train_options import ImportanceSamplingLevel, Loss, TokenWeighting


class TrainOptionsChoice(RequestPart):
    """How each GRPO step is taken. Null or not given: the default, which is ART's unless it says otherwise. An option
    that the backend of the run does not take is refused; `GET /backends` lists those that each takes."""

    loss: Loss | None = None
    """`cispo`: clipped importance weights times log-probabilities; `ppo`: PPO's clipped objective. Default: `cispo`."""
    epsilon: float | None = Field(default=None, ge=0, le=1e6)
    """The ratio of new to old probability is clipped below at 1 - epsilon. Default: 1.0 with `cispo`, 0.2 with
    `ppo`."""
    epsilon_high: float | None = Field(default=None, ge=0, le=1e6)
    """The ratio is clipped above at 1 + epsilon_high. Default: 4.0 with `cispo`, epsilon with `ppo`."""
    importance_sampling_level: ImportanceSamplingLevel | None = None
    """What has a ratio: each token, each sequence (the geometric mean of its tokens' ratios), or the arithmetic or
    geometric mean of both. Default: `token`."""
    mask_prob_ratio: bool | None = None
    """Leave out tokens whose ratio is outside the clip range, instead of clipping it. With `cispo` that takes `epsilon`
    1, its default: with less they weigh 1 - epsilon. Default: false."""
    min_probability: float | None = Field(default=None, ge=0, lt=1)
    """Leave out tokens that were sampled with a smaller probability. Default: 0. Not every backend takes it."""
    max_negative_advantage_importance_sampling_weight: float | None = Field(default=None, gt=0, le=1e6)
    """Upper bound of the ratio. Default: none."""
    truncated_importance_sampling: float | None = Field(default=None, gt=0, le=1e6)
    """Multiply the loss by the ratio, cut at this bound. Default: not done."""
    precalculate_logprobs: bool | None = None
    """Compute the old log-probabilities by the trainer before the step, instead of taking the sampler's. Default:
    false."""
    kl_penalty_coef: float | None = Field(default=None, ge=0, le=1e6)
    """Weight of a penalty on tokens that have left the base model more than the average token has. Default: 0."""
    kimi_k2_tau: float | None = Field(default=None, gt=0, le=1e6)
    """Subtract this times the log-ratio from each token's advantage. Default: not done."""
    advantage_balance: float | None = Field(default=None, ge=-1, le=1)
    """-1 trains on negative advantages only, 1 on positive ones only. Default: 0, both."""
    scale_rewards: bool | None = None
    """Divide advantages by the standard deviation of the group's rewards. Default: true."""
    least_spread: float | None = Field(default=None, ge=0, le=1)
    """A group's standard deviation counts as at least this share of the range of the run's rewards so far, so that
    small differences between alike rollouts teach little. Stored advantages are those without it. Default: 0. Not every
    backend takes it."""
    token_weighting: TokenWeighting | None = None
    """Whether all trajectories weigh the same, as in ART, or all tokens. Default: `token`, with which small models
    learn faster. Not every backend takes it."""
    max_grad_norm: float | None = Field(default=None, gt=0, le=1e6)
    """The gradient is scaled down to this norm if it is larger. Default: 1.0. Not every backend takes it."""
    max_kl: float | None = Field(default=None, gt=0, le=1e6)
    """A step that moves the policy by a larger mean KL divergence per sampled token, in nats, is shortened. Default:
    0.02. Not every backend takes it."""
    max_rollout_kl: float | None = Field(default=None, gt=0, le=1e6)
    """The same for the KL divergence of a whole rollout, the sum over its tokens. Default: 0.5, and no bound for
    `learnloop/tiny`. Not every backend takes it."""

"""The options of a GRPO step that each backend accepts, and their names on its server.

The names are those of ART's train config (`art.dev.train.TrainConfig`, openpipe-art 0.5.18), except for `loss`, which
is `ppo` there and `loss_fn` in ART's local backend. `docs/backends.md` describes them.
"""

from collections.abc import Mapping
from typing import Literal

from learnloop_service.environment.base import Json

ImportanceSamplingLevel = Literal["token", "sequence", "average", "geometric_average"]
Loss = Literal["cispo", "ppo"]
TokenWeighting = Literal["trajectory", "token"]

SERVERLESS = frozenset(
    {
        "advantage_balance",
        "epsilon",
        "epsilon_high",
        "importance_sampling_level",
        "kimi_k2_tau",
        "loss",
        "mask_prob_ratio",
        "max_negative_advantage_importance_sampling_weight",
        "precalculate_logprobs",
        "scale_rewards",
    }
)
"""Options of ART's `ExperimentalTrainingConfig`."""
LOCAL = SERVERLESS | {"kl_penalty_coef", "truncated_importance_sampling"}
"""These and the other options of ART's `LocalBackend.train`."""
EMBEDDED = LOCAL | {
    "least_spread", "max_grad_norm", "max_kl", "max_rollout_kl", "min_probability", "token_weighting",
}  # fmt: skip
"""Options of our engine."""

AS_PPO: Mapping[str, Mapping[str, Json]] = {"cispo": {"ppo": False}, "ppo": {"ppo": True}}
AS_LOSS_FN: Mapping[str, Mapping[str, Json]] = {"cispo": {"loss_fn": "cispo"}, "ppo": {"loss_fn": "ppo"}}


def as_sent(options: Mapping[str, Json], losses: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    """Return the options by the server's names; `losses` gives the server's options for each loss."""
    named = dict(options)
    loss = named.pop("loss", None)
    return named if loss is None else {**named, **losses[loss]}

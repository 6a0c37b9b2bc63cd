"""AdamW over a policy's trainable weights: one clipped step from accumulated gradients, and its state as tensors."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

BETAS = (0.9, 0.95)


class NonFiniteGradient(ArithmeticError):
    """The loss or the gradient is not a number; no weight was changed."""


class Optimizer:
    """AdamW without weight decay. Gradients accumulate in the parameters until `step`."""

    def __init__(self, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        self._parameters = dict(parameters)
        self._adamw = torch.optim.AdamW(self._parameters.values(), lr=0.0, betas=BETAS, weight_decay=0.0)

    def step(self, *, learning_rate: float, max_grad_norm: float) -> float:
        """Take one step, forget the gradients, return their norm before clipping. Raises NonFiniteGradient."""
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), max_grad_norm)
        if not torch.isfinite(norm):
            self.discard()
            raise NonFiniteGradient(f"the gradient's norm is {float(norm)}")
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self.discard()
        return float(norm)

    def discard(self) -> None:
        """Forget the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The state by `<parameter>.<exp_avg|exp_avg_sq|step>`; empty before the first step."""
        state = self._adamw.state
        return {
            f"{name}.{key}": value.detach()
            for name, parameter in self._parameters.items()
            for key, value in state.get(parameter, {}).items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave. Raises KeyError or ValueError if it is another model's."""
        for name, parameter in self._parameters.items():
            state = {key: tensors[f"{name}.{key}"].clone() for key in ("step", "exp_avg", "exp_avg_sq")}
            if state["exp_avg"].shape != parameter.shape:
                raise ValueError(f"optimizer state of {name} has shape {tuple(state['exp_avg'].shape)}")
            self._adamw.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in state.items()
            }

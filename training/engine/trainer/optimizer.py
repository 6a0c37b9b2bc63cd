"""AdamW over a policy's trainable weights: one clipped step from accumulated gradients, and the optimizer's state as
tensors."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

BETAS = (0.9, 0.95)
EPSILON = 1e-8


class NonFiniteGradient(ArithmeticError):
    """The loss or the gradient is NaN or infinite. No weight was changed."""


class Optimizer:
    """AdamW without weight decay. Gradients accumulate in the parameters until `step`.

    It calls PyTorch's functional form, because PyTorch's optimizer classes import its compiler, which takes a second.
    """

    def __init__(self, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        self._parameters = dict(parameters)
        self._state: dict[str, dict[str, Tensor]] = {}
        self.objective: str | None = None
        """Objective of the steps that made the state. None for a new state, and for one of an older version."""
        self._changed: list[str] = []
        """Names of the parameters changed by the last step."""
        self._learning_rate = 0.0
        """Learning rate of the last step."""

    def pursue(self, objective: str) -> None:
        """Begin with a fresh state if the present one belongs to another objective.

        Adam divides by the size of past gradients. Those of demonstrations are larger than those of rollouts, and would
        keep the steps of the next dozen iterations small.
        """
        if self.objective not in (None, objective):
            self._state.clear()
        self.objective = objective

    @property
    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The trained parameters, always in the same order."""
        return self._parameters.values()

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add gradients, in the order of `parameters`, to those that accumulated. An unused parameter's is None."""
        for parameter, gradient in zip(self._parameters.values(), gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                # as backward() does; the gradients of two parameters can be parts of one tensor
                parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
            else:
                parameter.grad += gradient

    def step(self, *, learning_rate: float, max_grad_norm: float) -> float:
        """Take one step, clear the gradients and return their norm before clipping. Raises NonFiniteGradient."""
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), max_grad_norm)
        if not torch.isfinite(norm):
            self.discard()
            raise NonFiniteGradient(f"the gradient's norm is {float(norm)}")
        self._take_step(learning_rate)
        self.discard()
        return float(norm)

    @torch.no_grad()
    def _take_step(self, learning_rate: float) -> None:
        trained = {name: parameter for name, parameter in self._parameters.items() if parameter.grad is not None}
        for name in trained.keys() - self._state.keys():
            self._state[name] = _first_state(trained[name])
        self._changed, self._learning_rate = list(trained), learning_rate
        states = [self._state[name] for name in trained]
        adam(
            list(trained.values()),
            [parameter.grad for parameter in trained.values() if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=learning_rate,
            weight_decay=0.0,
            eps=EPSILON,
            maximize=False,
        )

    @torch.no_grad()
    def take_back(self, share: float) -> None:
        """Undo `share` of the whole last step, whose size follows from Adam's state. The state stays unchanged."""
        for name in self._changed:
            state = self._state[name]
            count = float(state["step"])
            scale = (state["exp_avg_sq"].sqrt() / math.sqrt(1 - BETAS[1] ** count)).add_(EPSILON)
            value = share * self._learning_rate / (1 - BETAS[0] ** count)
            self._parameters[name].addcdiv_(state["exp_avg"], scale, value=value)

    def discard(self) -> None:
        """Clear the gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by `<parameter>.<exp_avg|exp_avg_sq|step>`. It is empty before the first step."""
        return {f"{name}.{key}": value for name, state in self._state.items() for key, value in state.items()}

    def load(self, tensors: Mapping[str, Tensor], objective: str | None) -> None:
        """Restore the state that `tensors` returned, and its objective. Raises KeyError or ValueError if it belongs to
        another model."""
        self.objective = objective
        for name, parameter in self._parameters.items():
            state = {key: tensors[f"{name}.{key}"].clone() for key in ("step", "exp_avg", "exp_avg_sq")}
            if state["exp_avg"].shape != parameter.shape:
                raise ValueError(f"optimizer state of {name} has shape {tuple(state['exp_avg'].shape)}")
            self._state[name] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in state.items()
            }


def _first_state(parameter: torch.nn.Parameter) -> dict[str, Tensor]:
    """Return a parameter's state before the first step. The step counter is on the CPU, wherever the parameter is."""
    return {
        "step": torch.tensor(0.0),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }

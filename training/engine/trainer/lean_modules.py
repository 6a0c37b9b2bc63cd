"""Forms of a transformer's modules that keep less for the backward pass and read memory fewer times, for a GPU."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor


def make_lean(model: torch.nn.Module) -> None:
    """Give norms, gated MLPs and LoRA layers of a Llama-shaped model lean forwards. Parameters and names stay."""
    for module in model.modules():
        name = type(module).__name__
        if isinstance(module, LoraLinear):
            module.forward = partial(_lora_forward, module)  # type: ignore[method-assign]
        elif name.endswith("RMSNorm"):
            module.forward = partial(_norm_forward, module)
        elif name.endswith("MLP"):
            module.forward = partial(_mlp_forward, module)


def _norm_forward(module: Any, hidden: Tensor) -> Tensor:
    weight: Tensor = module.weight
    return F.rms_norm(hidden, weight.shape, weight.to(hidden.dtype), module.variance_epsilon)


def _mlp_forward(module: Any, hidden: Tensor) -> Tensor:
    gate, up = module.gate_proj(hidden), module.up_proj(hidden)
    mixed = _silu_mul(gate.flatten(0, -2), up.flatten(0, -2))
    down: Tensor = module.down_proj(mixed.view(gate.shape))
    return down


def _silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    if gate.device.type != "cuda":
        return F.silu(gate) * up
    from training.engine.weights.triton_kernels import SiluMul  # it needs Triton, which only torch for CUDA brings

    mixed: Tensor = SiluMul.apply(gate, up)  # type: ignore[no-untyped-call]
    return mixed


def _lora_forward(module: Any, hidden: Tensor) -> Tensor:
    base = module.base_layer
    if module.disable_adapters:
        plain: Tensor = base(hidden)
        return plain
    [name] = module.active_adapters
    out: Tensor = LoraProduct.apply(  # type: ignore[no-untyped-call]
        hidden,
        base.weight,
        base.bias,
        module.lora_A[name].weight,
        module.lora_B[name].weight,
        module.scaling[name],
    )
    return out


class LoraProduct(torch.autograd.Function):
    """x W^T + b + s (x A^T) B^T with a frozen W, in x's precision; keeps x and x A^T.

    `x` is [..., in], W [out, in], A [r, in], B [out, r].
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, low: Tensor, high: Tensor, scale: float
    ) -> Tensor:
        down, up = low.to(hidden.dtype), high.to(hidden.dtype)
        narrow = F.linear(hidden, down)
        out = F.linear(hidden, weight, bias)
        out.flatten(0, -2).addmm_(narrow.flatten(0, -2), up.t(), alpha=scale)
        ctx.save_for_backward(hidden, narrow, weight, low, high)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, narrow, weight, low, high = ctx.saved_tensors
        flat, kind = grad.flatten(0, -2), hidden.dtype
        grad_narrow = (flat @ high.to(kind)).mul_(ctx.scale)
        grad_high = (flat.t() @ narrow.flatten(0, -2)).to(high.dtype).mul_(ctx.scale)
        grad_low = (grad_narrow.t() @ hidden.flatten(0, -2)).to(low.dtype)
        grad_hidden = None
        if ctx.needs_input_grad[0]:
            grad_hidden = (flat @ weight).addmm_(grad_narrow, low.to(kind)).view(hidden.shape)
        return grad_hidden, None, None, grad_low, grad_high, None

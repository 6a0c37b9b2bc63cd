"""Groups of conversations, and what a model computes for them in batches."""

import random
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.fakes.tiny_model import make_tiny_model

CPU = torch.device("cpu")


def group(seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Conversations that share a prompt, one of them forked late from another and one given twice."""
    draw = random.Random(seed)
    prompt = [draw.randrange(261, 320) for _ in range(20)]
    whole = [prompt + [draw.randrange(261, 320) for _ in range(draw.randrange(5, 40))] for _ in range(4)]
    whole += [[*whole[0][:-3], 300, 301], list(whole[1]), [draw.randrange(261, 320) for _ in range(9)]]
    chosen = [sorted(draw.sample(range(1, len(ids)), 4)) for ids in whole]
    return whole, chosen


def load(directory: Path, family: str, attention: str, targets: Any = "all-linear") -> Any:
    make_tiny_model(directory, family)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation=attention)
    config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=targets, init_lora_weights=False)
    torch.manual_seed(0)
    return get_peft_model(model, config).eval()


def by_token(model: Any, batches: Any, chosen: list[list[int]]) -> tuple[dict[tuple[int, int], Tensor], list[Tensor]]:
    """The log-probability of each (conversation, position), and the gradients of a weighted sum of them."""
    logprob_of: dict[tuple[int, int], Tensor] = {}
    for batch in batches:
        logprobs, entropy = batch.logprobs(model)
        assert not entropy.requires_grad
        places = [(number, position) for number in batch.members for position in chosen[number]]
        assert [batch.members[row] for row in batch.sequence.tolist()] == [number for number, _ in places]
        sum(
            value * (1 + number + position % 3) for (number, position), value in zip(places, logprobs, strict=True)
        ).backward()
        logprob_of |= dict(zip(places, logprobs.detach(), strict=True))
    return logprob_of, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

"""Several adapters of one base in one batch, on a GPU: each conversation is what it is with its adapter alone."""

import copy
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learnloop_service.training.engine.engine import Engine
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.policy import load_checkpoint
from learnloop_service.training.engine.weights.fp8 import CAPABILITIES
from learnloop_service.training.engine.weights.joined import JoinedModel
from learnloop_service.training.engine.weights.kv_cache import Piece
from learnloop_service.training.engine.weights.paged_cache import PagedCache
from learnloop_service.training.engine.weights.weights import snapshot
from learnloop_service.training.tuning import Tuning
from tests.fakes.engine import odd_share, sampled_group
from tests.fakes.tiny_model import make_tiny_model
from tests.gpu.cuda_models import FAMILIES, exact_logprobs, model_of, tokens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ADAPTERS, ROWS = 4, 16
MEAN_ROUNDING = 0.05
"""What log-probabilities may be off by in the mean: in bfloat16 on a CPU it is 0.01, and with another step's 1.0."""


def adapters_of(
    directory: Path, family: str, device: torch.device, *, ranks: int, stages: int, in_fp8: bool = False
) -> list[Any]:
    """Peft models of rank 8 on one joined base, whose logits differ by more than their norm."""
    plain: Any = model_of(directory, family, adapter=True).to(device)
    base = plain.get_base_model()
    for name, parameter in base.named_parameters():
        if "lora_" not in name:
            parameter.data = parameter.data.bfloat16()
    joined = JoinedModel(base, [device] * stages, torch.bfloat16, ranks=ranks, share=False, in_fp8=in_fp8)
    models = []
    for number in range(ADAPTERS):
        model: Any = copy.deepcopy(plain)
        model.get_base_model().joined = joined
        torch.manual_seed(number)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0.0, 0.1)
        models.append(model)
    return models


def relative(approximate: Tensor, exact: Tensor) -> float:
    return float((approximate - exact).norm() / exact.norm())


def prefilled(weights: Any, prompts: list[list[int]], whose: list[Any]) -> PagedCache:
    """The prompts in rows of a cache; in two passes, of which the second has the first one's keys to look at."""
    cache = PagedCache(weights.kv, ROWS, 256, 64)
    for begin, end in ((0, 20), (20, None)):
        pieces = [Piece(row, begin, np.array(ids[begin:end])) for row, ids in enumerate(prompts)]
        for piece in pieces:
            cache.hold(piece.row, piece.start, piece.start + len(piece.ids) + 8)
        weights.prefill_each(cache, pieces, whose)
    return cache


def decoded(weights: Any, cache: PagedCache, prompts: list[list[int]], whose: list[Any]) -> Tensor:
    """Logits [steps, rows, vocab] of a few tokens; every third row is left alone."""
    skipped = [row % 3 == 2 for row in range(ROWS)]
    lengths = torch.tensor([-1 if skip else len(ids) for skip, ids in zip(skipped, prompts, strict=True)])
    rows = [None if skip else row_weights for skip, row_weights in zip(skipped, whose, strict=True)]
    steps = []
    for step in range(3):
        ids = torch.tensor([tokens(1, 10 * row + step)[0] for row in range(ROWS)])
        positions = torch.where(lengths < 0, -1, lengths + step)
        logits = weights.decode_each(cache, ids.to(weights.kv.device), positions.to(weights.kv.device), rows)
        steps.append(logits.clone())
    return torch.stack(steps)[:, lengths >= 0]


@pytest.mark.parametrize("ranks", [32, 20, 8], ids=["all fit", "some fit", "one fits"])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("in_fp8", [False, True], ids=["bfloat16", "fp8"])
def test_a_batch_of_several_adapters_has_the_logits_of_each(
    tmp_path: Path, family: str, stages: int, ranks: int, in_fp8: bool
) -> None:
    if in_fp8 and torch.cuda.get_device_capability()[0] not in CAPABILITIES:
        pytest.skip("needs a GPU with float8")
    models = adapters_of(tmp_path, family, torch.device("cuda"), ranks=ranks, stages=stages, in_fp8=in_fp8)
    assert_each_as_alone([snapshot(model) for model in models])


def assert_each_as_alone(weights: list[Any]) -> None:
    draw = random.Random(0)
    whose = [draw.choice(weights) for _ in range(ROWS)]
    prompts = [tokens(30 + 3 * row, row) for row in range(ROWS)]
    mixed = decoded(weights[0], prefilled(weights[0], prompts, whose), prompts, whose)
    decoded_rows = [row_weights for row, row_weights in enumerate(whose) if row % 3 < 2]
    for adapter in weights:
        only = [adapter] * ROWS
        alone = decoded(adapter, prefilled(adapter, prompts, only), prompts, only)
        for row, owner in enumerate(decoded_rows):
            difference = relative(mixed[:, row], alone[:, row])
            assert (difference < 0.15) if owner is adapter else (difference > 0.5), (row, owner is adapter, difference)


def test_one_is_trained_while_others_are_sampled(tmp_path: Path) -> None:
    """Conversations of the step before end with that step's adapter; those that begin afterwards have the next."""
    wide = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8}
    make_tiny_model(tmp_path / "base", "qwen3", overrides=wide)
    engine = Engine(Registry(tmp_path / "data", {"tiny": tmp_path / "base"}), Sampler(slots=16), device="cuda")
    rewards = {"odd": odd_share, "even": lambda ids: -odd_share(ids)}
    models = {
        name: engine.registry.create(project="test", name=name, base_model="tiny", tuning=Tuning("lora")).id
        for name in rewards
    }
    prompt, outcome_of = tokens(20, 0), dict[tuple[str, int], Any]()

    def ask(name: str, seed: int) -> None:
        target = engine.registry.resolve(f"test/{name}")
        request = SampleRequest(tuple(prompt), target.key, 200, seed=seed)
        engine.submit(target, request, None, partial(outcome_of.__setitem__, (target.key, seed)))

    for step in range(2):
        for name, reward in rewards.items():
            group = sampled_group(engine, f"test/{name}", reward, count=16, first_seed=100 * step)
            for seed in (2 * step, 2 * step + 1):
                ask("odd", seed)
                ask("even", seed)
            for _ in engine.train(models[name], [group], TrainOptions(learning_rate=0.2)):
                engine.sampler.step()
            ask(name, 100 + step)
    while engine.sampler.busy:
        engine.sampler.step()
    assert {key for key, _ in outcome_of} == {f"test/{name}@{step}" for name in rewards for step in range(3)}
    for (key, _), sample in outcome_of.items():
        target = engine.registry.resolve(key)
        exact: Any = load_checkpoint(target.directory, target.base_directory, target.tuning, torch.device("cpu"))
        off = float((torch.tensor(sample.logprobs) - exact_logprobs(exact, prompt, sample.ids)).abs().mean())
        assert off < MEAN_ROUNDING, (key, off)

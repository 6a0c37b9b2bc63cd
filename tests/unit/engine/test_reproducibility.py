"""The self-check finds products and attention whose bits depend on the batch, and nothing where they do not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from learnloop_service.training.engine import reproducibility
from learnloop_service.training.engine.reproducibility import check
from learnloop_service.training.engine.weights.any_model import ModuleWeights
from learnloop_service.training.engine.weights.attention import attend
from learnloop_service.training.engine.weights.weights import Weights, snapshot
from tests.fakes.engine import make_engine
from tests.fakes.tiny_model import make_tiny_model


def weights_of(directory: Path, family: str) -> Weights:
    return snapshot(AutoModelForCausalLM.from_pretrained(make_tiny_model(directory, family)))


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    return weights_of(tmp_path, "qwen3")


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt_neox"])
@pytest.mark.parametrize("threads", [1, 2])
def test_in_the_engines_mode_this_processor_is_exact(tmp_path: Path, family: str, threads: int) -> None:
    verdict = check(weights_of(tmp_path, family), threads)
    assert verdict.reproducible, verdict.reason
    assert torch.get_num_threads() == 1, "the check leaves the number of threads as it was"


def test_kernels_that_depend_on_the_number_of_rows_are_found(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    """MKL has such kernels on Intel's processors without strict mode."""
    linear = torch.nn.functional.linear

    def other_kernel_below_16_rows(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return linear(rows, matrix) * (1 + 2**-20 if len(rows) < 16 else 1)

    monkeypatch.setattr(F, "linear", other_kernel_below_16_rows)
    verdict = check(weights, 1)
    assert not verdict.reproducible
    assert "matrix products differ" in verdict.reason


def test_products_that_depend_on_the_number_of_threads_are_found(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = torch.nn.functional.linear

    def cut_at_other_places(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return linear(rows, matrix) * (1 + 2**-20 * (torch.get_num_threads() - 1))

    monkeypatch.setattr(F, "linear", cut_at_other_places)
    assert check(weights, 1).reproducible
    assert not check(weights, 2).reproducible


def test_attention_that_depends_on_what_a_query_does_not_see_is_found(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_length(query: torch.Tensor, keys: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return attend(query, keys, *rest) * (1 + 2**-20 * (keys.shape[-1] > 100))

    monkeypatch.setattr(reproducibility, "attend", by_length)
    verdict = check(weights, 1)
    assert not verdict.reproducible
    assert "attention differs" in verdict.reason


def test_a_models_own_attention_is_not_vouched_for(tmp_path: Path) -> None:
    """Our attention has no soft caps."""
    model: Any = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path, "gpt_neox"))
    model.config.attn_logit_softcapping = 30.0
    verdict = check(ModuleWeights(model, torch.device("cpu"), torch.float32), 1)
    assert not verdict.reproducible
    assert "own attention" in verdict.reason


def test_an_engine_answers_for_all_models_that_it_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tmp_path)
    assert engine.reproducibility is None
    model = engine.registry.create(project="test", name="agent", base_model="tiny")
    assert engine.check(model.id).reproducible
    assert engine.reproducibility == replace(engine.check(model.id), fingerprint=None)
    monkeypatch.setattr(F, "linear", lambda rows, matrix: torch.rand(len(rows), len(matrix)))
    make_tiny_model(tmp_path / "wider", overrides={"hidden_size": 64})
    wider = engine.registry.create(project="test", name="wider", base_model=str(tmp_path / "wider"))
    assert not engine.check(wider.id).reproducible
    assert engine.check(model.id).reproducible
    assert engine.reproducibility is not None
    assert not engine.reproducibility.reproducible

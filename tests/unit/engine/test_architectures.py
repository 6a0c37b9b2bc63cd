"""Bases of today's architectures: each trains a step whose sampler and trainer agree, or is refused in one sentence."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from learnloop_service.training.bases.child_processes import check
from learnloop_service.training.bases.files import base_model_fault
from learnloop_service.training.engine.engine import Engine, finish
from learnloop_service.training.engine.examination.trial import sampling_fault
from learnloop_service.training.engine.http.errors import api_error
from learnloop_service.training.engine.registry.base_model_import import CannotAdd, add
from learnloop_service.training.engine.registry.model_record import BadBaseModel
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.trajectories import Group
from learnloop_service.training.engine.weights.any_model import UnsupportedModel
from learnloop_service.training.engine.weights.attention import attend
from learnloop_service.training.tuning import Tuning
from tests.fakes.architectures import ARCHITECTURES, make_architecture
from tests.fakes.engine import odd_share, sampled_group

OTHER_STATE = "its layers of the kind {} keep another state than the keys and values of all tokens"
REFUSED = {
    "qwen3_5_text": OTHER_STATE.format("linear_attention"),
    "granitemoehybrid": OTHER_STATE.format("linear_attention"),
    "lfm2": OTHER_STATE.format("conv"),
    "mamba": OTHER_STATE.format("linear_attention"),
    "deepseek_v3": "its layers do not all keep keys and values, or not of one shape",
}
TRAINED = [name for name in ARCHITECTURES if name not in REFUSED]
TUNINGS = [
    pytest.param(Tuning(), id="full"),
    pytest.param(Tuning("lora", 4, 8), id="lora", marks=pytest.mark.long),
]


def _engine(directory: Path, base: Path) -> Engine:
    torch.set_num_threads(1)
    return Engine(Registry(directory / "data", {"base": base}), Sampler(slots=8))


def _sampled(engine: Engine, tuning: Tuning) -> tuple[Group, str]:
    """Return a group that a new model sampled, and the model's id."""
    model = engine.registry.create(project="t", name="a", base_model="base", tuning=tuning)
    return sampled_group(engine, "t/a", odd_share, count=3, max_tokens=30), model.id


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("tuning", TUNINGS)
def test_a_step_is_trained_on_what_was_sampled(tmp_path: Path, name: str, tuning: Tuning) -> None:
    engine = _engine(tmp_path, make_architecture(tmp_path / "base", name))
    group, id = _sampled(engine, tuning)
    result = finish(engine.train(id, [group], TrainOptions(learning_rate=1e-3)))
    assert result.step == 1
    assert 0 <= result.metrics["kl_div"] < 1e-4
    assert result.metrics["grad_norm"] > 0


@pytest.mark.parametrize(("name", "sentence"), REFUSED.items())
def test_others_are_refused_by_name(tmp_path: Path, name: str, sentence: str) -> None:
    base = make_architecture(tmp_path / "base", name)
    engine = _engine(tmp_path, base)
    with pytest.raises((BadBaseModel, UnsupportedModel)) as refused:
        _sampled(engine, Tuning())
    assert str(refused.value).endswith(sentence)
    assert api_error(refused.value).status == 422
    assert api_error(refused.value).message == str(refused.value)
    assert sampling_fault(_read(base)) == sentence
    assert sampling_fault(_without_weights(base)) == sentence


def test_a_base_with_layers_of_two_shapes_is_refused(tmp_path: Path) -> None:
    base = make_architecture(tmp_path / "base", "gemma4_text", global_head_dim=32)
    assert sampling_fault(_read(base)) == REFUSED["deepseek_v3"]


@pytest.mark.parametrize("name", TRAINED)
def test_a_large_base_is_accepted_by_its_layers(tmp_path: Path, name: str) -> None:
    assert sampling_fault(_without_weights(make_architecture(tmp_path / "base", name))) is None


def test_a_base_that_is_sampled_otherwise_than_trained_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _read(make_architecture(tmp_path / "base", "olmo2"))
    assert sampling_fault(model) is None
    monkeypatch.setattr(
        "learnloop_service.training.engine.weights.any_model.attend", lambda *parts: 0.5 * attend(*parts)
    )
    assert str(sampling_fault(model)).startswith("what is sampled differs from what is trained by ")


def test_a_hybrid_is_not_added_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    source = make_architecture(tmp_path / "source", "lfm2")
    sentence = f"config.json: {REFUSED['lfm2']}"
    assert base_model_fault(source) == sentence
    with pytest.raises(CannotAdd, match=f"is not a model that can be used: {sentence}"):
        add(source, tmp_path / "bases" / "hybrid")
    assert not any((tmp_path / "bases").iterdir())


@pytest.mark.usefixtures("forked_checks")
def test_a_base_is_checked_by_running_it(tmp_path: Path) -> None:
    latent = make_architecture(tmp_path / "latent", "deepseek_v3")
    sentence = f"the engine cannot sample from DeepseekV3ForCausalLM: {REFUSED['deepseek_v3']}"
    assert check(latent).fault == sentence
    assert check(make_architecture(tmp_path / "usual", "olmo2")).fault is None


def _read(base: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return model.eval()


def _without_weights(base: Path) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base))  # type: ignore[no-untyped-call]

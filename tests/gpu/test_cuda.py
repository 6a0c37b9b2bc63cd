"""The engine on a GPU: its kernels against plain torch, and its numbers against the CPU's float32.

`python -m pytest --noconftest tests/gpu` on a machine with one; they skip elsewhere.
"""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from learnloop_service.training.engine.engine import Engine, finish
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.grpo_step import grpo_step
from learnloop_service.training.engine.trainer.packed_batches import packed_batches
from learnloop_service.training.engine.trainer.padded_batches import padded_batches
from learnloop_service.training.engine.trainer.policy import Policy
from learnloop_service.training.engine.trainer.pretrained import fresh_adapter, load_in_stages
from learnloop_service.training.engine.trainer.trajectories import TrainSequence
from learnloop_service.training.engine.weights import tensor_file
from learnloop_service.training.engine.weights.joined import JoinedModel
from learnloop_service.training.engine.weights.weights import snapshot
from learnloop_service.training.tuning import Tuning
from tests.fakes.architectures import make_architecture
from tests.fakes.engine import odd_share, sampled_group
from tests.fakes.tiny_model import make_tiny_model
from tests.gpu.cuda_models import FAMILIES, assert_learns, divergence, exact_logprobs, model_of, sample, tokens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PACKED = ("gemma3_text", "gemma4_text", "mistral", "phi3", "olmo2", "qwen3_moe")
# The most by which bfloat16's 8 bits change a log-probability of these models.
ROUNDING = 0.15
MISMATCH = 0.02
"""Nats a token by which sampler and trainer may differ; 0.0084 was seen. GRPO's loss weighs tokens by their ratio."""


@pytest.mark.parametrize("family", [*FAMILIES, "gpt_neox"])
@pytest.mark.parametrize("adapter", [False, True], ids=["plain", "merged"])
def test_samples_have_the_log_probabilities_of_float32_on_a_cpu(tmp_path: Path, family: str, adapter: bool) -> None:
    """Many rows of different lengths, some sharing their beginning, in several rounds of prefill and graph sizes."""
    model = model_of(tmp_path, family, adapter=adapter)
    shared = tokens(150, 0)
    prompts = [shared + tokens(10 + 7 * number, number) for number in range(12)] + [tokens(3, 50), tokens(300, 51)] * 6
    weights = snapshot(model, device="cuda", dtype=torch.bfloat16)
    for prompt, reply in zip(prompts, sample(weights, prompts), strict=True):
        exact = exact_logprobs(model, prompt, reply.ids)
        worst = float((torch.tensor(reply.logprobs) - exact).abs().max())
        assert worst < ROUNDING, (len(prompt), worst)


@pytest.mark.parametrize("name", PACKED)
def test_other_architectures_are_sampled_packed_and_captured(tmp_path: Path, name: str) -> None:
    """Prompts within and beyond the layers' window of 16 tokens, some sharing their beginning, before and after the
    weights were replaced in place."""
    from learnloop_service.training.engine.weights.packed_modules import (
        PackedModules,  # Triton comes with torch for CUDA only
    )

    model: Any = AutoModelForCausalLM.from_pretrained(make_architecture(tmp_path, name), dtype=torch.float32)
    model.eval()
    shared = tokens(70, 0)
    prompts = [shared + tokens(3 + 9 * number, number) for number in range(10)] + [tokens(3, 50), tokens(200, 51)]
    weights = snapshot(model, device="cuda", dtype=torch.bfloat16)
    assert isinstance(weights, PackedModules)
    for scale in (1.0, 0.9):
        with torch.no_grad():
            model.model.layers[0].self_attn.o_proj.weight.mul_(scale)
        weights.update(model)
        for prompt, reply in zip(prompts, sample(weights, prompts), strict=True):
            worst = float((torch.tensor(reply.logprobs) - exact_logprobs(model, prompt, reply.ids)).abs().max())
            assert worst < ROUNDING, (scale, len(prompt), worst)
    assert weights.captured


@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_turn_continues_where_the_last_one_ended(tmp_path: Path, family: str) -> None:
    model = model_of(tmp_path, family)
    sampler = Sampler(slots=8)
    sampler.set_weights("w", snapshot(model, device="cuda", dtype=torch.bfloat16))
    ids, cached = tokens(40, 1), 0
    for turn in range(3):
        ended: list[Any] = []
        sampler.submit(SampleRequest(tuple(ids), "w", 8, seed=turn), None, ended.append)
        while sampler.busy:
            sampler.step()
        [reply] = ended
        assert reply.cached_tokens == cached
        assert float((torch.tensor(reply.logprobs) - exact_logprobs(model, ids, reply.ids)).abs().max()) < ROUNDING
        cached = len(ids) + len(reply.ids) - 1
        ids = ids + reply.ids + tokens(30, 100 + turn)


@pytest.mark.parametrize("family", FAMILIES)
def test_training_log_probabilities_and_gradients_are_those_of_float32(tmp_path: Path, family: str) -> None:
    model = model_of(tmp_path, family, adapter=True)
    assert_trained_like(model, Policy(_half(copy.deepcopy(model)).cuda(), Tuning("lora"), Path))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_model_in_stages_is_sampled_and_trained_as_a_whole_one(tmp_path: Path, family: str, gpus: int) -> None:
    """Three layers in two stages, on one GPU or two."""
    devices = devices_for_stages(gpus)
    model = model_of(tmp_path, family, adapter=True)
    base: Any = load_in_stages(tmp_path, devices)
    base.joined = JoinedModel(base, devices, torch.bfloat16, ranks=16, share=True)
    adapted: Any = fresh_adapter(base, Tuning("lora")).eval()
    adapted.load_state_dict(
        {name: tensor for name, tensor in model.state_dict().items() if "lora_" in name}, strict=False
    )
    policy = Policy(adapted, Tuning("lora"), Path)
    prompts = [tokens(100, 0) + tokens(10 + 7 * number, number) for number in range(12)]
    for prompt, reply in zip(prompts, sample(snapshot(policy.model), prompts), strict=True):
        exact = exact_logprobs(model, prompt, reply.ids)
        assert float((torch.tensor(reply.logprobs) - exact).abs().max()) < ROUNDING
    assert_trained_like(model, policy)
    policy.recomputing = base.joined_layers.recompute = True
    assert_trained_like(model, policy)


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_model_in_stages_learns(tmp_path: Path, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = devices_for_stages(gpus)
    monkeypatch.setattr(
        "learnloop_service.training.engine.trainer.pretrained.devices_needed", lambda *_: tuple(devices)
    )
    assert_learns(tmp_path, Tuning("lora", rank=4, alpha=8))


def devices_for_stages(gpus: int) -> list[torch.device]:
    if torch.cuda.device_count() < gpus:
        pytest.skip("needs two GPUs")
    return [torch.device("cuda", number % gpus) for number in range(2)]


def assert_trained_like(model: Any, policy: Policy) -> None:
    """A policy's log-probabilities and gradients are those of a float32 model on the CPU."""
    prompt = tokens(60, 0)
    ids = [prompt + tokens(20 + 5 * number, number) for number in range(6)]
    chosen = [list(range(60, len(sequence), 2)) for sequence in ids]
    [plain] = padded_batches(ids, chosen, 10_000, torch.device("cpu"))
    expected = plain.logprobs(model)[0]
    expected.sum().backward()  # type: ignore[no-untyped-call]
    order = dict(zip(_places(plain, chosen), expected.tolist(), strict=True))
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for most in (10_000, 100):
        for batch in packed_batches(ids, chosen, most, torch.device("cuda")):
            logprobs = batch.logprobs(policy.model)[0]
            logprobs.sum().backward()  # type: ignore[no-untyped-call]
            for position, value in zip(_places(batch, chosen), logprobs.tolist(), strict=True):
                assert abs(value - order[position]) < ROUNDING
        for name, parameter in policy.model.named_parameters():
            if parameter.grad is not None:
                expected_gradient = gradients[name]
                assert float((parameter.grad.cpu() - expected_gradient).norm() / expected_gradient.norm()) < 0.1, name
        policy.model.zero_grad()


def test_what_is_sampled_is_what_is_trained(tmp_path: Path) -> None:
    """The sampler's distribution and the trainer's, of a wider and deeper model, by Schulman's k3 estimate."""
    wide = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_hidden_layers": 16}
    make_tiny_model(tmp_path, "qwen2", overrides=wide)
    adapted: Any = fresh_adapter(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), Tuning("lora"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.02)
    policy = Policy(_half(adapted).cuda().eval(), Tuning("lora"), Path)
    prompts = [tokens(200, 0) + tokens(20, number) for number in range(8)]
    measured = divergence(policy, prompts, sample(snapshot(policy.model), prompts, 64))
    assert measured < MISMATCH, measured


def test_trained_weights_are_taken_over_in_place(tmp_path: Path) -> None:
    """What is sampled after an update is what a fresh copy samples, and the cache knows nothing of before."""
    policy = Policy(_half(model_of(tmp_path, "qwen3", adapter=True)).cuda(), Tuning("lora"), Path)
    weights: Any = snapshot(policy.model, dtype=torch.bfloat16)
    sampler = Sampler(slots=8)
    sampler.set_weights("before", weights)
    prompt = tokens(80, 0)

    def greedy(key: str) -> list[int]:
        ended: list[Any] = []
        sampler.submit(SampleRequest(tuple(prompt), key, 30, temperature=0.0), None, ended.append)
        while sampler.busy:
            sampler.step()
        return list(ended[0].ids)

    first = greedy("before")
    ids = tuple(prompt + first)
    items = [TrainSequence(ids, tuple(range(80, 110)), (-1.0,) * 30, advantage, 1.0) for advantage in (-1.0, -0.9)]
    for _ in range(5):
        for _ in grpo_step(policy, items, TrainOptions(learning_rate=0.02), micro_batch_tokens=None):
            pass
    weights.update(policy.model)
    sampler.rename("before", "after")
    after = greedy("after")
    assert after != first
    assert after == sample(snapshot(policy.model, dtype=torch.bfloat16), [prompt], 30, temperature=0.0)[0].ids


def test_tensors_of_a_gpu_are_written_as_those_of_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "FETCHED_BYTES", 200)
    tensors = {f"{number}": torch.randn(number, 7) for number in range(12)} | {"half": torch.randn(5).bfloat16()}
    mixed = {name: tensor if name == "3" else tensor.cuda() for name, tensor in tensors.items()}
    tensor_file.write_tensors(tensors, tmp_path / "cpu")
    tensor_file.write_tensors(mixed, tmp_path / "gpu")
    assert (tmp_path / "gpu").read_bytes() == (tmp_path / "cpu").read_bytes()


def test_training_that_does_not_fit_takes_less_at_a_time(tmp_path: Path) -> None:
    model = model_of(tmp_path, "qwen3", adapter=True)
    ids = [tokens(200, number) for number in range(8)]
    items = [
        TrainSequence(tuple(sequence), tuple(range(100, 200)), (-3.0,) * 100, (-1.0) ** number, 1.0)
        for number, sequence in enumerate(ids)
    ]
    policy = Policy(_half(model).cuda(), Tuning("lora"), Path)
    step = partial(grpo_step, policy, items, TrainOptions(learning_rate=1e-4))
    for _ in step(micro_batch_tokens=200):  # libraries take their workspaces
        pass
    torch.cuda.empty_cache()
    filler = torch.empty(torch.cuda.mem_get_info()[0] - (6 << 20), dtype=torch.uint8, device="cuda")
    for _ in step(micro_batch_tokens=1600):
        pass
    del filler
    torch.cuda.empty_cache()
    assert policy.batch_tokens(1600) < 1600 or policy.recomputing


def test_a_conversation_grows_in_its_pages(tmp_path: Path) -> None:
    """It grows from a few tokens to thousands while another one has most of the pages; nothing is prefilled twice."""
    model = model_of(tmp_path, "llama")
    weights: Any = snapshot(model, device="cuda", dtype=torch.bfloat16)
    sampler = Sampler(slots=4, cache_bytes=40 * 64 * weights.kv.bytes_per_token)
    sampler.set_weights("w", weights)
    ids, computed = tokens(30, 0), []
    for turn in range(6):
        ended: list[Any] = []
        for prompt in (tokens(60, 1000 + turn), ids):
            sampler.submit(SampleRequest(tuple(prompt), "w", 10, seed=turn), None, ended.append)
        while sampler.busy:
            sampler.step()
        [reply] = [sampled for sampled in ended if sampled.prompt_tokens == len(ids)]
        assert float((torch.tensor(reply.logprobs) - exact_logprobs(model, ids, reply.ids)).abs().max()) < ROUNDING
        computed.append(reply.prompt_tokens - reply.cached_tokens)
        ids = ids + reply.ids + tokens(70, turn)
    assert computed[1:] == [71] * 5


def test_many_adapters_take_the_memory_of_one_base(tmp_path: Path) -> None:
    """Trained and sampled in turn; what each says is what it says alone."""
    wide = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_hidden_layers": 8}
    make_tiny_model(tmp_path / "base", "qwen2", overrides=wide)
    engine = Engine(Registry(tmp_path / "data", {"tiny": tmp_path / "base"}), Sampler(slots=8), device="cuda")
    sizes, greedy_replies = [], []

    def greedy(name: str) -> list[int]:
        target = engine.registry.resolve(name)
        return engine.sample(target, [SampleRequest(tuple(tokens(20, 0)), target.key, 20, temperature=0.0)])[0].ids

    for number in range(3):
        name = f"test/agent{number}"
        model = engine.registry.create(project="test", name=f"agent{number}", base_model="tiny", tuning=Tuning("lora"))
        group = sampled_group(engine, name, odd_share, count=16, first_seed=100 * number)
        finish(engine.train(model.id, [group], TrainOptions(learning_rate=0.02)))
        greedy_replies.append(greedy(name))
        engine.sampler.release_idle()
        sizes.append(torch.cuda.memory_allocated())
    assert [greedy(f"test/agent{number}") for number in range(3)] == greedy_replies
    base = 2 * sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(tmp_path / "base").parameters())
    assert max(sizes) - sizes[0] < 0.5 * base


@pytest.mark.parametrize("tuning", [Tuning(), Tuning("lora", rank=4, alpha=8)], ids=lambda tuning: str(tuning.mode))
def test_a_model_learns_and_its_checkpoints_are_what_was_sampled(tmp_path: Path, tuning: Tuning) -> None:
    assert_learns(tmp_path, tuning)


def _places(batch: Any, chosen: list[list[int]]) -> list[tuple[int, int]]:
    return [(number, position) for number in batch.members for position in chosen[number]]


def _half(model: Any) -> Any:
    """The base in bfloat16, the adapter in float32, as a GPU loads them."""
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            parameter.data = parameter.data.bfloat16()
    return model

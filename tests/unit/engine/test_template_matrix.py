"""A conversation of six turns through the chat templates of model families: its ids are those of transformers, its
replies are learnt with their ends, calls are read back, and a random model of each samples it and is trained on it.
`pytest -s` prints the ids and the mask."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from learnloop_service.training.engine.engine import Engine, finish
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.text.template_habits import without_system_role
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.engine.text.tool_text import with_tools_as_text
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.trajectories import Conversation, TrainingTrajectory
from tests.fakes.template_tokenizer import template_tokenizer


@dataclass(frozen=True)
class Family:
    """A template with its tool format, its special tokens, and those that end replies."""

    template: str
    tool_format: str
    special: Sequence[str] = ()
    ends: Sequence[str] = ()
    bos: str | None = None


_LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
_MISTRAL = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
_GEMMA = ("<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>")
_GEMMA_4 = (
    *("<bos>", "<|turn>", "<turn|>", "<eos>", "<|channel>", "<channel|>", '<|"|>'),
    *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
)
_GLM_ENDS = ("<|endoftext|>", "<|user|>", "<|observation|>")
_LLAMA_3 = Family("llama3.1", "llama3_json", _LLAMA, ("<|eot_id|>", "<|eom_id|>"), "<|begin_of_text|>")
_BAR, _BLOCK = "\uff5c", "\u2581"
_DEEPSEEK = tuple(
    f"<{_BAR}{name.replace(' ', _BLOCK)}{_BAR}>"
    for name in ("end of sentence", "begin of sentence", "User", "Assistant")
)
FAMILIES = {
    "Llama 3.1": _LLAMA_3,
    "Llama 3.3": _LLAMA_3,
    "Qwen 2.5": Family("qwen2.5", "hermes"),
    "Qwen 3": Family("qwen3", "hermes"),
    "Qwen 3.5": Family("qwen3.5", "qwen3_5"),
    "Qwen3-Coder": Family("qwen3_coder", "qwen3_5"),
    "Gemma 2": Family("gemma2", "text", _GEMMA, ("<eos>", "<end_of_turn>"), "<bos>"),
    "Gemma 3": Family("gemma3", "text", _GEMMA, ("<eos>", "<end_of_turn>"), "<bos>"),
    "Gemma 4": Family("gemma4", "gemma4", _GEMMA_4, ("<eos>", "<turn|>", "<|tool_response>"), "<bos>"),
    "Mistral 7B v0.3": Family("mistral_7b_v0.3", "mistral", _MISTRAL, ("</s>",), "<s>"),
    "Mistral Nemo": Family("mistral_nemo", "mistral", _MISTRAL, ("</s>",), "<s>"),
    "Phi 4": Family("phi4", "text", ("<|im_sep|>",)),
    "GLM 4.5": Family("glm4.5", "hermes", ("[gMASK]", "<sop>", "<|system|>", "<|assistant|>", *_GLM_ENDS), _GLM_ENDS),
    "DeepSeek R1 distil": Family("deepseek_r1_distil", "text", _DEEPSEEK, _DEEPSEEK[:1], _DEEPSEEK[1]),
    "gpt-oss": Family(
        "gpt_oss",
        "gpt_oss",
        ("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"),
        ("<|return|>", "<|call|>"),
    ),
    "Granite 3": Family("granite3", "json", ("<|end_of_text|>",), ("<|end_of_text|>",)),
}
FIELDS = {"keywords": {"type": "array", "items": {"type": "string"}}, "sender": {"type": "string"}}
SEARCH = {
    "name": "search_inbox",
    "description": "Search the inbox.",
    "parameters": {"type": "object", "properties": FIELDS},
}
TOOLS = [{"type": "function", "function": SEARCH}]
ARGUMENTS = {"keywords": ["Kickoff", "café"], "sender": "42"}


def called(id: str) -> dict[str, Any]:
    function = {"name": "search_inbox", "arguments": ARGUMENTS}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]}


def result(id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "name": "search_inbox", "tool_call_id": id, "content": content}


TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer from the inbox."},
    {"role": "user", "content": "When is the kickoff?"},
    called("a1B2c3D4e"),
    result("a1B2c3D4e", "m41: Kickoff on 12 May"),
    called("a1B2c3D4f"),
    result("a1B2c3D4f", "m42: Kickoff led by Rina"),
    {"role": "assistant", "content": "On 12 May."},
    {"role": "user", "content": "Who leads it?"},
    {"role": "assistant", "content": "Rina."},
]
REPLIES = [index for index, message in enumerate(TALK) if message["role"] == "assistant"]


@pytest.fixture(params=FAMILIES, scope="module")
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Family, ChatTokenizer, Path]:
    traits, directory = FAMILIES[request.param], tmp_path_factory.mktemp("base")
    return traits, template_tokenizer(directory, traits.template, traits.special, traits.ends, traits.bos), directory


def test_a_conversation_of_six_turns(family: tuple[Family, ChatTokenizer, Path]) -> None:
    from transformers import AutoTokenizer

    traits, tokenizer, directory = family
    assert tokenizer.tool_format.name == traits.tool_format
    messages, tools = TALK[:-1], TOOLS
    if traits.tool_format == "text":
        system_role = tokenizer.habits.system_role
        messages, tools = with_tools_as_text(messages, TOOLS, tokenizer.tool_format, system_role=system_role), []
        messages = messages if system_role else [dict(message) for message in without_system_role(messages)]
    theirs: Any = AutoTokenizer.from_pretrained(str(directory))
    expected = theirs.apply_chat_template(messages, tools=tools or None, add_generation_prompt=True, return_dict=False)
    assert tokenizer.prompt(TALK[:-1], TOOLS) == expected

    ids, owner = tokenizer.supervised_sequence(TALK, TOOLS)
    learnt = {index: [id for id, turn in zip(ids, owner, strict=True) if turn == index] for index in REPLIES}
    sys.stdout.write(f"\n{traits.template}\n{ids}\n{[int(turn is not None) for turn in owner]}\n")
    for index, reply in learnt.items():
        assert reply[-1] in tokenizer.stop_ids
        opened = tokenizer.opens_thought(tokenizer.prompt(TALK[:index], TOOLS))
        read = tokenizer.parse(tokenizer.decode(reply), in_thought=opened, tools=TOOLS)
        calls = [(call.name, json.loads(call.arguments)) for call in read.tool_calls]
        assert calls == ([("search_inbox", ARGUMENTS)] if "tool_calls" in TALK[index] else [])
        assert calls or TALK[index]["content"] in (read.content or "")

    again, placed = tokenizer.training_sequence(TALK, TOOLS, learnt)
    assert again == ids
    assert placed == owner
    sampled = {index: [70, 71, 72 + index, reply[-1]] for index, reply in learnt.items()}
    again, placed = tokenizer.training_sequence(TALK, TOOLS, sampled)
    for index, reply in sampled.items():
        assert [id for id, turn in zip(again, placed, strict=True) if turn == index] == reply
    context = [id for id, turn in zip(ids, owner, strict=True) if turn is None]
    assert [id for id, turn in zip(again, placed, strict=True) if turn is None] == context


def _with_weights(directory: Path, tokenizer: ChatTokenizer) -> None:
    """Write a random model into the tokenizer's directory."""
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=4096,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)  # a fresh model is almost uniform
    model.save_pretrained(directory / "weights")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(directory / "weights" / name, directory / name)


def _talk(engine: Engine, name: str, *, seed: int, reward: float) -> TrainingTrajectory:
    """Sample every reply of the conversation, each after those that were sampled before."""
    target = engine.registry.resolve(name)
    tokenizer = engine.tokenizer(target)
    exact: dict[int, tuple[int, ...]] = {}
    logprobs: dict[int, tuple[float, ...]] = {}
    for index in REPLIES:
        prompt = tuple(tokenizer.prompt(TALK[:index], TOOLS, exact=exact))
        request = SampleRequest(prompt, target.key, 12, seed=seed + index, stop_ids=tokenizer.stop_ids)
        [sample] = engine.sample(target, [request])
        exact[index], logprobs[index] = tuple(sample.ids), tuple(sample.logprobs)
        opened = tokenizer.opens_thought(prompt)
        read = tokenizer.parse(tokenizer.decode(sample.ids), in_thought=opened, tools=TOOLS)
        assert read.content or read.tool_calls
        ids, _ = tokenizer.training_sequence(TALK[: index + 1], TOOLS, exact)
        assert ids == [*prompt, *sample.ids], "it is trained after what it was sampled after"
    return TrainingTrajectory((Conversation(tuple(TALK), TOOLS, exact, logprobs, frozenset(exact)),), reward)


@pytest.mark.long
def test_a_model_of_the_family_samples_and_is_trained(family: tuple[Family, ChatTokenizer, Path]) -> None:
    _, tokenizer, directory = family
    torch.set_num_threads(1)
    _with_weights(directory, tokenizer)
    engine = Engine(Registry(directory / "data", {"base": directory}), Sampler(slots=4))
    model = engine.registry.create(project="t", name="a", base_model="base")
    group = tuple(_talk(engine, "t/a", seed=100 * number, reward=float(number)) for number in range(2))
    result = finish(engine.train(model.id, [group], TrainOptions(learning_rate=1e-3)))
    sampled = sum(len(ids) for trajectory in group for ids in trajectory.conversations[0].exact.values())
    assert result.step == 1
    assert result.metrics["num_trainable_tokens"] == sampled
    assert abs(result.metrics["kl_div"]) < 1e-8, "the trainer computes what the sampler did"
    assert result.metrics["grad_norm"] > 0

"""A conversation of six turns through the chat templates of model families: its ids are those of transformers, its
replies are learnt with their ends, and calls are read back. `pytest -s` prints the ids and the mask."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.template_tokenizer import template_tokenizer
from training.engine.template_habits import without_system_role
from training.engine.tokens import ChatTokenizer
from training.engine.tool_text import with_tools_as_text


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
    "Qwen 3.5": Family("qwen3.5", "hermes"),
    "Qwen3-Coder": Family("qwen3_coder", "hermes"),
    "Gemma 2": Family("gemma2", "text", _GEMMA, ("<eos>", "<end_of_turn>"), "<bos>"),
    "Gemma 3": Family("gemma3", "text", _GEMMA, ("<eos>", "<end_of_turn>"), "<bos>"),
    "Gemma 4": Family("gemma4", "text", ("<bos>", "<|turn>", "<turn|>", "<eos>"), ("<eos>", "<turn|>"), "<bos>"),
    "Mistral 7B v0.3": Family("mistral_7b_v0.3", "mistral", _MISTRAL, ("</s>",), "<s>"),
    "Mistral Nemo": Family("mistral_nemo", "mistral", _MISTRAL, ("</s>",), "<s>"),
    "Phi 4": Family("phi4", "text", ("<|im_sep|>",)),
    "GLM 4.5": Family("glm4.5", "hermes", ("[gMASK]", "<sop>", "<|system|>", "<|assistant|>", *_GLM_ENDS), _GLM_ENDS),
    "DeepSeek R1 distil": Family("deepseek_r1_distil", "text", _DEEPSEEK, _DEEPSEEK[:1], _DEEPSEEK[1]),
    "gpt-oss": Family(
        "gpt_oss",
        "text",
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


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Family, ChatTokenizer, Path]:
    found = FAMILIES[request.param]
    return found, template_tokenizer(tmp_path, found.template, found.special, found.ends, found.bos), tmp_path


def test_a_conversation_of_six_turns(family: tuple[Family, ChatTokenizer, Path]) -> None:
    from transformers import AutoTokenizer

    found, tokenizer, directory = family
    assert tokenizer.tool_format.name == found.tool_format
    messages, tools = TALK[:-1], TOOLS
    if found.tool_format == "text":
        system_role = tokenizer.habits.system_role
        messages, tools = with_tools_as_text(messages, TOOLS, tokenizer.tool_format, system_role=system_role), []
        messages = messages if system_role else [dict(each) for each in without_system_role(messages)]
    theirs: Any = AutoTokenizer.from_pretrained(str(directory))
    expected = theirs.apply_chat_template(messages, tools=tools or None, add_generation_prompt=True, return_dict=False)
    assert tokenizer.prompt(TALK[:-1], TOOLS) == expected

    ids, owner = tokenizer.supervised_sequence(TALK, TOOLS)
    learnt = {index: [id for id, mine in zip(ids, owner, strict=True) if mine == index] for index in REPLIES}
    sys.stdout.write(f"\n{found.template}\n{ids}\n{[int(mine is not None) for mine in owner]}\n")
    for index, reply in learnt.items():
        assert reply[-1] in tokenizer.stop_ids
        opened = tokenizer.opens_thought(tokenizer.prompt(TALK[:index], TOOLS))
        read = tokenizer.parse(tokenizer.decode(reply), in_thought=opened, tools=TOOLS)
        calls = [(call.name, json.loads(call.arguments)) for call in read.tool_calls]
        assert calls == ([("search_inbox", ARGUMENTS)] if "tool_calls" in TALK[index] else [])
        assert calls or TALK[index]["content"] in (read.content or "")

    again, placed = tokenizer.training_sequence(TALK, TOOLS, learnt)
    assert (again, placed) == (ids, owner)
    sampled = {index: [70, 71, 72 + index, reply[-1]] for index, reply in learnt.items()}
    again, placed = tokenizer.training_sequence(TALK, TOOLS, sampled)
    for index, reply in sampled.items():
        assert [id for id, mine in zip(again, placed, strict=True) if mine == index] == reply
    context = [id for id, mine in zip(ids, owner, strict=True) if mine is None]
    assert [id for id, mine in zip(again, placed, strict=True) if mine is None] == context

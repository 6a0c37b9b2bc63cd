"""The chat templates of model families: which format they show, and that the calls they render are read back."""

import json
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.training.engine.text.tokens import ChatTokenizer
from tests.fakes.tiny_model import make_tiny_model

TEMPLATES = Path(__file__).parent / "chat_templates"
FAMILIES = {
    "qwen2.5": ("hermes", "<|im_end|>"),
    "hermes": ("hermes", "<|im_end|>"),
    "llama3.1": ("llama3_json", "<|eot_id|>"),
    "mistral_nemo": ("mistral", "</s>"),
    "granite3": ("json", "<|end_of_text|>"),
    "gemma2": ("text", "<end_of_turn>"),
    "phi3.5": ("text", "<|end|>"),
}
"""The format that each shows, and the token that ends a reply."""
TOOL = {
    "type": "function",
    "function": {
        "name": "search_inbox",
        "description": "Search the inbox.",
        "parameters": {
            "type": "object",
            "properties": {"keywords": {"type": "array", "items": {"type": "string"}}},
            "required": ["keywords"],
        },
    },
}
ARGUMENTS = '{"keywords": ["Kickoff", "{café}"]}'
CALL = {"id": "a1B2c3D4e", "type": "function", "function": {"name": "search_inbox", "arguments": ARGUMENTS}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "When is the kickoff?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "m41: Kickoff on 12 May", "tool_call_id": CALL["id"]},
    {"role": "assistant", "content": "On 12 May."},
]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ChatTokenizer]:
    _, end = FAMILIES[request.param]
    model = make_tiny_model(tmp_path)
    for path in (model / "tokenizer.json", model / "tokenizer_config.json"):
        path.write_text(path.read_text().replace("<|im_end|>", end))
    (model / "chat_template.jinja").write_text((TEMPLATES / f"{request.param}.jinja").read_text())
    return request.param, ChatTokenizer(model)


def test_the_template_shows_its_format(family: tuple[str, ChatTokenizer]) -> None:
    name, tokenizer = family
    assert tokenizer.tool_format.name == FAMILIES[name][0]


def test_the_conversation_shows_the_tool_the_call_and_the_result(family: tuple[str, ChatTokenizer]) -> None:
    _, tokenizer = family
    text = tokenizer.fast.decode(tokenizer.prompt(CONVERSATION[:3], [TOOL]))
    for part in ("search_inbox", "Search the inbox.", "keywords", "Kickoff", "m41: Kickoff on 12 May"):
        assert part in text


def test_a_function_without_parameters_is_shown(family: tuple[str, ChatTokenizer]) -> None:
    _, tokenizer = family
    tools = [{"type": "function", "function": {"name": "show_time", "description": "Show the time."}}]
    assert "show_time" in tokenizer.decode(tokenizer.prompt(CONVERSATION[:1], tools))


def test_a_demonstrated_call_is_read_back(family: tuple[str, ChatTokenizer]) -> None:
    _, tokenizer = family
    ids, owner = tokenizer.supervised_sequence(CONVERSATION[:2], [TOOL])
    reply = tokenizer.parse(tokenizer.decode([id for id, index in zip(ids, owner, strict=True) if index == 1]))
    [call] = reply.tool_calls
    assert call.name == "search_inbox"
    assert json.loads(call.arguments) == json.loads(ARGUMENTS)
    assert reply.content is None
    assert reply.malformed is None


def test_sampled_ids_keep_their_place_between_rendered_turns(family: tuple[str, ChatTokenizer]) -> None:
    _, tokenizer = family
    sampled = {index: [7, 8, 9, *tokenizer.stop_ids] for index in (1, 3)}
    ids, placed = tokenizer.training_sequence(CONVERSATION, [TOOL], sampled)
    assert [id for id, index in zip(ids, placed, strict=True) if index == 1] == sampled[1]
    assert [id for id, index in zip(ids, placed, strict=True) if index == 3] == sampled[3]
    between = [id for id, index in zip(ids, placed, strict=True) if index is None]
    assert "m41: Kickoff on 12 May" in tokenizer.fast.decode(between)

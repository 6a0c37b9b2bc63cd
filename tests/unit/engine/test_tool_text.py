"""A base model whose chat template has no tools gets them as text."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from learnloop_service.training.engine.text.tokens import ChatTokenizer
from tests.fakes.tiny_model import make_tiny_model
from tests.openai_clients import SEARCH

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages and messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + PLAIN
)
CALL = {"id": "c1", "type": "function", "function": {"name": "search_inbox", "arguments": '{"keywords": ["a"]}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "When is it?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "m41 Kickoff moved"},
]


@pytest.mark.parametrize("template", [PLAIN, NO_SYSTEM])
def test_tools_calls_and_results_are_shown(tmp_path: Path, template: str) -> None:
    directory = make_tiny_model(tmp_path / "base")
    plain = AutoTokenizer.from_pretrained(str(directory))
    plain.chat_template = template
    plain.save_pretrained(directory)
    tokenizer = ChatTokenizer(directory)
    prompt = tokenizer.decode(tokenizer.prompt(CONVERSATION, [SEARCH]))
    assert "search_inbox(keywords: array) - Find mail" in prompt
    assert '{"name": "TOOL", "arguments"' in prompt  # how a call is written
    assert "<tool_response>\nm41 Kickoff moved\n</tool_response>" in prompt
    assert ("<|im_start|>system" in prompt) == (template == PLAIN)
    reply = prompt.split("<|im_start|>assistant\n")[1].partition("<|im_end|>")[0]
    [call] = tokenizer.parse(reply).tool_calls
    assert call.name == "search_inbox"
    assert call.arguments == '{"keywords": ["a"]}'

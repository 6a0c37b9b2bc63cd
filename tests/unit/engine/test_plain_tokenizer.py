"""A tokenizer that is read without transformers does what transformers does with its files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from learnloop_service.training.engine.__main__ import TINY_BASE
from learnloop_service.training.engine.text.plain_tokenizer import PlainTokenizer
from tests.fakes.tiny_model import make_tiny_model

CALL = {"id": "c", "type": "function", "function": {"name": "search", "arguments": {"words": ["Bän", "<b>"], "n": 1}}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find.\nMore.",
            "parameters": {
                "type": "object",
                "properties": {"words": {"type": "array"}, "limit": {"type": "integer"}},
                "required": ["words"],
            },
        },
    },
    {"name": "end", "parameters": {"type": "object", "properties": {}}},
]
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "When is it? \t <|im_end|> ümlaut\n\n"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who leads the Banulo project?"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "m41 <tool_call> Kickoff"},
        {"role": "tool", "content": "m17"},
        {"role": "assistant", "content": "so", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "b"},
    ],
]


@pytest.fixture(scope="module", params=["tiny base", "qwen3", "llama"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "tiny base":
        return TINY_BASE
    return make_tiny_model(tmp_path_factory.mktemp("model") / "m", request.param)


def test_it_does_what_that_of_transformers_does(directory: Path) -> None:
    ours, theirs = PlainTokenizer.read(directory), AutoTokenizer.from_pretrained(directory)
    assert ours is not None
    for name in ("chat_template", "eos_token", "eos_token_id"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert len(ours) == len(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    assert str(ours.added_tokens_decoder) == str(theirs.added_tokens_decoder)
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    for conversation in CONVERSATIONS:
        for tools in (None, TOOLS):
            for reply in (False, True):
                rendering: Any = {"tools": tools, "tokenize": False, "add_generation_prompt": reply}
                text = ours.apply_chat_template(conversation, **rendering)
                assert text == theirs.apply_chat_template(conversation, **rendering)
                ids = ours.encode(text, add_special_tokens=False)
                assert ids == theirs.encode(text, add_special_tokens=False)
                decoding: Any = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
                assert ours.decode(ids, **decoding) == theirs.decode(ids, **decoding)
                assert [ours.convert_ids_to_tokens(id) for id in ids] == theirs.convert_ids_to_tokens(ids)


def _settings(**changed: Any) -> Callable[[Path], object]:
    def spoil(directory: Path) -> None:
        path = directory / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))

    return spoil


def _tokenizer(**changed: Any) -> Callable[[Path], object]:
    def spoil(directory: Path) -> None:
        path = directory / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))

    return spoil


FOREIGN: dict[str, Callable[[Path], object]] = {
    "another class": _settings(tokenizer_class="LlamaTokenizer"),
    "a setting that we do not know": _settings(split_special_tokens=True),
    "no end": _settings(eos_token=None),
    "an end that is no added token": _settings(eos_token="e"),
    "a chat template of others": lambda directory: (directory / "chat_template.jinja").write_text("{{ messages }}"),
    "tokens that are named elsewhere": lambda directory: (directory / "special_tokens_map.json").write_text("{}"),
    "a model of another kind": lambda directory: (directory / "config.json").write_text('{"model_type": "qwen2"}'),
    "padding": _tokenizer(
        padding={
            "strategy": "BatchLongest",
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<|endoftext|>",
        }
    ),
    "damaged": lambda directory: (directory / "tokenizer.json").write_text("{"),
    "nothing": lambda directory: (directory / "tokenizer.json").unlink(),
}


@pytest.mark.parametrize("spoil", FOREIGN.values(), ids=FOREIGN.keys())
def test_other_tokenizers_are_left_to_transformers(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    directory = Path(shutil.copytree(TINY_BASE, tmp_path / "model"))
    assert PlainTokenizer.read(directory) is not None
    spoil(directory)
    assert PlainTokenizer.read(directory) is None


def test_what_cannot_be_rendered_is_refused() -> None:
    tokenizer = PlainTokenizer.read(TINY_BASE)
    assert tokenizer is not None
    for conversation, tools in (([], None), (CONVERSATIONS[0], ["search"])):
        with pytest.raises(ValueError, match="must be"):
            tokenizer.apply_chat_template(conversation, tools, tokenize=False, add_generation_prompt=True)

"""Small parts of a reply: bytes of tokens, streamed text, remembered ids."""

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.tiny_model import make_tiny_model
from training.engine.http.replies import TokenTexts
from training.engine.http.sampled_turns import SampledTurns
from training.engine.http.text_stream import TextStream
from training.engine.tokens import ChatTokenizer

USER = {"role": "user", "content": "a"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> ChatTokenizer:
    return ChatTokenizer(directory)


def _encode(directory: Path, text: str) -> list[int]:
    from transformers import AutoTokenizer

    ids: list[int] = AutoTokenizer.from_pretrained(str(directory)).encode(text, add_special_tokens=False)
    return ids


@pytest.mark.parametrize("text", ["kickoff", "Füße 👍 日本", " \n\t", "<tool_call>{}</tool_call>"])
def test_bytes_of_tokens_make_up_the_text(directory: Path, tokenizer: ChatTokenizer, text: str) -> None:
    texts = TokenTexts(tokenizer)
    raw = b"".join(bytes(texts.bytes_of(token) or []) for token in _encode(directory, text))
    assert raw.decode() == text


def test_the_stop_token_has_bytes_too(tokenizer: ChatTokenizer) -> None:
    [stop] = tokenizer.stop_ids
    assert bytes(TokenTexts(tokenizer).bytes_of(stop) or []) == b"<|im_end|>"


def _shown(directory: Path, tokenizer: ChatTokenizer, text: str, *marks: str) -> list[str]:
    stream = TextStream(tokenizer, marks)
    return [stream.push(token) for token in _encode(directory, text)]


def test_text_is_shown_as_soon_as_it_is_sure(directory: Path, tokenizer: ChatTokenizer) -> None:
    for text in ("Kickoff on 12 May", "Füße 👍 日本"):
        pieces = _shown(directory, tokenizer, text)
        assert "".join(pieces) == text
        assert "\ufffd" not in "".join(pieces)
        assert len([piece for piece in pieces if piece]) > 1


def test_white_space_waits_for_what_follows(directory: Path, tokenizer: ChatTokenizer) -> None:
    assert "".join(_shown(directory, tokenizer, "a \n\n")) == "a"
    assert "".join(_shown(directory, tokenizer, "a \n\nb")) == "a \n\nb"


def test_a_mark_and_what_follows_is_not_shown(directory: Path, tokenizer: ChatTokenizer) -> None:
    assert "".join(_shown(directory, tokenizer, "one STOP two", "STOP")) == "one"
    assert "".join(_shown(directory, tokenizer, "one STO two", "STOP")) == "one STO two"
    assert "".join(_shown(directory, tokenizer, "one ST", "STOP")) == "one"
    assert "".join(_shown(directory, tokenizer, "see <tool_call>{}</tool_call>", "<tool_call>")) == "see"


def test_the_rest_completes_what_was_shown(directory: Path, tokenizer: ChatTokenizer) -> None:
    stream = TextStream(tokenizer, ["STOP"])
    for token in _encode(directory, "one ST"):
        stream.push(token)
    assert stream.shown + stream.rest("one ST") == "one ST"
    assert stream.rest("another") == ""


def test_sampled_ids_are_found_by_the_whole_conversation() -> None:
    turns = SampledTurns()
    exact, conversation = turns.find("model", None, [USER])
    assert exact == {}
    turns.remember(conversation, {"role": "assistant", "content": "b"}, [1, 2])
    said: Any = {"role": "assistant", "content": "b", "refusal": None, "tool_calls": None, "annotations": []}
    assert turns.find("model", None, [USER, said, USER])[0] == {1: (1, 2)}
    others: list[tuple[str, Any, list[Any]]] = [
        ("other", None, [USER, said]),
        ("model", [{"type": "function"}], [USER, said]),
        ("model", None, [{"role": "user", "content": "x"}, said]),
        ("model", None, [USER, {"role": "assistant", "content": "c"}]),
    ]
    for scope, tools, messages in others:
        assert turns.find(scope, tools, messages)[0] == {}


def test_calls_are_part_of_what_was_said() -> None:
    turns = SampledTurns()
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    turns.remember(turns.find("model", None, [USER])[1], said, [7])
    assert turns.find("model", None, [USER, {**said, "content": ""}])[0] == {1: (7,)}
    other = {**call, "function": {"name": "search", "arguments": "{ }"}}
    assert turns.find("model", None, [USER, {**said, "tool_calls": [other]}])[0] == {}


def test_the_oldest_turns_are_forgotten() -> None:
    turns = SampledTurns(capacity=2)
    asked = [{"role": "user", "content": str(number)} for number in range(3)]
    said = {"role": "assistant", "content": "b"}
    for number in range(2):
        turns.remember(turns.find("model", None, asked[number : number + 1])[1], said, [number])
    assert turns.find("model", None, [asked[0], said])[0] == {1: (0,)}  # used, so it is younger than the other now
    turns.remember(turns.find("model", None, asked[2:])[1], said, [2])
    assert [bool(turns.find("model", None, [question, said])[0]) for question in asked] == [True, False, True]

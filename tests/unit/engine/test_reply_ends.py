"""Where replies end: with the tokens that the base names, with the next role's mark, or with another token in the last
message than in earlier ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.training.engine.http.chat_request import EngineChatRequest
from learnloop_service.training.engine.http.replies import TokenTexts, choice
from learnloop_service.training.engine.http.text_stream import TextStream
from learnloop_service.training.engine.sampling.requests import Sample
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from tests.fakes.template_tokenizer import template_tokenizer

TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "How deep?"},
    {"role": "assistant", "content": "<think>Hm.</think>\nFour."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."},
]


@pytest.fixture
def glm(tmp_path: Path) -> ChatTokenizer:
    ends = ("<|endoftext|>", "<|user|>", "<|observation|>")
    return template_tokenizer(tmp_path, "glm4.5", ("[gMASK]", "<sop>", "<|system|>", "<|assistant|>", *ends), ends)


@pytest.fixture
def harmony(tmp_path: Path) -> ChatTokenizer:
    marks = ("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>")
    return template_tokenizer(tmp_path, "gpt_oss", marks, ("<|return|>", "<|call|>"))


def test_the_next_roles_mark_is_learnt_as_the_end_and_rendered_once(glm: ChatTokenizer) -> None:
    ids, owner = glm.supervised_sequence(TALK, None)
    user = glm.fast.get_vocab()["<|user|>"]
    for message in (1, 3):
        assert [id for id, index in zip(ids, owner, strict=True) if index == message][-1] == user
    assert ids.count(user) == 3
    replies = {1: [70, 71, user], 3: [72, user]}
    ids, _ = glm.training_sequence(TALK, None, replies)
    assert ids.count(user) == 3
    assert glm.fast.decode(ids).count("<|user|>\nSure?") == 1
    prompt = glm.prompt([*TALK, {"role": "user", "content": "Why?"}], None, exact=replies)
    assert prompt[: len(ids)] == ids
    cut = glm.prompt(TALK[:3], None, exact={1: [70, 71]})
    assert cut == glm.prompt(TALK[:3], None, exact={1: [70, 71, user]})


def test_a_last_message_can_end_with_another_token_than_earlier_ones(harmony: ChatTokenizer) -> None:
    vocabulary = harmony.fast.get_vocab()
    talk = [{**message, "content": message["content"].rpartition("\n")[2]} for message in TALK]
    sampled = [70, 71, vocabulary["<|return|>"]]
    ids, owner = harmony.training_sequence(talk, None, {1: sampled, 3: [72, vocabulary["<|return|>"]]})
    assert [id for id, index in zip(ids, owner, strict=True) if index == 1] == sampled
    between = harmony.fast.decode([id for id, index in zip(ids, owner, strict=True) if index is None])
    assert between.endswith("<|start|>assistant<|start|>user<|message|>Sure?<|end|><|start|>assistant")
    ids, owner = harmony.supervised_sequence(talk[:2], None)
    assert ids[-1] == vocabulary["<|return|>"]
    assert owner[-1] == 1


def test_an_adapter_ends_replies_where_its_base_does(tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    end = template_tokenizer(base, "qwen2.5", ("<|other|>",), ("<|im_end|>", "<|other|>")).stop_ids
    template_tokenizer(adapter, "qwen2.5", ("<|other|>",), None)
    assert ChatTokenizer(adapter, base).stop_ids == end
    assert len(end) == 2
    assert json.loads((base / "generation_config.json").read_text())["eos_token_id"] == sorted(end)


@pytest.mark.parametrize(
    ("text", "content", "called"),
    [
        ("<|channel|>final<|message|>Four.<|return|>", "Four.", []),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Four.", "Four.", []),
        (' to=functions.look<|channel|>commentary json<|message|>{"a": 1}<|call|>', None, ["look"]),
    ],
)
def test_a_reply_in_channels_is_its_content_and_its_calls(
    harmony: ChatTokenizer, text: str, content: str | None, called: list[str]
) -> None:
    ids = harmony.fast.encode(text, add_special_tokens=False)
    sample = Sample(ids, [0.0] * len(ids), "stop", 0, 0)
    look = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    prompt = harmony.prompt(TALK[:1], [look])
    for tools in [[look]] if called else [[look], None]:
        request = EngineChatRequest.model_validate({"model": "m", "messages": TALK[:1], "tools": tools})
        message = choice(request, harmony, TokenTexts(harmony), sample, prompt, 0, False)["message"]
        assert message["content"] == content
        assert [call["function"]["name"] for call in message.get("tool_calls", [])] == called
    continued = [*TALK[:1], {"role": "assistant", "content": content or ""}, {"role": "user", "content": "Sure?"}]
    if content:
        assert harmony.prompt(continued, [look], exact={1: ids})[: len(prompt) + len(ids)] == [*prompt, *ids]


def test_a_stream_in_channels_shows_nothing_before_its_end(harmony: ChatTokenizer) -> None:
    stream = TextStream(harmony, ("",))
    ids = harmony.fast.encode("<|channel|>final<|message|>Four.", add_special_tokens=False)
    assert "".join(map(stream.push, ids)) == ""
    assert stream.rest("Four.") == "Four."

"""Constrained decoding: whatever a model would like to write, its reply keeps to the grammar."""

import json
import random

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.http.chat_request import EngineChatRequest
from learnloop_service.training.engine.http.reply_grammar import reply_grammar
from learnloop_service.training.engine.sampling.constraint import (
    FORCED_CHARACTERS,
    BadGrammar,
    Grammar,
    Vocabulary,
    _Tokens,
)
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.protocol.tool_formats.formats import FORMATS, HERMES, Reply
from learnloop_service.training.protocol.tool_formats.written_calls import WrittenCall
from tests.fakes.tiny_model import make_tiny_model

MARKS = ("<tool_call>", "</tool_call>", "<|im_end|>", '"', "}", "]")
MOST_TOKENS = 400


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer(make_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def vocabulary(tokenizer: ChatTokenizer) -> Vocabulary:
    return Vocabulary(tokenizer.fast, sorted(tokenizer.stop_ids))


def grammar_of(vocabulary: Vocabulary, **fields: Json) -> Grammar:
    request = EngineChatRequest.model_validate(
        {"model": "any", "messages": [{"role": "user", "content": "Go."}], **fields}
    )
    grammar = reply_grammar(request, HERMES)
    assert grammar is not None
    return Grammar(vocabulary, grammar.text)


def json_format(schema: Json) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def tool(name: str, **function: Json) -> Json:
    return {"type": "function", "function": {"name": name, **function}}


def written(grammar: Grammar, tokenizer: ChatTokenizer, seed: int) -> str | None:
    """What a model without any sense would write, with a taste for marks and for ends; None if it comes to no end."""
    chance = random.Random(seed)
    favoured = {id for mark in MARKS for id in tokenizer.fast.encode(mark, add_special_tokens=False)}
    constraint, ids = grammar.begin(), list[int]()
    while len(ids) < MOST_TOKENS:
        allowed = np.flatnonzero(np.unpackbits(constraint.allowed(), bitorder="little")).tolist()
        liked = [id for id in allowed if id in favoured]
        ids.append(chance.choice(liked if liked and chance.random() < 0.5 else allowed))
        assert constraint.take(ids[-1]), constraint.error
        if ids[-1] in tokenizer.stop_ids:
            return tokenizer.decode(ids)
    return None


def replies(grammar: Grammar, tokenizer: ChatTokenizer, count: int = 20) -> list[str]:
    texts = [text for seed in range(count) if (text := written(grammar, tokenizer, seed)) is not None]
    assert texts
    return texts


LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": "integer", "minimum": -5, "maximum": 500}),
    st.just({"type": "number", "minimum": 0, "maximum": 1}),
    st.just({"type": "string", "maxLength": 6}),
    st.just({"type": "string", "pattern": "^[a-f]{2,4}$"}),
    st.just({"type": "string", "format": "date"}),
    st.lists(st.one_of(st.text(max_size=4), st.integers(-9, 9)), min_size=1, max_size=3).map(lambda v: {"enum": v}),
)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)


def _object(properties: dict[str, Json], required: int) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:required],
        "additionalProperties": False,
    }


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(_object, st.dictionaries(NAMES, inner, max_size=3), st.integers(0, 3)),
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner),
        st.lists(inner, min_size=1, max_size=2).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=SCHEMAS, seed=st.integers(0, 1000))
def test_a_reply_is_json_of_the_schema(
    vocabulary: Vocabulary, tokenizer: ChatTokenizer, schema: Json, seed: int
) -> None:
    grammar = grammar_of(vocabulary, response_format=json_format(schema))
    text = written(grammar, tokenizer, seed)
    if text is not None:
        jsonschema.validate(json.loads(text), schema)


def test_a_json_object_is_one(vocabulary: Vocabulary, tokenizer: ChatTokenizer) -> None:
    for text in replies(grammar_of(vocabulary, response_format={"type": "json_object"}), tokenizer):
        assert isinstance(json.loads(text), dict)


NUMBER = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
CLOSED = {**NUMBER, "additionalProperties": False}
OFFERED = [tool("get", strict=True, parameters=CLOSED), tool('get "it"\n', parameters=NUMBER), tool("stop")]


def calls(text: str, tokenizer: ChatTokenizer) -> Reply:
    reply = tokenizer.parse(text)
    assert {call.name for call in reply.tool_calls} <= {tool["function"]["name"] for tool in OFFERED}
    for call in reply.tool_calls:
        arguments = json.loads(call.arguments)
        if call.name == "stop":
            assert arguments == {}
        else:
            jsonschema.validate(arguments, CLOSED if call.name == "get" else NUMBER)
    return reply


@pytest.mark.parametrize("again", [True, False])
def test_a_demanded_call_is_made(vocabulary: Vocabulary, tokenizer: ChatTokenizer, again: bool) -> None:
    grammar = grammar_of(vocabulary, tools=OFFERED, tool_choice="required", parallel_tool_calls=again)
    counts = set()
    for text in replies(grammar, tokenizer):
        reply = calls(text, tokenizer)
        assert reply.content is None
        counts.add(len(reply.tool_calls))
    assert (max(counts) > 1) == again
    assert min(counts) == 1


def test_a_named_function_is_called_once(vocabulary: Vocabulary, tokenizer: ChatTokenizer) -> None:
    choice = tool("stop")
    for text in replies(grammar_of(vocabulary, tools=OFFERED, tool_choice=choice), tokenizer):
        assert [call.name for call in calls(text, tokenizer).tool_calls] == ["stop"]


def test_strict_tools_leave_the_choice(vocabulary: Vocabulary, tokenizer: ChatTokenizer) -> None:
    answers = [calls(text, tokenizer) for text in replies(grammar_of(vocabulary, tools=OFFERED), tokenizer, 60)]
    assert any(reply.tool_calls and reply.content for reply in answers)
    assert any(not reply.tool_calls for reply in answers)
    # A call that was begun is finished: nothing in a text looks like a part of one.
    assert all("tool_call>" not in (reply.content or "") for reply in answers)


def test_a_schema_and_tools_leave_the_choice_between_both(vocabulary: Vocabulary, tokenizer: ChatTokenizer) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 30}}, "required": ["text"]}
    grammar = grammar_of(vocabulary, tools=OFFERED, response_format=json_format(schema))
    answers = [calls(text, tokenizer) for text in replies(grammar, tokenizer, 60)]
    assert any(reply.tool_calls for reply in answers)
    assert any(not reply.tool_calls for reply in answers)
    for reply in answers:
        assert (reply.content is None) == bool(reply.tool_calls)
        if reply.content is not None:
            jsonschema.validate(json.loads(reply.content), schema)


@pytest.mark.parametrize(
    "fields",
    [{}, {"tools": OFFERED[1:]}, {"tools": OFFERED, "tool_choice": "none"}, {"response_format": {"type": "text"}}],
)
def test_who_demands_nothing_is_not_constrained(fields: Json) -> None:
    body = {"model": "any", "messages": [{"role": "user", "content": "Go."}], **fields}
    assert reply_grammar(EngineChatRequest.model_validate(body), HERMES) is None


def test_a_schema_that_nothing_satisfies_is_refused(vocabulary: Vocabulary) -> None:
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    with pytest.raises(BadGrammar, match="no reply"):
        grammar_of(vocabulary, response_format=json_format(endless))


def test_text_that_looks_like_a_stop_token_is_text(vocabulary: Vocabulary, tokenizer: ChatTokenizer) -> None:
    grammar = grammar_of(vocabulary, response_format=json_format({"const": "a<|im_end|>b"}))
    assert replies(grammar, tokenizer)[0] == '"a<|im_end|>b"'


def test_a_long_forced_text_is_written_whole_but_tokenized_in_parts(
    vocabulary: Vocabulary, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its tokens would else cost as much as all of them together, during which no thread can run Python."""
    cut: list[int] = []
    whole = _Tokens.__call__

    def counted(self: _Tokens, text: str) -> list[int]:
        ids = whole(self, text)
        cut.append(len(ids))
        return ids

    monkeypatch.setattr(_Tokens, "__call__", counted)
    words = " ".join(f"word{number}" for number in range(1000))
    constraint, ids = grammar_of(vocabulary, response_format=json_format({"const": words})).begin(), list[int]()
    while not ids or ids[-1] not in tokenizer.stop_ids:
        ids.append(int(np.flatnonzero(np.unpackbits(constraint.allowed(), bitorder="little"))[0]))
        assert constraint.take(ids[-1]), constraint.error
    assert ids[:-1] == tokenizer.fast.encode(f'"{words}"', add_special_tokens=False)
    assert max(cut) <= FORCED_CHARACTERS


@pytest.mark.parametrize("name", ["qwen3_5", "gemma4", "gpt_oss"])
def test_families_with_another_notation_are_constrained_to_that_of_hermes(name: str) -> None:
    body = {"model": "any", "messages": [{"role": "user", "content": "Go."}], "tools": [tool("find")]}
    request = EngineChatRequest.model_validate({**body, "tool_choice": "required"})
    assert reply_grammar(request, FORMATS[name]) == reply_grammar(request, HERMES)
    [call] = FORMATS[name].read(HERMES.write([WrittenCall("find", '{"word": "tide"}')])).tool_calls
    assert call.name == "find"
    assert call.arguments == '{"word": "tide"}'

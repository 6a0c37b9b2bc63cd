"""Tool calls in every format: what is written is read back, and what is damaged is never read as another call."""

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.training.protocol.tool_formats import chosen
from learnloop_service.training.protocol.tool_formats.formats import FORMATS, HERMES, ToolFormat
from learnloop_service.training.protocol.tool_formats.written_calls import WrittenCall
from scripts.tiny_base.careless import RecordedConversation

MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "```", "<|python_tag|>", "{{", "}}", "; ", '"', "\\")
texts = st.lists(st.sampled_from(MARKS) | st.text(max_size=8), max_size=4).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(texts, values, max_size=3)
spaced = st.sampled_from([None, (",", ":"), (" , ", " : ")])
calls = st.builds(
    lambda name, value, separators, ascii: WrittenCall(
        name, json.dumps(value, separators=separators, ensure_ascii=ascii)
    ),
    texts,
    arguments,
    spaced,
    st.booleans(),
)
formats = st.sampled_from(list(FORMATS.values()))


def read(tool_format: ToolFormat, text: str) -> list[WrittenCall]:
    return [WrittenCall(call.name, call.arguments) for call in tool_format.read(text).tool_calls]


@given(tool_format=formats, written=st.lists(calls, min_size=1, max_size=3))
def test_written_calls_are_read_back(tool_format: ToolFormat, written: list[WrittenCall]) -> None:
    text = tool_format.write(written)
    assert read(tool_format, text) == written
    reply = tool_format.read(text)
    assert reply.content is None
    assert reply.malformed is None
    assert len({call.id for call in reply.tool_calls}) == len(written)
    assert tool_format.read(text) == reply
    assert tool_format.read(text, call_seed="turn 2").tool_calls[0].id != reply.tool_calls[0].id


@given(tool_format=formats, written=st.lists(calls, min_size=1, max_size=2), data=st.data())
def test_a_text_that_is_cut_has_the_whole_calls_or_a_reason(
    tool_format: ToolFormat, written: list[WrittenCall], data: st.DataObject
) -> None:
    text = tool_format.write(written)
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    reply, whole_calls = tool_format.read(cut), read(tool_format, cut)
    assert whole_calls == written[: len(whole_calls)]
    if not whole_calls:
        assert reply.content == cut
        assert reply.tool_calls == ()
        assert reply.malformed is not None or not any(mark in cut for mark in tool_format.marks)


@given(tool_format=formats, text=st.lists(st.sampled_from((*MARKS, "{", "[", '"name": ', '"arguments": ')) | st.text()))
def test_no_text_is_an_error(tool_format: ToolFormat, text: list[str]) -> None:
    reply = tool_format.read("".join(text))
    assert reply.tool_calls or reply.content == "".join(text)
    assert not (reply.tool_calls and reply.malformed)


@given(tool_format=formats, written=calls, position=st.integers(0), text=texts)
def test_damage_outside_of_the_json_never_changes_a_call(
    tool_format: ToolFormat, written: WrittenCall, position: int, text: str
) -> None:
    whole = tool_format.write([written])
    start = whole.index("{")
    edges = [*range(start + 1), *range(whole.rindex("}") + 1, len(whole) + 1)]
    position = edges[position % len(edges)]
    assert read(tool_format, whole[:position] + text + whole[position:]) in ([], [written])


ASKED = '{"name": "search", "arguments": {"words": ["invoice"]}}'
SEARCH = [WrittenCall("search", '{"words": ["invoice"]}')]


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("json", ASKED, None),
        ("json", f"```json\n{ASKED}\n```", None),
        ("json", f"```json\n{ASKED}", None),
        ("json", f"I will search.\n\n```\n{ASKED}\n```", "I will search."),
        ("json", "{{" + ASKED[1:-1] + "}}", None),
        ("json", "{{" + ASKED[1:-1] + "}", None),
        ("json", f"<tools>\n{ASKED}\n</tools>", None),
        ("json", f"<tool_call>\n{ASKED}", None),
        ("json", f"[{ASKED}]", None),
        ("json", '{"arguments": {"words": ["invoice"]}, "name": "search"}', None),
        ("text", ASKED, None),
        ("llama3_json", ASKED.replace("arguments", "parameters"), None),
        ("llama3_json", "<|python_tag|>" + ASKED.replace("arguments", "parameters"), None),
        ("llama3_json", ASKED, None),
        ("mistral", f"[TOOL_CALLS][{ASKED}]", None),
        ("mistral", f"Searching.[TOOL_CALLS] [{ASKED} ]", "Searching."),
        ("mistral", '[TOOL_CALLS][{"name": "search", "arguments": {"words": ["invoice"]}, "id": "a1B2c3D4e"}]', None),
        ("mistral", '[TOOL_CALLS]search[ARGS]{"words": ["invoice"]}', None),
        ("mistral", '[TOOL_CALLS]search{"words": ["invoice"]}', None),
        ("hermes", f"<tool_call>{ASKED}</tool_call>", None),
    ],
)
def test_the_forms_that_models_write_are_read(name: str, text: str, content: str | None) -> None:
    assert read(FORMATS[name], text) == SEARCH
    assert FORMATS[name].read(text).content == content


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("hermes", ASKED, "A call does not stand between <tool_call> and </tool_call>."),
        ("hermes", f"<tool_call>{ASKED}", "The call of search does not end with </tool_call>."),
        ("hermes", "</tool_call>", "</tool_call> stands where no call ends."),
        ("json", '{"name": "search", "arguments": {"words": ', "A call is not valid JSON: expecting value at"),
        ("json", '{"name": "search", "arguments": "invoice"}', "The arguments of search are not a JSON object."),
        ("json", '{"name": "search", "parameters": {}}', "The call of search has no arguments."),
        ("json", '{"name": 3, "arguments": {}}', "A call has no name."),
        ("json", "```json", "The reply has marks of a call, but no call."),
        ("json", '{"words": ["invoice"', "The reply begins like a call, but is not valid JSON."),
        ("llama3_json", '{"name": "search", "parameters": []}', "The parameters of search are not a JSON object."),
        ("mistral", "[TOOL_CALLS]", "No call follows [TOOL_CALLS]."),
        ("mistral", f"[TOOL_CALLS][{ASKED}", "The list of calls does not end with ]."),
        ("mistral", f"[TOOL_CALLS][{ASKED}] done", "There is text after the calls."),
        ("mistral", "[TOOL_CALLS]search[ARGS]{", "The arguments of search are not a JSON object."),
    ],
)
def test_what_cannot_be_read_says_why(name: str, text: str, reason: str) -> None:
    reply = FORMATS[name].read(text)
    assert reply.content == text
    assert reply.tool_calls == ()
    assert str(reply.malformed).startswith(reason)


@pytest.mark.parametrize(
    "text",
    [
        "It is due on 3 May.",
        '{"answer": "3 May"}',
        '[{"name": "Ann"}, {"name": "Bob"}]',
        '{"name": "search", "description": "Search the inbox.", "parameters": {"type": "object"}}',
        "Use {name} in the template.",
    ],
)
def test_other_text_and_json_is_no_call(text: str) -> None:
    for tool_format in FORMATS.values():
        reply = tool_format.read(text)
        assert reply.content == text
        assert reply.tool_calls == ()
        assert reply.malformed is None


def _native(name: str, call: str, values: dict[str, Any]) -> str:
    """Write a call as a model of the format's family does."""
    if name == "qwen3_5":
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        parameters = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
        return f"<tool_call>\n<function={call}>\n{parameters}</function>\n</tool_call>"
    if name == "gemma4":
        return f"<|tool_call>call:{call}{_gemma(values)}<tool_call|>"
    return f" to=functions.{call}<|channel|>commentary json<|message|>{json.dumps(values)}<|call|>"


def _gemma(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


NATIVE = ("qwen3_5", "gemma4", "gpt_oss")
plain = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<>"), max_size=12)
"""Some text that no mark is part of."""
plain_values = st.recursive(
    st.booleans() | st.integers() | plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b_c"]), inner, max_size=2),
    max_leaves=5,
)
tool_names = st.from_regex(r"[a-z][a-z_0-9]{0,9}", fullmatch=True)
plain_arguments = st.dictionaries(st.sampled_from(["query", "day", "limit"]), plain_values, max_size=3)


@given(name=st.sampled_from(NATIVE), call=tool_names, values=plain_arguments, prose=plain)
def test_calls_of_families_with_a_notation_of_their_own(
    name: str, call: str, values: dict[str, Any], prose: str
) -> None:
    fields = {key: {"type": "string"} for key, value in values.items() if isinstance(value, str)}
    tools = [{"type": "function", "function": {"name": call, "parameters": {"properties": fields}}}]
    text = _native(name, call, values)
    before = "" if name == "gpt_oss" else prose
    reply = FORMATS[name].read(before + text, tools=tools)
    assert reply.malformed is None
    assert reply.content == (before.strip() or None)
    assert [(tool_call.name, json.loads(tool_call.arguments)) for tool_call in reply.tool_calls] == [(call, values)]


@given(name=st.sampled_from(NATIVE), call=tool_names, values=plain_arguments, data=st.data())
def test_a_native_call_that_is_cut_says_why(name: str, call: str, values: dict[str, Any], data: st.DataObject) -> None:
    text = _native(name, call, values)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    reply = FORMATS[name].read(cut)
    if name == "gpt_oss" and reply.tool_calls:  # sampling removes the mark at its end
        assert json.loads(reply.tool_calls[0].arguments) == values
    else:
        assert not reply.tool_calls
        assert reply.malformed or FORMATS[name].marks[0] not in cut


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("qwen3_5", "<tool_call>\n<function=f>\n</function>", "The last call does not end with </tool_call>."),
        ("qwen3_5", "<tool_call>\nsearch()\n</tool_call>", "<tool_call> stands where no call that can be read begins."),
        ("qwen3_5", "<tool_call><function=f>x</function></tool_call>", "There is text between the arguments of f."),
        ("qwen3_5", "done</tool_call>", "</tool_call> stands where no call ends."),
        ("gemma4", "<|tool_call>call:f{a:}<tool_call|>", "The arguments of a call are not valid: expecting value"),
        ("gemma4", "<tool_call>", "A call is not valid JSON: expecting value at character 12."),
        ("gpt_oss", "<tool_call>\n", "A call is not valid JSON: expecting value at character 13."),
        ("gemma4", "<|tool_call>call:f[1]<tool_call|>", "The arguments of f are not a JSON object."),
        ("gemma4", "<|tool_call>call:f{a:NaN}<tool_call|>", "The arguments of f have a number that JSON does not have"),
        ("gemma4", "<|tool_call>f()<tool_call|>", "<|tool_call> stands where no call that can be read begins."),
        ("gpt_oss", ' to=functions.f<|message|>{"a": ', "The arguments of a call are not valid: expecting value"),
        ("gpt_oss", "I use to=functions.f", "to=functions. stands where no call that can be read begins."),
    ],
)
def test_a_malformed_native_call_says_why(name: str, text: str, reason: str) -> None:
    reply = FORMATS[name].read(text)
    assert reply.content == text
    assert reply.tool_calls == ()
    assert str(reply.malformed).startswith(reason)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<|channel|>final<|message|>Rina.", "Rina."),
        (
            "<|channel|>analysis<|message|>to=functions.f?<|end|><|start|>assistant<|channel|>final<|message|>Rina.",
            "Rina.",
        ),
        ("<|channel|>analysis<|message|>I think", "<|channel|>analysis<|message|>I think"),
    ],
)
def test_content_of_a_channel_stands_without_marks_and_thoughts(text: str, content: str) -> None:
    assert FORMATS["gpt_oss"].read(text).content == content
    called = FORMATS["gpt_oss"].read(
        f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant{_native('gpt_oss', 'f', {})}"
    )
    assert called.content is None
    assert [tool_call.name for tool_call in called.tool_calls] == ["f"]


def test_nesting_without_end_is_malformed() -> None:
    for tool_format in FORMATS.values():
        deep = tool_format.write([WrittenCall("a", '{"x": ' + "[" * 100_000)])
        assert tool_format.read(deep).malformed


@pytest.mark.parametrize(
    ("folder", "config", "name"),
    [
        ("cache/models--Qwen--Qwen3-0.6B/snapshots/1a2b", {}, "Qwen/Qwen3-0.6B"),
        ("qwen", {"_name_or_path": "Qwen/Qwen3-0.6B"}, "Qwen/Qwen3-0.6B"),
        ("qwen", {"_name_or_path": "/srv/models/qwen"}, None),
        ("qwen", {}, None),
    ],
)
def test_a_base_is_named_as_on_the_hub(tmp_path: Path, folder: str, config: dict[str, str], name: str | None) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "config.json").write_text(json.dumps(config))
    assert chosen.hub_name(tmp_path / folder) == name
    chosen.note(tmp_path / folder, hub_name="Some/Other")
    assert chosen.hub_name(tmp_path / folder) == "Some/Other"
    assert chosen.chosen_format(tmp_path / folder) is None


def test_a_chosen_format_is_kept_in_the_directory(tmp_path: Path) -> None:
    assert chosen.chosen_format(tmp_path) is None
    for tool_format in FORMATS.values():
        chosen.choose(tmp_path, tool_format)
        assert chosen.chosen_format(tmp_path) is tool_format
    for text in ('{"tool_format": "latin"}', "{}", "[]", "{"):
        (tmp_path / chosen.FILE).write_text(text)
        with pytest.raises(ValueError, match="must name a tool_format, one of hermes, json,"):
            chosen.chosen_format(tmp_path)


@pytest.mark.parametrize("seed", range(30))
def test_the_mistakes_of_the_tiny_base_stay_malformed(seed: int) -> None:
    """It learns to avoid them, so nothing may be read into them."""
    episode: Any = SimpleNamespace(messages=list)
    demonstration = RecordedConversation(episode, Random(seed))
    demonstration._malformed("search_inbox", '{"keywords": ["invoice"], "sender": "ann"}')
    [message] = demonstration.messages
    assert HERMES.read(message["content"]).tool_calls == ()

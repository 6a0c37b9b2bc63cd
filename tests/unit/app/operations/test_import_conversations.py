"""Conversations as people have them: forms, opinions, splits, and a reason for what is left out."""

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.agent_sessions.task_draw import split_of
from learnloop_service.app.datasets.conversation_forms import Unusable, conversation
from learnloop_service.app.datasets.conversation_opinions import NoThreshold, Scale, opinions
from learnloop_service.app.operations.import_conversations import (
    ConversationImport,
    Wanted,
    read_conversations,
)
from learnloop_service.app.operations.imported import NothingToImport

ASKED, SAID = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
CALL = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}
CALLS, FOUND = {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c", "content": "x"}
TOOL = {"type": "function", "function": {"name": "find"}}
PAIR = [ASKED, SAID]
TRAINED = next(user for user in map(str, range(99)) if split_of(sha256(user.encode()).hexdigest()) == "train")
"""A user whose hash is in the training split."""


def read(*lines: Any, **choices: Any) -> ConversationImport:
    content = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    return read_conversations(content, Wanted(**choices), hashed)


def hashed(user: str) -> str:
    return sha256(user.encode()).hexdigest()


def talk(number: int, opinion: Any, user: str | None = None) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"question {number}"}, SAID]
    return {"messages": messages, "feedback": opinion} | ({} if user is None else {"user": user})


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("openai", {"messages": PAIR}),
        ("openai", PAIR),
        ("openai", {"messages": [ASKED, {**SAID, "tool_calls": [], "function_call": None, "refusal": None}]}),
        ("openai", {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, SAID]}),
        ("openai", {"request": {"messages": [ASKED]}, "response": {"choices": [{"message": SAID}]}}),
        ("openai", {"prompt": "hi", "completion": "hello", "label": True}),
        ("sharegpt", {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}),
        ("langfuse", {"input": [ASKED], "output": SAID, "scores": []}),
        ("langfuse", {"input": json.dumps([ASKED]), "output": json.dumps(SAID)}),
        ("langfuse", {"input": {"messages": [ASKED]}, "output": "hello"}),
        ("langfuse", {"input": {"args": [], "kwargs": {"question": "hi"}}, "output": {"answer": "hello"}}),
        ("langfuse", {"input": "hi", "output": {"messages": PAIR}}),
        ("weave", {"inputs": {"messages": [ASKED], "model": "m"}, "output": {"choices": [{"message": SAID}]}}),
        ("weave", {"inputs": {"question": "hi"}, "output": "hello"}),
    ],
)
def test_a_line_of_each_form_is_the_same_conversation(form: str, line: Any) -> None:
    read_line = conversation(line)
    assert read_line.form == form
    assert read_line.messages == PAIR


def test_tool_calls_of_all_forms_get_ids_and_results() -> None:
    sharegpt = {
        "system": "Help.",
        "tools": '[{"name": "find", "parameters": {"type": "object"}}]',
        "conversations": [
            {"from": "human", "value": "hi"},
            {"from": "function_call", "value": '{"name": "find", "arguments": {"a": 1}}'},
            {"from": "observation", "value": "x"},
            {"from": "gpt", "value": "hello"},
        ],
    }
    modern = conversation(sharegpt)
    assert [message["role"] for message in modern.messages] == ["system", "user", "assistant", "tool", "assistant"]
    [call] = modern.messages[2]["tool_calls"]
    assert call == {**CALL, "id": "call_1"}
    assert modern.messages[3] == {**FOUND, "tool_call_id": "call_1"}
    assert modern.tools == [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
    old = {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": '{"a": 1}'}}
    legacy = conversation({"messages": [ASKED, old, {"role": "function", "name": "find", "content": "x"}, SAID]})
    assert legacy.messages == modern.messages[1:]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (7, "neither an object nor a list"),
        ({"text": "hi"}, "it has none of: messages"),
        ({"messages": [ASKED]}, "no reply of an assistant"),
        ({"messages": [SAID]}, "no message of a user"),
        ({"messages": [ASKED, {"role": "narrator", "content": "x"}]}, "no role that is known"),
        ({"messages": [ASKED, {"role": "assistant", "content": ""}]}, "a message of the assistant is empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, SAID]}, "more than text"),
        ({"messages": [ASKED, FOUND, SAID]}, "no call before it"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "call of a tool has no name"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": {"a": 1}}]}, "not a list"),
        ({"inputs": {"messages": [ASKED]}, "output": None}, "its output is empty"),
        ({"input": {"x": 1}, "output": "hello"}, "what was asked is not in the form of messages"),
        ({"input": "hi", "output": {"x": 1}}, "the reply is not in the form of a message"),
    ],
)
def test_an_unusable_line_has_a_reason(line: Any, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        conversation(line)


@pytest.mark.parametrize(
    ("line", "liked"),
    [
        ({"feedback": "up"}, True),
        ({"feedback": "thumbs-down"}, False),
        ({"rating": "Thumbs Up"}, True),
        ({"reaction": "👍🏽"}, True),
        ({"reaction": "👎"}, False),
        ({"liked": False}, False),
        ({"score": -1}, False),
        ({"score": "1"}, True),
        ({"score": 0}, False),
        ({"metadata": {"feedback": {"rating": 1}}}, True),
        ({"scores": [{"name": "user-feedback", "value": 0, "dataType": "BOOLEAN", "comment": "no"}]}, False),
        ({"scores": {"user-feedback": 1}}, True),
        ({"scores": ["a-score-id"]}, None),
        ({"feedback": [{"feedback_type": "wandb.reaction.1", "payload": {"emoji": "👎", "alias": ":-1:"}}]}, False),
        ({"summary": {"weave": {"feedback": [{"payload": {"emoji": "👍"}}]}}}, True),
        ({"messages": [ASKED, {**SAID, "annotation": {"rating": -1}}]}, False),
        ({"feedback": "a remark"}, None),
        ({"feedback": ["up", "down"]}, None),
        ({"feedback": None}, None),
        ({}, None),
    ],
)
def test_an_opinion_is_read_wherever_it_stands(line: Any, liked: bool | None) -> None:
    stated = opinions(line)
    assert Scale.of(stated, None).liked(stated) is liked


def test_numbers_need_a_threshold_and_zero_is_neutral_beside_minus_one() -> None:
    with pytest.raises(NoThreshold, match="numbers from 1 to 5"):
        Scale.of([1.0, 5.0], None)
    stars = Scale.of([1.0, 4.0, 5.0], 4)
    assert [stars.liked([value]) for value in (1.0, 4.0, 5.0)] == [False, True, True]
    thumbs = Scale.of([-1.0, 0.0, 1.0], None)
    assert [thumbs.liked([value]) for value in (-1.0, 0.0, 1.0)] == [False, None, True]


def test_a_named_score_alone_counts() -> None:
    line = {"scores": [{"name": "latency", "value": 812.5}, {"name": "thumbs", "value": 1}], "stars": 5}
    assert opinions(line, "thumbs") == [1.0]
    assert opinions(line, "stars") == [5.0]
    assert set(opinions(line)) == {812.5, 1.0}


def test_the_users_are_the_unit_of_the_splits() -> None:
    imported = read(*(talk(number, number % 2 == 0, f"user {number // 4}") for number in range(400)))
    splits: dict[str, set[str]] = {}
    for task in imported.tasks:
        splits.setdefault(imported.owners[task["id"]], set()).add(task["split"])
    assert all(len(splits_of_user) == 1 for splits_of_user in splits.values())
    assert {split for splits_of_user in splits.values() for split in splits_of_user} == {"train", "validation", "test"}
    demonstrated = {imported.owners[demonstration["id"]] for demonstration in imported.demonstrations}
    assert {split for user in demonstrated for split in splits[user]} == {"train"}
    assert len(imported.tasks) == 200
    held_out = {"it was liked, by a user who is held out": 200 - len(imported.demonstrations)}
    assert {reason["reason"]: reason["count"] for reason in imported.reasons()} == held_out


def test_three_users_fill_three_splits_and_two_do_not() -> None:
    three = read(*(talk(number, "down", f"user {number}") for number in range(3)))
    assert {task["split"] for task in three.tasks} == {"train", "validation", "test"}
    two = read(*(talk(number, "down", f"user {number}") for number in range(2)))
    assert two.tasks == []
    assert [reason["reason"] for reason in two.reasons()] == [
        "its task was disliked, by too few users for three splits"
    ]


def test_a_task_is_the_last_question_and_replies_before_it_are_not_learned() -> None:
    messages = [ASKED, SAID, {"role": "user", "content": "and then?"}]
    line = {"input": {"messages": messages, "tools": [TOOL]}, "output": [CALLS, FOUND, SAID], "expectedOutput": "bye"}
    others = talk(1, "down", "a"), talk(2, "down", "b")
    liked = read({**line, "userId": TRAINED, "scores": [{"value": 1}]})
    assert [message.get("weight") for message in liked.demonstrations[0]["messages"]] == [
        None,
        0,
        None,
        None,
        None,
        None,
    ]
    disliked = read({**line, "userId": TRAINED, "scores": [{"value": 0}]}, *others)
    [task] = [candidate for candidate in disliked.tasks if candidate["task"]["tools"]]
    assert task["task"]["messages"] == messages
    assert task["task"]["tool_results"] == [{"name": "find", "arguments": '{"a": 1}', "content": "x"}]
    assert task["reference"] == {"disliked": "hello", "answer": "bye"}


def test_what_is_not_taken_is_counted_by_reason_and_line() -> None:
    imported = read(
        b"\xef\xbb\xbf" + json.dumps(talk(1, "up")).encode(), b"", b"{", b"\xff", talk(2, None), b'"a\\u0000"'
    )
    assert imported.lines == 5
    assert {reason["reason"]: reason["lines"] for reason in imported.reasons() if reason["lines"] != [1]} == {
        "it is not JSON": [3],
        "it is not UTF-8": [4],
        "it has no opinion": [5],
        "texts may not hold U+0000 or unpaired surrogates": [6],
    }
    with_unrated = read(talk(1, None), unrated="demonstrations")
    assert with_unrated.opinions == {"unrated": 1}
    assert not any("opinion" in reason["reason"] for reason in with_unrated.reasons())


def test_only_line_feeds_end_a_line_and_a_json_list_is_a_file() -> None:
    odd = {**talk(1, "up"), "note": "a\u2028b\x85c\x0bd"}
    content = json.dumps(odd, ensure_ascii=False).encode()
    one = read_conversations(content + b"\r\n\r\n" + content + b"\r\n", Wanted(), hashed)
    assert one.lines == 2
    assert one.forms == {"openai": 2}
    whole = read_conversations(json.dumps([odd, talk(2, "up")], indent=1).encode(), Wanted(), hashed)
    assert whole.lines == 2
    assert whole.forms == {"openai": 2}
    with pytest.raises(NothingToImport, match="the file is empty"):
        read_conversations(b"\n \r\n", Wanted(), hashed)


_KEYS = st.sampled_from(
    ["messages", "conversations", "input", "inputs", "output", "role", "from", "content", "value", "tool_calls",
     "tools", "function", "name", "arguments", "id", "tool_call_id", "feedback", "scores", "userId", "metadata",
     "choices"]
)  # fmt: skip
_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(),
    st.sampled_from(["user", "assistant", "tool", "gpt", "up", "{", "[]", "[1]"]),
)  # fmt: skip
_JSON = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(_KEYS | st.text(), inner), max_leaves=30)


@given(st.lists(_JSON.map(lambda value: json.dumps(value).encode()) | st.binary(), max_size=4))
def test_any_line_is_a_conversation_or_has_a_reason(lines: list[bytes]) -> None:
    content = b"\n".join([*lines, json.dumps(talk(0, "up")).encode()])
    imported = read_conversations(content, Wanted(threshold=0.5), hashed)
    left_out = sum(map(len, imported.left_out.values()))
    assert len(imported.demonstrations) + len(imported.tasks) + left_out == imported.lines

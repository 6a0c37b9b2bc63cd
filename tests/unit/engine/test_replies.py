"""Small parts of a reply: bytes of tokens, streamed text, remembered ids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.training.engine.http.replies import TokenTexts
from learnloop_service.training.engine.http.sampled_turns import SampledTurns
from learnloop_service.training.engine.http.text_stream import TextStream
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.engine.trainer.trajectories import Group, read_groups
from tests.fakes.tiny_model import make_tiny_model

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


def _streamed(directory: Path, tokenizer: ChatTokenizer, text: str, *marks: str) -> list[str]:
    stream = TextStream(tokenizer, marks)
    return [stream.push(token) for token in _encode(directory, text)]


@pytest.mark.parametrize("in_thought", [True, False])
def test_a_call_in_a_thought_is_shown_and_the_next_one_held_back(
    directory: Path, tokenizer: ChatTokenizer, in_thought: bool
) -> None:
    thought = "a <tool_call> b</think>" if in_thought else "<think>a <tool_call> b</think>"
    stream = TextStream(tokenizer, ("STOP",), ("<tool_call>",), in_thought=in_thought)
    streamed = "".join(map(stream.push, _encode(directory, f"{thought} c <tool_call>{{}}</tool_call>")))
    assert streamed == f"{thought} c"
    assert stream.rest(f"{thought} c d") == " d"
    stopped = TextStream(tokenizer, ("STOP",), ("<tool_call>",), in_thought=in_thought)
    assert "".join(map(stopped.push, _encode(directory, "<think>a STOP b"))) == "<think>a"


def test_text_is_shown_as_soon_as_it_is_sure(directory: Path, tokenizer: ChatTokenizer) -> None:
    for text in ("Kickoff on 12 May", "Füße 👍 日本"):
        pieces = _streamed(directory, tokenizer, text)
        assert "".join(pieces) == text
        assert "\ufffd" not in "".join(pieces)
        assert len([piece for piece in pieces if piece]) > 1


def test_white_space_waits_for_what_follows(directory: Path, tokenizer: ChatTokenizer) -> None:
    assert "".join(_streamed(directory, tokenizer, "a \n\n")) == "a"
    assert "".join(_streamed(directory, tokenizer, "a \n\nb")) == "a \n\nb"


def test_a_mark_and_what_follows_is_not_shown(directory: Path, tokenizer: ChatTokenizer) -> None:
    assert "".join(_streamed(directory, tokenizer, "one STOP two", "STOP")) == "one"
    assert "".join(_streamed(directory, tokenizer, "one STO two", "STOP")) == "one STO two"
    assert "".join(_streamed(directory, tokenizer, "one ST", "STOP")) == "one"
    assert "".join(_streamed(directory, tokenizer, "see <tool_call>{}</tool_call>", "<tool_call>")) == "see"


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
    turns.remember(conversation, {"role": "assistant", "content": "b"}, [1, 2], [-0.5, -1.0])
    reply: Any = {"role": "assistant", "content": "b", "refusal": None, "tool_calls": None, "annotations": []}
    assert turns.find("model", None, [USER, reply, USER])[0] == {1: (1, 2)}
    others: list[tuple[str, Any, list[Any]]] = [
        ("other", None, [USER, reply]),
        ("model", [{"type": "function"}], [USER, reply]),
        ("model", None, [{"role": "user", "content": "x"}, reply]),
        ("model", None, [USER, {"role": "assistant", "content": "c"}]),
    ]
    for scope, tools, messages in others:
        assert turns.find(scope, tools, messages)[0] == {}


def test_calls_are_part_of_what_was_said() -> None:
    turns = SampledTurns()
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"day": "12 May"}'}}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    turns.remember(turns.find("model", None, [USER])[1], reply, [7], [-0.5])
    assert turns.find("model", None, [USER, {**reply, "content": ""}])[0] == {1: (7,)}
    rewritten = {**call, "function": {"name": "search", "arguments": '{ "day":\n"12 \\u004day" }'}}
    assert turns.find("model", None, [USER, {**reply, "tool_calls": [rewritten]}])[0] == {1: (7,)}
    for other in (
        {**call, "id": "c2"},
        {**call, "function": {"name": "search", "arguments": '{"day": "13 May"}'}},
        {**call, "function": {"name": "read", "arguments": '{"day": "12 May"}'}},
        {**call, "function": {"name": "search", "arguments": '{"day": '}},
    ):
        assert turns.find("model", None, [USER, {**reply, "tool_calls": [other]}])[0] == {}


def test_the_oldest_turns_are_forgotten() -> None:
    turns = SampledTurns(capacity=2)
    questions = [{"role": "user", "content": str(number)} for number in range(3)]
    reply = {"role": "assistant", "content": "b"}
    for number in range(2):
        turns.remember(turns.find("model", None, questions[number : number + 1])[1], reply, [number], [-0.5])
    assert turns.find("model", None, [questions[0], reply])[0] == {1: (0,)}  # used, so it is younger than the other now
    turns.remember(turns.find("model", None, questions[2:])[1], reply, [2], [-0.5])
    assert [bool(turns.find("model", None, [question, reply])[0]) for question in questions] == [True, False, True]


def test_what_is_remembered_has_a_bound_in_tokens() -> None:
    turns = SampledTurns(token_capacity=5)
    questions = [{"role": "user", "content": str(number)} for number in range(3)]
    reply = {"role": "assistant", "content": "b"}
    for question in questions:
        for _ in range(2):  # the same again replaces it
            turns.remember(turns.find("model", None, [question])[1], reply, [1, 2], [-0.5, -0.5])
    assert [bool(turns.find("model", None, [question, reply])[0]) for question in questions] == [False, True, True]


def test_clients_may_write_a_conversation_in_another_way() -> None:
    """litellm, LangChain and pydantic write parts for text, other fields of tools, and a name for the assistant."""
    function = {"name": "search", "description": "Find mail", "parameters": {"type": "object"}}
    turns = SampledTurns()
    messages = [{"role": "system", "content": "Answer."}, USER]
    _, conversation = turns.find("model", [{"type": "function", "function": function}], messages)
    turns.remember(conversation, {"role": "assistant", "content": "b"}, [7], [-0.5])
    parts = [{"type": "text", "text": "Ans"}, {"type": "text", "text": "wer."}]
    reply = {"role": "assistant", "content": "b", "name": "agent"}
    again: list[Any] = [{"role": "developer", "content": parts}, USER, reply]
    tools = [{"type": "function", "function": {**function, "strict": None}}]
    assert turns.find("model", tools, again)[0] == {2: (7,)}
    other = [{"type": "function", "function": {**function, "parameters": {}}}]
    assert turns.find("model", other, again)[0] == {}


def _remembering(*texts: str) -> SampledTurns:
    """Turns of the model `model` with these replies to USER; the n-th has the ids n and n."""
    turns = SampledTurns()
    for number, text in enumerate(texts):
        _, conversation = turns.find("model", None, [USER])
        turns.remember(conversation, {"role": "assistant", "content": text}, [number] * 2, [-0.1, -0.2])
    return turns


def _read(*items: dict[str, Any], histories: Sequence[list[dict[str, Any]]] = ()) -> Group:
    more = [{"messages_and_choices": history} for history in histories]
    dump = {"messages_and_choices": [USER, *items], "additional_histories": more, "reward": 1.0}
    [group] = read_groups([{"trajectories": [dump]}])
    return group


def _choice(text: str, *ids: int) -> dict[str, Any]:
    content = [{"token": f"token_id:{number}", "logprob": -0.7} for number in ids]
    message = {"role": "assistant", "content": text}
    return {"finish_reason": "stop", "message": message, "logprobs": {"content": content} if ids else None}


def _message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _trained(turns: SampledTurns, group: Group, scope: str = "model") -> list[dict[int, tuple[int, ...]]]:
    [[trajectory]] = turns.completed(scope, [group])
    for conversation in trajectory.conversations:
        assert {index: len(ids) for index, ids in conversation.exact.items()} == {
            index: len(logprobs) for index, logprobs in conversation.logprobs.items()
        }
    return [dict(conversation.exact) for conversation in trajectory.conversations]


def test_a_choice_that_lost_its_tokens_is_found_again() -> None:
    turns = _remembering("a", "b")
    group = _read(_choice("b"))
    assert _trained(turns, group) == [{1: (1, 1)}]
    [[trajectory]] = turns.completed("model", [group])
    assert trajectory.conversations[0].logprobs[1] == pytest.approx((-0.1, -0.2))
    assert _trained(turns, _read(_choice("b", 5, 6, 7))) == [{1: (5, 6, 7)}]  # what it brings counts


def test_nothing_is_joined_that_the_model_did_not_say() -> None:
    turns = _remembering("a")
    assert _trained(turns, _read(_choice("c"))) == [{}]
    assert _trained(turns, _read(_choice("a")), scope="another model") == [{}]
    assert _trained(turns, _read(USER, _choice("a"))) == [{}]  # in another conversation
    assert _trained(turns, _read(_message("c"))) == [{}]


def test_messages_are_trained_on_only_where_a_trajectory_has_no_choice() -> None:
    turns = _remembering("a")
    _, conversation = turns.find("model", None, [USER, _message("a"), USER])
    turns.remember(conversation, _message("z"), [8], [-0.5])
    assert _trained(turns, _read(_message("a"), USER, _message("z"))) == [{1: (0, 0), 3: (8,)}]
    assert _trained(turns, _read(_message("a"), USER, _choice("z"))) == [{3: (8,)}]  # the first is context
    assert _trained(turns, _read(_message("a"), histories=[[USER, _choice("a")]])) == [{}, {1: (0, 0)}]
    assert _trained(turns, _read(_message("a"), histories=[[USER, _message("a")]])) == [{1: (0, 0)}, {1: (0, 0)}]

"""Which texts of an agent are found in its requests, and that they are replaced exactly or not at all."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.agent_sessions.canonical import canonical
from learnloop_service.app.gateway import anthropic_messages, responses
from learnloop_service.training.prompt import InvalidPrompt, Prompt, literal, own_texts, read_prompt
from learnloop_service.training.replacing import common_texts, replaced

DESK = "You answer at the help desk.  \r\n\r\nAnswer in the form {answer} or {{answer}}.\nBe brief."
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
LINES = st.lists(st.sampled_from(["", "a", "a ", "b\r", "Be brief.", "Be brief. Be kind.", "{x}", "---"]), max_size=12)


def asked(system: str | None, *tools: Any, task: str = "Hello") -> tuple[list[dict[str, Any]], Sequence[Any]]:
    instructing = [] if system is None else [{"role": "system", "content": system}]
    return [*instructing, {"role": "user", "content": task}], tools


def tool(name: str, description: str | None = None, **arguments: str) -> Any:
    function: dict[str, Any] = {"name": name} if description is None else {"name": name, "description": description}
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    return {"type": "function", "function": {**function, "parameters": {"type": "object", "properties": properties}}}


def prompt_of(*requests: Any, days: Sequence[date] = ()) -> Prompt:
    prompt = common_texts(requests, days).prompt
    assert prompt is not None
    return prompt


def system_of(*systems: str, days: Sequence[date] = ()) -> str:
    return prompt_of(*map(asked, systems), days=days).replaces["system"]


def test_what_changes_from_task_to_task_stays_outside() -> None:
    assert system_of(*(f"{DESK}\nThe customer is {name}.\nThanks." for name in ("Bob", "Bobby"))) == DESK
    assert system_of(*(f"Case {number}\n{DESK}\n" for number in (1, 2))) == DESK
    assert system_of(DESK, DESK) == DESK
    assert system_of(*(f"You are the desk of the city of {city}." for city in ("Ulm", "Bonn"))) == (
        "You are the desk of the city of"
    )


@pytest.mark.parametrize("written", ["2026-11-30", "November 30, 2026", "30.11.2026", "Monday, 30 Nov", "12/01/2026"])
def test_the_day_of_the_requests_stays_outside_although_they_have_it_in_common(written: str) -> None:
    system = f"{DESK}\nToday is {written}.\nBye."
    assert system_of(system, system, days=[date(2026, 11, 30)]) == DESK


def test_a_text_that_is_there_twice_is_neither_found_nor_replaced() -> None:
    common = common_texts([asked(f"a\nx{number}\na") for number in (1, 2)], ())
    assert common.prompt is None
    assert common.omitted == {"system": "its texts have nothing in common that is in each of them once"}
    prompt = Prompt({"system": "b"}, {"system": "aa"})
    for system in ("aa.aa", "aaa", "a", ""):
        request = asked(system)
        assert replaced(*request, prompt) == (*map(list, request), ("system",))


def test_tools_and_arguments_are_found_by_their_names_where_all_requests_offer_them() -> None:
    search, other = tool("search", "Search it.", words="Two words."), tool("other", "Do it.")
    common = common_texts([asked(None, search, other), asked(None, search, tool("plain"), tool("other", ""))], ())
    assert common.prompt is not None
    assert common.prompt.replaces == {"tool:search": "Search it.", "tool:search.words": "Two words."}
    assert set(common.omitted) == {"system", "tool:other"}
    new = Prompt({"tool:search": "{original} Fast.", "tool:search.words": "Words."}, common.prompt.replaces)
    changed = replaced(*asked(None, search, tool("plain")), new)
    assert changed.tools == [tool("search", "Search it. Fast.", words="Words."), tool("plain")]
    assert changed.missing == ()
    assert search == tool("search", "Search it.", words="Two words."), "the request itself stays as it is"


def test_equal_names_of_tools_are_ambiguous() -> None:
    prompt = Prompt({"tool:a.b": "new"}, {"tool:a.b": "old"})
    for tools in ([tool("a.b", "old"), tool("a.b", "old")], [tool("a.b", "old"), tool("a", "x", b="old")]):
        assert replaced(*asked(None, *tools), prompt).missing == ("tool:a.b",)


def test_an_agent_without_a_system_message_lacks_the_part() -> None:
    prompt = Prompt({"system": "new", "tool:x": "new"}, {"system": "old", "tool:x": "old"})
    changed = replaced(*asked(None, tool("x", "very old")), prompt)
    assert changed == (*asked(None)[:1], [tool("x", "very new")], ("system",))


@pytest.mark.parametrize("junk", [{}, {"function": None}, {"function": {"name": 3, "parameters": {"properties": [1]}}}])
def test_malformed_tools_are_left_alone(junk: Any) -> None:
    prompt = Prompt({"system": "new", "tool:x": "new"}, {"system": DESK, "tool:x": "old"})
    changed = replaced(*asked(DESK, junk), prompt)
    assert (changed.messages[0]["content"], changed.tools, changed.missing) == ("new", [junk], ("tool:x",))


def test_only_the_first_system_message_is_replaced_whatever_stands_before_it() -> None:
    messages = [{"role": "user", "content": DESK}, *(2 * [{"role": "developer", "content": DESK}])]
    changed = replaced(messages, (), Prompt({"system": "New."}, {"system": DESK}))
    assert [message["content"] for message in changed.messages] == [DESK, "New.", DESK]


def test_texts_that_do_not_fit_into_a_prompt_are_named() -> None:
    tools = [tool(f"tool_{number}", f"Tool {number}.", argument="An argument.") for number in range(40)]
    common = common_texts([asked("long " * 8_000, *tools, task=task) for task in "ab"], ())
    assert common.prompt is not None
    assert len(common.prompt.parts) == 64
    assert common.omitted["system"] == "the texts of parts have 39,999 bytes together, of at most 32,768"
    assert "65 parts, of at most 64" in common.omitted["tool:tool_39.argument"]


def test_ten_thousand_lines_are_compared() -> None:
    lines = [f"Line {number}." for number in range(10_000)]
    systems = [
        "\n".join([*lines[:1_000], f"Case {case}", *lines[1_000:3_000], "", *7_000 * [""]]) for case in range(20)
    ]
    assert system_of(*systems) == "\n".join(lines[1_000:3_000])


@given(st.lists(LINES, min_size=1, max_size=4), LINES)
def test_what_was_found_replaces_itself_in_each_request(around: list[list[str]], common: list[str]) -> None:
    requests = [asked("\n".join([*before, *common, *reversed(before)])) for before in around]
    if (prompt := common_texts(requests, ()).prompt) is not None:
        for messages, tools in requests:
            assert replaced(messages, tools, prompt) == (messages, [*tools], ())


@given(TEXTS, TEXTS.filter(str.strip), TEXTS, TEXTS.filter(str.strip))
def test_replacing_is_exact_or_does_nothing(before: str, old: str, after: str, new: str) -> None:
    request = asked(before + old + after)
    changed = replaced(*request, Prompt({"system": literal(new)}, {"system": old}))
    if changed.missing:
        assert changed[:2] == (request[0], [])
    else:
        assert changed.messages[0]["content"] == before + new + after


@given(st.text("{}ab", max_size=12).filter(str.strip))
def test_a_literal_text_has_no_placeholders(text: str) -> None:
    assert own_texts(Prompt({"system": literal(text)})) == {"system": text}


def bodies(system: str) -> dict[str, dict[str, Any]]:
    """The same request as clients of three protocols write it."""
    half, rest = system[:7], system[7:]
    parts = [{"type": "text", "text": half}, {"type": "text", "text": rest, "cache_control": {"type": "ephemeral"}}]
    blocks = [{"type": "text", "text": line, "cache_control": {"type": "ephemeral"}} for line in system.split("\n")]
    message = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    chat = [{"role": "user", "content": "Hello"}]
    instructing = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": system}]}
    return {
        "chat": {"messages": [{"role": "system", "content": system}, *chat]},
        "parts": {"messages": [{"role": "developer", "content": parts}, *chat]},
        "messages": anthropic_messages.read_request(message | {"system": system}).chat_body,
        "blocks": anthropic_messages.read_request(message | {"system": blocks}).chat_body,
        "responses": responses.read_request({"instructions": system, "input": "Hello"}, {}).chat_body,
        "items": responses.read_request({"input": [instructing, {"role": "user", "content": "Hello"}]}, {}).chat_body,
    }


@pytest.mark.parametrize("form", bodies(DESK))
def test_each_protocol_gets_the_new_text_and_the_original_keeps_the_digest(form: str) -> None:
    requests = [canonical(bodies(f"{DESK}\nCase {case}")[form], None) for case in (1, 2)]
    prompt = prompt_of(*((request.messages, request.tools) for request in requests))
    assert prompt.replaces == {"system": DESK}
    body = bodies(f"{DESK}\nCase 3")[form]
    plain, same = canonical(body, None), canonical(body, None, prompt)
    assert (same.digest, same.messages, same.missing) == (plain.digest, plain.messages, ())
    other = canonical(body, None, Prompt({"system": "Be kind. {original}"}, prompt.replaces))
    assert other.messages[0]["content"] == f"Be kind. {DESK}\nCase 3"
    assert other.digest != plain.digest


def test_only_texts_of_requests_can_be_replaced() -> None:
    with pytest.raises(InvalidPrompt, match="skill:x"):
        read_prompt({"parts": {"skill:x": "a"}, "replaces": {"skill:x": "b"}})
    assert read_prompt({"parts": {"system": "a"}, "replaces": {"system": "b"}}).as_json()["replaces"] == {"system": "b"}
    assert "replaces" not in read_prompt({"parts": {"system": "a"}}).as_json()

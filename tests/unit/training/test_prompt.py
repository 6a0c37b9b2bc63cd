"""What a prompt can be, and what it does to the opening of a rollout."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.base import Episode, Tool
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.environment.json_type import Json
from learnloop_service.training.prompt import InvalidPrompt, Prompt, is_in, opening, read_prompt, undelivered

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="{}\0"), min_size=1).filter(str.strip)


def episode() -> Episode:
    environment = SyntheticEmailSearch()
    return environment.episode(environment.scenarios("test", 1, 0)[0])


def descriptions(tools: list[dict[str, Any]] | None) -> dict[str, str]:
    return {tool["function"]["name"]: tool["function"]["description"] for tool in tools or ()}


def test_without_a_prompt_the_opening_is_that_of_the_episode() -> None:
    begins, plain = opening(episode(), None), episode()
    assert begins.messages == plain.messages()
    assert begins.tools == [tool.openai() for tool in plain.tools]


@given(st.dictionaries(st.sampled_from(["system", "tool:search_inbox", "tool:read_email"]), WORDS, min_size=1))
def test_texts_without_braces_arrive_as_they_are(parts: Mapping[str, str]) -> None:
    begins = opening(episode(), read_prompt({"parts": parts}))
    assert begins.texts == parts
    if "system" in parts:
        assert begins.messages[0] == {"role": "system", "content": parts["system"]}
    for part in parts.keys() - {"system"}:
        assert descriptions(begins.tools)[part.removeprefix("tool:")] == parts[part]
    assert undelivered(begins.texts, begins.messages, begins.tools or ()) == []


def test_placeholders_stand_for_the_original_and_the_fields_of_the_episode() -> None:
    text = 'For {inbox_address}: {original} Say {{original}}, {"answer": 1} and {}.'
    begins, plain = opening(episode(), Prompt({"system": text})), episode()
    original, address = plain.messages()[0]["content"], plain.scenario.task["inbox_address"]
    assert begins.messages[0]["content"] == f'For {address}: {original} Say {{original}}, {{"answer": 1}} and {{}}.'


def test_names_and_schemas_of_tools_stay() -> None:
    begins = opening(episode(), Prompt({"tool:search_inbox": "Search.", "tool:search_inbox.sender": "Their address."}))
    search, plain = begins.tool_list[0], episode().tools[0]
    assert (search.name, search.description) == ("search_inbox", "Search.")
    assert search.parameters["properties"]["sender"] == {
        **plain.parameters["properties"]["sender"],
        "description": "Their address.",
    }
    assert search.parameters["required"] == plain.parameters["required"]
    assert "description" not in plain.parameters["properties"]["sender"]


def test_an_environment_without_a_system_message_gets_one() -> None:
    class Talk:
        tools: tuple[Tool, ...] = ()
        max_turns = 1
        scenario = None

        def messages(self) -> list[dict[str, Any]]:
            return [{"role": "user", "content": "hello"}]

    begins = opening(Talk(), Prompt({"system": "Be brief.{original}"}))  # type: ignore[arg-type]
    assert begins.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("prompt", "part", "says"),
    [
        ({"parts": {}}, None, "there are no parts"),
        ({"parts": {"system": " "}}, "system", "not empty"),
        ({"parts": {"system": 3}}, "system", "not empty"),
        ({"parts": {"system": "a\0"}}, "system", "NUL"),
        ({"parts": {"system": "\ud83d"}}, "system", "surrogate"),
        ({"parts": {"sytem": "a"}}, "sytem", "not one of"),
        ({"parts": {"tool:": "a"}}, "tool:", "not one of"),
        ({"parts": {"file:../a": "a"}}, "file:../a", "a path without"),
        ({"parts": {"file:/etc/passwd": "a"}}, "file:/etc/passwd", "a path without"),
        ({"parts": {"tool:..": "a"}}, "tool:..", "a path without"),
        ({"parts": {"system": "a" * 32_769}}, None, "32,769 bytes"),
        ({"parts": {"system": "é" * 16_385}}, None, "32,770 bytes"),
        ({"parts": {f"skill:{number}": "a" for number in range(65)}}, None, "65 parts"),
        ({"parts": {"system": "a"}, "tone": "b"}, None, "'tone'"),
        ({"part": {"system": "a"}}, None, "expected an object"),
        ("You are helpful", None, "expected an object"),
    ],
)
def test_what_is_not_a_prompt_is_refused_by_its_part(prompt: Any, part: str | None, says: str) -> None:
    with pytest.raises(InvalidPrompt, match=says) as refused:
        read_prompt(prompt)
    assert refused.value.part == part


@pytest.mark.parametrize(
    ("part", "text", "says"),
    [
        ("system", "Hello {nobody}", r"no placeholder \{nobody\}; there are inbox_address, max_turns, original"),
        ("tool:search", "a", "no tool 'search'; the tools are read_email"),
        ("tool:read_email.mail", "a", "read_email has no argument 'mail'; its arguments are email_id"),
    ],
)
def test_parts_and_placeholders_that_the_episode_lacks_are_named(part: str, text: str, says: str) -> None:
    with pytest.raises(InvalidPrompt, match=says) as refused:
        opening(episode(), Prompt({part: text}))
    assert refused.value.part == part


def test_a_part_that_is_not_in_the_first_request_is_undelivered() -> None:
    texts = {"system": "Be kind.", "tool:search": "Search it.", "tool:search.words": "A few.", "skill:x": "Refund."}
    parameters = {"type": "object", "properties": {"words": {"type": "string", "description": "A few."}}}
    tools = [{"type": "function", "function": {"name": "search", "description": "Else.", "parameters": parameters}}]
    messages = [{"role": "system", "content": [{"type": "text", "text": "You are Bo. Be kind. Stay so."}]}]
    assert undelivered(texts, messages, tools) == ["tool:search", "skill:x"]


_SEARCH = {
    "name": "search",
    "description": "Finds text.",
    "parameters": {"properties": {"q": {"description": "A word."}}},
}


@pytest.mark.parametrize(
    ("parts", "there"),
    [
        ({"system": "Be kind."}, True),
        ({"system": "  Be kind.\n"}, True),
        ({"system": "Be kind. {original} Goodbye."}, True),
        ({"system": "{original}"}, True),
        ({"system": "Goodbye. {original} Be kind."}, False),
        ({"system": "Be kind to {{name}}."}, False),
        ({"system": "Be cruel."}, False),
        ({"tool:search": "Finds text."}, True),
        ({"tool:search.q": "A {original}."}, True),
        ({"tool:search": "Be kind."}, False),
        ({"system": "Be kind.", "skill:refunds": "Pay them back."}, False),
    ],
)
def test_a_request_has_a_prompt_with_any_texts_for_its_placeholders(parts: dict[str, str], there: bool) -> None:
    messages = [{"role": "system", "content": [{"type": "text", "text": "Be kind. Now work. Goodbye."}]}]
    for tool in ({"type": "function", "function": _SEARCH}, {"type": "function", **_SEARCH}):
        assert is_in(Prompt(parts), messages, [tool]) is there


@pytest.mark.parametrize(
    "tools", [[1, None, "a"], [{"function": 3}], [{"function": {"parameters": {"properties": [1]}}}]]
)
def test_requests_of_any_form_are_looked_at(tools: list[Json]) -> None:
    assert not is_in(Prompt({"system": "Be kind."}), [{}, {"content": 3}, {"content": [None, {"text": 4}]}], tools)

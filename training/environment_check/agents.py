"""Agents without a model: one that acts at random, some that do nothing useful, and some that cheat.

They know only what any model sees of an environment: messages and tools. The cheats also know what references look like
(never the scenario's own), and which tools end an episode.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from random import Random
from typing import Any

from learnloop_service.environment.base import Json, Scenario, Tool, ToolCall
from learnloop_service.training.environment_check.play import Agent, Turn, View

_WORD = re.compile(r"[^\s|,;:!?()\[\]{}\"']+")
_MAX_WORDS = 400
"""Maximum number of words in the text of the agent that stuffs words."""


@dataclass(frozen=True, slots=True)
class Fill:
    """How an agent fills a tool's arguments: functions from an argument's name to a text, or to the items of a list."""

    text: Callable[[str], str]
    texts: Callable[[str], list[str]]
    rng: Random


def play_turns(turns: Sequence[Turn]) -> Agent:
    """Return an agent that takes these turns and then says nothing. With an environment's solution it is the oracle."""
    remaining = iter(turns)
    return lambda view: next(remaining, "")


def silent(view: View) -> Turn:
    """Do nothing."""
    return ""


def random_agent(rng: Random) -> Agent:
    """Return an agent that calls random tools with words that it has read, and also replies in text where that
    counts."""

    def turn(view: View) -> Turn:
        words = _words(view) or ["?"]
        fill = Fill(
            lambda _: rng.choice(words), lambda _: rng.choices(words, k=rng.randint(1, 2)), rng
        )  # few words, because a search for many words finds nothing
        if not view.tools or (view.takes_text and rng.random() < 1 / (1 + len(view.tools))):
            return " ".join(rng.choices(words, k=rng.randint(1, 8)))
        return call_with(rng.choice(view.tools), fill)

    return turn


def empty_calls(rng: Random) -> Agent:
    """Return an agent that calls each tool in turn with arguments that are valid but empty."""
    fill, turns = Fill(lambda _: "", lambda _: [], rng), 0

    def turn(view: View) -> Turn:
        nonlocal turns
        turns += 1
        return call_with(view.tools[(turns - 1) % len(view.tools)], fill) if view.tools else "..."

    return turn


@dataclass(frozen=True, slots=True)
class CheatSheet:
    """What the cheats know beforehand: which tools end an episode, and the references of other scenarios."""

    final: Set[str]
    others: Sequence[Scenario]

    @property
    def shapes(self) -> Set[str]:
        """The shapes of ids in references, such as `a-0` for `mail-17`. Shapes that any word can have are left out."""
        shapes = {_shape(text) for other in self.others for text in strings(other.reference) if _WORD.fullmatch(text)}
        return {shape for shape in shapes if not shape.isalnum()}


def copies_the_task(rng: Random, sheet: CheatSheet) -> Agent:
    """Return an agent that answers with the task itself."""
    return lambda view: _end(view, sheet, Fill(lambda _: _task(view), lambda _: _ids(view, sheet), rng))


def repeats_a_reference(rng: Random, sheet: CheatSheet) -> Agent:
    """Return an agent that answers with the reference of another scenario."""
    reference = rng.choice(sheet.others).reference

    def text(name: str) -> str:
        return next(_reference_texts(reference, name), "")

    return lambda view: _end(view, sheet, Fill(text, lambda name: list(_reference_texts(reference, name)), rng))


def stuffs_words(rng: Random, sheet: CheatSheet) -> Agent:
    """Return an agent that reads what it can, and answers with every word that it has seen and the words of many
    references."""
    more = " ".join(text for other in sheet.others for text in strings(other.reference))

    def answer(view: View, read: list[str]) -> Fill:
        return Fill(lambda _: _unique_words(f"{_all_text(view)} {more}"), lambda _: read, rng)

    return _id_explorer(rng, sheet, answer)


def tries_every_id(rng: Random, sheet: CheatSheet, tool: str) -> Agent:
    """Return an agent that calls `tool` with every id that it finds, and answers with the task and all these ids."""
    return _id_explorer(rng, sheet, lambda view, read: Fill(lambda _: _task(view), lambda _: read, rng), tool)


def cheats(rng: Random, sheet: CheatSheet, tools: Sequence[Tool]) -> Mapping[str, Agent]:
    """Return the cheats by name."""
    by_name = {"copies the task": copies_the_task(rng, sheet)}
    for tool in tools:
        if tool.name not in sheet.final:
            by_name[f"calls {tool.name} with every id"] = tries_every_id(rng, sheet, tool.name)
    if any(other.reference for other in sheet.others):
        by_name["repeats a reference"] = repeats_a_reference(rng, sheet)
        by_name["stuffs words"] = stuffs_words(rng, sheet)
    return by_name


def _id_explorer(
    rng: Random, sheet: CheatSheet, answer: Callable[[View, list[str]], Fill], favourite: str | None = None
) -> Agent:
    """Return an agent that calls non-final tools with each id, newest first, and ends the episode in the last turn.

    If a `favourite` is given, only that tool is called with every id, and each other tool once.
    """
    tried: dict[tuple[str, str], None] = {}

    def untried(view: View) -> tuple[Tool, str] | None:
        for id in reversed(_ids(view, sheet)):
            for tool in view.tools:
                enough = favourite not in (None, tool.name) and any(name == tool.name for name, _ in tried)
                if tool.name not in sheet.final and (tool.name, id) not in tried and not enough:
                    return tool, id
        return None

    def turn(view: View) -> Turn:
        if view.turns_left > 1 and (next_call := untried(view)) is not None:
            tool, id = next_call
            tried[tool.name, id] = None
            return call_with(tool, Fill(lambda _: id, lambda _: [id], rng))
        read = [id for name, id in tried if favourite in (None, name)]
        return _end(view, sheet, answer(view, list(dict.fromkeys(read))))

    return turn


def _end(view: View, sheet: CheatSheet, fill: Fill) -> Turn:
    """Return the last turn: a call of the tool that ends the episode, or a reply in text if there is none."""
    tool = next((tool for tool in view.tools if tool.name in sheet.final), None)
    return call_with(tool, fill) if tool else fill.text("answer")


def call_with(tool: Tool, fill: Fill) -> ToolCall:
    """Return a call with all arguments that the tool requires, or with all that it has if it requires none."""
    properties = tool.parameters.get("properties", {})
    needed = tool.parameters.get("required") or list(properties)
    return ToolCall(tool.name, {name: _value(name, properties.get(name, {}), fill) for name in needed})


def _value(name: str, schema: Mapping[str, Json], fill: Fill) -> Json:
    """Return a value that fits the JSON schema."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return fill.rng.choice(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _value(name, schema[key][0], fill)
    kind = schema.get("type", "string")
    match kind if isinstance(kind, str) else kind[0]:
        case "integer" | "number":
            low = int(schema.get("minimum", 0))
            return fill.rng.randint(low, max(low, int(schema.get("maximum", low + 9))))
        case "boolean":
            return fill.rng.random() < 0.5
        case "object":
            return {key: _value(key, inner, fill) for key, inner in schema.get("properties", {}).items()}
        case "array":
            items = schema.get("items") or {}
            if items.get("type", "string") == "string" and not items.get("enum"):
                return fill.texts(name)
            return [_value(name, items, fill)]
        case "string" if schema.get("format") == "date":
            return "2026-01-01"
        case "null":
            return None
    return fill.text(name)


def strings(value: Json) -> Iterator[str]:
    """Yield every text in a JSON value, and every number as text."""
    if isinstance(value, Mapping):
        for member in value.values():
            yield from strings(member)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from strings(element)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _reference_texts(reference: Mapping[str, Json], name: str) -> Iterator[str]:
    """Yield the texts of the reference that fit an argument of that name: those of a member with a similar name,
    otherwise all."""
    member = next((value for key, value in reference.items() if name in key or key in name), reference)
    return strings(member)


def _texts(view: View, roles: Sequence[str]) -> Iterator[str]:
    for message in view.messages:
        if message["role"] in roles:
            content: Any = message.get("content")
            yield content if isinstance(content, str) else " ".join(strings(content))


def _task(view: View) -> str:
    return next(_texts(view, ("user",)), "")


def _all_text(view: View) -> str:
    return " ".join(_texts(view, ("user", "tool")))


def _words(view: View) -> list[str]:
    return _WORD.findall(_all_text(view))


def _ids(view: View, sheet: CheatSheet) -> list[str]:
    """Return the words that look like ids: those with the shape of ids in references. If there are none, return the
    first word of each line of the tools' results, or else all words."""
    words = [word.strip(".") for word in _words(view)]
    lines = [_WORD.findall(line) for text in _texts(view, ("tool",)) for line in text.splitlines()]
    shapes = sheet.shapes
    shaped = [word for word in words if _shape(word) in shapes]
    return list(dict.fromkeys(shaped or [line[0] for line in lines if line] or words))


def _shape(word: str) -> str:
    return re.sub(r"[^\W\d]+", "a", re.sub(r"\d+", "0", word))


def _unique_words(text: str) -> str:
    return " ".join(list(dict.fromkeys(text.split()))[:_MAX_WORDS])

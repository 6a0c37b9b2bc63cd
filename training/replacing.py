"""Prompts of agents whose code cannot be changed: finds the texts that an agent brings to its model, and replaces them.

Both work on requests in the form of chat completions, whose text contents are strings (`chat_reader.read_messages`). A
text is replaced exactly or not at all: it must occur exactly once in its message or description.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from difflib import SequenceMatcher
from itertools import groupby
from typing import NamedTuple

from learnloop_service.environment.base import Json
from learnloop_service.training.prompt import SYSTEM, TOOL, InvalidPrompt, Prompt, literal, own_texts, read_prompt

Messages = Sequence[dict[str, Json]]
Path = Sequence[str | int]
_INSTRUCTING = ("system", "developer")
_DATE = "\0"
"""Stands for a date while texts are compared. Texts of recorded requests have no such character."""
_LEAST_WORDS = 20
"""Fewest characters of a run of words. Shorter ones are common by chance."""


class _Text(NamedTuple):
    path: Path
    text: str


class Replaced(NamedTuple):
    """A request with the texts of a prompt. `missing` are the parts whose replaced texts it does not have."""

    messages: Messages
    tools: Sequence[Json]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommonTexts:
    """The texts that the first requests of an agent have in common, as a prompt that replaces them by themselves."""

    prompt: Prompt | None
    """None if they have none in common."""
    requests: int
    omitted: Mapping[str, str]
    """Why a part is not in the prompt, by its name."""


def replaced(messages: Messages, tools: Sequence[Json], prompt: Prompt) -> Replaced:
    """Replace the texts of a request by the prompt's, each exactly or not at all. Raises InvalidPrompt."""
    request: Json = {"messages": list(messages), "tools": list(tools)}
    texts, missing = _texts(request), []
    for name, text in own_texts(prompt).items():
        old, (path, current) = prompt.replaces.get(name, ""), texts.get(name, ((), ""))
        if _occurs_once(old, current):
            request = _with(request, path, current.replace(old, text))
        else:
            missing.append(name)
    return Replaced(request["messages"], request["tools"], tuple(missing))


def common_texts(requests: Iterable[tuple[Messages, Sequence[Json]]], days: Iterable[date]) -> CommonTexts:
    """Return the longest run of lines that the requests have in common, of the first system message and of each tool's
    descriptions; of words, if lines hold less than half of it. Lines with a date of the `days` on which the requests
    were made are left out, because another day has another one."""
    dates, texts = _dates(days), [_texts({"messages": messages, "tools": tools}) for messages, tools in requests]
    counts = Counter(name for of_request in texts for name in of_request)
    runs, omitted, prompt = dict[str, str](), dict[str, str](), None
    for name in sorted({SYSTEM, *counts}, key=lambda name: (name != SYSTEM, name.count("."), name)):
        if not 0 < counts[name] == len(texts):
            omitted[name] = f"{counts[name]} of {len(texts)} different requests have it"
        elif not (run := _common_run({of_request[name].text for of_request in texts}, dates)):
            omitted[name] = "its texts have nothing in common that is in each of them once"
        else:
            more = runs | {name: run}
            parts = {part: literal(text) for part, text in more.items()}
            try:
                prompt, runs = read_prompt({"parts": parts, "replaces": more}), more
            except InvalidPrompt as error:
                omitted[name] = error.why
    return CommonTexts(prompt, len(texts), omitted)


def _texts(request: Json) -> dict[str, _Text]:
    """Return the texts of a request that parts of a prompt can replace. Left out are tools of the same name."""
    paths: list[tuple[str, Path]] = []
    for number, message in enumerate(request["messages"]):
        if message.get("role") in _INSTRUCTING:
            paths.append((SYSTEM, ("messages", number, "content")))
            break
    for number, tool in enumerate(request["tools"]):
        function = _object(tool.get("function"))
        name, path = f"{TOOL}{function.get('name')}", ("tools", number, "function")
        paths.append((name, (*path, "description")))
        arguments = _object(_object(function.get("parameters")).get("properties"))
        paths += [(f"{name}.{key}", (*path, "parameters", "properties", key, "description")) for key in arguments]
    counts = Counter(name for name, _ in paths)
    texts = {name: _Text(path, _at(request, path)) for name, path in paths if counts[name] == 1}
    return {name: text for name, text in texts.items() if isinstance(text.text, str) and text.text.strip()}


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _at(value: Json, path: Path) -> Json:
    """Return what is there, or None if there is nothing."""
    for key in path:
        value = value[key] if isinstance(key, int) else _object(value).get(key)
    return value


def _with(value: Json, path: Path, text: str) -> Json:
    """Return a copy of the value that has the text there."""
    if not path:
        return text
    copy = value.copy()
    copy[path[0]] = _with(value[path[0]], path[1:], text)
    return copy


def _occurs_once(part: str, text: str) -> bool:
    """Whether the part is in the text once, also if it could overlap with itself."""
    return bool(part) and text.find(part) == text.rfind(part) != -1


def _dates(days: Iterable[date]) -> Collection[str]:
    """Return the days, and those next to them for other time zones, as agents write them."""
    near = {day + timedelta(days=shift) for day in days for shift in (-1, 0, 1)}
    return {
        text
        for day in near
        for month in (f"{day:%B}", f"{day:%b}")
        for number in (f"{day:%d}", str(day.day))
        for text in (
            *(f"{day:%Y-%m-%d}", f"{day:%Y/%m/%d}", f"{day:%d.%m.%Y}", f"{day:%d/%m/%Y}", f"{day:%m/%d/%Y}"),
            *(f"{month} {number}", f"{number} {month}", f"{number}. {month}"),
        )
    }


def _common_run(texts: Collection[str], dates: Collection[str]) -> str:
    """Return the longest run of lines or words that is in each text once; empty if there is none."""
    lines = _longest_run(texts, dates, lambda text: text.split("\n"), "\n")
    if 2 * len(lines) >= min(map(len, texts)):
        return lines
    words = _longest_run(texts, dates, lambda text: re.findall(r"\s*\S+\s*", text), "")
    return words if len(words) >= max(_LEAST_WORDS, 2 * len(lines) + 1) else lines


def _longest_run(
    texts: Collection[str], dates: Collection[str], split: Callable[[str], Sequence[str]], glue: str
) -> str:
    base, *others = sorted(texts, key=lambda text: (len(text), text))
    for day in dates:
        base = base.replace(day, _DATE)
    runs = [[*run] for is_dated, run in groupby(split(base), lambda token: _DATE in token) if not is_dated]
    for other in others:
        matcher = SequenceMatcher(b=split(other))
        common = list[list[str]]()
        for run in runs:
            matcher.set_seq1(run)
            common += [run[start : start + size] for start, _, size in matcher.get_matching_blocks() if size]
        runs = common
    joined = sorted({glue.join(run).strip() for run in runs}, key=lambda run: (-len(run), run))
    return next((run for run in joined if all(_occurs_once(run, text) for text in texts)), "")

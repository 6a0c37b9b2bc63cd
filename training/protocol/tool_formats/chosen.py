"""Choices for a model, such as its tool format, in a file of its directory. Checkpoints and exports keep the file."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from learnloop_service.training.protocol.tool_formats.formats import FORMATS, ToolFormat

FILE = "learnloop.json"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_CACHED = re.compile(r"models--([A-Za-z0-9][\w.-]*?)--([\w.-]+)")
"""Folder of a model in the cache of the hub's clients."""


def chosen_format(directory: Path) -> ToolFormat | None:
    """Return the chosen format, or None if none was chosen. Raises ValueError if the file names none of ours."""
    if not (directory / FILE).exists():
        return None
    try:
        chosen = _chosen(directory)
        return None if chosen and "tool_format" not in chosen else FORMATS[chosen["tool_format"]]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{FILE} must name a tool_format, one of {', '.join(FORMATS)}") from None


def choose(directory: Path, tool_format: ToolFormat) -> None:
    """Write the choice into a model's directory."""
    note(directory, tool_format=tool_format.name)


def note(directory: Path, **chosen: Any) -> None:
    """Add choices to a model's file."""
    (directory / FILE).write_text(json.dumps({**_chosen(directory), **chosen}) + "\n")


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """Variables of a model's chat template besides the conversation, the same in every rendering."""

    enable_thinking: bool | None = None
    """The template's switch of that name; None leaves it to the template."""
    date: str | None = None
    """The day that a template that asks for the time gets, as YYYY-MM-DD; None is today."""


def template_options(directory: Path) -> TemplateOptions:
    """Return the options in a model's file. Raises ValueError."""
    chosen = _chosen(directory)
    return TemplateOptions(chosen.get("enable_thinking"), chosen.get("date"))


def settle_template(directory: Path, *, enable_thinking: bool | None = None) -> None:
    """Note the options of a new model's chat template. If it shows the date, all of its renderings show today's."""
    if enable_thinking is not None:
        note(directory, enable_thinking=enable_thinking)
    if "strftime_now" in template_text(directory) and template_options(directory).date is None:
        note(directory, date=datetime.now(UTC).date().isoformat())


def template_text(directory: Path) -> str:
    """Return the chat template in a model's directory, or an empty text."""
    if (template := directory / "chat_template.jinja").is_file():
        return template.read_text(encoding="utf-8")
    config = directory / "tokenizer_config.json"
    return json.dumps(json.loads(config.read_text(encoding="utf-8")).get("chat_template")) if config.is_file() else ""


def hub_name(directory: Path) -> str | None:
    """Return the name of a base model on the Hugging Face hub: the name under which it was downloaded, that of the
    cache it was copied from, or the one in its config. None if its files have no such name."""
    if isinstance(named := _chosen(directory).get("hub_name"), str):
        return named
    if cached := _CACHED.search(str(directory)):
        return "/".join(cached.groups())
    config = directory / "config.json"
    named = json.loads(config.read_text(encoding="utf-8")).get("_name_or_path") if config.is_file() else None
    return named if isinstance(named, str) and _HUB_NAME.fullmatch(named) else None


def _chosen(directory: Path) -> dict[str, Any]:
    path = directory / FILE
    choices: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return choices

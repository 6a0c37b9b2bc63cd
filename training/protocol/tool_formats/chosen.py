"""What was chosen for a model, in a file of its directory. Checkpoints and exports keep the file."""

import json
import re
from pathlib import Path
from typing import Any

from training.protocol.tool_formats.formats import FORMATS, ToolFormat

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


def hub_name(directory: Path) -> str | None:
    """Return the name of a base model on the Hugging Face hub, or None if its files do not tell: the name under which
    it was downloaded, the cache it was copied from, or the name in its config."""
    if isinstance(named := _chosen(directory).get("hub_name"), str):
        return named
    if cached := _CACHED.search(str(directory)):
        return "/".join(cached.groups())
    config = directory / "config.json"
    named = json.loads(config.read_text(encoding="utf-8")).get("_name_or_path") if config.is_file() else None
    return named if isinstance(named, str) and _HUB_NAME.fullmatch(named) else None


def _chosen(directory: Path) -> dict[str, Any]:
    path = directory / FILE
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found

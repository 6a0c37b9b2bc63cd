"""The format that was chosen for a model, in its directory. Checkpoints and exports keep the file."""

import json
from pathlib import Path

from training.protocol.tool_formats.formats import FORMATS, ToolFormat

FILE = "learnloop.json"


def chosen_format(directory: Path) -> ToolFormat | None:
    """Return the chosen format, or None if none was chosen. Raises ValueError if the file names none of ours."""
    path = directory / FILE
    if not path.exists():
        return None
    try:
        return FORMATS[json.loads(path.read_text())["tool_format"]]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{FILE} must name a tool_format, one of {', '.join(FORMATS)}") from None


def choose(directory: Path, tool_format: ToolFormat) -> None:
    """Write the choice into a model's directory."""
    (directory / FILE).write_text(json.dumps({"tool_format": tool_format.name}) + "\n")

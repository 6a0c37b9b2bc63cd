"""Reads the panels of a help text."""

import re


def shown_panels(help_text: str) -> dict[str, list[str]]:
    """Return the commands of each panel, or what its first column has, in order."""
    panels: dict[str, list[str]] = {}
    for line in help_text.splitlines():
        if title := re.match(r"╭─ (.+?) ─", line):
            panels[title[1]] = []
        elif row := re.match(r"│ (\S+)", line):
            list(panels.values())[-1].append(row[1])
    return panels

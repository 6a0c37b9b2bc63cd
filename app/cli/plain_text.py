"""Text that somebody else wrote, a model or a user, on a terminal."""

from rich.text import Text


def plain(text: str, style: str = "") -> Text:
    """The text as it is: its markup is not interpreted, and what could steer a terminal is shown as `?`."""
    return Text("".join(c if c.isprintable() or c == "\n" else "?" for c in text), style=style, overflow="fold")

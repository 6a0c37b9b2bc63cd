"""HTML mail as text: blocks become lines, links keep their target, scripts and styles are dropped.

It does not use `html.parser`, which takes half a minute for 200 kB of `<a<a<a` and raises on `<![`. Here every step
advances through the input, so the time is linear for any markup.
"""

import re
from html import unescape

_MARK = re.compile(r"<!--|<[!?][^<>]*+>|<(/?)([a-z][\w:-]*+)([^<>]*+)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""\b(href|alt)\s*+=\s*+("[^"]*"|'[^']*'|[^\s"']++)""", re.IGNORECASE)
_HUGE_REFERENCE = re.compile(r"&#(?:[0-9]{8,}|x[0-9a-f]{8,});?", re.IGNORECASE)
"""Matches numbers too large for a character; Python refuses to convert the longest."""

_PARAGRAPH = re.compile("blockquote|dl|h[1-6]|ol|p|pre|table|ul")
_BLOCK = re.compile(
    "address|article|aside|body|center|dd|div|dt|fieldset|figure|footer|form|header|hr|li|main|nav|section|tr|"
    + _PARAGRAPH.pattern
)
_DROPPED = {name: re.compile(f"(?=</{name})", re.IGNORECASE) for name in ("script", "style", "template", "title")}
"""Elements whose content is not text, each with a pattern for its end."""

_SHOWN_LINK = re.compile(r"(?:https?://|mailto:)\S{1,300}", re.IGNORECASE)
"""Matches the link targets to show; longer ones are trackers."""


def html_to_text(html: str) -> str:
    """Return the readable text of a page, however broken its markup."""
    page = _Page()
    position = 0
    while mark := _MARK.search(html, position):
        page.add_text(html[position : mark.start()])
        position = mark.end()
        if mark[0] == "<!--":
            position = _end_of(re.compile("-->"), html, position)
        elif name := (mark[2] or "").lower():
            if name in _DROPPED and not mark[1]:
                position = _end_of(_DROPPED[name], html, position)
            elif mark[1]:
                page.end_tag(name)
            else:
                page.start_tag(name, mark[3])
    page.add_text(html[position:])
    return page.text()


def _end_of(ending: re.Pattern[str], html: str, position: int) -> int:
    """Return where the dropped content ends: without an end tag, at the end of the page, as in browsers."""
    end_tag = ending.search(html, position)
    return end_tag.end() if end_tag else len(html)


def _attributes(text: str) -> dict[str, str]:
    return {
        name.lower(): unescape(_HUGE_REFERENCE.sub("", value.strip("\"'"))) for name, value in _ATTRIBUTE.findall(text)
    }


class _Page:
    """The text read so far, in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._preformatted = 0
        self._link: tuple[str, int] | None = None
        """Target of the open link, and how many pieces of text preceded it."""

    def start_tag(self, name: str, attributes: str) -> None:
        if name == "a":
            self._end_link()
            self._link = _attributes(attributes).get("href", "").strip(), len(self._pieces)
        elif name == "img":
            self.add_text(_attributes(attributes).get("alt", ""))
        elif name == "br":
            self._pieces.append("\n")
        elif name in ("td", "th"):
            self._pieces.append(" ")
        elif _BLOCK.fullmatch(name):
            self._break(name)
            self._preformatted += name == "pre"
            if name == "li":
                self._pieces.append("- ")

    def end_tag(self, name: str) -> None:
        if name == "a":
            self._end_link()
        elif _BLOCK.fullmatch(name):
            self._break(name)
            self._preformatted -= name == "pre" and self._preformatted > 0

    def add_text(self, text: str) -> None:
        """Add text between tags; a run of white space becomes one space, except in `pre`."""
        if "&" in text:
            text = unescape(_HUGE_REFERENCE.sub("\ufffd", text))
        if not self._preformatted:
            text = re.sub(r"\s+", " ", text)
            if self._pieces and self._pieces[-1].endswith((" ", "\n")):
                text = text.removeprefix(" ")
        if text:
            self._pieces.append(text)

    def text(self) -> str:
        self._end_link()
        lines = "".join(self._pieces).split("\n")
        return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in lines)).strip("\n")

    def _break(self, name: str) -> None:
        self._pieces.append("\n\n" if _PARAGRAPH.fullmatch(name) else "\n")

    def _end_link(self) -> None:
        if self._link is None:
            return
        target, start = self._link
        self._link = None
        if _SHOWN_LINK.fullmatch(target):
            target = target.removeprefix("mailto:")
            if target.rstrip("/") not in "".join(self._pieces[start:]):
                self._pieces.append(f" ({target})")

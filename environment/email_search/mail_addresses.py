"""Names and addresses in a header field such as `Ann Lee <ann@a.example>, bo@b.example`.

Python's own parser is not used: in some patch releases it returns nothing for a whole field with one odd address
(CVE-2023-27043), in others parts of names as addresses. Here a field gives the same on every Python, odd parts stay in
a name, and the time is linear in the length of the field.
"""

import re
from collections.abc import Iterator

_WORD = r"=\?([^?*\s]{1,40})(?:\*[^?\s]*)?\?([bq])\?((?:(?!=\?[^?\s]{1,40}\?[bq]\?).)*?)"
ENCODED_WORD = re.compile(rf"{_WORD}(?:\?=|\Z)", re.I | re.S)
"""Matches `=?charset?q?...?=` (RFC 2047), also with characters that it must not have, or cut off at the end."""

_LOCAL = r'[^\s<>()\[\],;:"@]'
_ADDRESS = re.compile(rf'(?:"[^"<>]+"|(?<!{_LOCAL}){_LOCAL}++)@(?:\[[^\[\]\s<>"]+\]|{_LOCAL}+)')
_TOKEN = re.compile(
    rf"""(?P<text>{_WORD}\?=
        |\\. | "[^"\\<>]+"(?=@) | @\[[^\[\]\s<>"]+\] | [^"(<,;:\\=@]+)
    | "(?P<quoted>(?:[^"\\]|\\.)*+)"
    | \((?P<comment>(?:[^()<>\\]|\\.|\((?:[^()<>\\]|\\.)*+\))*+)\)
    | <(?P<angle>[^<>]*+)>
    | (?P<end>[,;]) | (?P<colon>:) | (?P<other>.)""",
    re.I | re.S | re.X,
)
_WITH_ADDRESS = re.compile(r"<[^<>\s]+@[^<>\s]+>")
_ENDS_ENTRY = re.compile(rf"{_WITH_ADDRESS.pattern}\s*[,;]")
_SCHEME = re.compile(r"\b(?:mailto|smtp):", re.I)
_OBSCURED = re.compile(r"(?<!\S)(\S++) at (?=[\w-]++\.\w)")
"""Matches `ann at python.org`, the way list archives write addresses."""

_Token = tuple[str, str]


def people(field: str) -> Iterator[tuple[str, str]]:
    """Yield name and address of each person in a field of one line. One of the two can be empty; a lone word is an
    address."""
    waiting: list[str] = []
    for entry, end in _entries(field):
        of_entry = list(_of_entry(entry))
        if of_entry and of_entry[0][1] and any(kind == "angle" for kind, _ in entry):
            # An unquoted comma: "Lee, Ann <ann@a.example>" is one person.
            of_entry[0] = ", ".join(filter(None, (*waiting, of_entry[0][0]))), of_entry[0][1]
            waiting = []
        elif of_entry and not of_entry[0][1]:
            waiting.append(of_entry.pop()[0])
        if of_entry or end != ",":
            yield from map(_alone, filter(None, waiting))
            waiting = []
        yield from of_entry


def _alone(text: str) -> tuple[str, str]:
    return (text, "") if " " in text or "," in text else ("", text)


def _entries(field: str) -> Iterator[tuple[list[_Token], str]]:
    """Yield the tokens between commas and semicolons, each with what ends them; names of groups are left out."""
    entry: list[_Token] = []
    unbalanced = len(re.findall(r'(?<!\\)"', field)) % 2 == 1
    last_end, length = field.rfind(";"), len(field.rstrip())
    position, can_be_group = 0, True
    while token := _TOKEN.match(field, position):
        kind, text = token.lastgroup or "", token[token.lastgroup or 0]
        position = token.end()
        if kind == "quoted" and (_ENDS_ENTRY if not unbalanced else _WITH_ADDRESS).search(text):
            kind, text, position = "other", "", token.start() + 1  # The quotation mark has no partner.
        if kind == "end":
            yield entry, text
            entry, can_be_group = [], True
        elif kind == "colon" and can_be_group and entry and (last_end >= position or position >= length):
            entry = []
        else:
            can_be_group = can_be_group and kind in ("text", "quoted") and not text.endswith(" ")
            text = re.sub(r"\\(.)", r"\1", text) if kind == "quoted" else text
            entry.append((kind, "" if kind == "other" and text in '"<' else text))
    yield entry, ""


def _of_entry(entry: list[_Token]) -> Iterator[tuple[str, str]]:
    """Yield the people of an entry; a text without an address as a name."""
    angles = [text for kind, text in entry if kind == "angle"]
    addressed = [text for text in angles if "@" in text] or angles[-1:]
    name: list[_Token] = []
    people: list[tuple[str, str]] = []
    for kind, text in entry:
        if kind == "angle" and text in addressed:
            first, *others = _addresses(text)
            people += [(_joined(name), first), *(("", other) for other in others)]
            name = []
        else:
            name.append((kind, f"<{text}>" if kind == "angle" else text))
    rest = _bare(name)
    if people and rest and not rest[0][1]:  # A text after the address.
        *people, (last, address) = people
        rest = [(_joined([("text", f"{last} "), *name]) if last else rest[0][0], address)]
    yield from (*people, *rest)


def _joined(tokens: list[_Token]) -> str:
    """Return a name; a comment that is not all of it stays in parentheses."""
    only = not any(text.strip() for kind, text in tokens if kind != "comment")
    return " ".join("".join(f"({text})" if kind == "comment" and not only else text for kind, text in tokens).split())


def _addresses(angle: str) -> list[str]:
    return [match[0] for match in _ADDRESS.finditer(_plain(angle))] or ["".join(angle.split())]


def _plain(text: str) -> str:
    return re.sub(r"\s*+@\s*+", "@", text) if "@" in text else _OBSCURED.sub(r"\1@", text)


def _bare(tokens: list[_Token]) -> list[tuple[str, str]]:
    """Return the people in a text without angle brackets."""
    text = _plain(_SCHEME.sub("", "".join(text for kind, text in tokens if kind != "comment")))
    matches = list(_ADDRESS.finditer(text))
    if not matches:
        whole = _joined(tokens).strip(" <>")
        return [(whole, "")] if whole else []
    starts = [0, *(match.end() for match in matches)]
    ends = [*(match.start() for match in matches), len(text)]
    *names, rest = [text[start:end].strip(" :[]<>'.") for start, end in zip(starts, ends, strict=True)]
    note = _joined([token for token in tokens if token[0] == "comment"])
    names[-1] = " ".join(filter(None, (names[-1], rest))) or note
    return [(name, match[0].strip("'").rstrip(".")) for name, match in zip(names, matches, strict=True)]

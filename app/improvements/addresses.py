"""Finds addresses, hosts and long numbers in a text: with these, a prompt can send an agent or its users elsewhere."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

_ENDS = (
    "ai app biz blog buzz cafe club co com cyou dev edu eu finance fun gov icu info io life live loan lol mil mobi mom"
    " net ninja online org pro shop site studio tech tv vip website wiki win world xxx xyz"
    " ae ar au bg br ca ch cl cn cz de dk ee es fi fr gg gr hk hr hu ie il ir jp ke kp kr kz lt lu lv mx ng nl nz pe pk"
    " pl pt ro ru sa se sg sk su th tr tw ua ug uk uy uz ve vn za xn--[a-z0-9-]+"
)
"""Ends of hosts that rarely follow a dot otherwise, as words (`is`), fields (`email`) and ends of files (`md`) do."""
_FILES = "cc|js|md|mm|ps|py|rb|rs|sh|so|tf|ts|vb"
"""Ends of files with two letters, after which a slash is no sign of a host."""
_REST = r"[!#-&*-;=?-\[\\^-_a-z|~]"
_LABELS = r"(?<![a-z0-9_.@/-])(?:[a-z0-9-]+\.)+"
_ADDRESSES = re.compile(
    "|".join(
        (
            rf"\b[a-z][a-z0-9+.-]{{1,19}}://{_REST}+",
            rf"\b(?:mailto|tel|sms|javascript):{_REST}+|\bdata:\w+/\w+[;,]{_REST}*",
            r"(?<![a-z0-9_.+%-])[a-z0-9_.+%-]+@(?:[a-z0-9-]+\.)+[a-z]{2,}",
            rf"(?<![a-z0-9_.@/-])www\.{_REST}+",
            rf"{_LABELS}(?:{'|'.join(_ENDS.split())})(?![a-z0-9_(-]|\.[a-z0-9])(?:/{_REST}*)?",
            rf"{_LABELS}(?!(?:{_FILES})/)[a-z]{{2}}/\w{_REST}*",
            r"(?<![\w-])[\w-]+\.(?:рф|中国|中國|香港|台灣|한국|भारत)",
            r"\blocalhost\b",
            r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)",
            r"(?<![\w:])(?=[0-9a-f:]*\d)(?:[0-9a-f]{1,4}:+){3,8}[0-9a-f]{0,4}(?!\w)",
        )
    )
)
_NUMBERS = re.compile(
    "|".join(
        (
            r"(?<![a-z0-9.+-])[a-z]{2}\d{2} ?(?:[a-z0-9]{4} ){2,7}[a-z0-9]{1,4}(?![a-z0-9])",  # an account
            r"(?<![a-z0-9.,/-])(?:\+\d|\(\d|0\d)[\d ().\-/]{6,}\d",  # a telephone
            r"(?<![\d.,-])\d{3}[ .-]\d{3}[ .-]\d{4}(?!\d)",
            r"(?<![\d.,-])\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?!\d)",  # a card
            r"(?<![a-z0-9.-])(?=[\d-]*\d{3})\d[\d-]{8,}\d(?![a-z0-9-])",
            r"(?<![a-z0-9-])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}(?![a-z0-9])",
            r"(?<!\d\.)(?<![a-z0-9_])[a-z]*\d[a-z0-9]{6,}(?![a-z0-9_])",
        )
    )
)
_YEAR = r"(?:19|20)\d\d"
_DATE = re.compile(
    rf"(?<!\d)(?:{_YEAR}(?:[01]\d[0-3]\d|[-/.][01]?\d[-/.][0-3]?\d)|[0-3]?\d[-/. ][01]?\d[-/. ](?:{_YEAR}|\d\d))(?!\d)"
)
_LONG_NUMBER = 7
"""Least number of digits."""
_DEFANGED = (
    (re.compile(r" ?[\[({] ?(?:dot|\.) ?[\])}] ?|(?<=[a-z0-9])。(?=[a-z])"), "."),
    (re.compile(r" ?[\[({] ?(?:at|@) ?[\])}] ?"), "@"),
    (re.compile(r"\bhxxp"), "http"),
)
"""How addresses are written that are not to be followed."""
_EXAMPLES = re.compile(r"(?:^|\.)(?:example(?:\.(?:com|org|net))?|test|invalid)$")
"""Hosts that lead nowhere, by RFC 2606."""


def new_addresses(text: str, before: str, allow: Sequence[str]) -> Iterator[str]:
    """Yield the addresses, hosts and long numbers of a text that the text before does not have, in lower case.

    `allow` has those that are welcome: addresses, numbers, and hosts, each with all that is at it.
    """
    known = set(_found(before))
    allowed = [entry.casefold().rstrip("/") for entry in allow if entry.strip("/ ")]
    for address in _found(text):
        host = _host(address)
        is_welcome = any(
            address == entry or address.startswith(f"{entry}/") or host == entry or host.endswith(f".{entry}")
            for entry in allowed
        )
        if address not in known and not is_welcome and _EXAMPLES.search(host) is None:
            yield address


def _found(text: str) -> Iterator[str]:
    plain = "".join(map(_ascii_digit, unicodedata.normalize("NFKC", text).casefold()))
    for form, meaning in _DEFANGED:
        plain = form.sub(meaning, plain)
    for match in _ADDRESSES.finditer(plain):
        yield match[0].rstrip(".,;:!?/")
    for match in _NUMBERS.finditer(plain):
        if _is_long(match[0]):
            yield match[0]


def _ascii_digit(character: str) -> str:
    return str(unicodedata.decimal(character)) if character.isdecimal() else character


def _is_long(number: str) -> bool:
    """Return whether a number is long enough to be somebody's: neither a date, nor binary, nor large and round."""
    digits = "".join(filter(str.isdecimal, _DATE.sub("", number)))
    if number.isalnum() and not number.isdecimal():
        return len(digits) >= (3 if len(number) >= 24 else 8) and len(number) >= 16
    is_round = len(digits.strip("0")) < _LONG_NUMBER - 2
    return len(digits) >= _LONG_NUMBER and not is_round and not set(digits) <= {"0", "1"}


def _host(address: str) -> str:
    """Return the host of an address; an empty text if it has none, such as a number."""
    try:
        return urlsplit(address if "://" in address else f"//{address}").hostname or ""
    except ValueError:
        return ""

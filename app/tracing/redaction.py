"""Makes values safe to send to other machines: bounded in size and without secrets.

It removes the values of keys that name a secret, our configured secrets anywhere in a text (also escaped as in JSON or
a URL), and texts that look like a key, token or password.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pydantic import SecretStr

from learnloop_service.app.settings import Settings
from learnloop_service.environment.base import Json
from learnloop_service.judges.providers import PROVIDERS
from learnloop_service.training.backends.registry import settings_of_backends

HIDDEN = "[redacted]"
MAX_TEXT = 20_000
"""Maximum number of characters of one text."""
MAX_PAYLOAD = 200_000
"""Maximum size of a payload. Each value and each character of a text counts as one."""
_MAX_ITEMS = 1_000
"""Maximum number of items of an object or list."""
_MAX_DEPTH = 16
_MARGIN = 4_096
"""Number of characters after the cut that are also searched. No configured secret is longer, so one that spans the cut
is found."""
_MIN_SECRET = 4
"""Minimum length in characters. Anything shorter is not a secret and would be redacted in every text."""

_NAMES = (
    r"api[_-]?key|access[_-]?key|private[_-]?key|authorization|passw(?:or)?d|passphrase|secret(?!ar)|credential|cookie"
    r"|(?:access|auth|refresh|id|session|bearer)[_-]?token"
)
_SECRET_KEY = re.compile(rf"(?i){_NAMES}|(?:^|[_-])token$|^(?:pwd|dsn)$|database[_-]?url")
_ASSIGNED = r"""[\w-]{0,40}\\?["']?\s{0,3}[:=]\s{0,3}"""
_VALUE = r"""(?:(\\?")[^"\\]+|(\\?')[^'\\]+|(?:(?:basic|bearer|token) +)?[^\s"'\\,;}]+)"""
_NAMED = re.compile(rf"(?i)((?:{_NAMES}|(?:\b|_)token\b){_ASSIGNED}){_VALUE}")
"""A secret after its name: in headers, JSON (also nested as a string), assignments and query strings."""
_HINTS = ("key", "auth", "pass", "secret", "credential", "cookie", "token")
"""Every name contains one of these, and most texts contain none. Searching for them takes a hundredth of the time."""
_SHAPES = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"), HIDDEN),
    (re.compile(r"(?i)\b(bearer +|basic +(?=\S*[\d=]))[\w.~+/-]{8,}=*"), rf"\1{HIDDEN}"),
    (re.compile(r"(://[^\s/:@]{0,200}):[^\s/@]{1,200}@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"\b(?:sk|rk|pk|key|gsk|xai|hf|whsec|gh[opsu]|glpat|xox[abp])[-_][\w.*-]{8,}"), HIDDEN),
    (re.compile(r"\bl[ls]_[\w-]{40,}"), HIDDEN),  # our own keys and browser sign-ins
    (re.compile(r"\b(?:github_pat_\w{20,}|AKIA[A-Z0-9]{12,}|AIza[\w-]{20,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]*)"), HIDDEN),
)
"""Patterns of secrets, and their replacements."""


def secrets_of(settings: Settings) -> list[str]:
    """Return the values of all secret settings, those of backends included, keys of language models, passwords in URLs,
    and keys in headers."""
    every = chain(settings, *settings_of_backends())
    secrets = [value for _, value in every if isinstance(value, SecretStr)]
    secrets += [model.key for model in settings.models if model.key is not None]
    secrets += [key for provider in PROVIDERS.values() if (key := settings.provider_key(provider)) is not None]
    values = [secret.get_secret_value() for secret in secrets]
    # the part after a scheme such as Bearer
    values += [header.rpartition(" ")[2] for header in settings.otlp_headers.values()]
    return values + [password for value in values if (password := _password(value)) is not None]


def _password(url: str) -> str | None:
    try:
        password = urlsplit(url).password
    except ValueError:
        return None
    return unquote(password) if password else None


class Redactor:
    """Removes secrets from values. It never raises and is thread-safe."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spelled = {form for secret in secrets if len(secret) >= _MIN_SECRET for form in _spellings(secret)}
        # longest first, because a secret can contain another
        ordered = sorted(spelled, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def clean_text(self, text: str) -> str:
        """Return the text without secrets, cut to `MAX_TEXT` characters followed by its full length."""
        window = text[: MAX_TEXT + _MARGIN]
        clean = window.encode(errors="replace").decode()
        if self._known is not None:
            clean = self._known.sub(HIDDEN, clean)
        for shape, instead in _SHAPES:
            clean = shape.sub(instead, clean)
        lowered = clean.lower()
        if any(hint in lowered for hint in _HINTS):
            clean = _NAMED.sub(rf"\1\2\3{HIDDEN}", clean)
        if len(text) <= MAX_TEXT:
            return clean
        # The last characters of the window can be the beginning of a secret that extends beyond it.
        beginning = clean[: max(0, min(MAX_TEXT, len(clean) - (_MARGIN if len(window) < len(text) else 0)))]
        return f"{beginning} [cut: {len(text)} characters in all]"

    def value(self, value: object) -> Json:
        """Return a redacted copy as plain JSON. Other values are replaced with the name of their type."""
        return _Copy(self).of(value, depth=0)


class _Copy:
    """A copy of one payload, and the size that is left."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._left = MAX_PAYLOAD

    def of(self, value: object, depth: int) -> Json:
        self._left -= 1
        if self._left <= 0 or depth > _MAX_DEPTH:
            return "[left out]"
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int):
            return int(value) if -(2**53) <= value <= 2**53 else "[a large number]"
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(float(value))
        if isinstance(value, Mapping):
            return self._object(value, depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._list(value, depth)
        return f"<{type(value).__name__}>"

    def _text(self, text: str) -> str:
        clean = self._redactor.clean_text(text)
        self._left -= len(clean)
        return clean if self._left > 0 else "[left out]"

    def _object(self, value: Mapping[Any, Any], depth: int) -> dict[str, Json]:
        result: dict[str, Json] = {}
        for number, (key, item) in enumerate(value.items()):
            if number == _MAX_ITEMS or self._left <= 0:
                result["..."] = f"[{len(value) - number} more]"
                break
            name = key if isinstance(key, str) else f"{key}" if isinstance(key, int) else f"<{type(key).__name__}>"
            result[self._text(name[:200])] = (
                HIDDEN if item is not None and _is_secret(name) else self.of(item, depth + 1)
            )
        return result

    def _list(self, value: Iterable[Any], depth: int) -> list[Json]:
        items = list(value)
        result: list[Json] = []
        for number, item in enumerate(items):
            if number == _MAX_ITEMS or self._left <= 0:
                result.append(f"[{len(items) - number} more]")
                break
            result.append(self.of(item, depth + 1))
        return result


def _is_secret(key: str) -> bool:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key)
    return _SECRET_KEY.search(spaced) is not None


def _spellings(secret: str) -> set[str]:
    """Return the secret as it is, as in JSON (also nested), and as in a URL."""
    once = json.dumps(secret)[1:-1]
    return {
        secret,
        once,
        json.dumps(once)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        quote(secret),
        quote(secret, safe=""),
    }

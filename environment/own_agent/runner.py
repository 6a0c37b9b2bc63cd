"""How tasks reach an agent that runs elsewhere: the setting `runner` of the environment `agent`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from learnloop_service.environment.base import Json

_KINDS = ("push", "pull", "python")
_FUNCTION = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)", re.ASCII)
_EXPECTED = 'one of {"push": {"url": ...}}, {"pull": {}} and {"python": "package.module:function"}'


@dataclass(frozen=True, slots=True)
class Push:
    """Each task is posted to a URL."""

    url: str
    secret: Json = field(default=None, repr=False)
    """Secret that signs the requests, in its stored form; None: they are not signed."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Tasks wait until an agent claims them."""


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """The worker itself calls an async function."""

    module: str
    function: str

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"


Runner = Push | Pull | PythonFunction


def parse_runner(value: Json) -> Runner:
    """Parse the runner in a config. Raises ValueError."""
    if not isinstance(value, Mapping) or len(value) != 1 or (kind := next(iter(value))) not in _KINDS:
        raise ValueError(f"runner must be {_EXPECTED}, not {_excerpt(value)}")
    settings = value[kind]
    if kind == "python":
        named = _FUNCTION.fullmatch(settings) if isinstance(settings, str) else None
        if named is None:
            raise ValueError(f"runner.python must name a function as package.module:function, not {_excerpt(settings)}")
        return PythonFunction(named["module"], named["function"])
    keys = {"url", "secret"} if kind == "push" else set[str]()
    if not isinstance(settings, Mapping) or set(settings) - keys:
        takes = "url and secret" if kind == "push" else "no settings: {}"
        raise ValueError(f"runner.{kind} takes {takes}")
    if kind == "pull":
        return Pull()
    if not isinstance(settings.get("url"), str):
        raise ValueError("runner.push needs a url")
    return Push(settings["url"], settings.get("secret"))


def _excerpt(value: Json) -> str:
    return repr(value)[:200]

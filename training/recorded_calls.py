"""The answered calls of an unfinished rollout: whoever makes it again is given their answers, and goes on where it was
cut off.

A call is found again by all that was asked, its seed included. So nothing is given to a request that was not the same,
and an agent that goes another way this time is answered anew from there.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from environment.base import Json

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

KEEP_AFTER_S = 5.0
"""Of sampling: so much is done again at most, and turns that are shorter cost no entry of their own."""


class RecordedCalls:
    """Those of one rollout, whose attempts share them."""

    def __init__(self, parts: Iterable[str] = (), keep: Callable[[str], None] = lambda part: None) -> None:
        """`parts` were kept before; `keep` is given further ones."""
        self.given = False
        """Whether an answer was given again: then the endpoint may not remember the conversation."""
        self._answers = dict(answer for part in parts for answer in _answers(part))
        self._keep = keep
        self._unkept: list[tuple[str, ChatCompletion]] = []
        self._unkept_s = 0.0

    def answer(self, body: Mapping[str, Json]) -> "ChatCompletion | None":
        """The answer to that request, if it was answered before."""
        found = self._answers.get(_digest(body))
        self.given = self.given or found is not None
        return found

    def add(self, body: Mapping[str, Json], completion: "ChatCompletion", seconds: float) -> None:
        """A request was answered; its sampling took so long."""
        digest = _digest(body)
        self._answers[digest] = completion
        self._unkept.append((digest, completion))
        self._unkept_s += seconds
        if self._unkept_s >= KEEP_AFTER_S:
            kept = [{"digest": name, "completion": each.model_dump(mode="json")} for name, each in self._unkept]
            self._keep(json.dumps(kept))
            self._unkept, self._unkept_s = [], 0.0


def usages_of(part: Json) -> list[Mapping[str, int]]:
    """The usage of each call in a part, which is parsed already."""
    return [call["completion"]["usage"] for call in part if call["completion"]["usage"]]


def _answers(part: str) -> "list[tuple[str, ChatCompletion]]":
    from openai.types.chat import ChatCompletion

    return [(call["digest"], ChatCompletion.model_validate(call["completion"])) for call in json.loads(part)]


def _digest(body: Mapping[str, Json]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

"""The answered model calls of an unfinished rollout. When the rollout is repeated they are replayed, and the model is
called only for what comes after.

A call is recognized by its whole request, including its seed. Any other request goes to the model, for example when an
agent acts differently this time.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from learnloop_service.environment.base import Json

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

KEEP_AFTER_S = 5.0
"""Seconds of sampling after which answers are saved. A killed process loses at most this much, and short turns do not
cost an entry each."""


class RecordedCalls:
    """The answered calls of one rollout.

    As a context manager around the rollout, it also saves the last answers if the rollout ends without a result,
    because it was cancelled or its budget was used up.
    """

    counts = True
    """Whether recorded answers count toward the rollout's usage: they were sampled for it."""

    def __init__(self, parts: Iterable[str] = (), keep: Callable[[str], None] = lambda part: None) -> None:
        """`parts` were saved earlier; `keep` saves a new part."""
        self.given = False
        """Whether an answer was replayed, so that the endpoint might not have the conversation's state."""
        self._answers = dict(answer for part in parts for answer in _answers(part))
        self._keep = keep
        self._unkept: list[tuple[str, ChatCompletion]] = []
        self._unkept_s = 0.0

    def __enter__(self) -> "RecordedCalls":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._unkept:
            self._keep_answers()

    def answer(self, body: Mapping[str, Json]) -> "ChatCompletion | None":
        """Return the recorded answer to a request, if any."""
        completion = self._answers.get(_digest(body))
        self.given = self.given or completion is not None
        return completion

    def add(self, body: Mapping[str, Json], completion: "ChatCompletion", seconds: float) -> None:
        """Record the answer to a request, and the seconds that sampling took."""
        digest = _digest(body)
        self._answers[digest] = completion
        self._unkept.append((digest, completion))
        self._unkept_s += seconds
        if self._unkept_s >= KEEP_AFTER_S:
            self._keep_answers()

    def _keep_answers(self) -> None:
        answers = [
            {"digest": name, "completion": completion.model_dump(mode="json")} for name, completion in self._unkept
        ]
        self._keep(json.dumps(answers))
        self._unkept, self._unkept_s = [], 0.0


def usages_of(part: Json) -> list[Mapping[str, int]]:
    """Return the usage of each call in a parsed part."""
    return [call["completion"]["usage"] for call in part if call["completion"]["usage"]]


def _answers(part: str) -> "list[tuple[str, ChatCompletion]]":
    from openai.types.chat import ChatCompletion

    return [(call["digest"], ChatCompletion.model_validate(call["completion"])) for call in json.loads(part)]


def _digest(body: Mapping[str, Json]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

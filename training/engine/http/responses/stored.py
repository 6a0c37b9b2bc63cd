"""Responses that can be continued by `previous_response_id` or by references to their items.

They are kept in memory as long as there is room.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from learnloop_service.training.engine.http.errors import ApiError
from learnloop_service.training.protocol.responses.items import Item

MAX_BYTES = 64 << 20
_HINT = "responses are kept in memory while there is room: send the items of the conversation instead"


@dataclass(frozen=True, slots=True)
class _Response:
    conversation: tuple[Item, ...]
    output: tuple[Item, ...]
    size: int


@dataclass(slots=True)
class _Scope:
    """The stored responses of one project, least recently used first."""

    responses: OrderedDict[str, _Response] = field(default_factory=OrderedDict)
    items: dict[str, Item] = field(default_factory=dict)
    size: int = 0


class StoredResponses:
    """Stored responses by scope (a project) and id. A project cannot read another's responses or use up its room."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._scopes: dict[str, _Scope] = {}

    def conversation(self, scope: str, response_id: str) -> tuple[Item, ...]:
        """Return the input and output of a response, preceded by those of the responses that it continued. Raises
        ApiError."""
        responses = self._scopes.get(scope, _Scope()).responses
        if response_id not in responses:
            raise ApiError(
                400,
                f"there is no response {response_id!r} to continue; {_HINT}",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        responses.move_to_end(response_id)
        return (*responses[response_id].conversation, *responses[response_id].output)

    def item(self, scope: str, item_id: str) -> Item:
        """Return an item of a response's output. Raises ApiError."""
        try:
            return self._scopes[scope].items[item_id]
        except KeyError:
            raise ApiError(
                400, f"there is no item {item_id!r}; {_HINT}", code="item_not_found", param="input"
            ) from None

    def keep(self, scope: str, response_id: str, conversation: Sequence[Item], output: Sequence[Item]) -> None:
        """Store a response, dropping the least recently used ones if necessary."""
        size = len(json.dumps([*conversation, *output]))
        project = self._scopes.setdefault(scope, _Scope())
        project.responses[response_id] = _Response(tuple(conversation), tuple(output), size)
        project.items.update({item["id"]: item for item in output})
        project.size += size
        self._size += size
        while self._size > self._max_bytes:
            self._drop_one(max(self._scopes, key=lambda name: self._scopes[name].size))

    def _drop_one(self, scope: str) -> None:
        project = self._scopes[scope]
        _, oldest = project.responses.popitem(last=False)
        for item in oldest.output:
            del project.items[item["id"]]
        project.size -= oldest.size
        self._size -= oldest.size
        if not project.responses:
            del self._scopes[scope]

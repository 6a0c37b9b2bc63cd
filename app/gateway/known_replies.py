"""The token ids of what a session's model replied, for its next request.

The engine remembers them itself, until it is restarted. A prompt must be built from what was sampled, not rendered and
tokenised from its text; so assistant's messages that are recorded replies go to the engine with their token ids.
"""

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import select, tuple_

from app.agent_sessions.canonical import CanonicalRequest, conversation_with, conversations
from app.agent_sessions.records import unpack_answer, unpack_request
from app.db.database import Database
from app.db.tables import SessionCall
from environment.json_type import Json

_MOST_SESSIONS = 2_000
_MOST_IDS = 10_000_000
"""Of all of them together: 40 MB."""


@dataclass(slots=True)
class _Replies:
    """Of one session: by the digest of the conversation up to and with a reply, its ids."""

    ids: "dict[bytes, array[int]]" = field(default_factory=dict)
    calls: set[tuple[str, int]] = field(default_factory=set)
    """Digest and occurrence of those that are in it."""


class KnownReplies:
    """Of the sessions that this process saw last."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[str, _Replies] = OrderedDict()
        self._ids = 0

    async def messages(self, session_id: str, request: CanonicalRequest) -> list[dict[str, Json]]:
        """The request's messages, replies with their `token_ids`."""
        replies = [index for index, message in enumerate(request.messages) if message["role"] == "assistant"]
        if not replies:
            return list(request.messages)
        digests = request.conversations
        known = self._of(session_id)
        if any(digests[index] not in known.ids for index in replies):
            await self._load(session_id, known)
            known = self._of(session_id)  # which may have been forgotten meanwhile
        messages = list(request.messages)
        for index in replies:
            if (ids := known.ids.get(digests[index])) is not None:
                messages[index] = {**messages[index], "token_ids": ids.tolist()}
        return messages

    def add(
        self,
        session_id: str,
        call: tuple[str, int],
        conversation: bytes,
        completion: Mapping[str, Json],
    ) -> None:
        """Remember how a call, of that digest and occurrence, which asked for the next message of the conversation with
        that digest, was answered."""
        known = self._of(session_id)
        known.calls.add(call)
        for choice in completion["choices"]:
            if (ids := _ids(choice)) is not None:
                reply = conversation_with(conversation, choice["message"])
                self._ids += len(ids) - len(known.ids.get(reply, ()))
                known.ids[reply] = ids
        self._forget_oldest()

    def _of(self, session_id: str) -> _Replies:
        known = self._known.setdefault(session_id, _Replies())
        self._known.move_to_end(session_id)
        self._forget_oldest()
        return known

    def _forget_oldest(self) -> None:
        """What is needed of them again is loaded. The newest one stays, whatever its size."""
        while len(self._known) > _MOST_SESSIONS or (self._ids > _MOST_IDS and len(self._known) > 1):
            _, forgotten = self._known.popitem(last=False)
            self._ids -= sum(map(len, forgotten.ids.values()))

    async def _load(self, session_id: str, known: _Replies) -> None:
        """What other processes recorded, or this one before it was restarted."""
        row = SessionCall
        query = select(row.digest, row.occurrence, row.request, row.answer).where(
            row.session_id == session_id,
            row.answer.is_not(None),
            tuple_(row.digest, row.occurrence).not_in(sorted(known.calls)),
        )
        async with self._database() as tx:
            rows = (await tx.execute(query)).all()
        for digest, occurrence, request, answer in rows:
            asked = unpack_request(request)
            assert answer is not None
            conversation = conversations(asked.messages, asked.tools)[-1]
            self.add(session_id, (digest, occurrence), conversation, unpack_answer(answer))


def _ids(choice: Mapping[str, Json]) -> "array[int] | None":
    """None where the server does not tell them."""
    tokens = (choice.get("logprobs") or {}).get("content") or []
    if not tokens or not all(token["token"].startswith("token_id:") for token in tokens):
        return None
    return array("i", [int(token["token"].partition(":")[2]) for token in tokens])

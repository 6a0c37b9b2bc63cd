"""Token ids of the replies in a session, for its later requests.

The engine remembers them only until it restarts. A prompt must be built from the token ids that were sampled, not by
rendering and tokenizing their text. Assistant messages that are recorded replies are therefore sent to the engine with
their token ids.
"""

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import select, tuple_

from learnloop_service.app.agent_sessions.canonical import CanonicalRequest, conversation_with, conversations
from learnloop_service.app.agent_sessions.records import unpack_answer, unpack_request
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import SessionCall
from learnloop_service.environment.json_type import Json

_MOST_SESSIONS = 2_000
_MOST_IDS = 10_000_000
"""Maximum number of token ids in memory for all sessions together (40 MB)."""


@dataclass(slots=True)
class _Replies:
    """Token ids of one session's replies, by the digest of the conversation up to and including the reply."""

    ids: "dict[bytes, array[int]]" = field(default_factory=dict)
    calls: set[tuple[str, int]] = field(default_factory=set)
    """Digest and occurrence of each call whose answer is included."""


class KnownReplies:
    """Replies in the sessions that this process used most recently."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[str, _Replies] = OrderedDict()
        self._ids = 0

    async def messages(self, session_id: str, request: CanonicalRequest) -> list[dict[str, Json]]:
        """Return the request's messages, with `token_ids` in those that are known replies."""
        indexes = [index for index, message in enumerate(request.messages) if message["role"] == "assistant"]
        if not indexes:
            return list(request.messages)
        digests = request.conversations
        replies = self._of(session_id)
        if any(digests[index] not in replies.ids for index in indexes):
            await self._load(session_id, replies)
            replies = self._of(session_id)  # it can have been evicted in the meantime
        messages = list(request.messages)
        for index in indexes:
            if (ids := replies.ids.get(digests[index])) is not None:
                messages[index] = {**messages[index], "token_ids": ids.tolist()}
        return messages

    def add(
        self,
        session_id: str,
        call: tuple[str, int],
        conversation: bytes,
        completion: Mapping[str, Json],
    ) -> None:
        """Remember the answer of a call. `call` is its digest and occurrence, `conversation` the digest of the
        conversation that it continues."""
        replies = self._of(session_id)
        replies.calls.add(call)
        for choice in completion["choices"]:
            if (ids := _ids(choice)) is not None:
                reply = conversation_with(conversation, choice["message"])
                self._ids += len(ids) - len(replies.ids.get(reply, ()))
                replies.ids[reply] = ids
        self._forget_oldest()

    def _of(self, session_id: str) -> _Replies:
        replies = self._known.setdefault(session_id, _Replies())
        self._known.move_to_end(session_id)
        self._forget_oldest()
        return replies

    def _forget_oldest(self) -> None:
        """Evict the oldest sessions, which are loaded again when needed. The newest one stays, whatever its size."""
        while len(self._known) > _MOST_SESSIONS or (self._ids > _MOST_IDS and len(self._known) > 1):
            _, forgotten = self._known.popitem(last=False)
            self._ids -= sum(map(len, forgotten.ids.values()))

    async def _load(self, session_id: str, replies: _Replies) -> None:
        """Load what other processes recorded, or this one before a restart."""
        row = SessionCall
        query = select(row.digest, row.occurrence, row.request, row.answer).where(
            row.session_id == session_id,
            row.answer.is_not(None),
            tuple_(row.digest, row.occurrence).not_in(sorted(replies.calls)),
        )
        async with self._database() as tx:
            rows = (await tx.execute(query)).all()
        for digest, occurrence, packed, answer in rows:
            request = unpack_request(packed)
            assert answer is not None
            conversation = conversations(request.messages, request.tools)[-1]
            self.add(session_id, (digest, occurrence), conversation, unpack_answer(answer))


def _ids(choice: Mapping[str, Json]) -> "array[int] | None":
    """Return the token ids of a choice, or None if the server does not report them."""
    tokens = (choice.get("logprobs") or {}).get("content") or []
    if not tokens or not all(token["token"].startswith("token_id:") for token in tokens):
        return None
    return array("i", [int(token["token"].partition(":")[2]) for token in tokens])

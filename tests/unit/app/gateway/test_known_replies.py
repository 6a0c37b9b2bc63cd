"""The token ids of replies are remembered for a number of sessions and tokens, and looked up for the others."""

from typing import Any, cast

import pytest

from learnloop_service.app.agent_sessions.canonical import canonical, conversations
from learnloop_service.app.gateway.known_replies import KnownReplies

ASKED = {"role": "user", "content": "hello"}
ONE = conversations([ASKED], ())[-1]


def completion(*ids: int) -> dict[str, Any]:
    tokens = [{"token": f"token_id:{id}", "logprob": -0.1} for id in ids]
    choice = {"message": {"role": "assistant", "content": "hi"}, "logprobs": {"content": tokens}}
    return {"choices": [choice]}


async def test_sessions_with_many_tokens_are_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []

    async def load(self: KnownReplies, session_id: str, conversation: object) -> None:
        looked_up.append(session_id)

    monkeypatch.setattr(KnownReplies, "_load", load)
    monkeypatch.setattr("learnloop_service.app.gateway.known_replies._MOST_IDS", 5)
    replies = KnownReplies(cast(Any, None))
    request = canonical({"messages": [ASKED, completion()["choices"][0]["message"], ASKED]}, None)
    for number, id in enumerate("abc"):
        replies.add(id, (id, 0), ONE, completion(number, 8, 9))
    for id, ids in (("c", [2, 8, 9]), ("a", None), ("b", None)):
        messages = await replies.messages(id, request)
        assert messages[1].get("token_ids") == ids
    assert looked_up == ["a", "b"]
    replies.add("d", ("d", 0), ONE, completion(*range(9)))  # more than the limit: it stays all the same
    assert (await replies.messages("d", request))[1]["token_ids"] == [*range(9)]
    replies.add("d", ("d", 0), ONE, completion(*range(9)))  # the same one again counts once
    replies.add("d", ("e", 0), conversations([ASKED, ASKED], ())[-1], completion(1))
    assert (await replies.messages("d", request))[1]["token_ids"] == [*range(9)]

"""A receiver that does its worst: one attempt ends in time, reads nothing without end, and goes nowhere else."""

import asyncio
from datetime import UTC, datetime

import pytest

from learnloop_service.app.db.clock import DatabaseTime
from learnloop_service.app.security.address_guard import AddressGuard
from learnloop_service.app.security.secret_box import SecretBox
from learnloop_service.app.security.webhook_signing import new_secret
from learnloop_service.app.webhooks.sender import FRONTEND_ID, Receiver, Sender, SendResult
from tests.fakes.hostile_provider import (
    Answer,
    HostileProvider,
    bomb,
    drip,
    endless,
    endless_head,
    gigabyte,
    hostile_provider,
    redirecting,
    saying,
)

MOST_TAKEN = 32 * 2**20
"""Bytes in the buffers of two sockets; none of them is read."""


async def _reply_of(url: str, id: str | None, timeout_s: float = 15.0) -> SendResult:
    box = SecretBox(b"a key of the test, with 32 bytes")
    sender = Sender(box, AddressGuard(["127.0.0.1"]), timeout_s)
    secret = box.seal(new_secret(), id or "")
    try:
        return await sender.send(Receiver(id, url, (secret,)), "01K", DatabaseTime(datetime.now(UTC)), "{}")
    finally:
        await sender.close()


@pytest.mark.parametrize("id", [FRONTEND_ID, "01KAJ3M7F5T2V8Q9X0C4D6E8GA"], ids=["the operator's", "a user's"])
@pytest.mark.parametrize("answer", [gigabyte, endless, bomb, drip])
async def test_no_body_is_read(answer: Answer, id: str) -> None:
    async with hostile_provider(answer) as receiver:
        reply = await _reply_of(receiver.url, id)
        assert reply.status == 200
        assert reply.error is None
        assert receiver.accepted_bytes < MOST_TAKEN


async def test_a_head_without_end_is_no_reply() -> None:
    async with hostile_provider(endless_head) as receiver:
        reply = await _reply_of(receiver.url, FRONTEND_ID)
        assert reply.status is None
        assert reply.error
        assert receiver.accepted_bytes < MOST_TAKEN


async def test_a_receiver_that_is_not_there_is_an_error() -> None:
    async with hostile_provider(endless_head) as receiver:
        pass
    reply = await _reply_of(receiver.url, FRONTEND_ID)
    assert reply.status is None
    assert (reply.error or "").startswith("ConnectError") is True


async def test_no_reply_at_all_meets_the_deadline() -> None:
    async def silent(_: HostileProvider, writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()

    async with hostile_provider(silent) as receiver:
        reply = await _reply_of(receiver.url, FRONTEND_ID, timeout_s=0.2)
    assert reply.error == "no answer within 0.2 s"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(status: int) -> None:
    async with hostile_provider(saying(b"")) as elsewhere:
        async with hostile_provider(redirecting(status, elsewhere)) as receiver:
            reply = await _reply_of(receiver.url, FRONTEND_ID)
        assert elsewhere.heads == []
    assert reply.error == f"the receiver answered {status}"

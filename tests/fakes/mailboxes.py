"""Mailboxes, and questions about them, for tests that store mail in a service or prepare it."""

from pathlib import Path
from typing import Any

import httpx

COUNT = 30
SPLITS = ("train", "validation", "test")


def mbox(count: int = COUNT, first: int = 0) -> bytes:
    mails = [
        f"From mara@x.example Mon Mar  1 09:00:00 2021\nFrom: Mara <mara@x.example>\nTo: jo@x.example\n"
        f"Subject: Topic {number}\nMessage-ID: <{number}@x.example>\nDate: Mon, 01 Mar 2021 09:00:00 +0000\n\n"
        f"The budget of this part of the project is {number + 100} euros for now.\n\n"
        for number in range(first, first + count)
    ]
    return "".join(mails).encode()


def questions(count: int = 6, **more: Any) -> list[dict[str, Any]]:
    return [
        {"question": f"Budget of topic {n}?", "answer": f"{n + 100}", "source_ids": [f"<{n}@x.example>"],
         "split": SPLITS[n % 3], **more}
        for n in range(count)
    ]  # fmt: skip


async def stored(client: httpx.AsyncClient, name: str = "mail", body: bytes | None = None, **more: Any) -> Any:
    response = await client.post("/inboxes", params={"name": name}, content=body or mbox(), **more)
    assert response.status_code == 201, response.text
    return response.json()


async def create_scenarios(client: httpx.AsyncClient, **more: Any) -> Any:
    body = {"environment": "email_search", "inbox": "mail", "name": "mail", "scenarios": questions()} | more
    response = await client.post("/scenarios", json=body)
    assert response.status_code == 201, response.text
    return response.json()


def archive(path: Path, count: int, subject: str = "Topic {}", day: str = "01") -> None:
    """A mailbox in which every email says another value."""
    mails = [
        f"From mara@x.example Mon Mar  1 09:00:00 2021\nFrom: Mara <mara@x.example>\nTo: jo@x.example\n"
        f"Subject: {subject.format(number)}\nMessage-ID: <{number}@x.example>\n"
        f"Date: {day.format(number)} Mar 2021 09:00:00 +0000\n\n"
        f"The budget of this part of the project is {number + 100} euros for now.\n\n"
        for number in range(count)
    ]
    path.write_text("".join(mails))

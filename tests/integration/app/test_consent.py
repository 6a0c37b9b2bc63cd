"""Withdrawing consent to training, and giving it: of a user and of a session, and what cannot be undone."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from learnloop_service.app.agent_sessions.consent import consented_sessions
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Trajectory
from tests.integration.app.agent_clients import opened
from tests.integration.app.keyed import bearer, keyed
from tests.integration.app.model_stage import ModelStage
from tests.integration.app.user_data import SECRET, everything, hash_of
from tests.integration.cli.conftest import Learnloop
from tests.integration.cli.conftest import learnloop as learnloop

TRAINED = ["mail/nightly-1@1", "mail/nightly-2@0", "mail/nightly-2@1"]


async def _consented(database: Database) -> dict[str, set[str]]:
    """Users by what of theirs may be trained on."""
    names = {hash_of(name): name for name in ("alice", "bob")}
    async with database() as tx:
        sessions = (await tx.execute(select(AgentSession.user_hash).where(consented_sessions("mail")))).scalars()
        asks = (await tx.execute(select(Trajectory.user_hash).where(Trajectory.may_train))).scalars()
        users = {"sessions": list(sessions), "asks": list(asks)}
    return {kind: {names[user or ""] for user in hashes} for kind, hashes in users.items()}


async def _withdraw(client: httpx.AsyncClient, headers: Any, **more: Any) -> httpx.Response:
    return await client.post("/users/consent", json={"user": "alice", "train": False} | more, headers=headers)


async def test_a_user_withdraws_consent_and_gives_it_again(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url, secret_key=SECRET) as service:
        client, database = service.client, service.database
        await everything(database, "alice", "bob")
        owner, stranger = await service.headers("mail"), await service.headers("sales")
        both = {"alice", "bob"}
        assert await _consented(database) == {"sessions": both, "asks": both}

        assert (await _withdraw(client, stranger)).json() == {"changed": 0, "trained_checkpoints": []}
        assert (await _withdraw(client, stranger, project="mail")).status_code == 403
        assert (await _withdraw(client, await service.headers("mail", [Scope.READ]))).status_code == 403
        assert (await _withdraw(client, owner, train=None)).status_code == 422
        assert await _consented(database) == {"sessions": both, "asks": both}

        gone = (await _withdraw(client, owner)).json()
        assert gone == {"changed": 2, "trained_checkpoints": TRAINED}
        assert await _consented(database) == {"sessions": {"bob"}, "asks": {"bob"}}
        assert (await _withdraw(client, owner)).json() == {"changed": 0, "trained_checkpoints": TRAINED}
        assert (await _withdraw(client, owner, train=True)).json()["changed"] == 2
        assert await _consented(database) == {"sessions": both, "asks": both}


async def test_a_session_is_withdrawn_alone(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url, secret_key=SECRET) as service:
        client, database = service.client, service.database
        await everything(database, "alice", "bob")
        owner, stranger = await service.headers("mail"), await service.headers("sales")
        path = "/sessions/Salice".ljust(len("/sessions/") + 26, "0")
        assert (await client.patch(path, json={"train": False}, headers=stranger)).status_code == 404
        assert (await client.patch(path, json={}, headers=owner)).status_code == 422
        gone = (await client.patch(path, json={"train": False}, headers=owner)).json()
        assert gone == {"changed": 1, "trained_checkpoints": TRAINED}
        assert await _consented(database) == {"sessions": {"bob"}, "asks": {"alice", "bob"}}
        assert (await client.get(path, headers=owner)).json()["train"] is False
        assert (await client.patch(path, json={"train": True}, headers=owner)).json()["changed"] == 1
        assert (await _consented(database))["sessions"] == {"alice", "bob"}


async def test_the_agent_of_a_session_decides_nothing(stage: ModelStage) -> None:
    session = await opened(stage, train=False)
    path, client = f"/sessions/{session['id']}", stage.service.client
    refused = await client.patch(path, json={"train": True}, headers=bearer(session["api_key"]))
    assert (refused.status_code, "key of a session" in refused.json()["detail"]) == (403, True)
    nobodys = await client.patch(path, json={"train": True}, headers=session["owner"])
    assert nobodys.json() == {"changed": 1, "trained_checkpoints": []}
    assert (await client.get(path, headers=session["owner"])).json()["train"] is True


async def test_consent_in_the_terminal(
    data_dir: Path, database_url: str, learnloop: Learnloop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keyed(data_dir, database_url, secret_key=SECRET) as service:
        await everything(service.database, "alice", "bob")
        monkeypatch.setenv("LEARNLOOP_API_KEY", (await service.new("mail")).key)
        monkeypatch.setenv("COLUMNS", "200")

        async def command(*arguments: str) -> Any:
            url = str(service.client.base_url)
            return await asyncio.to_thread(learnloop, "users", "consent", *arguments, "--url", url)

        assert "Missing option '--train'" in (await command("alice")).stderr
        gone = await command("alice", "--no-train")
        assert gone.stdout.splitlines() == [
            "sessions and questions changed: 2; training on them is refused now",
            *(f"{name} may have been trained on tasks of the user; weights cannot be cleaned" for name in TRAINED),
        ]
        assert (await command("alice", "--train", "--json")).json["changed"] == 2

"""`learnloop keys` against the real service, and the first key straight into the database."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from learnloop_service.app.db.tables import Improvement
from learnloop_service.app.processes.data_directory import DataDirectory
from tests.fakes.forked_learnloop import learnloop as forked_learnloop
from tests.integration.app.keyed import OPERATOR_KEY, bearer, keyed
from tests.integration.cli.conftest import Learnloop


@pytest.fixture(autouse=True)
def _nothing_of_the_developer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LEARNLOOP_API_KEY", "LEARNLOOP_DATA_DIR", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def _bootstrap(data_dir: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it sets up that process's logs."""
    command = ["keys", "create", "--bootstrap", "--name", "first", "--data-dir", str(data_dir), *more]
    return subprocess.run(forked_learnloop(*command), capture_output=True, text=True)


async def test_keys_from_the_first_to_its_revocation(
    learnloop: Learnloop, monkeypatch: pytest.MonkeyPatch, data_dir: Path, database_url: str
) -> None:
    async with keyed(data_dir, database_url) as service:
        url = str(service.client.base_url).rstrip("/")
        refused = await asyncio.to_thread(learnloop, "keys", "list", "--url", url)
        assert refused.exit_code == 1
        assert "401" in refused.stderr

        monkeypatch.setenv("DATABASE_URL", database_url)
        first = await asyncio.to_thread(_bootstrap, data_dir)
        assert first.returncode == 0, first.stderr
        operator = first.stdout.strip()
        assert operator.startswith("ll_")
        assert operator not in first.stderr
        assert (await service.client.get("/keys", headers=bearer(operator))).status_code == 200

        monkeypatch.setenv("LEARNLOOP_API_KEY", operator)
        arguments = ("keys", "create", "--name", "ci", "--project", "mail", "--scope", "read", "--expires-days", "3")
        created = (await asyncio.to_thread(learnloop, *arguments, "--url", url, "--json")).json
        assert (created["project"], created["scopes"]) == ("mail", ["read"])
        mail = bearer(created["key"])
        assert (await service.client.get("/runs", headers=mail)).status_code == 200

        async with service.database.begin() as tx:
            tx.add(Improvement(id="01K", project="mail", status="cancelled", request={}, facts={}, actor="a"))
        bound = ("keys", "create", "--name", "agent", "--improvement", "01K", "--url", url, "--json")
        proposer = (await asyncio.to_thread(learnloop, *bound)).json
        assert (proposer["project"], proposer["scopes"], proposer["improvement_id"]) == ("mail", ["propose"], "01K")

        ended = await asyncio.to_thread(learnloop, "keys", "revoke", created["id"], "--url", url)
        assert ended.stdout == f"key {created['id']} (ci) is revoked\n"
        listed = await asyncio.to_thread(learnloop, "keys", "list", "--url", url)
        assert "revoked" in listed.stdout
        assert created["key"][:11] in listed.stdout
        assert created["key"] not in listed.stdout

        monkeypatch.setenv("LEARNLOOP_API_KEY", OPERATOR_KEY)
        names = [
            key_row["name"]
            for key_row in (await asyncio.to_thread(learnloop, "keys", "list", "--url", url, "--json")).json
        ]
        assert names == ["agent", "ci", "first"]


def test_the_first_key_of_an_embedded_database(data_dir: Path) -> None:
    created = _bootstrap(data_dir, "--json")
    assert created.returncode == 0, created.stderr
    key = json.loads(created.stdout)
    assert (key["project"], key["scopes"]) == ("*", ["operator", "read", "write"])
    directory = DataDirectory(data_dir)
    running = _bootstrap(data_dir)
    directory.release()
    assert running.returncode == 1
    assert "LEARNLOOP_OPERATOR_KEY" in running.stderr


def test_the_first_key_is_for_everything(learnloop: Learnloop) -> None:
    assert "--bootstrap" in learnloop("keys", "create", "--bootstrap", "--name", "a", "--project", "mail").stderr

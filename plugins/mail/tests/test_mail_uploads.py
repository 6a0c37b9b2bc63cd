"""Inboxes and questions that are uploaded or prepared, and learn-loops that name them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, text
from typer.testing import CliRunner

from learnloop_mail.service import upload
from learnloop_service.app.cli.main import app
from learnloop_service.app.datasets.store import DatasetStore
from learnloop_service.app.db.database import make_database, make_engine, parse_url
from learnloop_service.app.db.tables import DatasetVersion, InboxPart, Run
from tests.fakes.mailboxes import COUNT, create_scenarios, mbox, questions, stored
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.keyed import keyed
from tests.integration.app.served import run_with, served, settings_for
from tests.opened_database import execute, opened_database


async def started(client: httpx.AsyncClient, **config: Any) -> httpx.Response:
    environment = {"name": "email_search", "config": config}
    return await client.post("/learn-loop", json={"environment": environment, "iterations": 1})


async def config_of(client: httpx.AsyncClient, accepted: httpx.Response) -> Any:
    """The environment's config of the finished run."""
    run = await run_with(client, accepted.json()["run_id"], "completed")
    return run["request"]["environment"]["config"]


async def test_uploaded_mail_and_questions_can_be_learned_from(client: httpx.AsyncClient, database_url: str) -> None:
    inbox = await stored(client)
    assert (inbox["version"], inbox["emails"], inbox["duplicates"], inbox["unreadable"]) == (1, COUNT, 0, 0)
    assert inbox["first"] == inbox["last"] == "2021-03-01"
    assert await stored(client) == inbox, "the same mail again"
    scenarios = await create_scenarios(client)
    assert (scenarios["count"], scenarios["name"], scenarios["version"]) == (6, "mail", 1)
    accepted = await started(client, inbox="mail")
    assert accepted.status_code == 202, accepted.text
    config = await config_of(client, accepted)
    assert config == {
        "inbox": {"sha256": inbox["sha256"], "name": "mail", "version": 1},
        "scenarios": {"sha256": scenarios["sha256"], "count": 6},
    }
    newer = await stored(client, body=mbox(COUNT + 5))
    assert newer["version"] == 2
    listed = (await client.get("/inboxes")).json()["items"]
    assert [(version["version"], version["emails"], version["origin"]["source"]) for version in listed] == [
        (2, COUNT + 5, "api"), (1, COUNT, "api"),
    ]  # fmt: skip
    [named] = (await client.get("/scenarios", params={"name": "mail"})).json()["items"]
    assert (named["inbox_sha256"], named["sha256"]) == (inbox["sha256"], scenarios["sha256"])
    assert (await client.get(named["links"]["self"])).json() == {"scenarios": questions()}
    old = await started(client, inbox="mail@1", scenarios="mail@1")
    assert old.status_code == 202, "the older version can still be named"
    none = await started(client, inbox="mail")
    assert none.status_code == 422, "the newer inbox has no questions yet"
    assert "inbox 'mail' has no questions to learn from. Make some with POST /inboxes/mail/questions" in none.text


async def test_questions_about_an_uploaded_inbox_are_made_without_a_model(client: httpx.AsyncClient) -> None:
    inbox = await stored(client, body=mbox(60))
    stored_set = (await client.post("/inboxes/mail/questions", json={"count": 100})).raise_for_status().json()
    assert (stored_set["name"], stored_set["version"], stored_set["inbox_sha256"]) == ("mail", 1, inbox["sha256"])
    assert stored_set["origin"] == {"source": "templates", "count": 100, "seed": 0}
    questions = (await client.get(stored_set["links"]["self"])).json()["scenarios"]
    assert len(questions) == stored_set["count"] <= 100
    assert {question["split"] for question in questions} == {"train", "validation", "test"}
    assert (await client.post("/inboxes/mail/questions", json={"count": 100})).json() == stored_set, "the same again"
    accepted = await started(client, inbox="mail")
    assert accepted.status_code == 202, accepted.text
    assert (await config_of(client, accepted))["scenarios"]["sha256"] == stored_set["sha256"]


async def test_questions_are_refused_for_no_inbox_and_for_too_little_mail(client: httpx.AsyncClient) -> None:
    assert (await client.post("/inboxes/nobody/questions")).status_code == 404
    await stored(client, body=mbox(1))
    few = await client.post("/inboxes/mail/questions")
    assert few.status_code == 422
    assert "Of its 1 emails only" in few.json()["errors"][0]["msg"]
    assert "Upload more mail" in few.json()["errors"][0]["msg"]


async def test_any_worker_makes_its_own_copy_of_an_uploaded_inbox(
    client: httpx.AsyncClient, data_dir: Path, database_url: str, tmp_path: Path
) -> None:
    await stored(client)
    await create_scenarios(client)
    async with served(settings_for(tmp_path / "other", database_url), ScriptedLoop()) as other:
        accepted = await started(other, inbox="mail")
        assert accepted.status_code == 202, accepted.text
        await run_with(other, accepted.json()["run_id"], "completed")
    [original], [copy] = ((folder / "datasets" / "inboxes").iterdir() for folder in (data_dir, tmp_path / "other"))
    assert (original.name, original.read_bytes()) == (copy.name, copy.read_bytes())


async def test_json_lines_in_the_layout_of_art_e_are_mail_too(client: httpx.AsyncClient) -> None:
    rows = [
        {"message_id": f"<{n}@x.example>", "subject": f"Topic {n}", "from": "mara@x.example", "to": ["jo@x.example"],
         "cc": [], "bcc": None, "date": "2001-05-15T08:00:00", "body": "Hello."}
        for n in (1, 2, 2)
    ]  # fmt: skip
    inbox = await stored(client, body="\n".join(map(json.dumps, rows)).encode())
    assert (inbox["emails"], inbox["duplicates"], inbox["first"]) == (2, 1, "2001-05-15")


async def test_what_was_prepared_is_found_by_its_name(
    client: httpx.AsyncClient, data_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.mbox").write_bytes(mbox(60))
    command = ["data", "prepare", "own", "--emails", str(tmp_path / "a.mbox"), "--data-dir", str(data_dir), "--json"]
    ran = await asyncio.to_thread(CliRunner().invoke, app, command)
    version = json.loads(ran.stdout)
    accepted = await started(client, inbox="own")
    assert accepted.status_code == 202, accepted.text
    config = await config_of(client, accepted)
    assert config["inbox"] == {"sha256": version["inbox"]["sha256"], "name": "own", "version": 1}
    assert config["scenarios"]["sha256"] == version["scenarios"]["sha256"]
    [listed] = (await client.get("/inboxes", params={"name": "own"})).json()["items"]
    assert listed["origin"]["sources"] == {"a.mbox": version["sources"][str(tmp_path / "a.mbox")]}
    assert str(tmp_path) not in json.dumps(listed)
    (data_dir / "datasets" / "torn.json").write_text("{")
    assert (await client.get("/inboxes")).status_code == 200


async def test_a_project_does_not_find_what_another_one_uploaded(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url) as service:
        mail, sales = await service.headers("mail"), await service.headers("sales")
        inbox = await stored(service.client, headers=mail)
        assert (await service.client.get("/inboxes", headers=sales)).json()["items"] == []
        for config in ({"inbox": "mail"}, {"inbox": "mail@1"}, {"inbox": {"sha256": inbox["sha256"]}}):
            body = {"environment": {"name": "email_search", "config": config}, "iterations": 1}
            refused = await service.client.post("/learn-loop", json=body, headers=sales)
            assert refused.status_code == 422
            assert "there is no inbox" in refused.text
        body = {"environment": "email_search", "inbox": {"sha256": inbox["sha256"]}, "scenarios": questions()}
        assert (await service.client.post("/scenarios", json=body, headers=sales)).status_code == 422
        assert (await service.client.post("/scenarios", json=body, headers=mail)).status_code == 201
        other = await stored(service.client, headers=sales)
        assert (other["version"], other["sha256"]) == (1, inbox["sha256"])


BAD_UPLOADS: list[tuple[str | None, bytes, int, str]] = [
    ("mail", b" \n", 422, "the body is empty"),
    ("mail", b"\x1f\x8b\x08 packed", 422, "the body is compressed"),
    ("mail", b"no mail at all", 422, "no mail in mail (mail: no header field of a mail)"),
    ("mail", b'{"subject": "x"}', 422, "mail.jsonl line 1 has no message_id, from, to"),
    ("mail", b'{"subject": ', 422, "mail.jsonl line 1 is not JSON"),
    ("../mail", b"x", 422, "String should match pattern"),
    (None, b"x", 422, "Field required"),
    ("mail", b"x" * 1_000_001, 413, "at most 1000000 bytes"),
]


async def test_bad_uploads_say_what_is_wrong_and_leave_nothing(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, max_inbox_bytes=1_000_000)
    async with served(settings, ScriptedLoop()) as client:
        for name, body, status, message in BAD_UPLOADS:
            response = await client.post("/inboxes", params={} if name is None else {"name": name}, content=body)
            assert (response.status_code, message in response.text) == (status, True), response.text
        assert (await client.get("/inboxes")).json()["items"] == []
    assert await rows_of(database_url, InboxPart) == await rows_of(database_url, DatasetVersion) == 0
    assert not [path for path in (data_dir / "datasets").rglob("*") if path.is_file()]


async def rows_of(database_url: str, table: Any) -> int:
    async with opened_database(database_url) as database, database() as tx:
        count = await tx.scalar(select(func.count()).select_from(table))
    return int(count or 0)


async def test_mail_that_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "datasets"
    monkeypatch.setattr(upload, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(upload, "_ARGUMENTS", ("-c", "while True: pass"))
    with pytest.raises(upload.BadUpload, match="takes more than 120 s"):
        async with upload.imported(mbox(1), DatasetStore(tmp_path)):
            pass
    assert not [path for path in folder.rglob("*") if path.is_file()]


BAD_QUESTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"inbox": None}, "scenarios", "scenarios need the inbox"),
    ({"inbox": "none@3"}, "inbox", "there is no inbox 'none@3'"),
    ({"inbox": "none"}, "inbox", "there is no inbox 'none'"),
    ({"inbox": {"sha256": "f" * 64}}, "inbox", "there is no inbox with the SHA-256"),
    ({"inbox": 3}, "inbox", "inbox must be a name"),
    ({"name": "a b"}, "name", "String should match pattern"),
    ({"scenarios": questions(2)}, "scenarios", "a list of 3 to"),
    ({"scenarios": questions(source_ids=["<none@x>"])}, "scenarios", "scenario number 0: no email of the inbox"),
    ({"scenarios": questions(realism=1)}, "scenarios", "scenario number 0 has no realism; it takes: question"),
    ({"scenarios": questions(question="Same?")}, "scenarios", "what is held out must not be trained on"),
    ({"scenarios": questions(id="a")}, "scenarios", "number 1 has the id 'a' of number 0"),
    ({"scenarios": questions(split="dev")}, "scenarios", "'split' must be one of train, validation, test"),
    ({"scenarios": [*questions(4), {**questions()[4], "split": None}]}, "scenarios", "'split' must be a str"),
]


async def test_bad_questions_name_what_is_wrong(client: httpx.AsyncClient) -> None:
    await stored(client)
    for changes, field, message in BAD_QUESTIONS:
        body = {"environment": "email_search", "inbox": "mail", "name": "q", "scenarios": questions()} | changes
        response = await client.post("/scenarios", json=body)
        assert response.status_code == 422, changes
        [error] = response.json()["errors"]
        assert (error["loc"], message in error["msg"]) == (["body", field], True), error
    assert (await client.get("/scenarios")).json()["items"] == []


async def test_a_run_is_not_started_on_data_that_is_not_there(client: httpx.AsyncClient, database_url: str) -> None:
    await stored(client)
    for config, field in (
        ({"inbox": "mail@2"}, "inbox"),
        ({"inbox": {"sha256": "e" * 64}}, "inbox"),
        ({"inbox": "mail", "scenarios": "mail"}, "scenarios"),
        ({"inbox": "mail", "scenarios": {"sha256": "e" * 64}}, "scenarios"),
    ):
        response = await started(client, **config)
        assert response.status_code == 422
        assert response.json()["errors"][0]["loc"] == ["body", "environment", "config", field], response.text
    assert await rows_of(database_url, Run) == 0


async def test_a_lost_file_without_parts_is_told(client: httpx.AsyncClient, data_dir: Path, database_url: str) -> None:
    inbox = await stored(client)
    await create_scenarios(client)
    await execute(database_url, "DELETE FROM inbox_part")
    (data_dir / "datasets" / "inboxes" / f"{inbox['sha256']}.sqlite").unlink()
    response = await started(client, inbox="mail")
    assert response.status_code == 422
    assert "is not in this data directory" in response.text


async def test_mail_that_nothing_needs_can_be_deleted(
    client: httpx.AsyncClient, data_dir: Path, database_url: str
) -> None:
    first = await stored(client)
    second = await stored(client, body=mbox(first=COUNT))
    await stored(client, name="copy")
    scenarios = await create_scenarios(client, inbox="mail@1")
    accepted = await started(client, inbox="mail@1", scenarios="mail")
    run_id = accepted.json()["run_id"]
    await run_with(client, run_id, "completed")
    engine = make_engine(parse_url(database_url))
    database = make_database(engine)

    async def set_status(status: str) -> None:
        async with database.begin() as tx:
            await tx.execute(text("UPDATE run SET status = :status"), {"status": status})

    async def parts() -> set[str]:
        async with database() as tx:
            return set((await tx.execute(select(InboxPart.sha256).distinct())).scalars())

    try:
        await client.delete("/inboxes/copy")
        assert await parts() == {first["sha256"], second["sha256"]}  # `mail` has it, too
        await set_status("paused")
        path = f"/scenarios/{scenarios['sha256']}"
        for in_use, of in ((path, {"runs": [run_id]}), ("/inboxes/mail", {"runs": [run_id], "scenarios": ["mail"]})):
            refused = await client.delete(in_use)
            assert refused.status_code == 409
            assert {kind: ids for kind, ids in refused.json()["used_by"].items() if ids} == of
            assert run_id in refused.json()["detail"]
        await set_status("completed")
        refused = await client.delete("/inboxes/mail", params={"version": 1})
        assert (refused.status_code, refused.json()["used_by"]["scenarios"]) == (409, ["mail"])
        assert (await client.delete("/inboxes/mail", params={"version": 2})).json()["deleted"][0]["version"] == 2
        assert (await client.delete(path)).json() == {"sha256": scenarios["sha256"], "names": ["mail@1"]}
        deleted = (await client.delete("/inboxes/mail")).json()["deleted"]
        assert [(version["version"], version["sha256"]) for version in deleted] == [(1, first["sha256"])]
        assert await parts() == set()
        assert not DatasetStore(data_dir).inbox_path(first["sha256"]).exists()
        for gone in ("/inboxes/mail", path):
            assert (await client.delete(gone)).status_code == 404
        assert (await client.get("/inboxes")).json()["items"] == (await client.get("/scenarios")).json()["items"] == []
        assert (await started(client, inbox="mail")).status_code == 422
        assert (await stored(client))["version"] == 1
    finally:
        await engine.dispose()

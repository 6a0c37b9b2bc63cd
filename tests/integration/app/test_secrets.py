"""Canary secrets through every setting, header and provider error: none of them comes out anywhere."""

import json
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from learnloop_service.app.db.tables import Base
from learnloop_service.app.security.webhook_signing import new_secret
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.conditions import answered
from tests.fakes.faulty_receiver import faulty_receiver
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_judge import Raw, scripted_judge
from tests.fakes.scripted_learning import ScriptedBackend
from tests.fakes.trace_server import trace_server
from tests.integration.app.keyed import bearer
from tests.integration.app.served import run_with, served, settings_for
from tests.integration.app.talking_runs import RUN, talker

OPENAI, WANDB, JUDGE = "plain-openai-canary-4711", "c0ffee" * 6 + "beef", "odd.judge.canary.4712"
PASSWORD, OPERATOR = "password-canary-4713", "operator-canary-4714-" + "x" * 20
IDEMPOTENCY = "idempotency-canary-4715"
BEARER = "bearer-canary-of-nobody-4716"


def echoing(status: int) -> Raw:
    """A provider that tells in its error with which header it was asked."""
    message = f"bad request: Authorization: Bearer {JUDGE} (key {JUDGE!r}) is not good for this"
    return Raw(status, json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": JUDGE}}))


FAULTS = [reply for status in (401, 400, 403, 422) for reply in (echoing(status), None, None, None)]
"""One of the two groups of each of the first evaluations, at two requests a group, has no verdict."""


async def dump(database_url: str, leave_out: tuple[str, ...] = ()) -> str:
    """Every row of every table as text; bytes are decoded where they are text."""
    lines = []
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        for table in Base.metadata.sorted_tables:
            if table.name not in leave_out:
                rows = await connection.execute(f"SELECT * FROM {table.name}".encode())
                lines += [str(row) for row in await rows.fetchall()]
    return "\n".join(lines)


async def test_no_secret_comes_out(
    data_dir: Path, database_url: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    import_art()
    caplog.set_level("INFO")
    signing = new_secret()
    with trace_server(key=WANDB) as weave:
        async with (
            scripted_chat(talker) as model,
            scripted_judge(FAULTS) as judge,
            faulty_receiver() as receiver,
        ):
            settings = settings_for(
                data_dir,
                database_url.replace("postgres@", f"postgres:{PASSWORD}@"),
                openai_api_key=OPENAI,
                wandb_api_key=WANDB,
                weave_project="team/mail",
                wandb_base_url=weave.url,
                judge_model="openai/gpt-4.1",
                judge_base_url=judge.url,
                judge_api_key=JUDGE,
                frontend_url=receiver.url,
                frontend_webhook_secret=signing,
                allowed_private_hosts="127.0.0.0/8",
                require_keys="always",
                operator_key=OPERATOR,
            )
            assert PASSWORD in settings.database_url.get_secret_value()  # type: ignore[union-attr]
            async with served(settings, cast(Any, learn_loop), ScriptedBackend(model.url)) as client:
                created = await client.post(
                    "/keys",
                    json={"name": "a", "project": "learnloop", "scopes": ["read", "write"]},
                    headers=bearer(OPERATOR),
                )
                assert created.status_code == 201, created.text
                key = created.json()["key"]
                client.headers.update(bearer(key))
                body = RUN | {"judge": {"name": "ruler"}, "model": {"project": "learnloop"}, "iterations": 1}
                accepted = await client.post("/learn-loop", json=body, headers={"idempotency-key": IDEMPOTENCY})
                assert accepted.status_code == 202, accepted.text
                run_id = accepted.json()["run_id"]
                run = await run_with(client, run_id, "completed", "failed")
                replies = [created.text.replace(key, ""), accepted.text, json.dumps(run)]
                replies += [
                    (await client.get("/runs", headers=bearer(BEARER))).text,
                    (await client.post("/learn-loop", json={"judge": {"name": key}, "x": JUDGE[:3]})).text.replace(
                        key, ""
                    ),
                    (await client.post("/learn-loop", json=RUN, headers={"idempotency-key": IDEMPOTENCY})).text,
                    (await client.post(f"/runs/{run_id}/pause")).text,
                    (await client.get("/runs/nothing")).text,
                ]
                links = ("", "/iterations", "/checkpoints", "/events", "/trajectories", "/judge-calls", "/ledger")
                for path in [f"/runs/{run_id}{link}" for link in links] + ["/runs", "/webhooks", "/judges"]:
                    read = await client.get(path, params={"limit": 200} if path.count("/") > 2 else None)
                    assert read.status_code == 200, (path, read.text)
                    replies.append(read.text)
                for path in ("/keys", "/settings"):
                    replies.append((await client.get(path, headers=bearer(OPERATOR))).raise_for_status().text)
                calls = (await client.get(f"/runs/{run_id}/judge-calls", params={"limit": 200})).json()["items"]

                async def arrival_count() -> int:
                    return len(receiver.arrivals)

                await answered(arrival_count, lambda count: count > 0)
            rows, others = await dump(database_url), await dump(database_url, leave_out=("idempotency_key",))
            bodies = "\n".join(str(arrival.body) for arrival in receiver.arrivals)
    logs = "\n".join([*capfd.readouterr(), caplog.text])

    # The canaries were where they could have come out.
    assert any("Bearer" not in (call["error"] or "") and call["error"] for call in calls), calls
    assert judge.headers
    assert all(JUDGE in head for head in judge.headers)
    assert "run claimed" in logs
    assert run_id in rows
    assert weave.received.count("judge") > 0
    places = {"logs": logs, "tables": rows, "traces": weave.received, "webhooks": bodies, "replies": "\n".join(replies)}
    secrets = [OPENAI, WANDB, JUDGE, PASSWORD, OPERATOR, key, signing, signing.removeprefix("whsec_"), BEARER]
    hits = [(output, secret) for output, text in places.items() for secret in secrets if secret in text]
    assert hits == []
    # No credential, and told again only to who sent it: in its own table, and where it is refused for another body.
    aside = {"logs": logs, "tables": others, "traces": weave.received, "webhooks": bodies, "run": json.dumps(run)}
    assert [output for output, text in aside.items() if IDEMPOTENCY in text] == []

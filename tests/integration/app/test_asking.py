"""Questions to a run's agent: a real rollout in the real environment, with a model that follows a script."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from learnloop_service.environment.email_search.inbox import Email, write_inbox
from learnloop_service.environment.email_search.synthetic import address_of
from learnloop_service.environment.json_type import Json
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

QUESTION = {"question": "When is the kickoff?", "inbox_address": address_of("test", 0, 3)}
ANSWER: dict[str, Json] = {"answer": "on Monday", "sources": ["m1"]}


@dataclass
class Model:
    """What it answers, and what it was asked. Checkpoints in `missing` are not there."""

    arguments: dict[str, Json] = field(default_factory=lambda: ANSWER)
    status: int = 200
    missing: frozenset[str] = frozenset()
    requests: list[Any] = field(default_factory=list)

    async def reply(self, request: Any) -> Reply:
        if not request:
            return Reply(status=503)  # the service looks for its engine
        self.requests.append(request)
        status = 404 if request["model"] in self.missing else self.status
        return call("return_final_answer", **self.arguments) if status == 200 else Reply(status=status)


@asynccontextmanager
async def _trained(
    data_dir: Path, database_url: str, **script: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, str, Model]]:
    """A client, a completed run, and the model behind its checkpoints."""
    model = Model(**script)
    async with scripted_chat(model.reply) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(settings_for(data_dir, database_url), ScriptedLoop(), backend) as client:
            run_id = (await client.post("/learn-loop", json={"iterations": 2, "model": {"name": "a"}})).json()["run_id"]
            await run_with(client, run_id, "completed")
            yield client, run_id, model


async def test_the_best_checkpoint_answers_and_its_trajectory_is_kept(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url) as (client, run_id, model):
        answer = (await client.post("/ask", json={"run_id": run_id, **QUESTION})).raise_for_status().json()
        assert (
            answer
            | {
                "question": QUESTION["question"],
                "answer": "on Monday",
                "source_ids": ["m1"],
                "success": True,
                "model": "learnloop/a@2",
                "step": 2,
            }
            == answer
        )
        assert model.requests[0]["temperature"] == 0
        trajectory = (await client.get(f"/trajectories/{answer['trajectory_id']}")).json()
        assert (trajectory["kind"], trajectory["run_id"], trajectory["turns"], trajectory["prompt_tokens"]) == (
            "ask",
            run_id,
            1,
            50,
        )
        assert trajectory["messages"][-1]["tool_calls"][0]["function"]["name"] == "return_final_answer"
        assert trajectory["reward"] is None


async def test_an_older_checkpoint_answers_if_asked(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url, missing={"learnloop/a@7"}) as (client, run_id, model):
        answer = (await client.post("/ask", json={"run_id": run_id, "checkpoint": 0, **QUESTION})).json()
        assert answer["model"] == model.requests[0]["model"] == "learnloop/a@0"
        missing = await client.post("/ask", json={"run_id": run_id, "checkpoint": 7, **QUESTION})
        assert missing.status_code == 404
        assert "the newest one is 2" in missing.json()["detail"]


async def test_invoke_speaks_the_form_of_zenml_deployments(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url) as (client, _, model):
        answer = (await client.post("/invoke", json={"parameters": QUESTION})).raise_for_status().json()
        assert answer == {
            "question": QUESTION["question"],
            "answer": "on Monday",
            "source_ids": ["m1"],
            "success": True,
        }
        assert model.requests[0]["model"] == "learnloop/a@2"


async def test_invoke_asks_what_was_promoted_last_and_its_name_logs_it(data_dir: Path, database_url: str) -> None:
    async def engine(request: Json) -> Reply:
        if not request:
            return Reply(body={"data": [{"id": "learnloop/a", "steps": [0, 1, 2]}]})
        return call("return_final_answer", **ANSWER)

    settings = settings_for(data_dir, database_url)
    async with scripted_chat(engine) as chat, served(settings, ScriptedLoop(), ScriptedBackend(chat.url)) as client:
        run_ids = []
        for name, iterations in (("a", 2), ("newer", 1)):
            posted = await client.post("/learn-loop", json={"iterations": iterations, "model": {"name": name}})
            run_ids.append(posted.json()["run_id"])
            await run_with(client, run_ids[-1], "completed")

        async def invoked() -> str:
            (await client.post("/invoke", json={"parameters": QUESTION})).raise_for_status()
            name: str = chat.requests[-1]["model"]
            return name

        async def promoted(step: int, name: str) -> None:
            promotion = await client.post("/models/learnloop/a/promote", json={"step": step, "as": name})
            assert promotion.status_code == 201, promotion.text

        assert await invoked() == "learnloop/newer@1"
        await promoted(0, "old")
        await promoted(1, "live")
        assert await invoked() == "learnloop/a@1"
        [logged] = (await client.get("/promotions/learnloop/live/requests")).raise_for_status().json()["items"]
        assert (logged["model"], logged["step"], logged["run_id"]) == ("learnloop/a@1", 1, run_ids[0])
        assert logged["scenario"]["task"]["question"] == QUESTION["question"]
        command = ["promotions", "logs", "learnloop/live", "--url", str(client.base_url)]
        printed = await asyncio.to_thread(CliRunner().invoke, app, command)
        assert (printed.exit_code, QUESTION["question"] in printed.stdout) == (0, True), printed.output

        # A withdrawn name gives way to the one before, and without any the newest agent answers.
        assert (await client.delete("/promotions/learnloop/live")).status_code == 200
        assert await invoked() == "learnloop/a@0"
        assert (await client.delete("/promotions/learnloop/old")).status_code == 200
        assert await invoked() == "learnloop/newer@1"


async def test_invoke_takes_a_real_address(data_dir: Path, database_url: str) -> None:
    parameters = {"question": "Where do we meet?", "inbox_address": "Jo@x.example", "query_date": "2001-05-15"}
    async with _trained(data_dir, database_url) as (client, _, model):
        unknown = (await client.post("/invoke", json={"parameters": parameters})).raise_for_status().json()
        assert (unknown["question"], unknown["source_ids"], unknown["success"]) == (parameters["question"], [], False)
        assert "No inbox here has email of Jo@x.example" in unknown["answer"]
        assert model.requests == []
        mail = Email("m1", "<1@x.example>", "Mara <mara@x.example>", ("jo@x.example",), None, "Venue", "It is Basel.")
        write_inbox(data_dir / "inboxes" / "mine.sqlite", [mail])
        answer = (await client.post("/invoke", json={"parameters": parameters})).raise_for_status().json()
        assert (answer["answer"], answer["success"]) == ("on Monday", True)
        assert "Jo@x.example" in model.requests[0]["messages"][0]["content"]


async def test_an_answer_without_a_source_says_so(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url) as (client, run_id, _):
        answer = (await client.post("/ask", json={"run_id": run_id, **QUESTION})).raise_for_status().json()
        assert "No search found an email" in answer["note"]


async def test_why_there_is_no_answer_is_said(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url, arguments={"answer": "I don't know", "sources": []}) as trained:
        client, run_id, _ = trained
        answer = (await client.post("/ask", json={"run_id": run_id, **QUESTION})).raise_for_status().json()
        assert (answer["success"], answer["note"]) == (False, "The agent found no answer in the inbox.")


async def test_a_question_that_the_environment_cannot_take(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url) as (client, run_id, model):
        response = await client.post("/ask", json={"run_id": run_id, **QUESTION, "inbox_address": "me@work.example"})
        assert response.status_code == 422
        assert "must name a synthetic inbox" in response.json()["errors"][0]["msg"]
        response = await client.post("/ask", json={"run_id": run_id, **QUESTION, "environment": {"name": "chess"}})
        assert response.json()["errors"][0]["loc"] == ["body", "environment", "name"]
        assert model.requests == []


async def test_a_model_that_fails_is_told_apart_from_one_that_is_not_there(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url, status=400) as (client, run_id, model):
        failed = await client.post("/ask", json={"run_id": run_id, **QUESTION})
        assert failed.status_code == 502
        trajectory_id = failed.json()["detail"].split("trajectory ")[1].rstrip(")")
        assert (await client.get(f"/trajectories/{trajectory_id}")).json()["error"].startswith("BadRequestError")
        model.status = 404
        assert (await client.post("/ask", json={"run_id": run_id, **QUESTION})).status_code == 404


async def test_without_an_engine_a_named_model_cannot_answer(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        response = await client.post("/ask", json={"model": "learnloop/tiny", **QUESTION})
        assert response.status_code == 503
        assert response.headers["retry-after"]


async def test_an_answer_is_streamed_message_by_message(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url) as (client, run_id, _):
        body = {"run_id": run_id, **QUESTION}
        reply = await client.post("/ask", json=body, headers={"accept": "text/event-stream"})
        assert reply.headers["content-type"].startswith("text/event-stream")
        blocks = [block.partition("\n") for block in reply.text.strip().split("\n\n")]
        events = [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, _, data in blocks]
        assert [name for name, _ in events] == ["message"] * (len(events) - 1) + ["answer"]
        answer = events[-1][1]
        trajectory = (await client.get(f"/trajectories/{answer['trajectory_id']}")).json()
        assert [message["role"] for _, message in events[:-1]] == [
            stored_message["role"] for stored_message in trajectory["messages"]
        ]
        assert answer["answer"] == "on Monday"


async def test_what_a_stream_cannot_begin_with_is_an_ordinary_error(data_dir: Path, database_url: str) -> None:
    headers = {"accept": "text/event-stream"}
    async with _trained(data_dir, database_url, missing={"learnloop/a@2"}) as (client, run_id, _):
        nobody = await client.post("/ask", json={"run_id": "nobody", **QUESTION}, headers=headers)
        assert nobody.status_code == 404
        gone = await client.post("/ask", json={"run_id": run_id, **QUESTION}, headers=headers)
        assert '"status": 404' in gone.text.rpartition("event: error\n")[2]


async def test_a_held_out_question_is_answered_right_or_wrong_and_any_other_one_just_answered(
    data_dir: Path, database_url: str
) -> None:
    mail = Email("m1", "<1@x.example>", "Mara <mara@x.example>", ("jo@x.example",), None, "Venue", "It is Basel.")
    write_inbox(data_dir / "inboxes" / "mine.sqlite", [mail])
    loop, model = ScriptedLoop(held_out={0: [False, True]}), Model()
    async with (
        scripted_chat(model.reply) as chat,
        served(settings_for(data_dir, database_url), loop, ScriptedBackend(chat.url)) as client,
    ):
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        await run_with(client, run_id, "completed")
        inbox = {"name": "email_search", "config": {"inbox": "mine"}}

        async def answer(question: str, text: str, *sources: str) -> dict[str, Any]:
            model.arguments = {"answer": text, "sources": list(sources)}
            body = {"run_id": run_id, "question": question, "environment": inbox}
            document: dict[str, Any] = (await client.post("/ask", json=body)).raise_for_status().json()
            return document

        def mark(document: dict[str, Any]) -> tuple[Any, ...]:
            return document["success"], document["expected"], document["correct"], document["sources_correct"]

        right = await answer("what 1?", "it was that", "m1")
        assert mark(right) == (True, "that", True, True)
        trajectory = (await client.get(f"/trajectories/{right['trajectory_id']}")).json()
        assert trajectory["scenario"]["reference"] == {"answer": "that", "source_ids": ["m1"]}
        assert "that" not in str(model.requests[-1]["messages"][:2])  # the agent is not told
        assert right["why_no_success"] is None
        other = await answer("what 0?", "that", "m2")
        assert mark(other) == (True, "that", True, False)
        assert other["why_no_success"] == "cites m2; expected m1"
        assert mark(await answer("what 0?", "28 November", "m1")) == (True, "that", False, True)
        assert mark(await answer("what 0?", "I don't know")) == (False, "that", False, False)
        assert mark(await answer("what 2?", "that", "m1")) == (True, None, None, None)

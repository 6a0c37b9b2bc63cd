"""Sessions of simulated users over HTTP, for benchmarks of learning from served answers: a real service, with a real
engine beside it, whose name `bench/live` explores."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg

from benchmarks import processes
from benchmarks.durability.harness import database
from learnloop_service.app.agent_sessions.records import pack_answer, unpack_answer
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.app.schemas.feedback import MAX_EVENTS
from learnloop_service.environment.json_type import Json

NAME = "bench/live"
START = "bench/start@0"
"""The checkpoint that the name has: the tiny base model itself."""
_AT_ONCE = 16
_ROOM = {"LEARNLOOP_MAX_OPEN_SESSIONS": "100000"}
_RUN_S = 1_200.0
_LATER_SESSIONS = """
UPDATE agent_session SET opened_at = opened_at - interval '8 days', expires_at = expires_at - interval '8 days'
WHERE opened_at > now() - interval '7 days'
"""
_LATER_FEEDBACK = """
UPDATE feedback SET received_at = received_at - interval '8 days', occurred_at = occurred_at - interval '8 days'
WHERE received_at > now() - interval '7 days'
"""


@dataclass(frozen=True)
class Ask:
    """A question of a user."""

    user: str
    question: str
    max_tokens: int = 8


@dataclass(frozen=True)
class Answered:
    """A session that was answered."""

    id: str
    ask: Ask
    prompt: Sequence[int]
    tokens: Sequence[int]
    """Ids of the sampled tokens."""
    logprobs: Sequence[float]


@dataclass
class Stage:
    """A service, its engine, and the database of both."""

    service: Service
    engine_url: str
    database_url: str

    def promote(self) -> None:
        """Let the name mean the base model, and let half of its sessions explore."""
        body = {"step": 0, "as": "live", "base_model": "learnloop/tiny"}
        self.service.call("POST", "/models/bench/start/promote", json=body)
        self.service.call("POST", f"/promotions/{NAME}/explore", json={"share": 0.5})

    async def answer(self, asks: Sequence[Ask]) -> list[Answered]:
        """Open a session for each question, and let the model answer it at temperature 1."""
        async with httpx.AsyncClient(base_url=self.service.url, timeout=120, trust_env=False) as http:
            room = asyncio.Semaphore(_AT_ONCE)

            async def one(ask: Ask) -> Answered:
                async with room:
                    return await _answered(http, ask)

            return list(await asyncio.gather(*map(one, asks)))

    def report(self, outcomes: Mapping[str, float]) -> None:
        """Report how the sessions went, and let eight days pass for all."""
        events: list[Json] = [
            {
                "event_id": id,
                "type": "outcome",
                "session_id": id,
                "name": "resolved",
                "value": value,
                "occurred_at": _now(),
            }
            for id, value in outcomes.items()
        ]
        for start in range(0, len(events), MAX_EVENTS):
            self.service.call("POST", "/feedback", json={"events": events[start : start + MAX_EVENTS]})
        with psycopg.connect(self.database_url) as connection:
            connection.execute(_LATER_SESSIONS)
            connection.execute(_LATER_FEEDBACK)
        self.service.call("GET", "/sessions")  # which notes that they have expired

    def replace_reply(self, session: Answered, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Let the stored reply of a session have had other tokens."""
        where = (session.id,)
        with psycopg.connect(self.database_url) as connection:
            [packed] = connection.execute("SELECT answer FROM session_call WHERE session_id = %s", where).fetchone()  # type: ignore[misc]
            completion = unpack_answer(packed)
            sampled: list[Json] = [
                {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
                for token, logprob in zip(tokens, logprobs, strict=True)
            ]
            completion["choices"][0]["logprobs"] = {"content": sampled}
            stored = (pack_answer(completion), session.id)
            connection.execute("UPDATE session_call SET answer = %s WHERE session_id = %s", stored)

    def consent(self, session: Answered, *, train: bool) -> None:
        """Withdraw or give the consent of the session's user."""
        self.service.call("POST", "/users/consent", json={"user": session.ask.user, "train": train})

    def learn(self, name: str, iterations: int | None = None, **source: Json) -> str:
        """Start a run on the answers, with the usual number of iterations for None; return its id."""
        sessions = {"model": NAME, "train_on": "answers", "outcome": {"value": "resolved"}, **source}
        model = {"project": "bench", "name": name}
        request = {
            "source": {"sessions": sessions},
            "model": model,
            **({"iterations": iterations} if iterations else {}),
        }
        return str(self.service.call("POST", "/learn-loop", json=request)["run_id"])

    def completed(self, run_id: str) -> Json:
        """Wait for the run's end and return it. Raises AssertionError unless it completed."""
        until = time.monotonic() + _RUN_S
        while (run := self.service.call("GET", f"/runs/{run_id}"))["status"] not in (
            "completed",
            "failed",
            "cancelled",
        ):
            assert time.monotonic() < until, f"run {run_id} has not ended: {run['progress']}"
            time.sleep(0.2)
        assert run["status"] == "completed", run["error"]
        return run

    def scores(self, model: str, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Return the log-probabilities that a checkpoint gives to the second part of each sequence, after the first."""
        parts = [
            {"ids": [*before, *after], "sampled": list(range(len(before), len(before) + len(after)))}
            for before, after in sequences
        ]
        body = {"model": model, "sequences": parts}
        reply = httpx.post(f"{self.engine_url}/v1/preview/logprobs/sequences", json=body, timeout=600, trust_env=False)
        scored: list[list[float]] = reply.raise_for_status().json()["logprobs"]
        return scored


async def _answered(http: httpx.AsyncClient, ask: Ask) -> Answered:
    opened = await http.post("/sessions", json={"model": NAME, "user": ask.user, "train": True})
    session = opened.raise_for_status().json()
    messages = [{"role": "user", "content": ask.question}]
    body = {"model": NAME, "messages": messages, "max_tokens": ask.max_tokens, "temperature": 1}
    exact = {"logprobs": True, "return_token_ids": True}
    headers = {"authorization": f"Bearer {session['api_key']}"}
    path = f"/sessions/{session['id']}/v1/chat/completions"
    completion = (await http.post(path, json=body | exact, headers=headers)).raise_for_status().json()
    [choice] = completion["choices"]
    logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
    return Answered(session["id"], ask, completion["prompt_token_ids"], choice["token_ids"], logprobs)


def _now() -> str:
    return datetime.now(UTC).isoformat()


@contextmanager
def served_stage(directory: Path, **settings: Any) -> Iterator[Stage]:
    """Run the stage in that directory."""
    for name in ("engine", "service"):
        (directory / name).mkdir()
    port = free_port()
    with database(directory / "postgres") as url, processes.engine(directory / "engine") as base_url:
        engine_url = base_url.removesuffix("/v1")
        shared = {
            "LEARNLOOP_ENGINE_URL": engine_url,
            "LEARNLOOP_RATE_PER_S": "0",
            "DATABASE_URL": url,
            **_ROOM,
            **settings,
        }
        with (
            processes.service(directory / "service", port, **shared) as child,
            Service(f"http://127.0.0.1:{port}", timeout_s=120) as service,
        ):
            processes.wait_for(child, processes.answers(service))
            yield Stage(service, engine_url, url)

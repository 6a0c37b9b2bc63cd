"""Users of a promoted name: each asks an agent in a session of the service, and what became of it is reported later.

The agent is the built-in loop with its model behind the session's address, so it asks what any agent would, and the
service stores it as it does for users.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import httpx

from learnloop_service.app.cli.client import Service
from learnloop_service.environment.base import Environment, Outcome, Scenario
from learnloop_service.environment.json_type import Json
from learnloop_service.judges.base import Candidate, Judge
from learnloop_service.training.backends.base import Endpoint
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.rollout.rollout import RolloutLimits, rollout

GOOD_REPORTED, BAD_REPORTED = 0.85, 0.55
"""Shares of right and of wrong answers about which something is reported."""
OUTCOME = "resolved"
"""Name of the outcome that is reported: 1 for a right answer, 0 for a wrong one."""
_BUSY_S = 1.0


@dataclass(frozen=True, slots=True)
class Visit:
    """A user who comes with a task."""

    user: str
    scenario: Scenario


def visits(environment: Environment, users: int, sessions: int, seed: int) -> list[Visit]:
    """Return that many visits by `users` different users, with training tasks of the environment."""
    draw = Random(f"visits {seed}")
    tasks = environment.scenarios("train", 10_000, seed)
    return [Visit(f"user-{seed}-{number % users}", draw.choice(tasks)) for number in range(sessions)]


@dataclass(frozen=True, slots=True)
class Desk:
    """Serves visits through sessions of a promoted name, and reports what became of them."""

    service: Service
    model: str
    environment: Environment
    judge: Judge
    concurrency: int = 64

    def serve(self, coming: Sequence[Visit], seed: int) -> list[bool]:
        """Serve the visits, and return which of them were answered rightly."""
        return asyncio.run(self._serve(coming, seed))

    async def _serve(self, coming: Sequence[Visit], seed: int) -> list[bool]:
        free = asyncio.Semaphore(self.concurrency)
        async with httpx.AsyncClient(base_url=self.service.url, timeout=300) as client:

            async def one(number: int, visit: Visit) -> bool:
                async with free:
                    return await self._visit(client, visit, number, Random(f"reports {seed} {number}"))

            return await asyncio.gather(*(one(number, visit) for number, visit in enumerate(coming)))

    async def _visit(self, client: httpx.AsyncClient, visit: Visit, number: int, chance: Random) -> bool:
        opening = {"model": self.model, "user": visit.user, "train": True, "metadata": {"task": visit.scenario.id}}
        session = await _posted(client, "/sessions", opening)
        endpoint = Endpoint(session["base_url"], session["api_key"], self.model)
        async with open_chat(endpoint) as chat:
            attempt = await rollout(
                self.environment, visit.scenario, chat, RolloutLimits(), id=session["id"], seed=number
            )
        right = attempt.failure is None and await self._is_right(visit.scenario, attempt.outcome)
        if chance.random() < (GOOD_REPORTED if right else BAD_REPORTED):
            report = {"event_id": session["id"], "type": "outcome", "name": OUTCOME, "value": float(right)}
            await _posted(client, "/feedback", report | {"session_id": session["id"]})
        await _posted(client, f"/sessions/{session['id']}/outcome", {"reason": "done", "attempt": session["attempt"]})
        return right

    async def _is_right(self, scenario: Scenario, outcome: Outcome) -> bool:
        [score] = (await self.judge.judge(scenario, [Candidate("0", outcome, ())])).scores
        return score.value is not None and self.environment.success(outcome, score.value)


async def _posted(client: httpx.AsyncClient, path: str, body: Json) -> Json:
    """Post again while the service is busier than it can be."""
    while (response := await client.post(path, json=body)).status_code == httpx.codes.SERVICE_UNAVAILABLE:
        await asyncio.sleep(_BUSY_S)
    response.raise_for_status()
    return response.json()

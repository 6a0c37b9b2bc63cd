"""Runs that learn from demonstrations, with a scripted policy that notes what it gets."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx

from learnloop_service.training.backends.base import ModelSpec, Policy, SupervisedRequest, TrainOutcome
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedPolicy
from tests.integration.app.served import served, settings_for

TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"words": "it"}'}}
USER, SAYS = {"role": "user", "content": "find it"}, {"role": "assistant", "content": "done"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "here"}
NOT_EVALUATED = {"scenarios": 0, "test_scenarios": 0}


def lines(*demonstrations: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in demonstrations)


def demonstrations(count: int) -> bytes:
    talks = [[USER, CALLS, RESULT, {**SAYS, "content": f"done {number}"}] for number in range(count)]
    return lines(*({"messages": talk, "tools": [TOOL]} for talk in talks))


class ImitatingPolicy(ScriptedPolicy):
    """Notes what it is shown."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__(model, "http://127.0.0.1:9/v1")
        self.shown: list[SupervisedRequest] = []

    async def submit_supervised(self, request: SupervisedRequest) -> str:
        self.shown.append(request)
        self._step = request.expected_step + 1
        return f"job-{self._step}"

    async def follow(
        self, job_id: str, expected_step: int, report: Callable[[int, int], None] | None = None
    ) -> TrainOutcome:
        before, after = 2.0 / (expected_step + 1), 2.0 / (expected_step + 2)
        metrics = {"loss": before, "held_out_loss_before": before, "held_out_loss": after}
        return TrainOutcome(expected_step + 1, {**metrics, "num_trainable_tokens": 40.0, "seconds": 0.5})


class ImitatingBackend(ScriptedBackend):
    """Whose policies imitate."""

    async def register(self, model: ModelSpec) -> Policy:
        return self.policies.setdefault(model, ImitatingPolicy(model))


@asynccontextmanager
async def service(data_dir: Path, url: str, backend: ScriptedBackend, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with served(settings_for(data_dir, url, **more), cast(Any, learn_loop), backend) as client:
        yield client


async def store(client: httpx.AsyncClient, body: bytes, name: str = "mine", **more: Any) -> httpx.Response:
    return await client.post("/demonstrations", params={"name": name}, content=body, **more)

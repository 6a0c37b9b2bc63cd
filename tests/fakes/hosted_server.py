"""W&B's hosted training server, as far as ART's client reveals its protocol, with scripted faults.

It has no compare-and-set, keeps every request that it received, and continues jobs that no client polls.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.conditions import until

JOBS = "POST /v1/preview/training-jobs"
EVENTS = "GET /v1/preview/training-jobs/"
MODELS = "POST /v1/preview/models"
MODEL = "GET /v1/preview/models/"
CHAT = "POST /v1/chat/completions"
KEY = "hosted-canary-key"

Json = dict[str, Any]


@dataclass
class HostedModel:
    """`checkpoints` are metrics by step; `trained` are the steps that trainings began from."""

    about: Json
    checkpoints: dict[int, Json] = field(default_factory=lambda: {0: {}})
    trained: list[int] = field(default_factory=list)
    bodies: list[Json] = field(default_factory=list)


@dataclass
class HostedServer:
    """The server with its scripted faults; by default it has none."""

    refuses: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Statuses for the next requests, by the beginning of the request."""
    hangs: set[str] = field(default_factory=set)
    """Beginnings of requests that get no reply."""
    endless: bool = False
    """Whether jobs never end."""
    failure: str | None = None
    """Error message with which jobs fail."""
    job_s: float = 0.0
    lag_s: float = 0.0
    """Delay in seconds from a job's end until its checkpoint is listed."""
    no_signal: bool = False
    """Whether jobs find nothing to train on."""

    url: str = ""
    requests: list[str] = field(default_factory=list)
    models: dict[str, HostedModel] = field(default_factory=dict)
    _jobs: dict[str, list[Json]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _numbers: "count[int]" = field(default_factory=count)

    def model(self, name: str) -> HostedModel:
        return next(model for model in self.models.values() if model.about["name"] == name)

    def forget_jobs(self) -> None:
        """Forget all jobs, as after a restart."""
        self._jobs.clear()

    def app(self) -> Starlette:
        base = "/v1/preview"
        routes = [
            Route(f"{base}/models", self._create_model, methods=["POST"]),
            Route(f"{base}/models/{{id}}", self._delete_model, methods=["DELETE"]),
            Route(f"{base}/models/{{id}}/checkpoints", self._list_checkpoints, methods=["GET"]),
            Route(f"{base}/models/{{id}}/checkpoints", self._delete_checkpoints, methods=["DELETE"]),
            Route(f"{base}/training-jobs", self._create_job, methods=["POST"]),
            Route(f"{base}/training-jobs/{{id}}/events", self._list_events, methods=["GET"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=self._interfere)])

    async def _interfere(self, request: Request, call_next: Any) -> Response:
        line = f"{request.method} {request.url.path}"
        self.requests.append(line)
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return _error(401, f"bad key {request.headers.get('authorization')}")
        if any(line.startswith(prefix) for prefix in self.hangs):
            await asyncio.Event().wait()
        for beginning, statuses in self.refuses.items():
            if line.startswith(beginning) and statuses:
                return _error(statuses.pop(0), "as scripted")
        return await call_next(request)  # type: ignore[no-any-return]

    async def _create_model(self, request: Request) -> Response:
        body = await request.json()
        if "/" not in body["base_model"]:
            return _error(400, f"unsupported base model {body['base_model']!r}")
        for model in self.models.values():
            if (model.about["project"], model.about["name"]) == (body["project"], body["name"]):
                return JSONResponse(model.about)
        about = {key: body[key] for key in ("project", "name", "base_model")}
        about |= {"id": f"model-{next(self._numbers)}", "entity": body["entity"] or "acme", "run_id": None}
        self.models[about["id"]] = HostedModel(about)
        return JSONResponse(about)

    async def _delete_model(self, request: Request) -> Response:
        self.models.pop(request.path_params["id"], None)
        return Response(status_code=204)

    async def _list_checkpoints(self, request: Request) -> Response:
        query = request.query_params
        steps = sorted(self.models[request.path_params["id"]].checkpoints, reverse=query.get("order") == "desc")
        if after := query.get("after"):
            steps = steps[steps.index(int(after.removeprefix("checkpoint-"))) + 1 :]
        limit = int(query.get("limit", 20))
        checkpoints = self.models[request.path_params["id"]].checkpoints
        page = [{"id": f"checkpoint-{step}", "step": step, "metrics": checkpoints[step]} for step in steps[:limit]]
        return JSONResponse({"data": page, "has_more": len(steps) > limit})

    async def _delete_checkpoints(self, request: Request) -> Response:
        checkpoints = self.models[request.path_params["id"]].checkpoints
        steps = (await request.json())["steps"]
        gone = [step for step in steps if checkpoints.pop(step, None) is not None]
        missing = [step for step in steps if step not in gone]
        return JSONResponse({"deleted_count": len(gone), "not_found_steps": missing})

    async def _create_job(self, request: Request) -> Response:
        body = await request.json()
        job_id = f"job-{next(self._numbers)}"
        self._jobs[job_id] = []
        task = asyncio.create_task(self._work(self._jobs[job_id], self.models[body["model_id"]], body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return JSONResponse({"id": job_id})

    async def _work(self, events: list[Json], model: HostedModel, body: Json) -> None:
        def tell(kind: str, **data: Any) -> None:
            events.append({"id": f"event-{len(events)}", "type": kind, "data": data})

        tell("training_started", num_sequences=2)
        if self.endless:
            return
        await asyncio.sleep(self.job_s)
        if self.failure is not None:
            tell("training_failed", error_message=self.failure)
            return
        if self.no_signal:
            tell("training_ended")
            return
        for loss in (1.0, 0.5):
            tell("gradient_step", loss=loss, grad_norm=2.0)
        before = max(model.checkpoints)
        model.trained.append(before)
        model.bodies.append(body)
        tell("training_ended")
        await asyncio.sleep(self.lag_s)
        model.checkpoints[before + 1] = {"loss": 0.75}

    async def _list_events(self, request: Request) -> Response:
        events = self._jobs.get(request.path_params["id"])
        if events is None:
            return _error(404, "no such job")
        after = request.query_params.get("after")
        start = int(after.removeprefix("event-")) + 1 if after else 0
        return JSONResponse({"data": events[start : start + 2], "has_more": len(events) > start + 2})

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        tokens = [(body.get("seed") or 0) + 5, 6]
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "At noon."},
            "logprobs": {"content": [_token(number) for number in tokens]},
        }
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        about = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": body["model"]}
        return JSONResponse({**about, "choices": [choice], "usage": usage})


def _token(number: int) -> Json:
    return {"token": f"token_id:{number}", "bytes": None, "logprob": -0.5, "top_logprobs": []}


def _error(status: int, message: str) -> Response:
    body = {"error": {"message": message, "type": "error", "code": None}}
    return JSONResponse(body, status_code=status, headers={"retry-after-ms": "1"})


@asynccontextmanager
async def hosted_server(**faults: Any) -> AsyncIterator[HostedServer]:
    """Run a server while the context is open."""
    hosted = HostedServer(**faults)
    config = uvicorn.Config(hosted.app(), port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())  # serve() would take over the signals
    try:
        await until(lambda: server.started)
        hosted.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
        yield hosted
    finally:
        server.should_exit = True
        await serving

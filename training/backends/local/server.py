"""The process that runs ART's local backend, behind the training protocol of our engine.

`python -m learnloop_service.training.backends.local.server --data-dir DIR --ready-file FILE --port 0
--api-key-env NAME`.
"""

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from learnloop_service.training.backends.local.models import IDLE_S, ErrorReply, LocalModels

Handler = Callable[[Request], Awaitable[Any]]

_LONGEST_WAIT_S = 30.0
_SAMPLING_TIMEOUT_S = 600.0


def make_app(models: LocalModels, api_key: str) -> Starlette:
    """Return the app that serves the protocol over HTTP."""
    api = _Api(models)
    model = "/v1/preview/models/{id}"
    handlers: list[tuple[str, str, Handler]] = [
        ("POST", "/v1/preview/models", api.create_model),
        ("DELETE", model, api.delete_model),
        ("GET", f"{model}/checkpoints", api.list_checkpoints),
        ("DELETE", f"{model}/checkpoints", api.delete_checkpoints),
        ("POST", "/v1/preview/training-jobs", api.create_job),
        ("GET", "/v1/preview/training-jobs/{id}/events", api.list_events),
        ("POST", "/v1/chat/completions", api.chat),
    ]
    return Starlette(
        routes=[Route(path, _wrap_handler(handler, api_key), methods=[verb]) for verb, path, handler in handlers]
    )


def _wrap_handler(handler: Handler, api_key: str) -> Handler:
    """Wrap a handler: require the key, turn expected errors into error responses, and send other results as JSON."""

    async def handle(request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {api_key}":
            return _error(401, "bad key", None)
        try:
            answer = await handler(request)
        except ErrorReply as error:
            return _error(error.status, str(error), error.code)
        except (KeyError, TypeError, ValueError) as error:
            return _error(400, f"{type(error).__name__}: {error}", None)
        return answer if isinstance(answer, Response) else JSONResponse(answer)

    return handle


def _error(status: int, message: str, code: str | None) -> Response:
    return JSONResponse({"error": {"message": message, "type": "error", "param": None, "code": code}}, status)


class _Api:
    """The request handlers. Their results are sent as JSON."""

    def __init__(self, models: LocalModels) -> None:
        self._models = models

    async def create_model(self, request: Request) -> Any:
        body = await request.json()
        return await self._models.register(body["project"], body["name"], body["base_model"])

    async def delete_model(self, request: Request) -> Any:
        await self._models.delete(request.path_params["id"])
        return Response(status_code=204)

    async def list_checkpoints(self, request: Request) -> Any:
        query = request.query_params
        steps = await self._models.steps(request.path_params["id"])
        steps = steps[::-1] if query.get("order") == "desc" else steps
        if after := query.get("after"):
            steps = steps[steps.index(int(after)) + 1 :]
        limit = int(query.get("limit", 20))
        data = [{"id": str(step), "step": step, "metrics": {}} for step in steps[:limit]]
        return {"data": data, "has_more": len(steps) > limit}

    async def delete_checkpoints(self, request: Request) -> Any:
        return await self._models.delete_checkpoints(request.path_params["id"], (await request.json())["steps"])

    async def create_job(self, request: Request) -> Any:
        body = await request.json()
        return {"id": await self._models.submit(body["model_id"], body)}

    async def list_events(self, request: Request) -> Any:
        job = self._models.jobs.get(request.path_params["id"])
        if job is None:
            raise ErrorReply(404, "no such training job", "job_not_found")
        after = request.query_params.get("after")
        start = int(after.removeprefix("event-")) + 1 if after else 0
        wait_s = min(float(request.query_params.get("wait_s", 0)), _LONGEST_WAIT_S)
        return {"data": await job.after(start, wait_s), "has_more": False}

    async def chat(self, request: Request) -> Any:
        body = await request.json()
        base_url, key, body["model"] = self._models.sampled_at(body["model"])
        async with httpx.AsyncClient(timeout=_SAMPLING_TIMEOUT_S, trust_env=False) as http:
            headers = {"authorization": f"Bearer {key}"}
            reply = await http.post(f"{base_url}/chat/completions", json=body, headers=headers)
        return Response(reply.content, reply.status_code, media_type=reply.headers.get("content-type"))


def art_backend(root: Path) -> Any:
    """Return ART's local backend. Importing it patches asyncio for this process."""
    from art.local import LocalBackend

    return LocalBackend(path=str(root))


def main(make_backend: Callable[[Path], Any] = art_backend) -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--api-key-env", required=True)
    parser.add_argument("--model-config", type=json.loads, default={})
    parser.add_argument("--idle-s", type=float, default=IDLE_S)
    arguments, _ = parser.parse_known_args()  # the engine's supervisor starts this process too, with extra flags
    root = arguments.data_dir / "art"
    root.mkdir(parents=True, exist_ok=True)
    backend = make_backend(root)
    asyncio.run(_serve(LocalModels(backend, root, arguments.model_config, arguments.idle_s), arguments))


async def _serve(models: LocalModels, arguments: argparse.Namespace) -> None:
    import uvicorn

    app = make_app(models, os.environ[arguments.api_key_env])
    # nest_asyncio cannot patch uvloop.
    config = uvicorn.Config(
        app, port=arguments.port, loop="asyncio", log_config=None, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, setattr, server, "should_exit", True)
    serving = asyncio.create_task(server._serve())
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        port = server.servers[0].sockets[0].getsockname()[1]
        draft = arguments.ready_file.with_suffix(".new")
        draft.write_text(json.dumps({"port": port, "pid": os.getpid()}))
        draft.rename(arguments.ready_file)
    await serving
    await models.close()


if __name__ == "__main__":
    main()

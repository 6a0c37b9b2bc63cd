"""Tasks of operators done by opencode, with a model whose every reply a task's policy decides.

The model gets what opencode sends: it must find the tools among those that are offered, and the results in the
conversation.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from benchmarks.agents.operator_stage import OperatorStage
from benchmarks.agents.operator_tasks import OperatorTask
from learnloop_service.environment.json_type import Json
from tests.operators import COMMAND, data_of, more_in

_PREFIX = "learnloop_"
_MOST_S = 300.0


@dataclass
class PolicyModel:
    """A model that calls the tools of one policy, and answers with what the policy returns."""

    calls: asyncio.Queue[tuple[str, Json] | None] = field(default_factory=asyncio.Queue)
    results: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    made: int = 0

    async def ask(self, tool: str, /, **arguments: Json) -> Json:
        """Have the agent call a tool; return the document of its whole answer."""
        text = await self._called(tool, arguments)
        whole = data_of(text)
        while (rest := more_in(text)) is not None:
            text = await self._called("more", {"id": rest})
            whole += data_of(text)
        document = json.loads(whole)
        if isinstance(document, dict) and document.keys() == {"error"}:
            raise RuntimeError(document["error"])
        return document

    async def _called(self, tool: str, arguments: Json) -> str:
        await self.calls.put((tool, arguments))
        return await self.results.get()

    async def reply(self, request: Json) -> Json:
        """Return the message that a chat completion begins with."""
        offered = {tool["function"]["name"] for tool in request.get("tools") or ()}
        if f"{_PREFIX}list" not in offered:  # a title for the conversation
            return {"content": "Operating Learnloop"}
        if (last := request["messages"][-1])["role"] == "tool":
            content = last["content"]
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            await self.results.put(text)
        if (call := await self.calls.get()) is None:
            return {"content": "Done."}
        self.made += 1
        function = {"name": f"{_PREFIX}{call[0]}", "arguments": json.dumps(call[1])}
        return {"tool_calls": [{"index": 0, "id": f"call_{self.made}", "type": "function", "function": function}]}


@asynccontextmanager
async def _served(model: PolicyModel) -> AsyncIterator[str]:
    """Serve the model's chat completions, streamed; yield the base URL."""

    async def complete(request: web.Request) -> web.StreamResponse:
        message = await model.reply(await request.json())
        ends = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for delta, reason in (({"role": "assistant", **message}, None), ({}, ends)):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
            await response.write(f"data: {json.dumps({**chunk, **({'usage': usage} if reason else {})})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def _config(base_url: str, url: str) -> Json:
    """Return opencode's settings: the scripted model, and `learnloop mcp` as the guide has it."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": base_url, "apiKey": "none"},
        "models": {"scripted": {"limit": {"context": 200_000, "output": 4_096}}},
    }
    server = {"type": "local", "command": [*COMMAND, "--url", url], "enabled": True, "timeout": 120_000}
    return {
        "model": "local/scripted",
        "small_model": "local/scripted",
        "autoupdate": False,
        "provider": {"local": provider},
        "mcp": {"learnloop": server},
    }


async def _operated(command: str, stage: OperatorStage, task: OperatorTask) -> tuple[str | None, int]:
    """Let the agent do a task; return why it is not done, and how many calls it made."""
    model, before = PolicyModel(), await asyncio.to_thread(stage.count)
    async with _served(model) as base_url:
        with tempfile.TemporaryDirectory(prefix="operator-") as directory:
            file = Path(directory, ".config/opencode/opencode.json")
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps(_config(base_url, stage.service.url)))
            python_path = str(Path(__file__).parents[2])
            variables = {"PATH": os.environ["PATH"], "HOME": directory, "PYTHONPATH": python_path}
            process = await asyncio.create_subprocess_exec(
                *(command, "run", task.says),
                cwd=directory,
                env=variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr,
            )
            try:
                async with asyncio.timeout(_MOST_S):
                    said = await task.policy(model.ask)
                    await model.calls.put(None)
                    await process.wait()
            except Exception as error:
                return repr(error)[:300], model.made
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
    is_done = await asyncio.to_thread(task.is_done, stage, said, before)
    return (None if is_done else f"the answer was {said!r}"[:300]), model.made


async def by_agent(command: str, stage: OperatorStage, tasks: Sequence[OperatorTask]) -> dict[str, Json]:
    """Let the agent do the tasks; return how many it did, with how many calls."""
    outcomes = {task.says: await _operated(command, stage, task) for task in tasks}
    failed = {says: why for says, (why, _) in outcomes.items() if why is not None}
    calls = sum(made for _, made in outcomes.values())
    return {"tasks": len(tasks), "done": len(tasks) - len(failed), "calls": calls, "failed": failed}

"""A running vLLM and what it has loaded: one set of full weights, and adapters on top of them."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.registry.checkpoints import is_optimizer
from learnloop_service.training.engine.sampling.figures import SamplingFigures
from learnloop_service.training.engine.vllm.protocol import BadReply, figures
from learnloop_service.training.protocol.lines import lines_of

T = TypeVar("T")

ADAPTERS = 4
"""Number of adapters loaded and sampled in one batch. More are loaded only while more are in use."""
_PULSE_S = 2.0
_ANSWER_S = 10.0
"""Longest wait for an answer about its state, in seconds."""


class VllmLost(Exception):
    """The process has ended, was ended or cannot be reached. Its requests can be repeated on the next one."""


class VllmRefused(Exception):
    """An error reply with its HTTP `status`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _Adapter:
    loading: asyncio.Task[Json]
    users: int = 0


class RunningVllm:
    """One vLLM process from its start to its end, to be used from one event loop."""

    def __init__(
        self, http: httpx.AsyncClient, base: Path, *, model: str, context: int, version: str, stall_s: float
    ) -> None:
        """It serves the weights in `base` under the name `model`, with prompts and replies of up to `context` tokens in
        total. If it makes no progress on its requests for `stall_s` seconds, it counts as lost."""
        self.base = base
        self.model = model
        self.context = context
        self.version = version
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolves to the reason when the process is lost."""
        self.closing = False
        """Whether we closed the connection ourselves."""
        self.figures: SamplingFigures | None = None
        self._http = http
        self._whole: Path | None = base
        self._changing = asyncio.Lock()
        self._adapters: dict[str, _Adapter] = {}  # by name, least recently used first
        self._asked = 0
        self._watching = asyncio.create_task(self._watch(stall_s), name="vllm-watch")

    def lose(self, why: str) -> None:
        """Mark the process as lost. All its requests end with VllmLost."""
        if not self.lost.done():
            self.lost.set_result(why)

    async def doubt(self, why: str) -> None:
        """Check the process after a failure, and mark it as lost unless it reports that it is healthy. A process whose
        engine has died takes a while to end."""
        try:
            well = (await self._http.get("/health", timeout=_ANSWER_S)).is_success
        except httpx.HTTPError:
            well = False
        if not well:
            self.lose(why)

    async def close(self) -> None:
        """Close the connection."""
        self.closing = True
        self.lose("the engine has let go of it")
        self._watching.cancel()
        await asyncio.wait({self._watching})
        await self._http.aclose()

    # Requests

    async def ask(self, path: str, body: Json) -> Json:
        """Return the JSON reply to a POST. Raises VllmRefused, VllmLost or BadReply."""
        return await self._unless_lost(self._post(path, body))

    async def stream(self, path: str, body: Json, on_event: Callable[[str], None]) -> None:
        """Call `on_event` with the data of each event in the reply to a POST. Raises the errors of `ask`."""
        await self._unless_lost(self._read(path, body, on_event))

    async def _read(self, path: str, body: Json, on_event: Callable[[str], None]) -> None:
        async with self._http.stream("POST", path, json=body) as reply:
            if reply.status_code != httpx.codes.OK:
                await reply.aread()
                raise _refusal(reply)
            async for line in lines_of(reply.aiter_bytes()):
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    on_event(line.removeprefix(b"data: ").decode())

    async def _post(self, path: str, body: Json) -> Json:
        reply = await self._http.post(path, json=body)
        if reply.status_code != httpx.codes.OK:
            raise _refusal(reply)
        if not reply.headers.get("content-type", "").startswith("application/json"):
            return None
        try:
            return reply.json()
        except ValueError as error:
            raise BadReply(f"vLLM's reply is not JSON: {error}") from error

    async def _unless_lost(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        self._asked += 1
        try:
            first: set[asyncio.Future[Any]] = {task, self.lost}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise VllmLost(self.lost.result())
            return task.result()
        except httpx.TransportError as error:
            raise VllmLost(f"vLLM does not answer: {error!r}") from error
        finally:
            self._asked -= 1
            task.cancel()

    # Weights

    async def have(self, whole: Path) -> None:
        """Load the weights in this directory: the base, or a fully trained checkpoint. Nothing may be sampling. Raises
        VllmRefused, VllmLost, BadReply or OSError."""
        async with self._changing:
            if self._whole == whole:
                return
            self._whole = None
            try:
                with _without_optimizer(whole) as directory:
                    await self.ask("/collective_rpc", {"method": "learnloop_load", "args": [directory]})
                # The cache was computed with other weights, and abandoned requests can still be running.
                await self.ask("/reset_prefix_cache?reset_running_requests=true", {})
            except (VllmRefused, BadReply) as error:
                self.lose(f"the weights in {whole} could not be loaded into vLLM: {error}")
                raise
            self._whole = whole

    @asynccontextmanager
    async def adapter(self, name: str, directory: Path) -> AsyncIterator[None]:
        """Keep the adapter of that directory loaded under the name while the context is open. A name always identifies
        the same files. Raises VllmRefused or VllmLost."""
        entry = self._adapters.pop(name, None) or _Adapter(asyncio.create_task(self._load(name, directory)))
        self._adapters[name] = entry
        entry.users += 1
        try:
            await asyncio.shield(entry.loading)
            yield
        except VllmRefused:  # it could not be loaded or has been dropped
            self._forget(name, entry)
            raise
        finally:
            entry.users -= 1
            if entry.loading.done() and (entry.loading.cancelled() or entry.loading.exception()):
                self._forget(name, entry)

    def _forget(self, name: str, entry: _Adapter) -> None:
        if self._adapters.get(name) is entry:
            del self._adapters[name]

    async def _load(self, name: str, directory: Path) -> None:
        idle = [other for other, adapter in self._adapters.items() if not adapter.users]
        for other in idle[: max(0, len(self._adapters) - ADAPTERS)]:
            del self._adapters[other]
            with suppress(VllmRefused):
                await self.ask("/v1/unload_lora_adapter", {"lora_name": other})
        try:
            await self.ask("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(directory)})
        except VllmRefused as error:
            if "already been loaded" not in str(error):
                raise

    # Health

    async def _watch(self, stall_s: float) -> None:
        """Read the process's figures while it has requests, and mark it as lost if they do not change for too long."""
        moved = time.monotonic()
        while not self.lost.done():
            await asyncio.sleep(min(_PULSE_S, stall_s / 4))
            if not self._asked and self.figures is not None and not self.figures.batch_size:
                moved = time.monotonic()
                continue
            with suppress(httpx.HTTPError, ValueError):
                read = figures((await self._http.get("/metrics", timeout=_ANSWER_S)).raise_for_status().text)
                if read != self.figures or not self._asked:
                    self.figures, moved = read, time.monotonic()
            if time.monotonic() - moved > stall_s:
                self.lose(f"vLLM has not gone on for {stall_s:g} s with what it was asked")


def _refusal(reply: httpx.Response) -> VllmRefused:
    try:
        body = reply.json()
        details = body.get("error", body)
        message = str(details["message"] if "message" in details else details.get("detail", details))
    except (ValueError, AttributeError, TypeError, KeyError):
        message = reply.text
    return VllmRefused(reply.status_code, " ".join(message.split())[:500] or f"status {reply.status_code}")


@contextmanager
def _without_optimizer(checkpoint: Path) -> Iterator[str]:
    """Yield a directory with links to a checkpoint's files, without the optimizer's, which vLLM would take for
    weights."""
    with tempfile.TemporaryDirectory(prefix="learnloop-weights-") as directory:
        for file in checkpoint.iterdir():
            if not is_optimizer(file.name):
                (Path(directory) / file.name).symlink_to(file.resolve())
        yield directory

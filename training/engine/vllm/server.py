"""Where vLLM comes from: we start it and start it again, or somebody else runs it.

It listens on a socket in a directory that only we can enter: whoever reaches it can have it load any weights and, by
its RPCs, run any method of its workers.
"""

import argparse
import asyncio
import ctypes
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import structlog

from training.engine.computing import EngineStopped
from training.engine.sampling.requests import NotSampledThere, SamplerUnavailable
from training.engine.vllm.output import Output
from training.engine.vllm.running import ADAPTERS, RunningVllm, VllmLost

log = structlog.get_logger(__name__)

START_TIMEOUT_S = 900.0
"""The weights of the largest models take minutes to read."""
STALL_S = 120.0
"""So long it may work without a token for anybody: a prompt of 100,000 takes less."""
_STOP_TIMEOUT_S = 10.0
_PAUSE_S = 5.0
"""After a start that failed; whoever asks meanwhile is told of that."""
_NOTICE_S = 1.0
_LOOK_S = 0.1
_BASE = "base"
_KEEP_CONNECTION_S = 2.0
"""Shorter than vLLM keeps it (5 s): where both give up at the same time, a request is lost."""
_PR_SET_PDEATHSIG = 1


class VllmServer(ABC):
    """One vLLM at a time, opened when it is asked for. On one event loop."""

    loads_whole_weights: bool
    """Whether its weights can be replaced, and nobody gets to sample from the wrong ones."""

    def __init__(self) -> None:
        self._running: RunningVllm | None = None
        self._opening: asyncio.Task[RunningVllm] | None = None
        self._closed = False
        self._failed: tuple[float, str] | None = None
        """When opening failed last, by the monotonic clock, and why."""

    @property
    def running(self) -> RunningVllm | None:
        """The one that can be asked now."""
        return None if self._running is None or self._running.lost.done() else self._running

    @property
    def state(self) -> dict[str, Any]:
        """For `/health`."""
        running = self.running
        trouble = self._running.lost.result() if self._running and not running else self._failed and self._failed[1]
        if self._opening is not None and not self._opening.done():
            return {"state": "starting", "version": None, "trouble": trouble}
        state = "running" if running else "down" if trouble else "not started"
        return {"state": state, "version": running.version if running else None, "trouble": trouble}

    async def vllm(self, base: Path) -> RunningVllm:
        """One that serves the base model of that directory; another one is ended for it, so nobody may be sampling from
        that. Raises SamplerUnavailable, NotSampledThere, EngineStopped."""
        if self._closed:
            raise EngineStopped("the engine is shutting down")
        if (running := self.running) is not None and running.base == base:
            return running
        if self._opening is None or self._opening.done():
            if self._failed is not None and time.monotonic() - self._failed[0] < _PAUSE_S:
                raise SamplerUnavailable(self._failed[1])
            self._opening = asyncio.create_task(self._replace(base), name="vllm-opening")
            self._opening.add_done_callback(self._opened)
        opened = await asyncio.shield(self._opening)
        return opened if opened.base == base else await self.vllm(base)

    async def why_lost(self, error: VllmLost) -> str:
        """Why a question failed, as far as is known a moment later: it may have failed because the process ends."""
        if self._running is not None:
            running = self._running
            await asyncio.wait({running.lost}, timeout=_NOTICE_S)
            if not running.lost.done():
                await running.doubt(str(error))
            if running.lost.done():
                return running.lost.result()
        return str(error)

    async def close(self) -> None:
        """End it, or let go of it, for good."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        if self._running is not None:
            await self._running.close()

    async def _replace(self, base: Path) -> RunningVllm:
        if self._running is not None:
            await self._running.close()
            self._running = None
        self._running = await self._open(base)
        log.info("vLLM runs", version=self._running.version, base=base.name, context=self._running.context)
        return self._running

    def _opened(self, task: asyncio.Task[RunningVllm]) -> None:
        """Whoever waited for it may have been cancelled; then its error is nobody's."""
        error = None if task.cancelled() else task.exception()
        self._failed = (time.monotonic(), str(error)) if isinstance(error, SamplerUnavailable) else None

    @abstractmethod
    async def _open(self, base: Path) -> RunningVllm: ...


class GivenVllm(VllmServer):
    """One that somebody else runs at a URL. It keeps its base model and must see our files under the same paths."""

    loads_whole_weights = False

    def __init__(self, url: str, api_key: str | None = None, *, stall_s: float = STALL_S) -> None:
        super().__init__()
        self._url = url.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        self._stall_s = stall_s

    async def _open(self, base: Path) -> RunningVllm:
        headers = {"authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        http = _client(httpx.AsyncHTTPTransport(limits=_limits()), self._url, headers)
        try:
            served = await _served(http)
            if Path(served["root"]).resolve() != base.resolve():
                raise NotSampledThere(
                    f"The vLLM at {self._url} serves {served['root']}. To sample from this model, serve its base: "
                    f"vllm serve {base}"
                )
            return await _described(http, base, served, self._stall_s)
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            await http.aclose()
            raise SamplerUnavailable(f"The vLLM at {self._url} does not answer as it should: {error!r}") from error
        except BaseException:
            await http.aclose()
            raise


class StartedVllm(VllmServer):
    """One that we start, and start again when it is asked for after it has ended. It does not outlive us."""

    loads_whole_weights = True

    def __init__(
        self,
        command: Sequence[str],
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        *,
        start_timeout_s: float = START_TIMEOUT_S,
        stall_s: float = STALL_S,
    ) -> None:
        """`command` is `vllm`; `arguments` are further flags of `vllm serve`, and win over ours."""
        super().__init__()
        self._command = tuple(command)
        self._arguments = tuple(arguments)
        given = os.environ if environment is None else environment
        paths = [str(_EXTENSION), *filter(None, [given.get("PYTHONPATH")])]
        self._environment = {**given, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}
        self._start_timeout_s = start_timeout_s
        self._stall_s = stall_s
        self._ending: asyncio.Task[None] | None = None

    async def close(self) -> None:
        await super().close()
        await self._ended()

    async def _open(self, base: Path) -> RunningVllm:
        await self._ended()
        directory = Path(tempfile.mkdtemp(prefix="learnloop-vllm-"))
        socket = directory / "http"
        http = _client(httpx.AsyncHTTPTransport(uds=str(socket), limits=_limits()), "http://vllm", {})
        process: asyncio.subprocess.Process | None = None
        log.info("vLLM starts", base=base.name)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *("serve", str(base), "--uds", str(socket), *_FLAGS, *self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_dying_with(os.getpid()),
            )
            assert process.stdout is not None
            output = Output()
            reading = asyncio.create_task(output.read(process.stdout))
            running = await self._wait(process, http, base, output)
        except BaseException as error:
            if process is not None:
                await _end(process, 0)
            await http.aclose()
            shutil.rmtree(directory, ignore_errors=True)
            if isinstance(error, OSError):
                raise SamplerUnavailable(f"vLLM cannot be started: {error}") from error
            raise
        self._ending = asyncio.create_task(_attend(process, running, reading, output, directory), name="vllm-process")
        return running

    async def _wait(
        self, process: asyncio.subprocess.Process, http: httpx.AsyncClient, base: Path, output: Output
    ) -> RunningVllm:
        """Until it answers. Raises SamplerUnavailable."""
        why = f"has not answered within {self._start_timeout_s:g} s"
        with suppress(TimeoutError):
            async with asyncio.timeout(self._start_timeout_s):
                while process.returncode is None:
                    with suppress(httpx.HTTPError):
                        return await _described(http, base, await _served(http), self._stall_s)
                    await asyncio.sleep(_LOOK_S)
                await asyncio.sleep(_LOOK_S)  # for its last words
                why = f"ended with the status {process.returncode}"
        raise SamplerUnavailable(f"vLLM did not start: it {why}. {output.why}")

    async def _ended(self) -> None:
        """The last one has, with all that it had started."""
        if self._ending is not None:
            await asyncio.wait({self._ending})


def open_vllm(options: argparse.Namespace, environment: Mapping[str, str]) -> VllmServer:
    """What the engine's flags ask for; `environment` is that which the engine was started with."""
    if options.vllm_url:
        return GivenVllm(options.vllm_url, environment.get("VLLM_API_KEY"))
    passed = {name: value for name, value in environment.items() if not _SECRET.fullmatch(name)}
    passed.pop(options.api_key_env or "", None)
    arguments = ["--max-num-seqs", str(options.slots)]
    if options.device == "cpu":
        # As it is trained; and requests with a seed end vLLM on a CPU when their prompts are cut into pieces (0.32).
        arguments += ["--dtype", "float32", "--no-enable-chunked-prefill"]
    elif options.vllm_gpus is None:
        arguments += ["--gpu-memory-utilization", _SHARED_GPU]
    if options.vllm_gpus is not None:
        passed["CUDA_VISIBLE_DEVICES"] = options.vllm_gpus
    return StartedVllm([options.vllm_command], [*arguments, *options.vllm_args], passed)


_SECRET = re.compile(r"LEARNLOOP_.*|AWS_.*|DATABASE_URL|(.*_)?(KEY|TOKEN|SECRET|PASSWORD)")
"""Variables that vLLM does not get: it needs no secret, because it loads models from directories only."""
_SHARED_GPU = "0.5"
"""Of a GPU's memory, where the engine trains on the same one."""
_EXTENSION = Path(__file__).parent / "extension"
_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # the routes that replace weights
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # It takes no seeds, and every request of ours has one; vLLM would compile it at its start all the same.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
_FLAGS = (
    *("--served-model-name", _BASE),
    # Log-probabilities are the model's own, before temperature and cuts, as training compares them.
    *("--logprobs-mode", "raw_logprobs"),
    *("--generation-config", "vllm"),
    "--enable-prompt-tokens-details",
    *("--worker-extension-cls", "learnloop_vllm.LearnloopWorker"),
    *("--enable-lora", "--max-loras", str(ADAPTERS), "--max-cpu-loras", str(ADAPTERS)),
    # Our grammars are in llguidance's form, which is that of this backend.
    *("--structured-outputs-config", '{"backend": "guidance"}'),
    "--disable-uvicorn-access-log",
)


def _limits() -> httpx.Limits:
    return httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_CONNECTION_S)


def _client(transport: httpx.AsyncBaseTransport, url: str, headers: Mapping[str, str]) -> httpx.AsyncClient:
    # Replies may take long; that it has stopped working is seen by its figures.
    timeout = httpx.Timeout(None, connect=10.0)
    return httpx.AsyncClient(transport=transport, base_url=url, headers=headers, timeout=timeout)


async def _served(http: httpx.AsyncClient) -> dict[str, Any]:
    """The model that it was started with. Raises httpx.HTTPError, ValueError, LookupError."""
    reply = (await http.get("/v1/models", timeout=10.0)).raise_for_status()
    served: dict[str, Any] = next(each for each in reply.json()["data"] if each.get("parent") is None)
    return served


async def _described(http: httpx.AsyncClient, base: Path, served: Mapping[str, Any], stall_s: float) -> RunningVllm:
    version = (await http.get("/version", timeout=10.0)).raise_for_status().json()["version"]
    context = int(served["max_model_len"])
    return RunningVllm(http, base, model=served["id"], context=context, version=str(version), stall_s=stall_s)


def _dying_with(parent: int) -> Callable[[], None] | None:
    """In the child: have Linux send it a SIGTERM when we end. There is no such thing elsewhere."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


async def _attend(
    process: asyncio.subprocess.Process,
    running: RunningVllm,
    reading: asyncio.Task[None],
    output: Output,
    directory: Path,
) -> None:
    """Until the process has ended, or is lost and therefore ended."""
    ended = asyncio.create_task(process.wait())
    first: set[asyncio.Future[Any]] = {ended, running.lost}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    # One that has stopped working will not end in good order either.
    await _end(process, _STOP_TIMEOUT_S if running.closing else 0)
    await asyncio.wait({ended, reading}, timeout=1)
    reading.cancel()
    if not running.lost.done():
        running.lose(f"vLLM ended with the status {process.returncode}. {output.why}")
    if not running.closing:
        log.error("vLLM lost", why=running.lost.result())
    shutil.rmtree(directory, ignore_errors=True)


async def _end(process: asyncio.subprocess.Process, timeout_s: float) -> None:
    """Have the process end within that time, and then all that it has started."""
    with suppress(ProcessLookupError, TimeoutError):
        if process.returncode is None and timeout_s:
            os.kill(process.pid, signal.SIGTERM)  # not `terminate`, which may take the status from who waits for it
            async with asyncio.timeout(timeout_s):
                await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()

"""Starts and restarts vLLM, or connects to one that is run externally.

Our vLLM listens on a socket in a directory that only our user can enter, because its API can load any weights and run
any method of its workers.
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

from learnloop_service.training.engine.computing import EngineStopped
from learnloop_service.training.engine.sampling.requests import NotSampledThere, SamplerUnavailable
from learnloop_service.training.engine.vllm.output import Output
from learnloop_service.training.engine.vllm.running import ADAPTERS, RunningVllm, VllmLost

log = structlog.get_logger(__name__)

START_TIMEOUT_S = 900.0
"""Longest time to start, in seconds. Reading the weights of the largest models takes minutes."""
STALL_S = 120.0
"""Longest time without a token for any request, in seconds. A prompt of 100,000 tokens takes less."""
_STOP_TIMEOUT_S = 10.0
_PAUSE_S = 5.0
"""Delay after a failed start, in seconds. Requests in that time get the error of the start."""
_NOTICE_S = 1.0
_LOOK_S = 0.1
_BASE = "base"
_KEEP_CONNECTION_S = 2.0
"""Time to keep idle connections, in seconds. It is shorter than vLLM's (5 s), because a request is lost if both sides
close at the same time."""
_PR_SET_PDEATHSIG = 1


class VllmServer(ABC):
    """One vLLM at a time, opened when needed, to be used from one event loop."""

    loads_whole_weights: bool
    """Whether its full weights can be replaced without any request sampling from the wrong ones."""

    def __init__(self) -> None:
        self._running: RunningVllm | None = None
        self._opening: asyncio.Task[RunningVllm] | None = None
        self._closed = False
        self._failed: tuple[float, str] | None = None
        """Time (monotonic clock) and reason of the last failure to open one."""

    @property
    def running(self) -> RunningVllm | None:
        """The one that currently accepts requests, or None."""
        return None if self._running is None or self._running.lost.done() else self._running

    @property
    def state(self) -> dict[str, Any]:
        """The state for `/health`."""
        running = self.running
        trouble = self._running.lost.result() if self._running and not running else self._failed and self._failed[1]
        if self._opening is not None and not self._opening.done():
            return {"state": "starting", "version": None, "trouble": trouble}
        state = "running" if running else "down" if trouble else "not started"
        return {"state": state, "version": running.version if running else None, "trouble": trouble}

    async def vllm(self, base: Path) -> RunningVllm:
        """Return a vLLM that serves the base model of that directory. One with a different base is ended first, so
        nothing may be sampling from it. Raises SamplerUnavailable, NotSampledThere or EngineStopped."""
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
        """Return why a request failed, as far as is known a moment later, when the end of the process may have been
        noticed."""
        if self._running is not None:
            running = self._running
            await asyncio.wait({running.lost}, timeout=_NOTICE_S)
            if not running.lost.done():
                await running.doubt(str(error))
            if running.lost.done():
                return running.lost.result()
        return str(error)

    async def close(self) -> None:
        """End vLLM, or close the connection to it, for good."""
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
        """Retrieve the task's error, because every caller that waited for it may have been cancelled."""
        error = None if task.cancelled() else task.exception()
        self._failed = (time.monotonic(), str(error)) if isinstance(error, SamplerUnavailable) else None

    @abstractmethod
    async def _open(self, base: Path) -> RunningVllm: ...


class GivenVllm(VllmServer):
    """A vLLM run externally at a URL. Its base model is fixed, and it must see our files under the same paths."""

    loads_whole_weights = False

    def __init__(self, url: str, api_key: str | None = None) -> None:
        super().__init__()
        self._url = url.rstrip("/").removesuffix("/v1")
        self._api_key = api_key

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
            return await _described(http, base, served, STALL_S)
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            await http.aclose()
            raise SamplerUnavailable(f"The vLLM at {self._url} does not answer as it should: {error!r}") from error
        except BaseException:
            await http.aclose()
            raise


class StartedVllm(VllmServer):
    """A vLLM that we start, and restart when it is needed after it has ended. It does not outlive this process."""

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
        """`command` is `vllm`; `arguments` are additional flags of `vllm serve`, which override ours."""
        super().__init__()
        self._command = tuple(command)
        self._arguments = tuple(arguments)
        inherited = os.environ if environment is None else environment
        paths = [str(_EXTENSION), *filter(None, [inherited.get("PYTHONPATH")])]
        self._environment = {**inherited, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}
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
        """Wait until it answers. Raises SamplerUnavailable."""
        why = f"has not answered within {self._start_timeout_s:g} s"
        with suppress(TimeoutError):
            async with asyncio.timeout(self._start_timeout_s):
                while process.returncode is None:
                    with suppress(httpx.HTTPError):
                        return await _described(http, base, await _served(http), self._stall_s)
                    await asyncio.sleep(_LOOK_S)
                await asyncio.sleep(_LOOK_S)  # lets its last output arrive
                why = f"ended with the status {process.returncode}"
        raise SamplerUnavailable(f"vLLM did not start: it {why}. {output.why}")

    async def _ended(self) -> None:
        """Wait until the previous one has ended, with all processes that it started."""
        if self._ending is not None:
            await asyncio.wait({self._ending})


def open_vllm(options: argparse.Namespace, environment: Mapping[str, str]) -> VllmServer:
    """Open the vLLM that the engine's flags describe. `environment` is the one that the engine was started with."""
    if options.vllm_url:
        return GivenVllm(options.vllm_url, environment.get("VLLM_API_KEY"))
    passed = {name: value for name, value in environment.items() if not _SECRET.fullmatch(name)}
    passed.pop(options.api_key_env or "", None)
    arguments = ["--max-num-seqs", str(options.slots)]
    if options.device == "cpu":
        # Float32 as in training. On a CPU, requests with a seed crash vLLM (0.32) when their prompts are cut into
        # pieces.
        arguments += ["--dtype", "float32", "--no-enable-chunked-prefill"]
    elif options.vllm_gpus is None:
        arguments += ["--gpu-memory-utilization", _SHARED_GPU]
    if options.vllm_gpus is not None:
        passed["CUDA_VISIBLE_DEVICES"] = options.vllm_gpus
    return StartedVllm([options.vllm_command], [*arguments, *options.vllm_args], passed)


_SECRET = re.compile(r"LEARNLOOP_.*|AWS_.*|DATABASE_URL|(.*_)?(KEY|TOKEN|SECRET|PASSWORD)")
"""Variables withheld from vLLM, which loads models only from directories and therefore needs no secrets."""
_SHARED_GPU = "0.5"
"""Share of a GPU's memory for vLLM if the engine trains on the same GPU."""
_EXTENSION = Path(__file__).parent / "extension"
_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # enables the routes that replace weights
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # This sampler ignores seeds, which all our requests have, and vLLM would still compile it at startup.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
_FLAGS = (
    *("--served-model-name", _BASE),
    # Log-probabilities are the model's own, before temperature and cuts, as training expects them.
    *("--logprobs-mode", "raw_logprobs"),
    *("--generation-config", "vllm"),
    "--enable-prompt-tokens-details",
    *("--worker-extension-cls", "learnloop_vllm.LearnloopWorker"),
    *("--enable-lora", "--max-loras", str(ADAPTERS), "--max-cpu-loras", str(ADAPTERS)),
    # Our grammars are in llguidance's form, which this backend takes.
    *("--structured-outputs-config", '{"backend": "guidance"}'),
    "--disable-uvicorn-access-log",
)


def _limits() -> httpx.Limits:
    return httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_CONNECTION_S)


def _client(transport: httpx.AsyncBaseTransport, url: str, headers: Mapping[str, str]) -> httpx.AsyncClient:
    # Replies can take long. A stalled vLLM is detected through its figures instead.
    timeout = httpx.Timeout(None, connect=10.0)
    return httpx.AsyncClient(transport=transport, base_url=url, headers=headers, timeout=timeout)


async def _served(http: httpx.AsyncClient) -> dict[str, Any]:
    """Return the model that vLLM was started with. Raises httpx.HTTPError, ValueError or LookupError."""
    reply = (await http.get("/v1/models", timeout=10.0)).raise_for_status()
    served: dict[str, Any] = next(model for model in reply.json()["data"] if model.get("parent") is None)
    return served


async def _described(http: httpx.AsyncClient, base: Path, served: Mapping[str, Any], stall_s: float) -> RunningVllm:
    version = (await http.get("/version", timeout=10.0)).raise_for_status().json()["version"]
    context = int(served["max_model_len"])
    return RunningVllm(http, base, model=served["id"], context=context, version=str(version), stall_s=stall_s)


def _dying_with(parent: int) -> Callable[[], None] | None:
    """Return a function for the child that makes Linux send it a SIGTERM when this process ends. Other systems have no
    equivalent."""
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
    """Wait until the process has ended, and end it if it is lost."""
    ended = asyncio.create_task(process.wait())
    first: set[asyncio.Future[Any]] = {ended, running.lost}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    # A process that has stopped working will not shut down cleanly either.
    await _end(process, _STOP_TIMEOUT_S if running.closing else 0)
    await asyncio.wait({ended, reading}, timeout=1)
    reading.cancel()
    if not running.lost.done():
        running.lose(f"vLLM ended with the status {process.returncode}. {output.why}")
    if not running.closing:
        log.error("vLLM lost", why=running.lost.result())
    shutil.rmtree(directory, ignore_errors=True)


async def _end(process: asyncio.subprocess.Process, timeout_s: float) -> None:
    """Stop the process within that time, and then everything that it started."""
    with suppress(ProcessLookupError, TimeoutError):
        if process.returncode is None and timeout_s:
            # unlike `terminate`, this cannot consume the exit status that another task waits for
            os.kill(process.pid, signal.SIGTERM)
            async with asyncio.timeout(timeout_s):
                await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()

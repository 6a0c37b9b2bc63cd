"""`python -m learnloop_service.training.engine`: runs the engine as a separate process."""

import argparse
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from learnloop_service.training.bases.files import added_base_models
from learnloop_service.training.engine.cpu_mode import set_cpu_mode
from learnloop_service.training.engine.logs import configure_logs
from learnloop_service.training.engine_flags import KEY_VARIABLE, is_loopback, parse
from learnloop_service.training.engine_libraries import missing_libraries
from learnloop_service.training.garbage import freeze_gc
from learnloop_service.training.private_directory import keep_private

if TYPE_CHECKING:  # imported late, see main
    from starlette.types import ASGIApp

    from learnloop_service.training.engine.computing import Computing
    from learnloop_service.training.engine.registry.model_record import Target
    from learnloop_service.training.engine.registry.registry import Registry
    from learnloop_service.training.engine.text.tokens import ChatTokenizer
    from learnloop_service.training.engine.workers.link import WorkerSpec

TINY_BASE = Path(__file__).parent / "tiny_base" / "model"
TINY_NAME = "learnloop/tiny"
KEEP_ALIVE_S = 60
"""Keep-alive timeout in seconds, longer than clients' (httpx: 5 s). If both sides time out at the same moment, a
request is lost, and ART's client does not retry a POST."""
_SWITCH_INTERVAL_S = 0.001
"""Python's thread switch interval, in seconds: how long the thread that computes can hold the GIL while a request
waits for it, which it does several times. Python's default is 5 ms."""

log = structlog.get_logger(__name__)


def main(arguments: Sequence[str] | None = None, program: str = "python -m learnloop_service.training.engine") -> int:
    """Serve until SIGTERM or SIGINT, and return the exit status. `arguments` default to the process's own; `program` is
    the command's name in messages."""
    options = parse(arguments, program)
    keep_private(options.data_dir)
    configure_logs()
    if options.die_with_parent:
        _die_with_parent(options.die_with_parent)
    api_key = os.environ.get(options.api_key_env or KEY_VARIABLE)
    if (why := _why_unservable(options, api_key)) is not None:
        sys.stderr.write(f"{why}\n")
        return 2
    sock = _listen(options.host, options.port)
    environment = dict(os.environ)
    _set_environment(options.device)
    bases = {TINY_NAME: TINY_BASE} if (TINY_BASE / "config.json").is_file() else {}
    bases |= dict(options.base_model)
    # Imported late because torch and transformers take seconds, and bad flags should be reported immediately.
    with freeze_gc():
        _import_libraries(options, bases)

        from learnloop_service.training.engine.registry.object_store import BadStore, StoreUnavailable
        from learnloop_service.training.engine.weights.fp8 import Fp8Unsupported
        from learnloop_service.training.engine.workers.ray_workers import ClusterUnavailable
    try:
        app = _application(options, bases, environment, api_key or None)
    except _TooFewGpus as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (BadStore, StoreUnavailable, ClusterUnavailable, Fp8Unsupported) as error:
        log.error("engine not started", error=str(error))
        return 1
    _serve(app, sock, options)
    return 0


class _TooFewGpus(Exception):
    """The machine has fewer GPUs than the workers need."""


def _why_unservable(options: argparse.Namespace, api_key: str | None) -> str | None:
    """Return why valid flags cannot be served on this machine, or None if they can."""
    if (missing := missing_libraries()) is not None:
        return missing
    if options.api_key_env and not api_key:
        return f"--api-key-env: the environment has no {options.api_key_env}"
    if not api_key and not is_loopback(options.host):
        return (
            f"--host {options.host}: others can reach the engine there, so it needs a key. Set {KEY_VARIABLE}, or name "
            "another variable with --api-key-env; clients send the key as 'Authorization: Bearer KEY'."
        )
    if options.sampler == "vllm" and not options.vllm_url and shutil.which(options.vllm_command) is None:
        return (
            f"--sampler vllm: there is no command {options.vllm_command!r}. Install vLLM in an environment of its own "
            "(python -m venv vllm-env && vllm-env/bin/pip install vllm) and name it: --vllm-command vllm-env/bin/vllm"
        )
    return None


def _set_environment(device: str) -> None:
    """Set the variables that PyTorch reads when it is imported."""
    set_cpu_mode()
    # Waiting threads must not spin, which costs more than it saves on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if device == "cuda":
        # The sampling cache and training activations release memory to each other in blocks of all sizes.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def _import_libraries(options: argparse.Namespace, bases: Mapping[str, Path]) -> None:
    """Import now the libraries that the first request would otherwise wait for."""
    import uvicorn  # noqa: F401

    import learnloop_service.training.engine.http.server
    from learnloop_service.training.engine.weights import llama_modules

    directories = [*bases.values(), *added_base_models(options.data_dir).values()]
    if options.device == "cuda" or not all(map(llama_modules.is_readable, directories)):
        import learnloop_service.training.engine.trainer.pretrained  # noqa: F401  # it imports transformers


def _application(
    options: argparse.Namespace, bases: Mapping[str, Path], environment: Mapping[str, str], api_key: str | None
) -> "ASGIApp":
    """Return the engine behind its HTTP API. Raises _TooFewGpus, BadStore, StoreUnavailable, ClusterUnavailable or
    Fp8Unsupported."""
    import torch

    from learnloop_service.training.engine.http.server import create_app
    from learnloop_service.training.engine.registry.shared_registry import open_registry

    specs = _workers(options, bases)
    if options.device == "cuda" and not options.ray and len(specs) > (gpus := torch.cuda.device_count()) > 0:
        raise _TooFewGpus(f"{len(specs)} workers need as many GPUs; here are {gpus}")
    registry = open_registry(options.data_dir, bases, options.allow_base_dir, options.checkpoint_store)
    if options.ray or len(specs) > 1:
        computing, tokenizer = _worker_computing(registry, specs, options.ray)
    else:
        computing, tokenizer = _local_computing(registry, specs[0], options, environment)
    return create_app(
        registry,
        computing,
        tokenizer,
        data_dir=options.data_dir,
        api_key=api_key,
        max_body_bytes=options.max_body_mb << 20,
        training_data_hosts=options.training_data_host,
    )


def _serve(app: "ASGIApp", sock: socket.socket, options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    import uvicorn

    config = uvicorn.Config(
        app,
        lifespan="on",
        access_log=False,
        log_config=None,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    server = uvicorn.Server(config)
    port = sock.getsockname()[1]
    # uvicorn restores these handlers after its shutdown and raises the signal again, which must then have no effect.
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: setattr(server, "should_exit", True))
    log.info("engine listening", host=options.host, port=port, device=options.device)
    if options.ready_file:
        _write_ready(options.ready_file, port)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    server.run(sockets=[sock])
    log.info("engine stopped")


def _workers(options: argparse.Namespace, base_models: Mapping[str, Path]) -> "list[WorkerSpec]":
    """Return the workers that the flags ask for. A single one runs in this process."""
    from learnloop_service.training.engine.workers.link import WorkerSpec

    apart = options.samplers is not None
    count = options.samplers + (options.trainers or 1) if apart else options.workers
    trainers = range(options.samplers, count) if apart else range(options.trainers or count)
    return [
        WorkerSpec(
            number=number,
            samples=not apart or number < options.samplers,
            trains=number in trainers,
            device=options.device,
            data_dir=options.data_dir,
            base_models=base_models,
            allowed_base_directories=options.allow_base_dir,
            slots=options.slots,
            cache_bytes=options.cache_mb and options.cache_mb << 20,
            micro_batch_tokens=options.micro_batch_tokens,
            threads=options.threads,
            train_threads=options.train_threads or options.threads,
            fp8_training=options.training_weights == "fp8",
        )
        for number in range(count)
    ]


def _local_computing(
    registry: "Registry", spec: "WorkerSpec", options: argparse.Namespace, environment: Mapping[str, str]
) -> "tuple[Computing, Callable[[Target], ChatTokenizer]]":
    from learnloop_service.training.engine.compute import Compute
    from learnloop_service.training.engine.engine import Engine
    from learnloop_service.training.engine.sampling.sampler import Sampler

    engine = Engine(
        registry,
        Sampler(slots=spec.slots, cache_bytes=spec.cache_bytes),
        device=spec.device,
        micro_batch_tokens=spec.micro_batch_tokens,
        threads=spec.threads,
        train_threads=spec.train_threads,
        samples=options.sampler == "torch",
        fp8_training=spec.fp8_training,
    )
    if options.sampler == "torch":
        return Compute(engine, threads=spec.threads), engine.tokenizer
    from learnloop_service.training.engine.vllm.compute import VllmCompute
    from learnloop_service.training.engine.vllm.server import open_vllm

    server = open_vllm(options, environment)
    return VllmCompute(engine, server, threads=spec.threads), engine.tokenizer


def _worker_computing(
    registry: "Registry", specs: "Sequence[WorkerSpec]", ray_address: str | None
) -> "tuple[Computing, Callable[[Target], ChatTokenizer]]":
    """Raises ClusterUnavailable."""
    from learnloop_service.training.engine.text.tokenizers import Tokenizers
    from learnloop_service.training.engine.workers.local import LocalWorkers
    from learnloop_service.training.engine.workers.pool import WorkerPool
    from learnloop_service.training.engine.workers.ray_workers import RayWorkers

    tokenizers = Tokenizers()
    placement = LocalWorkers() if ray_address is None else RayWorkers(ray_address, specs)
    return WorkerPool(registry, tokenizers, specs, placement), tokenizers


def _die_with_parent(parent: int) -> None:
    """Ask Linux for a SIGTERM when the parent ends. Other systems have no equivalent."""
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended before the call
        os.kill(os.getpid(), signal.SIGTERM)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen(1024)
    return sock


def _write_ready(path: Path, port: int) -> None:
    """Write the ready file atomically, because a waiting process reads it as soon as it exists."""
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    unfinished.write_text(json.dumps({"port": port, "pid": os.getpid()}))
    unfinished.rename(path)


if __name__ == "__main__":
    sys.exit(main())

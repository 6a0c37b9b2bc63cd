"""`python -m training.engine`: the engine as a process of its own."""

import argparse
import ctypes
import ipaddress
import json
import logging
import os
import secrets
import signal
import socket
import sys
from pathlib import Path

import structlog

from training.engine.cpu_mode import set_cpu_mode

TINY_BASE = Path(__file__).parent / "tiny_base" / "model"
TINY_NAME = "learnloop/tiny"

log = structlog.get_logger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status."""
    options = _parser().parse_args(arguments)
    _configure_logs()
    if options.die_with_parent:
        _die_with_parent(options.die_with_parent)
    api_key = None
    if options.api_key_env:
        api_key = os.environ.get(options.api_key_env)
        if not api_key:
            sys.stderr.write(f"--api-key-env: the environment has no {options.api_key_env}\n")
            return 2
    elif not _is_loopback(options.host):
        sys.stderr.write(f"--host {options.host}: others reach it there, so give it a key (--api-key-env)\n")
        return 2
    sock = _listen(options.host, options.port)

    set_cpu_mode()
    # A thread that waits for another must not spin: on a busy machine that costs more than it saves.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if options.device == "cuda":
        # The cache and the training's activations are given back to each other, in pieces of all sizes.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    # Imported late, so that bad flags are told at once: torch and transformers take seconds.
    import uvicorn

    from training.engine.model_classes import import_model_classes

    import_model_classes()

    from training.engine.engine import Engine
    from training.engine.http.server import create_app
    from training.engine.registry.registry import Registry
    from training.engine.sampling.sampler import Sampler

    bases = {TINY_NAME: TINY_BASE} if (TINY_BASE / "config.json").is_file() else {}
    registry = Registry(options.data_dir, bases | dict(options.base_model), options.allow_base_dir)
    engine = Engine(
        registry,
        Sampler(slots=options.slots, cache_bytes=options.cache_mb and options.cache_mb << 20),
        device=options.device,
        micro_batch_tokens=options.micro_batch_tokens,
        threads=options.threads,
    )
    app = create_app(
        engine,
        data_dir=options.data_dir,
        threads=options.threads,
        train_threads=options.train_threads,
        api_key=api_key,
        max_body_bytes=options.max_body_mb << 20,
        training_data_hosts=options.training_data_host,
    )
    config = uvicorn.Config(
        app, lifespan="on", access_log=False, log_config=None, timeout_graceful_shutdown=1, server_header=False
    )
    server = uvicorn.Server(config)
    port = sock.getsockname()[1]
    # uvicorn raises the signal again after it has shut down; by then there is nothing left to do.
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: setattr(server, "should_exit", True))
    log.info("engine listening", host=options.host, port=port, device=options.device)
    if options.ready_file:
        _write_ready(options.ready_file, port)
    server.run(sockets=[sock])
    log.info("engine stopped")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.engine", description="Samples and trains language models."
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="where models and checkpoints are kept")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=_port, default=0, help="0 takes a free one")
    parser.add_argument("--threads", type=_positive, default=1, help="torch threads")
    parser.add_argument("--train-threads", type=_positive, help="torch threads while training (default: as --threads)")
    parser.add_argument("--slots", type=_positive, default=64, help="conversations decoded at once")
    parser.add_argument(
        "--cache-mb", type=_positive, help="memory of conversations (default: 512, on a GPU half of what is free)"
    )
    parser.add_argument("--micro-batch-tokens", type=_positive, help="tokens of one training pass")
    parser.add_argument("--max-body-mb", type=_positive, default=256, help="largest request")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--base-model", type=_base_model, action="append", default=[], metavar="NAME=DIR")
    parser.add_argument(
        "--allow-base-dir",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="directories below it may be named as base models by their absolute path",
    )
    parser.add_argument(
        "--training-data-host",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="supervised jobs may fetch their data from it by http or https",
    )
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable with the key that clients must send"
    )
    parser.add_argument("--ready-file", type=Path, metavar="PATH", help="gets port and pid once the engine listens")
    parser.add_argument(
        "--die-with-parent",
        type=int,
        metavar="PID",
        nargs="?",
        const=os.getppid(),
        help="end when the parent process does; PID guards against a parent that is gone already",
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65536:
        raise argparse.ArgumentTypeError("must be from 0 to 65535")
    return value


def _base_model(text: str) -> tuple[str, Path]:
    name, _, directory = text.partition("=")
    path = Path(directory).resolve()
    if not name or not (path / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=DIR with a model directory")
    return name, path


def _configure_logs() -> None:
    """One JSON object a line on stderr, whoever logs: we by structlog, libraries by logging."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def _die_with_parent(parent: int) -> None:
    """Ask Linux for a SIGTERM when the parent ends; there is no such thing elsewhere."""
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), signal.SIGTERM)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may mean any address
        return False


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen(1024)
    return sock


def _write_ready(path: Path, port: int) -> None:
    """Whole or not at all: who waits for the file reads it the moment it is there."""
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    unfinished.write_text(json.dumps({"port": port, "pid": os.getpid()}))
    unfinished.rename(path)


if __name__ == "__main__":
    sys.exit(main())

"""The engine's flags, shared by `learnloop engine`, `python -m learnloop_service.training.engine` and LEARNLOOP_ENGINE_ARGS.

They are parsed outside the engine's package so that the service can check them without importing the engine.
"""

import argparse
import ipaddress
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

KEY_VARIABLE = "LEARNLOOP_ENGINE_KEY"
"""Default environment variable with the engine's key, if `--api-key-env` does not name another."""


class BadFlags(ValueError):
    """The engine does not accept the flags. The message says which and why."""


def is_loopback(host: str) -> bool:
    """Return whether a server that listens on `host` is reachable only from this machine. Names other than localhost
    count as reachable from elsewhere."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse(arguments: Sequence[str] | None, program: str) -> argparse.Namespace:
    """Parse the arguments, by default those of this process. Exits with an error message if they are invalid."""
    flags = parser(program)
    options = flags.parse_args(arguments)
    try:
        _check(options)
    except BadFlags as error:
        flags.error(str(error))
    return options


def parse_open(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the flags that a service leaves to its operator. Raises BadFlags."""
    flags = _OperatorFlags(add_help=False, allow_abbrev=False)
    for add in _OPERATOR_GROUPS:
        add(flags)
    options = flags.parse_args(arguments)
    _check(options)
    return options


def parser(program: str) -> argparse.ArgumentParser:
    """Return a parser for all flags, for the command `program`."""
    flags = argparse.ArgumentParser(
        prog=program,
        formatter_class=_Help,
        description="Run the engine alone: it samples and trains language models, until Ctrl-C. It speaks OpenAI's "
        "chat API, and the protocol of ART's hosted backend: art.ServerlessBackend(base_url='http://127.0.0.1:PORT/v1').",
    )
    for add in (_where, _models, *_OPERATOR_GROUPS, _supervised):
        add(flags)
    return flags


def _check(options: argparse.Namespace) -> None:
    """Raise BadFlags if flags conflict."""
    if options.samplers and options.workers > 1:
        raise BadFlags("--workers, or --samplers with --trainers: give one or the other")
    if options.trainers and not options.samplers and not 1 < options.workers >= options.trainers:
        raise BadFlags(
            "--trainers goes with --samplers, or says how many of several --workers train, so at most as many"
        )
    if options.sampler == "vllm" and (options.samplers or options.workers > 1 or options.ray):
        raise BadFlags("--sampler vllm has vLLM's processes sample: leave out --workers, --samplers, --trainers, --ray")
    if options.training_weights == "fp8" and (options.device == "cpu" or options.sampler == "vllm"):
        raise BadFlags(
            "--training-weights fp8 needs --device cuda and the engine's own sampler, which rounds as its trainer"
        )


def _where(flags: argparse.ArgumentParser) -> None:
    where = flags.add_argument_group("where it listens")
    where.add_argument("--host", default="127.0.0.1", help="address; any but loopback needs a key")
    where.add_argument("--port", type=_port, default=0, help="port; 0 takes a free one, which the log names")
    where.add_argument(
        "--api-key-env",
        metavar="NAME",
        help=f"environment variable with the key that clients must send (default: {KEY_VARIABLE}, where that is set)",
    )


def _models(flags: argparse.ArgumentParser) -> None:
    models = flags.add_argument_group("models")
    models.add_argument(
        "--data-dir",
        type=Path,
        default=Path(".learnloop-engine"),
        metavar="DIR",
        help="directory of models and checkpoints (default: %(default)s)",
    )
    models.add_argument(
        "--checkpoint-store",
        metavar="URL",
        help="where models and checkpoints are kept for engines on all machines: s3://BUCKET/PREFIX (endpoint, region "
        "and keys by AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), or file:///DIRECTORY, "
        "which all mount; --data-dir is a cache then",
    )
    models.add_argument(
        "--base-model",
        type=_base_model,
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="another base model: a Hugging Face directory (repeatable)",
    )


def _requests(flags: argparse.ArgumentParser) -> None:
    requests = flags.add_argument_group("what requests may contain")
    requests.add_argument("--max-body-mb", type=_positive, default=256, metavar="MB", help="largest request")
    requests.add_argument(
        "--allow-base-dir",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="model directories below it may be used as base models by their absolute path (repeatable)",
    )
    requests.add_argument(
        "--training-data-host",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="host from which supervised jobs may fetch their data by http or https (repeatable)",
    )


def _processes(flags: argparse.ArgumentParser) -> None:
    processes = flags.add_argument_group("processes")
    processes.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu, or a GPU for each worker")
    processes.add_argument(
        "--workers",
        type=_positive,
        default=1,
        metavar="N",
        help="processes that sample and train together, each on a GPU of its own; 1 is this process",
    )
    processes.add_argument(
        "--samplers", type=_positive, metavar="N", help="instead: processes that only sample, each on a GPU of its own"
    )
    processes.add_argument(
        "--trainers",
        "--trainer-gpus",
        type=_positive,
        metavar="N",
        help="processes that only train, beside --samplers (default: 1); with --workers, how many of these train",
    )
    processes.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run these processes as actors on all nodes of a Ray cluster: HOST:PORT of its head, or auto on one of "
        "them (extra `ray`)",
    )


def _compute(flags: argparse.ArgumentParser) -> None:
    compute = flags.add_argument_group("compute")
    compute.add_argument("--threads", type=_positive, default=1, metavar="N", help="torch threads while sampling")
    compute.add_argument(
        "--train-threads",
        type=_positive,
        metavar="N",
        help="threads while training: for micro-batches at the same time, or for each of them (default: as --threads); "
        "with --threads 1 as many sample parts of a batch on a CPU",
    )
    compute.add_argument(
        "--slots", type=_positive, default=64, metavar="N", help="conversations that are decoded together"
    )
    compute.add_argument(
        "--cache-mb",
        type=_positive,
        metavar="MB",
        help="memory for the keys and values of conversations (default: 512, on a GPU half of what is free)",
    )
    compute.add_argument(
        "--micro-batch-tokens",
        type=_positive,
        metavar="N",
        help="most tokens in one training pass (default: what suits the device)",
    )
    compute.add_argument(
        "--training-weights",
        choices=("exact", "fp8"),
        default="exact",
        help="what LoRA adapters are trained over on a GPU, and sampled with: their base as it is, or with its layers' "
        "matrices in 8 bits, which is faster and coarser and takes half of the memory",
    )


def _sampler(flags: argparse.ArgumentParser) -> None:
    sampler = flags.add_argument_group("what samples")
    sampler.add_argument(
        "--sampler", choices=("torch", "vllm"), default="torch", help="this process, or vLLM in processes of its own"
    )
    sampler.add_argument("--vllm-command", default="vllm", metavar="PATH", help="vLLM's command, which is started")
    sampler.add_argument(
        "--vllm-args",
        type=shlex.split,
        default=[],
        metavar="FLAGS",
        help="further flags of `vllm serve`, in one argument: '--tensor-parallel-size 2 --quantization fp8'",
    )
    sampler.add_argument(
        "--vllm-gpus", metavar="IDS", help="GPUs of vLLM, such as 1,2 (default: half of the memory of the engine's)"
    )
    sampler.add_argument(
        "--vllm-url",
        metavar="URL",
        help="a vLLM that somebody else runs, with the data directory under the same path; VLLM_API_KEY has its key",
    )


def _supervised(flags: argparse.ArgumentParser) -> None:
    supervised = flags.add_argument_group("for a process that supervises it")
    supervised.add_argument(
        "--ready-file", type=Path, metavar="PATH", help="file that is written when it listens: its port and pid as JSON"
    )
    supervised.add_argument(
        "--die-with-parent",
        type=int,
        metavar="PID",
        nargs="?",
        const=os.getppid(),
        help="end when the parent process does; PID guards against a parent that has already ended",
    )


_OPERATOR_GROUPS = (_requests, _processes, _compute, _sampler)
"""Groups of flags that an operator can set for the engine that a service starts. The service sets the others itself."""


class _OperatorFlags(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadFlags(message)


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Adds the default to a flag's help, unless there is none."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, []):
            return action.help
        return super()._get_help_string(action)


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

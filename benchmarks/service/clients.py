"""Show in a table which clients of OpenAI's APIs work unmodified.

    python -m benchmarks.service.clients
    python -m benchmarks.service.clients --base-url http://127.0.0.1:8000/v1 --api-key ll_... --model mail/agent

Without a URL it starts an engine with a tiny model that was trained to call the offered tool. The Node clients are
installed into a temporary directory, which needs npm and its registry; without Node they are left out.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import httpx

from tests import openai_clients
from tests.fakes.engine_process import EngineProcess
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.engine.training_client import taught_caller

_SCRIPT = Path(__file__).with_suffix(".mjs")
_PACKAGES = ("openai", "ai", "@ai-sdk/openai", "zod")
_NODE_CLIENTS = {
    "openai-node chat": "openai",
    "openai-node responses": "openai",
    "Vercel AI SDK openai()": "@ai-sdk/openai",
    "Vercel AI SDK openai.chat()": "@ai-sdk/openai",
    "Vercel AI SDK generateObject": "@ai-sdk/openai",
}
"""The script's clients, and the package whose version is printed."""
_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Target:
    """The API and model that the clients use."""

    base_url: str
    api_key: str
    model: str


def _agents(base_url: str, api_key: str, model: str) -> None:
    asyncio.run(openai_clients.use_agents_sdk(base_url, api_key, model))


_PYTHON_CLIENTS: Mapping[str, tuple[str, Callable[[str, str, str], None]]] = {
    "openai-python chat and responses": ("openai", openai_clients.use_sync_client),
    "LangChain ChatOpenAI": ("langchain-openai", openai_clients.use_langchain),
    "OpenAI Agents SDK": ("openai-agents", _agents),
}


@contextmanager
def _engine() -> Iterator[Target]:
    with tempfile.TemporaryDirectory() as directory:
        base = make_tiny_model(Path(directory) / "tiny", overrides={"max_position_embeddings": 4096})
        with EngineProcess(Path(directory) / "engine", "--base-model", f"tiny={base}") as engine:
            model = asyncio.run(_taught(engine.base_url))
            yield Target(engine.base_url, "none", model)


async def _taught(base_url: str) -> str:
    async with httpx.AsyncClient(base_url=base_url, timeout=_TIMEOUT_S, trust_env=False) as http:
        return await taught_caller(http, "caller")


def _of_python(target: Target) -> Iterator[tuple[str, str, str]]:
    for name, (package, use) in _PYTHON_CLIENTS.items():
        try:
            use(target.base_url, target.api_key, target.model)
            outcome = "works"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        yield name, f"{package} {version(package)}", outcome


def _of_node(target: Target) -> Iterator[tuple[str, str, str]]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        print("node or npm is missing: its clients are left out")
        return
    with tempfile.TemporaryDirectory() as directory:
        install = [npm, "install", "--silent", "--no-audit", "--no-fund", *_PACKAGES]
        subprocess.run(install, cwd=directory, check=True, timeout=_TIMEOUT_S)
        for name, package in _NODE_CLIENTS.items():
            described = json.loads((Path(directory) / "node_modules" / package / "package.json").read_text())
            command = [node, str(_SCRIPT), name, target.base_url, target.api_key, target.model]
            finished = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_TIMEOUT_S)
            outcome = "works" if finished.returncode == 0 else finished.stderr.strip().replace("\n", " ")
            yield name, f"{package} {described['version']}", outcome


def _table(target: Target) -> bool:
    print("| client | version | |\n| --- | --- | --- |")
    works = True
    for clients in (_of_python, _of_node):
        for name, package, outcome in clients(target):
            print(f"| {name} | {package} | {outcome} |", flush=True)
            works &= outcome == "works"
    return works


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="of the API, with /v1")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--model", help="that calls the tool search_inbox when it is offered")
    options = parser.parse_args()
    if options.base_url:
        sys.exit(not _table(Target(options.base_url, options.api_key, options.model)))
    with _engine() as target:
        works = _table(target)
    sys.exit(not works)


if __name__ == "__main__":
    main()

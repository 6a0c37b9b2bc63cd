"""Train on an OpenEnv server through the whole service, and report its tool calls and rewards.

    python3 -m venv openenv && openenv/bin/pip install openenv
    python -m benchmarks.learning.openenv_environment --bin openenv/bin [--server desk|echo] [--iterations 5]

Both servers run on the package's own code. `desk` (benchmarks/agents/openenv_desk.py) has tools that the tiny base
model knows by name, but nothing to find; the model can learn to say so immediately. `echo` is what `openenv init`
generates; the model has never seen its action, so this tests only the integration.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from app.cli.service_process import free_port
from benchmarks import processes
from benchmarks.learning.mcp_environment import recorded_run


@contextmanager
def server(kind: str, binaries: Path) -> Iterator[str]:
    """Run a server of that kind; yield its URL."""
    with tempfile.TemporaryDirectory(prefix="learnloop-openenv-") as directory:
        if kind == "echo":
            subprocess.run(
                [binaries / "openenv", "init", "echo"],
                cwd=directory,
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=300,
            )
            app, place = "server.app:app", Path(directory, "echo")
        else:
            app, place = "openenv_desk:app", Path(__file__).parents[1] / "agents"
        port = free_port()
        process = subprocess.Popen(
            [binaries / "uvicorn", app, "--port", str(port), "--log-level", "warning"], cwd=place
        )
        try:
            url = f"http://127.0.0.1:{port}"
            processes.wait_for(process, lambda: _answers(url))
            yield url
        finally:
            process.terminate()
            process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/schema").is_success
    except httpx.TransportError:
        return False


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True, help="where openenv and uvicorn are")
    parser.add_argument("--server", choices=("desk", "echo"), default="desk")
    parser.add_argument("--iterations", type=int, default=5)
    arguments = parser.parse_args()
    with server(arguments.server, arguments.bin.absolute()) as url:
        environment = {"name": "openenv", "config": {"url": url, "success_from": 1.0}}
        figures = recorded_run(environment, arguments.iterations, {"LEARNLOOP_ENVIRONMENT_HOSTS": "127.0.0.1"})
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

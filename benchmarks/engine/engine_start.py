"""Measure how long a killed engine takes to its first token.

    python -m benchmarks.engine.engine_start [--rounds 5] [--against DIR]

Repeatedly starts an engine with a trained model, requests a token as soon as it listens, and kills it with SIGKILL.
Training the model is not counted. Prints the seconds from the start of the process, its CPU time by then, and its
resident memory. `--against` is another checkout, whose engine alternates with this one under the same Python; compare
CPU time on a busy machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks import processes

_MODEL = {"project": "bench", "name": "started", "base_model": "learnloop/tiny"}
_MESSAGES = [{"role": "user", "content": "On which day is the launch of Masibe?"}]
_PAUSE_S = 0.002
_HERE = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds since the start of the process, its CPU seconds by then, and its memory at the end."""

    listens_s: float
    listens_cpu_s: float
    token_s: float
    token_cpu_s: float
    memory_mb: float


def prepare(data_dir: Path) -> None:
    """Train one checkpoint of a model in the data directory."""
    example = {"messages": [*_MESSAGES, {"role": "assistant", "content": "12 February"}]}
    with processes.engine(data_dir) as base_url, httpx.Client(base_url=base_url, timeout=60, trust_env=False) as http:
        model = http.post("/preview/models", json=_MODEL).raise_for_status().json()
        body = {"model_id": model["id"], "training_data": [example], "config": {"learning_rate": [1e-5]}}
        job = http.post("/preview/sft-training-jobs", json=body).raise_for_status().json()["id"]
        while not (found := http.get(f"/preview/training-jobs/{job}").raise_for_status().json())["events"][-1:] or (
            found["status"] not in ("completed", "failed")
        ):
            time.sleep(0.05)
        assert found["status"] == "completed", found["events"][-1]


@contextmanager
def _engine(tree: Path, data_dir: Path, ready: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "training.engine", "--data-dir", str(data_dir), "--ready-file", str(ready)]
    with (data_dir / "engine.log").open("ab") as log:
        child = subprocess.Popen(
            [*command, "--die-with-parent", str(os.getpid())], cwd=tree, stdout=subprocess.DEVNULL, stderr=log
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def start(tree: Path, data_dir: Path) -> Start:
    """Start that checkout's engine and wait for its first token."""
    ready = data_dir / "ready.json"
    ready.unlink(missing_ok=True)
    clock = time.perf_counter()
    with _engine(tree, data_dir, ready) as child:
        process = psutil.Process(child.pid)
        processes.wait_for(child, ready.exists, pause_s=_PAUSE_S)
        listens_s, listens_cpu_s = time.perf_counter() - clock, _cpu_s(process)
        url = f"http://127.0.0.1:{json.loads(ready.read_text())['port']}/v1/chat/completions"
        body = {"model": f"{_MODEL['project']}/{_MODEL['name']}", "messages": _MESSAGES, "max_tokens": 1}
        httpx.post(url, json=body, timeout=60, trust_env=False).raise_for_status()
        token_s, token_cpu_s = time.perf_counter() - clock, _cpu_s(process)
        return Start(listens_s, listens_cpu_s, token_s, token_cpu_s, process.memory_info().rss / 1e6)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def figures(starts: list[Start]) -> dict[str, Any]:
    """Return medians."""
    names = Start.__slots__
    return {name: round(statistics.median(getattr(each, name) for each in starts), 2) for name in names}


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    options = parser.parse_args()
    trees = {"this": _HERE} | ({"against": options.against.resolve()} if options.against else {})
    machine = processes.machine()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as name:
        data_dir = Path(name)
        prepare(data_dir)
        starts: dict[str, list[Start]] = {tree: [] for tree in trees}
        for _ in range(options.rounds + 1):  # the first round fills the file cache
            for tree, directory in trees.items():
                starts[tree].append(start(directory, data_dir))
    print(json.dumps({"machine": machine} | {tree: figures(found[1:]) for tree, found in starts.items()}, indent=2))


if __name__ == "__main__":
    main()

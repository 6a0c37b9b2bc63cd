"""Check that the engine computes the same bits in any batch, with any number of threads, and under other load.

    python -m benchmarks.engine.reproducibility [--only products speed weights] [--rounds 5] [--json]

Prints three tables: how many matrix products differ from the same rows of a larger product, by MKL mode; what the
engine's mode and a second thread cost, alternating with the plain mode; and the SHA-256 of the weights after one
iteration of the email agent, by threads, with all cores busy, and with MKL's code for Intel processors. That code is
enabled by overwriting the check of the processor's vendor (see reproducibility_child.py). It shows what an Intel
processor without AVX-512 would compute, but does not replace a test on one. For kills see benchmarks.durability.kills.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import processes
from training.engine.cpu_mode import MKL_MODE, TORCH_MODE, cpu_mode

_MODES: tuple[Mapping[str, str], ...] = ({}, {MKL_MODE: "COMPATIBLE"}, {MKL_MODE: "AVX2"}, cpu_mode())
_PLAIN: Mapping[str, str] = {}
TABLES = ("products", "speed", "weights")


@dataclass(frozen=True, slots=True)
class Setting:
    """How a child computes; `mode` goes into its environment."""

    mode: Mapping[str, str]
    threads: int = 1
    train_threads: int = 1
    as_intel: bool = False

    def measure(self, work: str) -> dict[str, Any]:
        """Run benchmarks.engine.reproducibility_child and return its figures."""
        command = [sys.executable, "-m", "benchmarks.engine.reproducibility_child", work]
        command += ["--threads", str(self.threads), "--train-threads", str(self.train_threads)]
        environment = {name: value for name, value in os.environ.items() if name not in (MKL_MODE, TORCH_MODE)}
        environment |= {"OMP_WAIT_POLICY": "PASSIVE", **self.mode}
        child = subprocess.run(
            command + ["--as-intel"] * self.as_intel, env=environment, stdout=subprocess.PIPE, check=True
        )
        found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])  # the engine's log comes first
        return found

    def __str__(self) -> str:
        mode = self.mode.get(MKL_MODE, "no mode")
        code = ", Intel's code" if self.as_intel else ""
        return f"{mode}, {self.threads} + {self.train_threads} threads{code}"


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy with a process that computes endlessly."""
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            child = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(child.kill)
        yield


def products() -> list[dict[str, Any]]:
    """Measure each mode with one and two threads, with this processor's code and with Intel's."""
    return [
        {"setting": str(setting), **setting.measure("products")}
        for as_intel in (False, True)
        for mode in _MODES
        for setting in (Setting(mode, threads, 1, as_intel) for threads in (1, 2))
    ]


def speed(rounds: int) -> list[dict[str, Any]]:
    """Return medians over the rounds of times and of ratios.

    The ratios compare with one thread without a mode in the same round; `to_one_thread` compares sampling with one
    thread
    in the engine's mode.
    """
    settings = [Setting(_PLAIN), Setting(cpu_mode()), Setting(cpu_mode(), threads=2), Setting(cpu_mode(), 2, 2)]
    taken = [[setting.measure("learn") for setting in settings] for _ in range(rounds)]
    names = ("sampling_s", "training_s", "cpu_s")
    return [
        {"setting": str(setting)}
        | {name: statistics.median(each[number][name] for each in taken) for name in names}
        | {f"{name}_ratio": statistics.median(each[number][name] / each[0][name] for each in taken) for name in names}
        | {"to_one_thread": statistics.median(each[number]["sampling_s"] / each[1]["sampling_s"] for each in taken)}
        for number, setting in enumerate(settings)
    ]


def weights() -> list[dict[str, str]]:
    """Return the SHA-256 of the weights after one iteration."""
    threads = [(1, 1), (2, 1), (2, 2)]
    found = [
        {"setting": str(setting), "sha256": setting.measure("learn")["sha256"]}
        for as_intel in (False, True)
        for setting in (Setting(cpu_mode(), *each, as_intel) for each in threads)
    ]
    with busy_cores():
        loaded = Setting(cpu_mode(), 2, 2)
        found.append({"setting": f"{loaded}, all cores busy", "sha256": loaded.measure("learn")["sha256"]})
    return found


def show(found: Mapping[str, list[dict[str, Any]]]) -> None:
    console = Console()
    for name, rows in found.items():
        table = Table(*rows[0], title=name, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value)[:40] for value in row.values()))
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES, help="of the tables")
    parser.add_argument("--rounds", type=int, default=5, help="of the comparison of speeds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    machine = processes.machine()
    tables = {"products": products, "speed": lambda: speed(options.rounds), "weights": weights}
    found = {name: tables[name]() for name in options.only}
    if options.json:
        print(json.dumps({"machine": machine, **found}, indent=2))
    else:
        print(json.dumps({"machine": machine}))
        show(found)


if __name__ == "__main__":
    main()

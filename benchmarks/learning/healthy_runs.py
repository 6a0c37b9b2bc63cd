"""Count the false alarms of the diagnoses in real runs of the tiny base.

    python -m benchmarks.learning.healthy_runs [--runs 20] [--processes 1] [--facts FILE]

The runs are of five kinds in turn: both environments with defaults, one step of staleness, groups of 4 x 4, and a LoRA;
each has another seed, and an engine of its own. Prints a line for each run that has a diagnosis or was not shown to
learn, and how many runs had each cause. Fails if a run that learned has an alarm, which notes are not. `--facts` writes
the facts of all runs, gzipped, for the tests of the diagnoses.
"""

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.learning.examined_run import TINY, Plan, facts_of_run
from learnloop_service.training.diagnosis.diagnose import diagnose
from learnloop_service.training.diagnosis.diagnosis import Diagnosis, DiagnosisSettings, Severity
from learnloop_service.training.diagnosis.facts import Facts
from learnloop_service.training.diagnosis.held_out import is_rising
from learnloop_service.training.tuning import Tuning
from learnloop_service.training.types import EvaluationConfig, PipelineConfig, RunConfig

_EVALUATION = EvaluationConfig(test_scenarios=0)
"""The test split says nothing to a diagnosis."""


def plan_of(kind: str, seed: int) -> Plan:
    """Return the plan of a healthy run of that kind. Raises KeyError for another one."""
    return {
        "email": lambda: Plan(RunConfig(seed=seed, evaluation=_EVALUATION)),
        "sales": lambda: Plan(RunConfig(seed=seed, evaluation=_EVALUATION), "sales_email"),
        "stale": lambda: Plan(RunConfig(seed=seed, evaluation=_EVALUATION, pipeline=PipelineConfig(1))),
        "small": lambda: Plan(
            RunConfig(seed=seed, evaluation=_EVALUATION, groups_per_iteration=4, rollouts_per_group=4)
        ),
        "lora": lambda: Plan(RunConfig(seed=seed, evaluation=_EVALUATION, learning_rate=3e-3), tuning=Tuning("lora")),
    }[kind]()


KINDS = ("email", "sales", "stale", "small", "lora")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A healthy run, and the facts of its iterations."""

    kind: str
    seed: int
    facts: Sequence[Facts]

    def diagnoses(self) -> list[Diagnosis]:
        """Return what the run is diagnosed with."""
        return diagnose(self.facts, DiagnosisSettings(plan_of(self.kind, self.seed).config, TINY))


def record(kind: str, seed: int) -> Recorded:
    """Make a run."""
    return Recorded(kind, seed, facts_of_run(plan_of(kind, seed)))


def write(path: Path, runs: Iterable[Recorded]) -> None:
    """Write the facts of runs, one in a line, gzipped."""
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        for run in sorted(runs, key=lambda run: (run.seed, run.kind)):
            line = {"kind": run.kind, "seed": run.seed, "facts": [iteration.dump() for iteration in run.facts]}
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def read(path: Path) -> list[Recorded]:
    """Read what `write` wrote."""
    with gzip.open(path) as file:
        lines = [json.loads(text) for text in file]
    return [Recorded(line["kind"], line["seed"], [Facts.parse(facts) for facts in line["facts"]]) for line in lines]


def summary(run: Recorded) -> dict[str, Any]:
    """Return how a run went, and what it was diagnosed with."""
    named = [
        f"{diagnosis.cause} ({diagnosis.severity}) at {diagnosis.named_at_iteration}: {diagnosis.summary}"
        for diagnosis in run.diagnoses()
    ]
    return {"kind": run.kind, "seed": run.seed, "learned": is_rising(run.facts), "diagnoses": named}


def main() -> None:
    """Make the runs and print what they were diagnosed with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--processes", type=int, default=1, help="runs that are made at the same time")
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--facts", type=Path, help="file to write the facts to")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.runs)
    recorded: list[Recorded] = []
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        running = [pool.submit(record, KINDS[number % len(KINDS)], number // len(KINDS)) for number in numbers]
        for future in as_completed(running):
            recorded.append(future.result())
            description = summary(recorded[-1])
            if description["diagnoses"] or not description["learned"]:
                print(json.dumps(description), flush=True)
            if options.facts:
                write(options.facts, recorded)
    raise SystemExit(report(recorded))


def report(runs: Sequence[Recorded]) -> str | None:
    """Print how many runs had each cause. Return what is wrong, or None."""
    learned = [run for run in runs if is_rising(run.facts)]
    causes = Counter(f"{diagnosis.cause} ({diagnosis.severity})" for run in learned for diagnosis in run.diagnoses())
    alarms = sum(any(diagnosis.severity is not Severity.NOTE for diagnosis in run.diagnoses()) for run in learned)
    figures = {"runs": len(runs), "learned": len(learned), "alarms": alarms, "causes": dict(sorted(causes.items()))}
    print(json.dumps(figures | processes.machine()))
    return f"{alarms} runs that learned have an alarm" if alarms else None


if __name__ == "__main__":
    main()

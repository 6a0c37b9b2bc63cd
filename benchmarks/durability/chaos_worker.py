"""A worker of the chaos benchmark: the service's claiming, driving and saving around a scripted learn loop.

Before any act is committed, the worker appends a line for it to a history file outside the database. Its trainer is a
directory with one file per step that names the epoch it was trained under; creating the next file is a compare-and-set
that survives any kill.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import event

from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.db.database import make_database, make_engine, parse_url
from learnloop_service.app.db.tables import Run
from learnloop_service.app.logs import configure_logs
from learnloop_service.app.results.files import ResultsFiles
from learnloop_service.app.runs.claims import Limits, RunClaims
from learnloop_service.app.settings import load_settings
from learnloop_service.app.tracing.tracer import Tracing
from learnloop_service.app.worker.drive import Driver
from learnloop_service.app.worker.jobs import RunJobs
from learnloop_service.app.worker.own_agents import OwnAgents
from learnloop_service.app.worker.runner import Runner
from learnloop_service.environment.base import Environment, Json
from learnloop_service.judges.base import Judge, JudgeServices
from learnloop_service.training.backends.base import ModelSpec, Policy, StepConflict, TrainOutcome, TrainRequest
from learnloop_service.training.journal import IterationJournal, Journal
from learnloop_service.training.loop.train_step import TrainStep
from learnloop_service.training.phases import Phase
from learnloop_service.training.types import IterationProgress, IterationResult, Resume, RunConfig
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedPolicy, scripted_result

POISON = "poison"
"""Prefix of model names whose runs kill every worker that drives them."""
ROLLOUTS = 8
"""Rollouts of each iteration."""
POINTS = ("rollout", "judge", "train", "trained", "publish")
"""Where a worker can freeze itself: during rollouts, before the verdicts are kept, before training is requested, after
training landed but before the reply, and before the iteration is saved."""


class History:
    """An append-only file, shared by all workers, that survives their kills."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **act: Json) -> None:
        """Append one act in a single write."""
        os.write(self._file, (json.dumps(act | {"pid": os.getpid(), "at": time.time()}) + "\n").encode())


class Claims(RunClaims):
    """Claims that record the epoch of each run for the history."""

    epochs: dict[str, int]

    async def claim(self) -> tuple[Run, Lease[Run]] | None:
        claimed = await super().claim()
        if claimed is not None:
            self.epochs[claimed[0].model_name] = claimed[1].epoch
        return claimed


class Freezes:
    """Freezes the whole process, once for each model whose name ends with the name of the point."""

    def __init__(self, is_enabled: bool) -> None:
        self._is_enabled = is_enabled
        self._frozen: set[str] = set()

    def at(self, point: str, model: str) -> None:
        """Freeze here if this is the model's point. Called only in iterations that train."""
        if self._is_enabled and model.endswith(f"-{point}") and model not in self._frozen:
            self._frozen.add(model)
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # with os.kill this thread could run on briefly


class StepsPolicy(ScriptedPolicy):
    """A policy whose checkpoints are numbered files in a directory: 1, 2, 3, ..."""

    def __init__(self, model: ModelSpec, steps: "StepsBackend") -> None:
        super().__init__(model, "http://127.0.0.1:9/v1")
        self._directory = steps.root / model.name
        self._steps = steps
        self._directory.mkdir(parents=True, exist_ok=True)

    async def step(self) -> int:
        return max((int(path.name) for path in self._directory.iterdir()), default=0)

    async def submit(self, request: TrainRequest) -> str:
        """Create the next step's file. Raises StepConflict if the directory is not at the expected step."""
        steps, name, expected_step = self._steps, self.model.name, request.expected_step
        epoch = steps.epochs[name]
        await asyncio.sleep(steps.pace_s)
        steps.freezes.at("train", name)
        try:
            # creates the file and its content atomically
            (self._directory / str(expected_step + 1)).symlink_to(f"epoch-{epoch}")
        except FileExistsError:
            raise StepConflict(f"step {expected_step + 1} is there") from None
        steps.freezes.at("trained", name)
        await asyncio.sleep(steps.pace_s)  # the reply is still in transit
        return f"job-{expected_step + 1}"

    async def follow(self, job_id: str, expected_step: int) -> TrainOutcome:
        return TrainOutcome(expected_step + 1, {})


class StepsBackend(ScriptedBackend):
    """Creates policies, each with its own directory."""

    def __init__(self, root: Path, pace_s: float, epochs: Mapping[str, int], freezes: Freezes) -> None:
        super().__init__()
        self.root = root
        self.pace_s = pace_s
        self.epochs = epochs
        self.freezes = freezes

    async def register(self, model: ModelSpec) -> Policy:
        return StepsPolicy(model, self)


@dataclass(frozen=True)
class JournaledLoop:
    """A learn loop that sleeps for each rollout and writes history; its journal entries are those of the real loop."""

    history: History
    epochs: Mapping[str, int]
    freezes: Freezes
    pace_s: float

    async def __call__(
        self,
        config: RunConfig,
        environment: Environment,
        judge: Judge,
        policy: Policy,
        *,
        progress: Callable[[IterationProgress], None],
        journal: Journal,
        resume: Resume | None,
        **_: object,
    ) -> AsyncGenerator[IterationResult, None]:
        assert isinstance(policy, StepsPolicy)
        name = policy.model.name
        epoch = self.epochs[name]
        if name.startswith(POISON):
            self.history.write(act="poison", run=name, iteration=0, epoch=epoch)
            os.kill(os.getpid(), signal.SIGKILL)
        step = resume.snapshot.step if resume else 0
        for iteration in range(resume.iteration if resume else 0, config.iterations + 1):
            entries = await IterationJournal.open(journal, iteration)
            for number in range(ROLLOUTS):
                if (entry := f"rollout/train/{number}") not in entries.kept:
                    self.history.write(act=entry, run=name, iteration=iteration, epoch=epoch)
                    await asyncio.sleep(self.pace_s * random.uniform(0.5, 1.5))
                    entries.keep_soon(entry, json.dumps({"by": os.getpid(), "tokens": [*range(200)]}))
                progress(IterationProgress(iteration, Phase.ROLLOUT, number + 1, ROLLOUTS))
                if iteration > 0 and number == ROLLOUTS // 2:
                    self.freezes.at("rollout", name)
            if "judge/train" not in entries.kept:
                self.history.write(act="judge", run=name, iteration=iteration, epoch=epoch)
                if iteration > 0:
                    self.freezes.at("judge", name)
                await entries.keep("judge/train", "[]")
            if iteration > 0:
                self.history.write(act="train", run=name, iteration=iteration, epoch=epoch)
                step = (await TrainStep(policy, entries, step).take(TrainRequest([], 1e-4, step))).step
                self.freezes.at("publish", name)
            yield scripted_result(policy, iteration, step, config.iterations, "the answer")


def _soon_cut_off(connection: Any, _: Any) -> None:
    """Let Postgres end transactions that are idle for 1 s, not 30 s as in the service.

    A worker frozen inside a transaction keeps its run's row locked until then.
    """
    connection.cursor().execute("SET idle_in_transaction_session_timeout = '1s'")
    connection.commit()


async def work(options: argparse.Namespace) -> None:
    """Claim and drive runs until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    url = parse_url(options.database)
    engine = make_engine(url)
    if options.freezes:
        event.listen(engine.sync_engine, "connect", _soon_cut_off)
    database = make_database(engine)
    leases = Claims(
        database, options.name, ttl_s=options.ttl, limits=Limits(), backends=["embedded"], engine=options.engine
    )
    leases.epochs = {}
    freezes = Freezes(options.freezes)
    driver = Driver(
        database,
        StepsBackend(options.directory / "steps", options.pace, leases.epochs, freezes).connect,
        judge_services=lambda run, environment: JudgeServices(),
        results=ResultsFiles(database, options.directory / options.name),
        data_dir=options.directory,
        learn=JournaledLoop(History(options.directory / "history"), leases.epochs, freezes, options.pace),
        tracing=Tracing(),
        own_agents=OwnAgents(database, load_settings(_env_file=None, data_dir=options.directory)),
    )
    runs = RunJobs(database, leases, driver, options.concurrent)
    runner = Runner(url, [runs], ttl_s=options.ttl, phase_timeout_s=600)
    runner.start()
    await stop.wait()
    await runner.close()
    await engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True)
    parser.add_argument("--directory", type=Path, required=True, help="history, steps and results")
    parser.add_argument("--name", required=True)
    parser.add_argument("--ttl", type=float, required=True, help="seconds")
    parser.add_argument("--pace", type=float, required=True, help="seconds of a rollout, and of half a training")
    parser.add_argument("--concurrent", type=int, required=True)
    parser.add_argument("--engine", default="the directory", help="it drives runs of this one only")
    parser.add_argument("--freezes", action="store_true", help="at the point that a run's name ends with")
    configure_logs("info", "json")
    asyncio.run(work(parser.parse_args()))


if __name__ == "__main__":
    main()

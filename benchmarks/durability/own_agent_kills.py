"""Kill everything around a run whose agent owns its loop, again and again, with SIGKILL:

    python -m benchmarks.durability.own_agent_kills --kills 500 --iterations 40

The agent is a shell script with curl (`benchmarks/agents/shell_agent.sh`), which `learnloop agent run` starts for each
rollout; its behavior depends only on its model's answers. The same run takes place twice, once undisturbed and once
while kills hit in turn the service (with its worker), the engine, Postgres, `learnloop agent run` and the agent. Both
must end with the same weights. No rollout may fail unless the run says that it was lost, and why, and then the weights
may differ; no recorded call may be changed, deleted or sampled again; each
tool call of an agent must be in a recorded answer of its session, because answers are durable before they are sent; and
the tokens of every trained turn must be those of a recorded call.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
from starlette.requests import Request
from starlette.responses import JSONResponse

from benchmarks import processes
from benchmarks.agents.mail_desk import MailDesk
from benchmarks.durability.harness import Watched, ended, judge, weights, workplace
from benchmarks.learning.own_agents import COMMANDS, desk, request
from learnloop_service.app.agent_sessions.records import unpack_answer
from learnloop_service.app.cli.client import Service, ServiceRefused, ServiceUnreachable
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.base import Split
from learnloop_service.environment.json_type import Json
from learnloop_service.training.types import EvaluationConfig, RunConfig

_ROOT = Path(__file__).parents[2]
_TARGETS = ("service", "engine", "database", "claimer", "agent")
_CONCURRENCY = 4
_WATCH = """
CREATE TABLE IF NOT EXISTS violation (what text);
CREATE OR REPLACE FUNCTION note_violation() RETURNS trigger AS $$ BEGIN
  IF TG_OP = 'DELETE' THEN INSERT INTO violation VALUES ('deleted ' || OLD.session_id || '/' || OLD.number);
    RETURN OLD; END IF;
  IF NEW.answer IS DISTINCT FROM OLD.answer THEN
    INSERT INTO violation VALUES ('changed ' || OLD.session_id || '/' || OLD.number); END IF;
  IF NEW.holder IS NOT NULL THEN
    INSERT INTO violation VALUES ('sampled again ' || OLD.session_id || '/' || OLD.number); END IF;
  RETURN NEW; END $$ LANGUAGE plpgsql;
CREATE OR REPLACE TRIGGER watched BEFORE UPDATE OR DELETE ON session_call FOR EACH ROW
  WHEN (OLD.answered_at IS NOT NULL) EXECUTE FUNCTION note_violation();
"""

_SPARED = """
SELECT count(*) FROM agent_task JOIN agent_session ON id = session_id WHERE state = 'open' AND losses > 1
"""


class RecordingDesk(MailDesk):
    """A mail desk that records the agents' tool calls. Agents can only call what a model's answer contained."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.called: set[tuple[str, str, str]] = set()

    async def call(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.called.add((body["session"], body["name"], body["arguments"]))
        return await super().call(request)


class Stage:
    """A run and its processes, which are restarted when they are killed."""

    def __init__(self, data_dir: Path, desk_url: str) -> None:
        self.data_dir = data_dir
        self.service = Service(f"http://127.0.0.1:{free_port()}", timeout_s=10)
        self._desk_url = desk_url
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._log = (data_dir / "processes.log").open("ab")
        self._stopping = False
        self._keeper = threading.Thread(target=self._keep_up, daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start everything, and restart whatever ends."""
        self._start_missing()
        processes.wait_for(self._processes["service"], self._is_ready)
        self._keeper.start()
        try:
            yield
        finally:
            self._stopping = True
            self._keeper.join()
            for process in reversed(self._processes.values()):
                process.terminate()
                process.wait()
            self.service.__exit__()

    def _is_ready(self) -> bool:
        with suppress(ServiceUnreachable, ServiceRefused):
            return bool(self.service.readiness()["status"] == "ready")
        return False

    def _keep_up(self) -> None:
        while not self._stopping:
            self._start_missing()
            time.sleep(0.1)

    def _start_missing(self) -> None:
        port = self.service.url.rpartition(":")[2]
        serve = ["serve", "--port", port, "--data-dir", str(self.data_dir)]
        claim = ["agent", "run", "--url", self.service.url, "--concurrency", str(_CONCURRENCY)]
        claim += ["--env", "MAIL_DESK_URL", "--", *COMMANDS["shell"]]
        for name, arguments in (("service", serve), ("claimer", claim)):
            if name not in self._processes or self._processes[name].poll() is not None:
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "learnloop_service.app.cli", *arguments],
                    env={**os.environ, "MAIL_DESK_URL": self._desk_url, "PYTHONPATH": str(_ROOT)},
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                )

    def kill(self, target: str) -> bool:
        """Kill the target with SIGKILL; return False if it is down or a rollout could lose its agent too often."""
        if target in ("claimer", "agent") and not self._may_lose_agents():
            return False
        with suppress(psutil.Error, StopIteration):
            next(iter(self._processes_of(target))).kill()
            return True
        return False

    def _may_lose_agents(self) -> bool:
        """Return whether no open rollout has lost its agent twice; a third loss fails a rollout by design."""
        with suppress(psycopg.Error, OSError), self.database() as connection:
            return connection.execute(_SPARED).fetchone() == (0,)
        return False

    def _processes_of(self, target: str) -> list[psutil.Process]:
        if target in self._processes:
            return [psutil.Process(self._processes[target].pid)]
        if target == "database":
            pid = int((self.data_dir / "postgres" / "postmaster.pid").read_text().split()[0])
            return [psutil.Process(pid)]
        if target == "engine":
            children = psutil.Process(self._processes["service"].pid).children()
            return [child for child in children if "learnloop_service.training.engine" in child.cmdline()]
        return psutil.Process(self._processes["claimer"].pid).children()

    def start(self, learn_loop: Mapping[str, Json]) -> None:
        self.run = Watched(self.service, f"/runs/{self.service.start_run(learn_loop)['run_id']}")

    def database(self) -> "psycopg.Connection[Any]":
        """Connect to the service's Postgres."""
        lines = (self.data_dir / "postgres" / "postmaster.pid").read_text().splitlines()
        return psycopg.connect(host=lines[4].strip(), user="postgres", dbname="postgres", autocommit=True)


def killing(stage: Stage, kills: int, between_s: tuple[float, float], rng: random.Random) -> Counter[str]:
    """Kill targets in turn until there were `kills` or the run has ended; count the hits of each target."""
    hits: Counter[str] = Counter()
    last: Json = None
    while hits.total() < kills:
        target = _TARGETS[hits.total() % len(_TARGETS)]
        time.sleep(rng.uniform(*between_s))
        run = stage.run.now()
        if run is not None and ended(run):
            break
        if run is None or _progress(run) == last:
            continue  # the run has to progress between kills
        if stage.kill(target):
            last = _progress(run)
            hits[target] += 1
    return hits


def _progress(run: Json) -> Json:
    return [run["rollouts"], run["progress"]]


def faults(stage: Stage, called: set[tuple[str, str, str]]) -> dict[str, Json]:
    """Return counts and every violation."""
    with stage.database() as connection:
        violations = [what for (what,) in connection.execute("SELECT what FROM violation")]
        calls = connection.execute("SELECT session_id, answer FROM session_call WHERE answer IS NOT NULL").fetchall()
        trained = connection.execute("SELECT tokens FROM trajectory WHERE kind = 'train'").fetchall()
        failed = connection.execute("SELECT error FROM trajectory WHERE error IS NOT NULL").fetchall()
        unfinished = connection.execute("SELECT count(*) FROM session_call WHERE answer IS NULL").fetchone()
    recorded, sampled = set[tuple[str, str, str]](), set[str]()
    for session, answer in calls:
        for choice in unpack_answer(bytes(answer))["choices"]:
            for call in choice["message"].get("tool_calls") or []:
                recorded.add((session, call["function"]["name"], call["function"]["arguments"]))
            sampled.add(_logprobs(token["logprob"] for token in choice["logprobs"]["content"]))
    turns = [_logprobs(turn["logprobs"]) for (tokens,) in trained for turn in tokens]
    return {
        "calls": len(calls),
        "calls_without_an_answer": unfinished and unfinished[0],
        "tool_calls": len(called),
        "trained_turns": len(turns),
        "failed_rollouts": [error for (error,) in failed],
        "violations": violations,
        "tool_calls_without_a_record": len(called - recorded),
        "trained_turns_without_a_record": sum(turn not in sampled for turn in turns),
    }


def _logprobs(values: Any) -> str:
    return json.dumps([round(value, 4) + 0.0 for value in values])  # the database turns -0.0 into 0.0


def driven(directory: Path, config: RunConfig, disturb: Callable[[Stage], Counter[str]]) -> dict[str, Json]:
    """Drive the run to its end and return its figures."""
    clock = time.monotonic()
    counts: dict[Split, int] = {
        "train": config.iterations * config.groups_per_iteration,
        "validation": config.evaluation.scenarios,
        "test": config.evaluation.test_scenarios,
    }
    directory.mkdir()
    learn_loop = request("shell", counts, 0, config) | {"rollout_timeout_s": 3600}
    with desk(counts, 0, RecordingDesk) as (desk_url, mail_desk):
        stage = Stage(directory, desk_url)
        with stage.running():
            with stage.database() as connection:
                connection.execute(_WATCH)
            stage.start(learn_loop)
            hits = disturb(stage)
            run = stage.run.completed()
            assert isinstance(mail_desk, RecordingDesk)
            violations = faults(stage, mail_desk.called)
    return {
        "weights": weights(directory),
        "rollouts": run["rollouts"],
        "lost_rollouts": dict(sum((Counter(iteration["lost_rollouts"]) for iteration in run["iterations"]), Counter())),
        "warnings": run["warnings"],
        "kills": hits.total(),
        "hits": dict(hits),
        "seconds": round(time.monotonic() - clock),
        **violations,
    }


_TRACES = ("violations", "tool_calls_without_a_record", "trained_turns_without_a_record")
_MUST_BE: dict[str, Json] = {
    "same_rollouts": True,
    "same_weights_unless_rollouts_were_lost": True,
    "failed_rollouts_that_no_run_names": 0,
    "traces": {},
}


def main() -> None:
    """Print the findings; fail if any requirement is violated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--seconds-between", type=float, nargs=2, default=(0.5, 3.0), metavar=("LEAST", "MOST"))
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    evaluation = EvaluationConfig(scenarios=2, samples=1, test_scenarios=2)
    config = RunConfig(options.iterations, groups_per_iteration=2, rollouts_per_group=4, evaluation=evaluation)
    rng, between = random.Random(options.seed), tuple(options.seconds_between)
    with workplace() as directory:
        machine = processes.machine()
        calm = driven(directory / "calm", config, lambda stage: Counter())
        disturbed = driven(directory / "killed", config, lambda stage: killing(stage, options.kills, between, rng))
    lost = sum(disturbed["lost_rollouts"].values())
    judge(
        {
            "machine": machine,
            "undisturbed": calm,
            "killed": disturbed,
            "same_rollouts": calm["rollouts"] == disturbed["rollouts"],
            "same_weights_unless_rollouts_were_lost": lost > 0 or calm["weights"] == disturbed["weights"],
            "failed_rollouts_that_no_run_names": len(disturbed["failed_rollouts"]) - lost,
            "traces": {name: disturbed[name] for name in _TRACES if disturbed[name]},
        },
        _MUST_BE,
    )
    if disturbed["kills"] < options.kills:
        raise SystemExit(
            f"the run ended after {disturbed['kills']} of {options.kills} kills: give it more --iterations"
        )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()

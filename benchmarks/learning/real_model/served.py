"""Measure what a real base model learns from answers that simulated users got.

    python -m benchmarks.learning.real_model.served --base-model MODEL --inbox NAME --data-dir DIRECTORY

The base imitates the environment's oracle; the last checkpoint is promoted. For each seed 1,000 users ask it 2,000
questions of the training split in sessions sampled at temperature 1, and the service hears of 85% of the right answers
and of 55% of the wrong ones. A run learns from these answers. Before and after, held-out questions are answered
greedily and sampled. The seeds share the service at the same time. Fails unless sampled success rises by 3 points or
more in every seed and greedy success does not fall.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.learning.real_model.arms import WARM_START, Settings, request
from benchmarks.learning.real_model.held_out import answers
from benchmarks.learning.real_model.training import train
from benchmarks.served_users import OUTCOME, Desk, visits
from learnloop_service.app.cli.client import Service, ServiceRefused
from learnloop_service.app.cli.demo.own_data import own_data, prepared_data
from learnloop_service.app.cli.serve import settings_with
from learnloop_service.app.cli.service_process import own_service
from learnloop_service.environment.base import Environment
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.registry import build
from learnloop_service.judges.reference import ReferenceJudge

_SETTLED_S = 32.0
"""How long after its end a window is closed."""
_LEAST_GAIN = 0.03


@dataclass(frozen=True, slots=True)
class Market:
    """Where users are served, and how many."""

    url: str
    model: str
    """The model of the champion."""
    step: int
    settings: Settings
    data_dir: Path
    users: int
    sessions: int
    steps: int | None
    window_s: float
    """Longer than a session takes."""
    concurrency: int

    def learned(self, seed: int) -> dict[str, Json]:
        """Serve the users of one seed, learn from their answers, and return what came of it."""
        with Service(self.url) as service:
            name = f"served{seed}"
            service.call("POST", f"/models/{self.model}/promote", json={"step": self.step, "as": name})
            began = time.monotonic()
            project = self.model.partition("/")[0]
            mail = self._mail(service)
            desk = Desk(service, f"{project}/{name}", mail, ReferenceJudge(), self.concurrency)
            right = desk.serve(visits(mail, self.users, self.sessions, seed), seed)
            served_s = time.monotonic() - began
            time.sleep(self.window_s + _SETTLED_S)
            try:
                trained = train(service, self._learn_loop(desk.model, seed), lambda line: None)
            except ServiceRefused as error:
                raise RuntimeError(str(error)) from None  # the other one does not reach the parent process
            metrics = [row["train_metrics"] for row in service.iterations(trained["run_id"])]
            after, _ = answers(service, f"{trained['model']}@{trained['step']}", self.settings, 0, 0)
        return {
            "seed": seed,
            "right": sum(right) / len(right),
            "served_s": round(served_s, 1),
            "trained_s": trained["seconds"],
            "warnings": trained["warnings"],
            "metrics": metrics,
            "after": after,
        }

    def _mail(self, service: Service) -> Environment:
        """Return the environment that the champion was trained in."""
        run = service.call("GET", f"/runs/{self.model.rpartition('/run-')[2].upper()}")
        config = dict(run["request"]["environment"]["config"])
        if isinstance(scenarios := config.get("scenarios"), Mapping):
            config["scenarios"] = service.call("GET", f"/scenarios/{scenarios['sha256']}")["scenarios"]
        return build("email_search", config, self.data_dir)

    def _learn_loop(self, model: str, seed: int) -> dict[str, Json]:
        sessions = {
            "model": model,
            "train_on": "answers",
            "outcome": {"value": OUTCOME},
            "window_hours": self.window_s / 3600,
        }
        steps = {} if self.steps is None else {"iterations": self.steps}
        return {"source": {"sessions": sessions}, "seed": seed, **steps}


def gains(before: Mapping[str, Json], after: Mapping[str, Json]) -> dict[str, float]:
    """Return what success at held-out questions gained, greedily and sampled."""
    return {mode: after[mode]["success"]["mean"] - figures["success"]["mean"] for mode, figures in before.items()}


def main() -> None:
    options = _options()
    own = own_data("email_search", (), settings_with())
    data = prepared_data(options.inbox, options.data_dir) if options.inbox else own
    questions = min(1_000, data.test_questions)
    settings = Settings(data.name, options.demonstrations, questions=questions, evaluate=False)
    variables = {"LEARNLOOP_ENGINE_ARGS": f"--device {options.device}"}
    good = []
    with own_service(options.data_dir, waiting=lambda _: None, variables=variables) as service:
        champion = train(service, request(WARM_START, options.base_model, settings, 0), lambda line: None)
        before, _ = answers(service, f"{champion['model']}@{champion['step']}", settings, 0, 0)
        print(json.dumps({"champion": champion["model"], "seconds": champion["seconds"], "before": before}), flush=True)
        sizes = (options.users, options.sessions, options.steps, options.window_s, options.concurrency)
        market = Market(service.url, champion["model"], champion["step"], settings, options.data_dir, *sizes)
        with ProcessPoolExecutor(len(options.seeds), get_context("spawn")) as pool:
            for learning in as_completed([pool.submit(market.learned, seed) for seed in options.seeds]):
                result = learning.result()
                gain = gains(before, result["after"])
                good.append(gain["sampled"] >= _LEAST_GAIN and gain["greedy"] >= 0)
                print(json.dumps({"gain": gain, **result}), flush=True)
    sys.exit(0 if all(good) else "success did not rise as far as is expected in every seed")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning.real_model.served",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base-model", required=True, metavar="NAME", help="added with `learnloop bases add`")
    parser.add_argument("--inbox", metavar="NAME", help="prepared mail; default: invented inboxes")
    parser.add_argument("--data-dir", required=True, type=Path, metavar="DIRECTORY")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--demonstrations", type=int, default=480)
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--sessions", type=int, default=2_000)
    parser.add_argument("--steps", type=int, help="default: the service's")
    parser.add_argument("--window-s", type=float, default=36.0, help="longer than a session takes")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    return parser.parse_args()


if __name__ == "__main__":
    main()

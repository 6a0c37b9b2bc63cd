"""Replay recorded rollouts bit for bit, and find planted decisive turns, on the real engine.

    python -m benchmarks.learning.what_ifs [--rollouts 200] [--planted 200] [--without 20]

Replays: a run of each environment is trained; its rollouts are continued from their last turn with their own seed, and
have to be the same again, messages, token texts and log-probabilities. Planted turns: in a scripted world of 4 to 10
turns the reply in one turn decides whether the rollout succeeds, with a chance of 0.9 before it and 0.1 after it. The
search has to find that turn, and must find none where each turn changes the chance a little.
"""

import argparse
import asyncio
import json
import math
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.durability.harness import serving
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.base import Json, Outcome, Scenario, ToolResult
from learnloop_service.training.backends.base import ModelSpec
from learnloop_service.training.backends.embedded import connect
from learnloop_service.training.rollout.chat import Chat, open_chat
from learnloop_service.training.rollout.fork import Fork
from learnloop_service.training.rollout.rollout import RolloutLimits, rollout
from learnloop_service.training.statistics.turn_values import Sampled, most_probes, next_probe, verdict
from tests.fakes.tiny_model import make_tiny_model

ENVIRONMENTS = ("email_search", "sales_email")
_SAMPLES = 16
_LIMITS = RolloutLimits(max_completion_tokens=6)
_ENDED = ("completed", "failed", "cancelled", "paused")


def _ended(service: Service, path: str) -> bool:
    return service.call("GET", path)["status"] in _ENDED


def replays(directory: Path, count: int) -> dict[str, Any]:
    """Continue `count` rollouts of each environment's run from their last turn, and count those that are the same."""
    same = Counter[str]()
    with serving(directory, free_port()) as it:
        child, service = it.child, it.client
        for environment in ENVIRONMENTS:
            shape = {"iterations": math.ceil(count / 64) + 1, "evaluation": {"every": 100, "test_scenarios": 0}}
            run_id = service.start_run({"environment": {"name": environment}} | shape)["run_id"]
            processes.wait_for(child, partial(_ended, service, f"/runs/{run_id}"), pause_s=0.5, most_s=math.inf)
            query = {"limit": 200, "kind": "train"}
            rollouts = service.call("GET", f"/runs/{run_id}/trajectories", params=query)["items"][:count]
            for original in rollouts:
                request = {"turn": original["turns"], "seed": "own"}
                id = service.call("POST", f"/trajectories/{original['id']}/what-if", json=request)["evaluation_id"]
                processes.wait_for(child, partial(_ended, service, f"/evaluations/{id}"), pause_s=0.05, most_s=600)
                [again] = service.call("GET", f"/evaluations/{id}/trajectories")["items"]
                same[environment] += all(
                    _of(service, original["id"], part) == _of(service, again["id"], part) for part in ("", "/tokens")
                )
            assert len(rollouts) == count
    return {environment: f"{same[environment]} of {count}" for environment in ENVIRONMENTS}


def _of(service: Service, id: str, part: str) -> Json:
    document = service.call("GET", f"/trajectories/{id}{part}")
    return [document[name] for name in (("turns",) if part else ("messages", "outcome", "reward", "score"))]


class _World:
    """A conversation of some turns, in which replies decide the end by their hashes."""

    name, rubric, default_judge, default_max_turns = "world", "", "reference", 100

    def __init__(self, turns: int, decisive: int | None) -> None:
        """Without a decisive turn, each reply of the `recorded` rollout takes an equal part of the chance away."""
        self.turns, self.decisive = turns, decisive
        self.recorded: Sequence[str] = ()

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> Any:
        """Return an episode."""
        return _Episode(self, scenario)

    def chance(self, replies: Sequence[str]) -> float:
        """Return the chance of success after all these replies."""
        if self.decisive is None:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(replies, self.recorded, strict=False))
            return 0.9 - 0.8 * len(list(same)) / self.turns
        return 0.1 if _drawn(replies[: self.decisive]) >= _GOOD else 1.0


_GOOD = 8 / 9
"""The chance that the decisive reply is a good one, so that it is 0.9 before it: 8/9 + 1/9 * 0.1."""


def _drawn(replies: Sequence[str]) -> float:
    return int.from_bytes(sha256("|".join(replies).encode()).digest()[:8]) / 2**64


class _Episode:
    tools: Sequence[Any] = ()

    def __init__(self, world: _World, scenario: Scenario) -> None:
        self.world, self.scenario, self.max_turns = world, scenario, world.turns + 1
        self.replies: list[str] = []

    def messages(self) -> list[dict[str, Json]]:
        return [{"role": "user", "content": f"Say anything, {self.scenario.id}."}]

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        raise AssertionError("there are no tools")

    def reply(self, text: str) -> ToolResult:
        self.replies.append(text)
        return ToolResult(f"Turn {len(self.replies) + 1}.", final=len(self.replies) == self.world.turns)

    def end(self, reason: str, detail: str) -> None:
        raise AssertionError(f"{reason}: {detail}")

    def outcome(self) -> Outcome:
        return {"replies": self.replies}


def _succeeds(world: _World, replies: Sequence[str]) -> bool:
    """Draw the end of a rollout by the hash of all it said."""
    return _drawn(["end", *replies]) < world.chance(replies)


async def search(world: _World, chat: Chat, number: int) -> tuple[int | None, int]:
    """Make a rollout that fails in the planted way, look for its decisive turn, and return it with the number of
    continuations."""
    environment: Any = world
    scenario = Scenario(f"world-{number}", "train", {}, {})
    for seed in range(1_000):
        attempt = await rollout(environment, scenario, chat, _LIMITS, id=f"{number}", seed=1_000 * number + seed)
        assert attempt.failure is None, attempt.error
        replies = attempt.outcome["replies"]
        is_planted = world.decisive is None or world.chance(replies) < 1
        if is_planted and not _succeeds(world, replies):
            world.recorded = replies
            break
    items: list[Any] = [*attempt.trajectory.messages_and_choices]
    values: dict[int, Sampled] = {}
    while (turn := next_probe(values, world.turns, False)) is not None:
        fork = Fork.of(items, turn)
        seeds = [10**9 + 10_000 * number + 100 * turn + sample for sample in range(_SAMPLES)]
        continued = await asyncio.gather(
            *(rollout(environment, scenario, chat, _LIMITS, id=f"{seed}", seed=seed, fork=fork) for seed in seeds)
        )
        values[turn] = Sampled(
            _SAMPLES, sum(_succeeds(world, continuation.outcome["replies"]) for continuation in continued)
        )
    assert len(values) <= most_probes(world.turns)
    decisive = verdict(values, world.turns, False).decisive
    return (decisive.turn if decisive else None), _SAMPLES * len(values)


async def planted(directory: Path, count: int, without: int) -> dict[str, Any]:
    """Search rollouts with a planted decisive turn, and some without one."""
    base = make_tiny_model(directory / "base")
    right = wrong = undecided = continuations = 0
    with processes.engine(directory, "--base-model", f"random={base}") as url:
        policy = await (await connect(url, "none")).register(ModelSpec("world", "agent", "random"))
        async with open_chat(policy.endpoint(0), _SAMPLES) as chat:
            for number in range(count):
                turns = 4 + number % 7
                decisive = 1 + number // 7 % turns
                turn, tries = await search(_World(turns, decisive), chat, number)
                right, wrong = right + (turn == decisive), wrong + (turn not in (None, decisive))
                continuations += tries
            for number in range(count, count + without):
                turn, _ = await search(_World(4 + number % 7, None), chat, number)
                undecided += turn is None
    return {
        "planted turns found": f"{right} of {count}",
        "another turn named": wrong,
        "continuations per rollout": round(continuations / max(count, 1), 1),
        "undecided without a decisive turn": f"{undecided} of {without}",
    }


def main() -> None:
    """Print the figures; fail below the goals: all replays the same, 95% of planted turns found, 95% undecided."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=200, help="half of them of each environment")
    parser.add_argument("--planted", type=int, default=200)
    parser.add_argument("--without", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as name:
        figures = asyncio.run(planted(Path(name), options.planted, options.without))
        print(json.dumps(figures, indent=2), flush=True)
    with tempfile.TemporaryDirectory(prefix="learnloop-") as name:
        same = replays(Path(name), options.rollouts // 2) if options.rollouts else {}
        print(json.dumps({"the same again": same}, indent=2))
    shares = [(*map(int, text.split(" of ")), goal) for text, goal in _goals(figures, same)]
    if any(part < goal * whole for part, whole, goal in shares):
        raise SystemExit("a goal was missed")


def _goals(figures: Mapping[str, Any], same: Mapping[str, str]) -> list[tuple[str, float]]:
    return [
        (figures["planted turns found"], 0.95),
        (figures["undecided without a decisive turn"], 0.95),
        *((text, 1.0) for text in same.values()),
    ]


if __name__ == "__main__":
    main()

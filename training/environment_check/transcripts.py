"""Repeats the same calls in another order and in another process, to check that they have the same outcome.

`python -m learnloop_service.training.environment_check.transcripts` reads a TranscriptTask from stdin and writes the
transcripts to stdout.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from learnloop_service.environment import registry
from learnloop_service.environment.base import Environment, EpisodeFailed, Json, Scenario, Solvable
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.training.environment_check.agents import play_turns, random_agent
from learnloop_service.training.environment_check.play import Agent, play

_TIMEOUT_S = 300
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class TranscriptTask:
    """The scenarios whose transcripts another process records: the first ones of an environment's `train` split."""

    name: str
    config: dict[str, Json]
    data_dir: str
    scenarios: int
    seed: int


Transcript = list[Json]
"""Messages, then the outcome."""


async def record(
    environment: Environment, scenarios: Sequence[Scenario], seed: int, *, together: bool = False
) -> list[Transcript]:
    """Return what the random agent and the oracle do and see, playing one rollout after the other or all `together`."""

    async def one(scenario: Scenario, agent: Agent) -> Transcript:
        played = await play(environment, scenario, agent)
        recorded: Transcript = json.loads(json.dumps([*played.messages, dict(played.outcome)]))
        return recorded

    rollouts = [(scenario, random_agent(Random(f"transcript:{seed}:{scenario.id}"))) for scenario in scenarios]
    if isinstance(environment, Solvable):
        rollouts += [(scenario, play_turns(environment.solution(scenario))) for scenario in scenarios]
    if together:
        return list(await asyncio.gather(*(one(*rollout) for rollout in rollouts)))
    return [await one(*rollout) for rollout in rollouts]


def in_another_process(task: TranscriptTask) -> list[Transcript] | None:
    """Return the transcripts of another process, whose hash seed orders sets of strings differently.

    The result is None if an episode needs something that the operator lets only this process reach. Raises PluginFault.
    """
    ran = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(asdict(task)), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "4711"},
    )  # fmt: skip
    if ran.returncode != 0:
        last = ran.stderr.strip().splitlines()[-1:] or ["no message"]
        raise PluginFault(f"The environment {task.name!r} fails in a process of its own: {last[0]}")
    transcripts: list[Transcript] | None = json.loads(ran.stdout)
    return transcripts


def difference(one: Sequence[Transcript], other: Sequence[Transcript]) -> str | None:
    """Return the first difference between two recordings of the same rollouts, or None if there is none."""
    for number, (here, there) in enumerate(zip(one, other, strict=True)):
        for index in range(max(len(here), len(there))):
            pair = [
                json.dumps(transcript[index]) if index < len(transcript) else "nothing" for transcript in (here, there)
            ]
            if pair[0] != pair[1]:
                at = next((i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), 0)
                excerpts = " / ".join(text[max(0, at - _SHOWN // 2) : at + _SHOWN // 2] for text in pair)
                return f"rollout {number}, {'outcome' if index == len(here) - 1 else f'message {index}'}: {excerpts}"
    return None


def main() -> None:
    """Record the TranscriptTask on stdin and write its transcripts to stdout."""
    task = TranscriptTask(**json.load(sys.stdin))
    environment = registry.build(task.name, task.config, Path(task.data_dir))
    scenarios = environment.scenarios("train", task.scenarios, task.seed)
    try:
        recorded = asyncio.run(record(environment, scenarios, task.seed))
    except EpisodeFailed:
        recorded = None
    environment.close()
    json.dump(recorded, sys.stdout)


if __name__ == "__main__":
    main()

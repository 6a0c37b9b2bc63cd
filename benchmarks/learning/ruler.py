"""Compare our RULER ranking and ART's `ruler_score_group` with the truth, using the same judge model.

    python -m benchmarks.learning.ruler [--groups 200] [--attempts 6]

The judge is a scripted server (tests/fakes/scripted_judge.py) that knows the true score of every attempt, and adds a
bias for attempts it reads first, noise, and malformed replies. Both sides use it over HTTP and get the same groups. A
group without a finite score for each attempt is lost.
"""

import argparse
import asyncio
import json
import math
import os
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from learnloop_service.environment.base import Json, Scenario
from learnloop_service.judges.base import Candidate
from learnloop_service.judges.ruler import RulerJudge
from learnloop_service.training.backends.art_import import import_art
from tests.fakes.scripted_judge import Remembering, ScriptedJudge, marked, scripted_judge

GOALS = {"correlation": 0.95, "lost": 0, "repeat_saves": 0.6}
RUBRIC = "- The email that rests on what was read and asks for one thing is better."


@dataclass(frozen=True, slots=True)
class Options:
    """Sizes of the benchmark, and the judge's faults."""

    groups: int = 200
    attempts: int = 6
    bias: float = 0.25
    noise: float = 0.05
    malformed: float = 0.2
    passes: int = 2
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Side:
    """One side's results over all groups; the server counts the tokens."""

    correlation: float
    """Spearman's rank correlation with the truth, averaged over the groups that were not lost."""
    lost: int
    requests: int
    tokens: int


Group = tuple[Scenario, Sequence[float], Sequence[Sequence[dict[str, Json]]]]
"""A scenario, the true score of each attempt, and the attempts' messages."""


def make_groups(options: Options) -> list[Group]:
    """Build groups whose attempts have true scores between 0 and 1."""
    numbers = random.Random(options.seed)
    groups: list[Group] = []
    for number in range(options.groups):
        truths = [numbers.random() for _ in range(options.attempts)]
        groups.append(group_of(Scenario(f"s{number}", "train", {"number": number}), truths, numbers))
    return groups


def group_of(scenario: Scenario, truths: Sequence[float], numbers: random.Random) -> Group:
    return scenario, truths, [conversation(truth, numbers.getrandbits(64)) for truth in truths]


def conversation(truth: float, number: int) -> list[dict[str, Json]]:
    """Build an attempt with the true score `truth`; like a model's, its tool calls have random ids."""
    call = {"name": "get_relevant_context", "arguments": '{"node_id": "job-1"}'}
    id = f"call_{number:x}"
    final = {"name": "finalize_email", "arguments": json.dumps({"subject": "Hello", "body": marked(truth)})}
    return [
        {"role": "system", "content": "Write an email that rests on what you read. " * 10},
        {"role": "user", "content": "Write to Ada Byrne at Kestrel Foods, and ask for a call."},
        {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": id, "content": "Cold chains break unnoticed at night. " * 8},
        {"role": "assistant", "content": None, "tool_calls": [{"id": f"{id}1", "type": "function", "function": final}]},
    ]


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation, with mean ranks for ties; 0 if all values of a side are equal."""
    try:
        return statistics.correlation(_ranks(one), _ranks(other))
    except statistics.StatisticsError:
        return 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2 for value in values
    ]


def side_of(groups: Sequence[Group], scores: Sequence[Sequence[float] | None], server: ScriptedJudge) -> Side:
    pairs = [(truths, scored) for (_, truths, _), scored in zip(groups, scores, strict=True) if scored is not None]
    correlations = [spearman(truths, scored) for truths, scored in pairs]
    lost = len(groups) - len(pairs)
    return Side(statistics.fmean(correlations or [0.0]), lost, len(server.requests), server.tokens)


async def ours(groups: Sequence[Group], server: ScriptedJudge, cache: Remembering, options: Options) -> Side:
    """Score all groups with a new instance of our judge over the cache."""
    server.reset()
    judge = RulerJudge(server.model(), RUBRIC, passes=options.passes, cache=cache)
    scores: list[Sequence[float] | None] = []
    for scenario, _, conversations in groups:
        attempts = [Candidate(str(number), {}, messages) for number, messages in enumerate(conversations)]
        values = [score.value for score in (await judge.judge(scenario, attempts)).scores]
        verdicts = [value for value in values if value is not None]
        scores.append(verdicts if len(verdicts) == len(values) else None)
    return side_of(groups, scores, server)


async def art_side(groups: Sequence[Group], server: ScriptedJudge) -> Side:
    """Score all groups with ART's judge, used as in its documentation."""
    art: Any = import_art()
    ruler: Any = import_art("art.rewards.ruler")
    ruler.print = lambda *_, **__: None  # it prints exceptions that it swallows
    server.reset()
    model, scores = server.model(), list[Sequence[float] | None]()
    for _, _, conversations in groups:
        trajectories = [art.Trajectory(messages_and_choices=[*messages], reward=0.0) for messages in conversations]
        judged = await ruler.ruler_score_group(
            art.TrajectoryGroup(trajectories),
            model.name,
            extra_litellm_params={"api_base": model.base_url, "api_key": model.api_key},
            rubric=RUBRIC,
            swallow_exceptions=True,
        )
        rewards = None if judged is None else [trajectory.reward for trajectory in judged.trajectories]
        scores.append(rewards if rewards is not None and all(map(math.isfinite, rewards)) else None)
    return side_of(groups, scores, server)


def again(groups: Sequence[Group]) -> list[Group]:
    """Return the groups as a repeated run produces them: other order of members, other tool call ids."""
    numbers = random.Random("again")
    return [group_of(scenario, truths[::-1], numbers) for scenario, truths, _ in groups]


async def compare(options: Options) -> dict[str, Any]:
    """Return the figures of both sides and of the repeated run."""
    groups, cache = make_groups(options), Remembering()
    async with scripted_judge(
        seed=options.seed, bias=options.bias, noise=options.noise, malformed=options.malformed
    ) as server:
        first = await ours(groups, server, cache, options)
        repeated = await ours(again(groups), server, cache, options)
        art = await art_side(groups, server)
    saved = 1 - repeated.tokens / first.tokens
    reached = first.correlation >= GOALS["correlation"] and first.lost == 0 and saved >= GOALS["repeat_saves"]
    return {
        "options": asdict(options),
        "learnloop": asdict(first),
        "art": asdict(art),
        "repeated": asdict(repeated),
        "repeat_saves": saved,
        "goals": GOALS,
        "reached": reached,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in asdict(Options()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    arguments = vars(parser.parse_args())
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    result = asyncio.run(compare(Options(**arguments)))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

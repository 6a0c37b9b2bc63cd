"""Measure how often the failure map names the failure that was planted, and whether the order of rollouts matters.

    python -m benchmarks.learning.failure_map [--tasks 40]

Agents written in code fail at real tasks of three environments in twelve ways, disguised by what else they do by
chance; the judges are the environments' own. Exits with 1 unless 95% of each planted failure are named, all 20 orders
give the same map, and in `email_search` fewer than 10% of the failures of an agent that acts at random are named by
nothing but the last tool.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from math import fsum
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from learnloop_service.app.operations.failure_map import Attempt, compared
from learnloop_service.app.operations.failure_sides import FailureSide
from learnloop_service.app.schemas.failures import FailedRolloutOut
from learnloop_service.environment import registry
from learnloop_service.environment.base import Environment, Json, Scenario, ToolCall
from learnloop_service.judges.base import Candidate, JudgeServices, Score, checked
from learnloop_service.judges.registry import build as build_judge
from learnloop_service.training.diagnosis.patterns import Pattern, pattern_of
from learnloop_service.training.environment_check.play import Turn, play

ORDERS = 20
LEAST_NAMED, MOST_LAST_TOOL = 0.95, 0.10
_WALKS = 300
_LOCKED = "Error: order {} of 'customer number {}' is locked"
Script = Callable[[Environment, Scenario, Random], list[Turn]]


@dataclass(frozen=True, slots=True)
class PlantedRollout:
    """A rollout with the pattern that it must have."""

    environment: str
    planted: str
    task: str
    id: str
    row: Any

    @property
    def pattern(self) -> Pattern | None:
        """The pattern that it has."""
        return pattern_of(self.row, registry.traits(self.environment).milestones)


def _nothing_found(environment: Environment, scenario: Scenario, chance: Random) -> list[Turn]:
    answer = ToolCall("return_final_answer", {"answer": "I don't know", "sources": []})
    return [*_searches(chance, chance.randint(1, 5)), answer]


def _not_read(environment: Environment, scenario: Scenario, chance: Random) -> list[Turn]:
    searches = [turn for turn in _solution(environment, scenario) if turn.name == "search_inbox"]
    return [*_searches(chance, chance.randint(0, 2)), *searches, _wrong_answer(scenario, chance, cites=chance.random())]


def _not_cited(environment: Environment, scenario: Scenario, chance: Random) -> list[Turn]:
    *before, _ = _solution(environment, scenario)
    return [*_searches(chance, chance.randint(0, 2)), *before, _wrong_answer(scenario, chance, cites=0)]


def _repeated(environment: Environment, scenario: Scenario, chance: Random) -> list[Turn]:
    turns: list[Turn] = [*_searches(chance, 6), *[ToolCall("read_email", {"email_id": _word(chance)})] * 2]
    chance.shuffle(turns)
    return turns


def _no_product(environment: Environment, scenario: Scenario, chance: Random) -> list[Turn]:
    *way, final = _solution(environment, scenario)
    read = way[: chance.randint(1, len(way) - 1)]
    return [*_drafts(chance), *read, _email(final, cited=[call.arguments["node_id"] for call in read])]


def _no_product_cited(environment: Environment, scenario: Scenario, chance: Random) -> list[Turn]:
    *way, final = _solution(environment, scenario)
    cited = [call.arguments["node_id"] for call in way[:-1]]
    return [*_drafts(chance), *way, _email(final, cited=chance.sample(cited, chance.randint(0, len(cited))))]


def _unnamed(environment: Environment, scenario: Scenario, chance: Random) -> list[Turn]:
    *way, final = _solution(environment, scenario)
    body = final.arguments["body"]
    for name in scenario.task["prospect"].split():
        body = body.replace(name, "friend")
    return [*_drafts(chance), *way, ToolCall(final.name, {**final.arguments, "body": body})]


def _wrong_argument(environment: Environment, scenario: Scenario, chance: Random) -> list[Turn]:
    way = _solution(environment, scenario)[:-1]
    wrong = ToolCall("get_relevant_context", {chance.choice(("id", "node", "nodes")): _word(chance)})
    return [*_drafts(chance), *way[: chance.randint(0, len(way))], wrong]


def _solution(environment: Environment, scenario: Scenario) -> list[ToolCall]:
    solution: list[ToolCall] = environment.solution(scenario)  # type: ignore[attr-defined]
    return solution


def _searches(chance: Random, count: int) -> list[Turn]:
    return [ToolCall("search_inbox", {"keywords": [f"zz{_word(chance)}"]}) for _ in range(count)]


def _wrong_answer(scenario: Scenario, chance: Random, cites: float) -> Turn:
    sources = list(scenario.reference["source_ids"]) if cites > 0.5 else [_word(chance)]
    return ToolCall("return_final_answer", {"answer": f"perhaps {_word(chance)}", "sources": sources})


def _email(final: ToolCall, cited: Sequence[str]) -> Turn:
    return ToolCall(final.name, {**final.arguments, "citations": list(cited)})


def _drafts(chance: Random) -> list[Turn]:
    draft: Turn = ToolCall("propose_email", {"subject": _word(chance), "body": _word(chance)})
    return [draft] * chance.randint(0, 2)


def _word(chance: Random) -> str:
    return "".join(chance.choices("bdfgklmnprstv", k=6))


_SCRIPTS: Mapping[str, Mapping[str, Script]] = {
    "email_search": {
        "gave_up/found_source": _nothing_found,
        "wrong_answer/read_source": _not_read,
        "wrong_answer/cites_source": _not_cited,
        "out_of_turns/repeats/search_inbox": _repeated,
    },
    "sales_email": {
        "finalized/read_product": _no_product,
        "finalized/cited_product": _no_product_cited,
        "finalized/named_prospect": _unnamed,
        "malformed/bad_arguments/get_relevant_context": _wrong_argument,
    },
}
_REPORTS: Mapping[str, Json] = {
    "reported/looked_up": {"reward": 0, "facts": {"looked_up": False, "verified": False}},
    "reported/verified": {"parts": {"polite": 0.2, "slow": -0.1}, "facts": {"looked_up": True, "verified": False}},
    "reported/error/look_up/Error_order_0_of_..._is_locked": {"reward": 0},
    "failed/timeout": None,
}
"""What agents elsewhere report, by pattern."""
_SPLITS = ("train", "validation", "test")


async def scripted(name: str, tasks: int) -> list[PlantedRollout]:
    """Return the rollouts of an environment whose tools are played."""
    environment = registry.build(name, {}, Path())
    rollouts = []
    for planted, script in _SCRIPTS[name].items():
        for scenario in environment.scenarios("test", tasks, 0):
            turns = script(environment, scenario, Random(f"{planted} {scenario.id}"))
            row = await _row(environment, scenario, iter(turns))
            rollouts.append(PlantedRollout(name, planted, scenario.id, f"{planted} {scenario.id}", row))
    return rollouts


async def _row(environment: Environment, scenario: Scenario, turns: Iterator[Turn]) -> Any:
    """Play the turns, and return the trajectory as far as patterns read it."""
    played = await play(environment, scenario, lambda _: next(turns))
    judge = build_judge(environment.default_judge, {}, JudgeServices(environment.rubric))
    judgement = await checked(judge, scenario, [Candidate("one", played.outcome, played.messages)])
    return _trajectory(environment, played.outcome, played.messages, judgement.scores[0])


def _trajectory(environment: Environment, outcome: Json, messages: Json, score: Score) -> Any:
    value = score.value or 0.0
    parts = environment.reward(outcome, value)
    return SimpleNamespace(
        outcome=outcome,
        messages=messages,
        reward=fsum(parts.values()),
        reward_parts=parts,
        success=environment.success(outcome, value),
        score=value,
        score_parts=score.parts,
        score_explanation=score.explanation,
        error=None,
        failure=None,
    )


def reported(tasks: int) -> list[PlantedRollout]:
    """Return the rollouts of agents elsewhere, with tools of their own."""
    rows = [{"task": {"order": f"{split} {n}"}, "split": split} for n in range(tasks) for split in _SPLITS]
    environment = registry.build("agent", {"scenarios": rows, "runner": {"pull": {}}}, Path())
    rollouts = []
    for planted, report in _REPORTS.items():
        for scenario in environment.scenarios("test", tasks, 0):
            episode: Any = environment.episode(scenario)
            chance = Random(f"{planted} {scenario.id}")
            if report is not None:
                episode.report(dumps(report))
            messages = _own_calls(chance, fails="error" in planted)
            row = _trajectory(environment, episode.outcome(), messages, Score(0.0, "no"))
            if report is None:
                row.error, row.failure = f"the rollout took longer than {chance.randint(5, 300)} s", "timeout"
            rollouts.append(PlantedRollout("agent", planted, scenario.id, f"{planted} {scenario.id}", row))
    return rollouts


def _own_calls(chance: Random, *, fails: bool) -> list[dict[str, Json]]:
    """Return a conversation with tools of the agent's own; `fails`: the last call is answered by an error."""
    messages: list[dict[str, Json]] = []
    for number in range(count := chance.randint(1, 4)):
        error = _LOCKED.format(chance.randint(1, 10**9), chance.randint(1, 10**9))
        answer = error if fails and number == count - 1 else f"order {_word(chance)}"
        call = {"id": str(number), "function": {"name": "look_up", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": str(number), "content": answer})
    return messages


async def random_patterns(walks: int) -> Counter[str]:
    """Return the number of a random agent's failures in `email_search` by pattern."""
    environment = registry.build("email_search", {}, Path())
    milestones = registry.traits("email_search").milestones
    counts = Counter[str]()
    for scenario in environment.scenarios("test", walks, 1):
        row = await _row(environment, scenario, _walk(scenario, Random(scenario.id)))
        if (pattern := pattern_of(row, milestones)) is not None:
            counts[pattern.id] += 1
    return counts


def _walk(scenario: Scenario, chance: Random) -> Iterator[Turn]:
    """Yield the turns of an agent that acts at random, with words of the question and ids of the right sources."""
    words = scenario.task["question"].strip("?").split()
    sources = list(scenario.reference["source_ids"])
    while True:
        cited = chance.sample(sources, chance.randint(0, 1))
        yield chance.choice(
            (
                ToolCall("search_inbox", {"keywords": chance.sample(words, chance.randint(1, 2))}),
                ToolCall("read_email", {"email_id": chance.choice([*sources, _word(chance)])}),
                ToolCall("return_final_answer", {"answer": chance.choice(words), "sources": cited}),
            )
        )


def named(rollouts: Sequence[PlantedRollout]) -> dict[tuple[str, str], float]:
    """Return the share of each planted failure that has its pattern, by environment and pattern."""
    hits: dict[tuple[str, str], list[bool]] = {}
    for rollout in rollouts:
        is_named = rollout.pattern is not None and rollout.pattern.id == rollout.planted
        hits.setdefault((rollout.environment, rollout.planted), []).append(is_named)
    return {key: sum(values) / len(values) for key, values in hits.items()}


def maps(rollouts: Sequence[PlantedRollout], orders: int) -> list[Json]:
    """Return the map of the rollouts, a task for each, in several orders."""
    attempts = [(one.id, Attempt(_as_shown(one), one.pattern)) for one in rollouts]
    side = FailureSide("planted", "a benchmark", "several", [])
    maps = []
    for order in range(orders):
        shuffled = Random(order).sample(attempts, len(attempts))
        maps.append(compared((side, {id: [attempt] for id, attempt in shuffled})).model_dump())
    return maps


def _as_shown(rollout: PlantedRollout) -> FailedRolloutOut:
    return FailedRolloutOut(trajectory_id=rollout.id, scenario_id=rollout.task, why=None, reason=None)


async def _measure(tasks: int) -> bool:
    rollouts = [*await scripted("email_search", tasks), *await scripted("sales_email", tasks), *reported(tasks)]
    shares = named(rollouts)
    print(f"{'environment':12}  {'planted':56}  named, of {tasks}")
    for (environment, planted), share in shares.items():
        print(f"{environment:12}  {planted:56}  {share:.0%}")
    same = all(other == first for first, *others in [maps(rollouts, ORDERS)] for other in others)
    print(f"the map is the same in {ORDERS} orders: {same}")
    patterns = await random_patterns(_WALKS)
    alone = sum(count for id, count in patterns.items() if "/last_tool/" in id) / patterns.total()
    print(f"named by the last tool alone, of {patterns.total()} failures of an agent that acts at random: {alone:.0%}")
    for id, count in patterns.most_common(6):
        print(f"  {count:4}  {id}")
    return same and min(shares.values()) >= LEAST_NAMED and alone < MOST_LAST_TOOL


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=40, help="tasks of each planted failure (default: 40)")
    sys.exit(0 if asyncio.run(_measure(parser.parse_args().tasks)) else 1)


if __name__ == "__main__":
    main()

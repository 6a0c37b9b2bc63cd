"""Scenarios of the sales agent: from synthetic worlds, from a given graph, from a given list, or from a user's own
task."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from learnloop_sales.graph import Graph
from learnloop_sales.synthetic import GOALS, ROLES, GraphWorld, make_world
from learnloop_service.environment.base import Json, Scenario, Split
from learnloop_service.environment.given_scenarios import check_keys, read_scenarios, split_of
from learnloop_service.environment.invented_names import Names

DEFAULT_GOAL = "book a call"
MAX_STARTS = 10
MAX_PROSPECTS = 10_000
HOME_EVERY = 8
"""One in this many synthetic training scenarios is a new prospect on the first one's graph, the home graph, so that
node scores have a graph to follow."""
_PROSPECT_KEYS = ("prospect", "role", "company", "goal", "start", "split")
_TASK_KEYS = ("prospect", "role", "company", "goal", "start", "graph")
_MAX_CHARACTERS = 200


def synthetic_scenarios(split: Split, count: int, seed: int, start: int) -> list[Scenario]:
    """Return `count` prospects from number `start`, each with its own graph; some of `train` are on the home graph."""
    return [
        make_world(split, seed, index).scenario(on=home_world(seed) if _at_home(split, index) else None)
        for index in range(start, start + count)
    ]


def home_world(seed: int) -> GraphWorld:
    """Return the world of the home graph, which training uses again and again."""
    return make_world("train", seed, 0)


def _at_home(split: Split, index: int) -> bool:
    return split == "train" and index % HOME_EVERY == 0


def graph_scenarios(graph: Graph, split: Split, count: int, seed: int, start: int) -> list[Scenario]:
    """Return `count` invented prospects from number `start`, each starting from one of the graph's Customer Jobs."""
    scenarios = []
    for index in range(start, start + count):
        id = f"{split}.{seed}.{index}"
        rng = Random(f"sales_email:prospect:{id}")
        names = Names(rng, split)
        job = rng.choice(graph.jobs())
        task: dict[str, Json] = {
            "prospect": names.person(),
            "role": rng.choice(ROLES),
            "company": names.company(),
            "goal": rng.choice(list(GOALS)),
            "start": [job],
        }
        scenarios.append(Scenario(id=id, split=split, task=task, reference={"path": graph.path(job)}))
    return scenarios


def given_scenarios(prospects: Json, graph: Graph) -> list[Scenario]:
    """Return the prospects of a request as scenarios, in order. Raises ValueError naming the invalid one.

    Either each names its `split`, or none does: then a fifth of them, at least one, goes to each held-out split.
    """
    return read_scenarios(
        prospects,
        "prospects",
        MAX_PROSPECTS,
        "sales_email:split",
        lambda item, position: _scenario(item, position, graph),
    )


def _scenario(item: Json, position: int, graph: Graph) -> Scenario:
    where = f"scenario number {position}"
    check_keys(item, where, _PROSPECT_KEYS)
    split = split_of(item, where)
    try:
        scenario = asked_scenario({key: value for key, value in item.items() if key != "split"}, graph)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return replace(scenario, id=f"given.{position}", split=split)


def asked_scenario(task: Mapping[str, Json], graph: Graph) -> Scenario:
    """Return a scenario for a user's own task. `prospect` and `company` are required; `start` can be one id or a list.
    Raises ValueError."""
    unknown = sorted(set(task) - set(_TASK_KEYS))
    if unknown:
        raise ValueError(f"a task has no {', '.join(unknown)}; it takes: {', '.join(_TASK_KEYS)}")
    start = task.get("start") or graph.jobs()[:1]
    starts = [start] if isinstance(start, str) else start
    if not isinstance(starts, list) or not 0 < len(starts) <= MAX_STARTS:
        raise ValueError(f"start must be a node's id or a list of 1 to {MAX_STARTS} ids")
    for id in starts:
        if not isinstance(id, str) or id not in graph.nodes:
            raise ValueError(f"start names the node {id!r}, which the graph does not have")
    if not any(id in graph.distance for id in starts):
        raise ValueError(f"no path leads from {starts[0]!r} to a Product Feature")
    checked: dict[str, Json] = {
        "prospect": _line(task, "prospect"),
        "role": _line(task, "role", default=""),
        "company": _line(task, "company"),
        "goal": _line(task, "goal", default=DEFAULT_GOAL),
        "start": starts,
    }
    if "graph" in task:
        checked["graph"] = task["graph"]
    return Scenario(id="ask", split="test", task=checked)


def _line(task: Mapping[str, Json], key: str, default: str | None = None) -> str:
    value = task.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not (line := " ".join(value.split())):
        raise ValueError(f"{key} must be a string that is not empty")
    if len(line) > _MAX_CHARACTERS:
        raise ValueError(f"{key} has {len(line)} characters; at most {_MAX_CHARACTERS} are allowed")
    return line

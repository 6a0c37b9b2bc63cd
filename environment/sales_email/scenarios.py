"""Scenarios of the sales agent: from synthetic worlds, from a given graph, or from a user's own task."""

from collections.abc import Mapping
from random import Random

from environment.base import Json, Scenario, Split
from environment.invented_names import Names
from environment.sales_email.graph import Graph
from environment.sales_email.synthetic import GOALS, ROLES, make_world

DEFAULT_GOAL = "book a call"
MAX_STARTS = 10
_TASK_KEYS = ("prospect", "role", "company", "goal", "start", "graph")
_MAX_CHARACTERS = 200


def synthetic_scenarios(split: Split, count: int, seed: int, start: int) -> list[Scenario]:
    """`count` prospects from number `start` on, each with a graph of its own."""
    return [make_world(split, seed, index).scenario() for index in range(start, start + count)]


def graph_scenarios(graph: Graph, split: Split, count: int, seed: int, start: int) -> list[Scenario]:
    """`count` invented prospects from number `start` on, each with one of the graph's Customer Jobs to start from."""
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


def asked_scenario(task: Mapping[str, Json], graph: Graph) -> Scenario:
    """A user's own task. `prospect` and `company` are needed; `start` may be one id or a list. Raises ValueError."""
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

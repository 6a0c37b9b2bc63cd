"""The environment `sales_email`: write an email to a prospect that rests on a knowledge graph."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from environment.base import Environment, Json, Outcome, Scenario, Split, UnknownScenario
from environment.sales_email.graph import Graph, parse_graph
from environment.sales_email.scenarios import asked_scenario, graph_scenarios, synthetic_scenarios
from environment.sales_email.synthetic import world_of
from environment.sales_email.tools import SalesEpisode

_RUBRIC = files("environment.sales_email").joinpath("prompts/rubric.txt").read_text(encoding="utf-8").strip()


class SalesEmail:
    """Prospects on one given graph, or on synthetic graphs, one for each prospect."""

    name = "sales_email"
    default_max_turns = 8
    default_judge = "grounding"
    rubric = _RUBRIC

    def __init__(self, graph: Graph | None = None) -> None:
        self._graph = graph

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        """`count` scenarios from number `start` on, the same for the same seed; names of a split appear in no other."""
        if self._graph is not None:
            return graph_scenarios(self._graph, split, count, seed, start)
        return synthetic_scenarios(split, count, seed, start)

    def ask(self, task: Mapping[str, Json]) -> Scenario:
        """A scenario from a user's own task. Raises ValueError if it is unfit."""
        try:
            return asked_scenario(task, self._graph_of(task))
        except UnknownScenario as error:
            raise ValueError(str(error)) from error

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> SalesEpisode:
        """Open one attempt. Raises UnknownScenario if the scenario's graph is not there."""
        return SalesEpisode(scenario, self._graph_of(scenario.task), max_turns or self.default_max_turns)

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        """Named parts whose sum lies in [-0.5, 1.0]: steps of the way, honest citations, and the whole job.

        `score` in [0, 1] is the judge's verdict; it weighs the largest part, which only a grounded email earns.
        """
        success = bool(outcome["success"])
        left = max(0.0, 1.0 - outcome["turns"] / outcome["max_turns"])
        dishonest = bool(outcome["unknown_citations"] or outcome["unread_citations"])
        return {
            "read_path": 0.1 * outcome["read_path"],
            "read_product": 0.1 * outcome["read_product"],
            "named_prospect": 0.1 * outcome["named_prospect"],
            "named_company": 0.1 * outcome["named_company"],
            "citations_read": 0.1 * outcome["citations_read"],
            "success": 0.4 * score * success,
            "turns_left": 0.1 * left * success,
            "bad_citation": -0.2 if dishonest else 0.0,
            "malformed": -0.5 if outcome["finish"] == "malformed" else 0.0,
        }

    def success(self, outcome: Outcome, score: float) -> bool:
        """Whether the email is final and grounded; a judge's taste does not change that."""
        return bool(outcome["success"])

    def answer(self, outcome: Outcome) -> dict[str, Json]:
        """The email as `/ask` returns it; `answer` is its body, None if none was finalised."""
        email = outcome["email"]
        return {
            "answer": email["body"] if email else None,
            "source_ids": email["citations"] if email else [],
            "success": outcome["success"],
            "email": email,
        }

    def close(self) -> None:
        """Nothing is held open."""

    def _graph_of(self, task: Mapping[str, Json]) -> Graph:
        if self._graph is not None:
            return self._graph
        key = task.get("graph")
        if not isinstance(key, str):
            raise UnknownScenario("no graph was given: configure one, or name a synthetic one, such as 'test.0.17'")
        return world_of(key).graph


def build(config: Mapping[str, Json], data_dir: Path) -> Environment:
    """`{"graph": [...]}` takes that graph, `{}` synthetic ones. Raises ValueError for anything else."""
    unknown = sorted(set(config) - {"graph"})
    if unknown:
        raise ValueError(f"sales_email has no setting {', '.join(unknown)}; it takes: graph")
    graph = config.get("graph")
    return SalesEmail(None if graph is None else parse_graph(graph))

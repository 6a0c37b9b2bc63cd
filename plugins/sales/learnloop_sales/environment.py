"""The environment `sales_email`: write an email to a prospect that is grounded in a knowledge graph."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from learnloop_sales.graph import Graph, dump_graph, parse_graph, size_of
from learnloop_sales.node_scores import GraphScores, ScoreRule
from learnloop_sales.scenarios import (
    DEFAULT_GOAL,
    asked_scenario,
    given_scenarios,
    graph_scenarios,
    home_world,
    synthetic_scenarios,
)
from learnloop_sales.synthetic import right_body, world_of
from learnloop_sales.tools import CONTEXT, FINALIZE, SalesEpisode
from learnloop_service.environment.base import (
    Environment,
    Json,
    Outcome,
    Rewarded,
    Scenario,
    Split,
    ToolCall,
    UnknownScenario,
)
from learnloop_service.environment.explained import ending, shortened
from learnloop_service.environment.scenario_order import draw
from learnloop_service.environment.traits import Document, RunPage, Traits

_RUBRIC = files("learnloop_sales").joinpath("prompts/rubric.txt").read_text(encoding="utf-8").strip()

_SETTINGS = {"graph", "scenarios", "node_scores"}


class SalesEmail:
    """Prospects on one given graph, or on synthetic graphs, one for each prospect.

    Node scores belong to the given graph, or to the synthetic home graph, which training uses again and again.
    """

    name = "sales_email"
    default_max_turns = 8
    default_judge = "grounding"
    rubric = _RUBRIC

    def __init__(
        self, graph: Graph | None = None, prospects: Json | None = None, rule: ScoreRule = ScoreRule.VISITS
    ) -> None:
        """Raises ValueError for invalid prospects, or for prospects without a graph."""
        if prospects is not None and graph is None:
            raise ValueError("scenarios need a graph: give both")
        self.synthetic = graph is None
        self._graph = graph
        self._listed = None if prospects is None or graph is None else given_scenarios(prospects, graph)
        self._rule = rule
        self._scored: str | None = None
        """Key of the synthetic graph that the node scores belong to."""
        self._node_scores = None if graph is None else GraphScores(graph, rule)

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        """Return `count` scenarios from number `start`, the same for the same seed; names of a split appear in no
        other."""
        if self._listed is not None:
            return list(draw([scenario for scenario in self._listed if scenario.split == split], count, seed, start))
        if self._graph is not None:
            return graph_scenarios(self._graph, split, count, seed, start)
        return synthetic_scenarios(split, count, seed, start)

    def ask(self, task: Mapping[str, Json]) -> Scenario:
        """Return a scenario for a user's own task. Raises ValueError if it is unsuitable."""
        try:
            return asked_scenario(task, self._graph_of(task))
        except UnknownScenario as error:
            raise ValueError(str(error)) from error

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> SalesEpisode:
        """Create one attempt. Raises UnknownScenario if the scenario's graph is not available."""
        graph = self._graph_of(scenario.task)
        scores = self._node_scores.scores if self._node_scores and self._is_scored(scenario) else None
        return SalesEpisode(scenario, graph, max_turns or self.default_max_turns, scores)

    def solution(self, scenario: Scenario) -> list[ToolCall]:
        """Return calls that read the shortest path to a product and write about both of its ends."""
        task, graph = scenario.task, self._graph_of(scenario.task)
        way = graph.path(next(id for id in task["start"] if id in graph.distance))[1 - self.default_max_turns :]
        facts = [graph.nodes[id].content for id in way]
        email = {
            "subject": f"A note for {task['company']}",
            "body": right_body(task["prospect"], task["company"], task["goal"], facts),
            "citations": way,
        }
        return [*(ToolCall(CONTEXT.name, {"node_id": id}) for id in way), ToolCall(FINALIZE.name, email)]

    def showcase(self, seed: int) -> Scenario:
        """Return the first available scenario."""
        if self._listed is not None:
            return self._listed[0]
        if self._graph is None:
            self._score(home_world(seed).key)
        return self.scenarios("train", 1, seed)[0]

    def reflect(self, rewarded: Sequence[Rewarded]) -> None:
        """Move the node scores by the rewards earned on their graph."""
        if self._node_scores is not None:
            self._node_scores.reflect([rollout for rollout in rewarded if self._is_scored(rollout.scenario)])

    def state(self) -> dict[str, Json]:
        """Return `node_scores` by id, and the name of a synthetic `graph` (None for a given one)."""
        scores = dict(self._node_scores.scores) if self._node_scores else {}
        return {"graph": self._scored, "node_scores": scores}

    def restore(self, state: Mapping[str, Json]) -> None:
        """Restore the state. Raises ValueError for a state of another graph."""
        if self._graph is None and state["graph"] is not None:
            self._score(state["graph"])
        if self._node_scores is not None:
            self._node_scores.restore(state["node_scores"])

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        """Return named parts whose sum is in [-0.5, 1.0], for partial progress, honest citations, and the whole job.

        `score` in [0, 1] is the judge's verdict; it scales the largest part, which only a grounded email earns.
        """
        success = bool(outcome["success"])
        turns_left = max(0.0, 1.0 - outcome["turns"] / outcome["max_turns"])
        dishonest = bool(outcome["unknown_citations"] or outcome["unread_citations"])
        return {
            "read_path": 0.1 * outcome["read_path"],
            "read_product": 0.1 * outcome["read_product"],
            "named_prospect": 0.1 * outcome["named_prospect"],
            "named_company": 0.1 * outcome["named_company"],
            "citations_read": 0.1 * outcome["citations_read"],
            "success": 0.4 * score * success,
            "turns_left": 0.1 * turns_left * success,
            "bad_citation": -0.2 if dishonest else 0.0,
            "malformed": -0.5 if outcome["finish"] == "malformed" else 0.0,
        }

    def success(self, outcome: Outcome, score: float) -> bool:
        """Whether the email is final and grounded; the judge's score does not change that."""
        return bool(outcome["success"])

    def why_no_success(self, scenario: Scenario, outcome: Outcome, score: float | None) -> str | None:
        if (email := outcome["email"]) is None:
            return ending(outcome)
        faults = [
            *(f"names no {who}" for who in ("prospect", "company") if not outcome[f"named_{who}"]),
            *(f"cites {shortened(id, 40)}, which does not exist" for id in outcome["unknown_citations"][:2]),
            *(f"cites {shortened(id, 40)} unread" for id in outcome["unread_citations"][:2]),
        ]
        if not outcome["cited_product"]:
            faults.append("cites no product feature" if email["citations"] else "cites nothing")
        return "the email " + ", ".join(faults or ["is not grounded"])

    def answer(self, outcome: Outcome) -> dict[str, Json]:
        """Return the email as `/ask` returns it; `answer` is its body, None if none was finalised."""
        email = outcome["email"]
        return {
            "answer": email["body"] if email else None,
            "source_ids": email["citations"] if email else [],
            "success": outcome["success"],
            "email": email,
        }

    def close(self) -> None:
        """Do nothing: no resources are open."""

    def _score(self, key: str) -> None:
        """Keep node scores for that synthetic graph from now on."""
        if self._scored != key:
            self._scored, self._node_scores = key, GraphScores(self._graph_of({"graph": key}), self._rule)

    def _is_scored(self, scenario: Scenario) -> bool:
        return self._graph is not None or (self._scored is not None and scenario.task.get("graph") == self._scored)

    def _graph_of(self, task: Mapping[str, Json]) -> Graph:
        if self._graph is not None:
            return self._graph
        key = task.get("graph")
        if not isinstance(key, str):
            raise UnknownScenario("no graph was given: configure one, or name a synthetic one, such as 'test.0.17'")
        return world_of(key).graph


def build(config: Mapping[str, Json], data_dir: Path) -> Environment:
    """Build the environment. `{}` uses synthetic graphs; `graph` (a list of nodes) uses that one, with invented
    prospects or with `scenarios`.

    `node_scores` names the rule. Raises ValueError for any other config.
    """
    unknown = sorted(set(config) - _SETTINGS)
    if unknown:
        raise ValueError(f"sales_email has no setting {', '.join(unknown)}; it takes: {', '.join(sorted(_SETTINGS))}")
    rule = config.get("node_scores", ScoreRule.VISITS)
    if rule not in list(ScoreRule):
        raise ValueError(f"node_scores is one of {', '.join(ScoreRule)}, not {rule!r}")
    graph = config.get("graph")
    return SalesEmail(None if graph is None else parse_graph(graph), config.get("scenarios"), ScoreRule(rule))


def _learned_on(state: Mapping[str, Json]) -> list[Json] | None:
    """Return the nodes of the synthetic graph that the state's node scores belong to."""
    key = state.get("graph")
    return None if key is None else dump_graph(world_of(key).graph)


_TASK: Mapping[str, Json] = {
    "type": "object",
    "required": ["prospect", "company"],
    "properties": {
        "prospect": {
            "type": "string",
            "title": "Prospect",
            "description": "Name of the person to write to.",
            "maxLength": 1_000,
            "examples": ["Vijos Fivor"],
        },
        "company": {
            "type": "string",
            "title": "Company",
            "description": "Company of the prospect.",
            "maxLength": 1_000,
            "examples": ["Movoze"],
        },
        "role": {
            "type": "string",
            "title": "Role",
            "description": "Job title of the prospect.",
            "maxLength": 1_000,
            "examples": ["head of sales"],
        },
        "goal": {
            "type": "string",
            "title": "Goal",
            "maxLength": 1_000,
            "description": "What the email should achieve.",
            "default": DEFAULT_GOAL,
            "examples": ["show a demo"],
        },
        "start": {
            "type": ["array", "string"],
            "items": {"type": "string"},
            "title": "Nodes to start from",
            "description": "Ids of up to 10 nodes. By default the first Customer Job that leads to a product.",
        },
        "graph": {
            "type": "string",
            "title": "Synthetic graph",
            "maxLength": 200,
            "description": "Name of an invented graph. Not needed if the run has a graph of its own.",
            "examples": ["test.0.17"],
        },
    },
}
_GRAPH: Sequence[Json] = [
    {
        "id": "customer-job-close",
        "content": "Customer Job: The finance team closes the books in 9 days.",
        "edge": [{"target_id": "product-feature-match", "relationship": "solved by"}],
    },
    {
        "id": "product-feature-match",
        "content": "Product Feature: AutoMatch matches 95 percent of bank statements.",
        "edge": [],
    },
]
TRAITS = Traits(
    description="Walks a knowledge graph from a prospect's job to a product that helps, and writes a short sales "
    "email.",
    datasets={"scenarios": ()},
    documents={
        "graph": Document(
            parse_graph,
            size_of,
            _learned_on,
            title="Knowledge graph",
            description="Its nodes as JSON: each an object with `id`, `content` and `edge`, a list of "
            '`{"target_id", "relationship"}`. There must be a Customer Job from which a Product Feature can be '
            "reached. Without one graphs are invented, one for each prospect.",
            example=_GRAPH,
        )
    },
    task=_TASK,
    pages=(
        RunPage("emails", "Emails and graph", files("learnloop_sales") / "dashboard", "emails.js", style="emails.css"),
    ),
    repeats=True,
    milestones={
        "read_product": "never read a Product Feature",
        "cited_product": "read a Product Feature and cited none",
        "citations_read": "cited what it had not read, or what does not exist",
        "named_prospect": "did not name the prospect",
        "named_company": "did not name the company",
    },
)

"""The demo of the environment: it shows sales emails, and how the nodes of the graph used in every iteration rank."""

from collections.abc import Mapping

from learnloop_sales.demo_report import print_examples
from learnloop_sales.graph import Graph
from learnloop_sales.scenarios import home_world
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.demo.held_out_tasks import ask_both
from learnloop_service.app.cli.demo.job import ACTS_AS, DemoJob, compared
from learnloop_service.environment.json_type import Json

_TASK_FIELDS = ("prospect", "company", "role", "goal", "start", "graph")
CHECKS = ("citations_read", "cited_product", "named_prospect", "named_company")
"""Checks in a trajectory's outcome that an email must pass to be grounded."""


def examples(service: Service, run: Json) -> dict[str, Json]:
    """Return `emails` by both agents to held-out prospects, and the `node_scores` before and after."""
    return {
        "answers": [],
        "emails": [
            {
                "scenario_id": pair.scenario["id"],
                "task": pair.task,
                "base": _email(service, pair.base),
                "trained": _email(service, pair.trained),
            }
            for pair in ask_both(service, run, _TASK_FIELDS)
        ],
        "node_scores": _node_scores(service, run),
    }


def _email(service: Service, reply: Json) -> Json:
    """Return the email or None, and whether it is grounded, which means that all `checks` hold."""
    outcome = service.trajectory(reply["trajectory_id"])["outcome"]
    return {
        "email": reply["email"],
        "grounded": reply["success"],
        "checks": {name: outcome[name] for name in CHECKS},
        "trajectory_id": reply["trajectory_id"],
        "step": reply["step"],
    }


def _node_scores(service: Service, run: Json) -> Json:
    """Return the nodes of the home graph with their ranks before and after training."""
    home = home_world(run["request"]["seed"])
    last = run["progress"]["iterations_done"]
    path = f"/runs/{run['run_id']}/node-scores"
    replies = (service.call("GET", path, params={"iteration": iteration}) for iteration in (0, last))
    before, after = (reply["node_scores"] for reply in replies)
    return {"graph": home.key, **ranked_nodes(home.graph, before, after)}


def ranked_nodes(graph: Graph, before: Mapping[str, float], after: Mapping[str, float]) -> Json:
    """Return `nodes` with score and rank before and after, in the order of their final ranks, and the ids of those that
    have `risen` or `fallen`.

    Ranks begin at 1 and are the order in which agents see the nodes: by score, then by popularity.
    """
    ranks = [_ranks(graph, scores) for scores in (before, after)]
    nodes = [
        {
            "id": node.id,
            "content": node.content,
            "kind": node.kind.value,
            "leads_to_product": node.id in graph.distance,
            "score": {"before": before[node.id], "after": after[node.id]},
            "rank": {"before": ranks[0][node.id], "after": ranks[1][node.id]},
        }
        for node in sorted(graph.nodes.values(), key=lambda node: ranks[1][node.id])
    ]
    most_first = sorted(nodes, key=_climb, reverse=True)
    return {
        "nodes": nodes,
        "risen": [node["id"] for node in most_first if _climb(node) > 0],
        "fallen": [node["id"] for node in reversed(most_first) if _climb(node) < 0],
    }


def _ranks(graph: Graph, scores: Mapping[str, float]) -> dict[str, int]:
    order = sorted(graph.nodes, key=lambda id: (-scores[id], -graph.popularity[id]))
    return {id: rank for rank, id in enumerate(order, 1)}


def _climb(node: Json) -> int:
    """Return the number of ranks that the node has risen."""
    climb: int = node["rank"]["before"] - node["rank"]["after"]
    return climb


DEMO = DemoJob(
    introduction=ACTS_AS + "a sales agent: given a prospect and a graph of facts, it has to follow the edges from the "
    "prospect's job to a product that helps, read what it will cite, and write the email. It writes to every prospect "
    "several times, a rule-based judge checks whether each email is based on what the agent read, and "
    + compared(task="prospect", unseen="graphs, names and facts")
    + " One graph is used in every iteration; its nodes get scores from the rewards of the emails that cite them.",
    iterations=14,
    examples=examples,
    print_examples=print_examples,
)

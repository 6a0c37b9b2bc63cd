"""Synthetic sales worlds: each a new knowledge graph with one prospect, so that nothing can be memorised.

A world is regenerated from its key alone (`test.0.17` is number 17 of seed 0 in the split `test`), so nothing is
stored. One path of two or three edges leads from the Customer Job to the Product Feature. It is surrounded by dead
ends, a chain without a destination, and a hub that many nodes point at: neither the first neighbour shown nor the most
popular one is the way.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from string import ascii_lowercase
from typing import get_args

from learnloop_sales.graph import Edge, Graph, Kind, Node, build_graph
from learnloop_service.environment.base import Json, Scenario, Split, UnknownScenario
from learnloop_service.environment.invented_names import Names

ROLES = ("Head of Sales", "Head of Finance", "Head of Support", "Operations Lead", "Data Lead", "Team Lead")
GOALS = {
    "book a call": "Shall we talk this week?",
    "show a demo": "May I show you a demo?",
    "start a pilot": "Shall we start a small pilot?",
    "send a sample": "May I send you a sample?",
}
"""Goals of an email, each with the sentence that asks for it."""

_KEY = re.compile(r"(train|validation|test)\.(-?[0-9]{1,20})\.([0-9]{1,20})")
_TOPICS = ("quote", "invoice", "report", "order", "contract", "ticket", "audit", "survey", "forecast", "claim")
_JOBS = ("{T}s take the team {n} hours a week.", "The team spends {n} hours a week on {t}s.")
_CAUSES = (
    "Each {t} waits for {n} checks by hand.",
    "One {t} in {n} has to be done twice.",
    "The data for each {t} comes from {n} lists.",
    "Every {t} passes through {n} people.",
)
_FEATURES = (
    "{p} cuts the work on {t}s by {n} percent.",
    "{p} checks each {t} in {n} seconds.",
    "{p} finds {n} percent of all {t} errors.",
    "{p} fills in a {t} within {n} minutes.",
)
_HUBS = ("Every firm asks about {p} this year.", "{p} is what the whole market talks about.")
_ASIDES = (
    "{p} moved the {t} office to the north.",
    "The {t} group at {p} has {n} members.",
    "{p} held a {t} meeting in May.",
    "A study by {p} looked at {n} {t}s.",
    "{p} wrote a long guide to {t}s.",
)
_RELATIONSHIPS = ("needs", "causes", "slowed by", "linked to", "part of", "depends on")
_SOLUTIONS = ("solved by", "helped by")


def right_body(prospect: str, company: str, goal: str, facts: Sequence[str]) -> str:
    """Return an email body that claims only the first and the last of these facts, and asks for the goal."""
    ask = GOALS.get(goal, f"Shall we {goal}?")
    return f"Hi {prospect.split()[0]}, a note for {company}. {facts[0]} {facts[-1]} {ask}"


@dataclass(frozen=True, slots=True)
class GraphWorld:
    """One graph and its prospect. `path` leads from the Customer Job to the Product Feature."""

    key: str
    split: Split
    graph: Graph
    prospect: str
    role: str
    company: str
    goal: str
    path: tuple[str, ...]
    product: str

    def scenario(self, on: "GraphWorld | None" = None) -> Scenario:
        """Return the prospect as a scenario, on this graph or on that of another world.

        Its reference has `path`, the `facts` on it, `product`, and a right `email`.
        """
        on = on or self
        facts = [on.graph.nodes[id].content for id in on.path]
        reference: dict[str, Json] = {
            "path": list(on.path),
            "facts": facts,
            "product": on.product,
            "email": {
                "subject": f"{on.product} for {self.company}",
                "body": right_body(self.prospect, self.company, self.goal, facts),
                "citations": list(on.path),
            },
        }
        task: dict[str, Json] = {
            "prospect": self.prospect,
            "role": self.role,
            "company": self.company,
            "goal": self.goal,
            "start": [on.path[0]],
            "graph": on.key,
        }
        return Scenario(id=self.key, split=self.split, task=task, reference=reference)


def world_of(key: str) -> GraphWorld:
    """Return the world of that key. Raises UnknownScenario."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise UnknownScenario(f"no synthetic graph is named {key!r}; names are like 'test.0.17'")
    split = next(name for name in get_args(Split) if name == match[1])
    return make_world(split, int(match[2]), int(match[3]))


@lru_cache(maxsize=1024)
def make_world(split: Split, seed: int, index: int) -> GraphWorld:
    """Generate the world of that split, seed and index: 11 to 16 nodes."""
    key = f"{split}.{seed}.{index}"
    rng = Random(f"sales_email:{key}")
    names = Names(rng, split)
    ids = _ids(rng, names)
    topic, product = rng.choice(_TOPICS), names.capitalised(3)

    def say(sentences: Sequence[str], name: str = "") -> str:
        return rng.choice(sentences).format(p=name, t=topic, T=topic.capitalize(), n=rng.randint(3, 89))

    causes = rng.sample(_CAUSES, rng.randint(1, 2))
    path = [
        Node(next(ids), say(_JOBS), Kind.CUSTOMER_JOB),
        *(Node(next(ids), say([cause]), Kind.FACT) for cause in causes),
        Node(next(ids), say(_FEATURES, product), Kind.PRODUCT_FEATURE),
    ]
    hub = Node(next(ids), say(_HUBS, names.capitalised()), Kind.FACT)
    asides = [Node(next(ids), say(_ASIDES, names.capitalised()), Kind.FACT) for _ in range(rng.randint(7, 9))]
    graph = _connect(rng, path, hub, asides)
    return GraphWorld(
        key=key,
        split=split,
        graph=graph,
        prospect=names.person(),
        role=rng.choice(ROLES),
        company=names.company(),
        goal=rng.choice(list(GOALS)),
        path=tuple(node.id for node in path),
        product=product,
    )


def _connect(rng: Random, path: Sequence[Node], hub: Node, asides: Sequence[Node]) -> Graph:
    """Connect the path, two asides at each of its nodes, and the hub that most nodes point at.

    No aside leads back to the path, so a wrong turn never reaches the product.
    """
    *steps, feature = path
    edges = [
        Edge(here.id, there.id, rng.choice(_SOLUTIONS if there is feature else _RELATIONSHIPS))
        for here, there in zip(steps, path[1:], strict=True)
    ]
    spare = iter(asides)
    for step in steps:
        beside = [next(spare), next(spare), *([hub] if step is path[0] or rng.random() < 0.7 else [])]
        edges.extend(Edge(step.id, node.id, rng.choice(_RELATIONSHIPS)) for node in beside)
    # The remaining nodes form chains after the asides; most chains end in the hub.
    for node in spare:
        edges.append(Edge(asides[rng.randrange(2 * len(steps))].id, node.id, rng.choice(_RELATIONSHIPS)))
        edges.append(Edge(hub.id, node.id, rng.choice(_RELATIONSHIPS)))
    pointing = rng.sample(asides[: 2 * len(steps)], 3)
    edges.extend(Edge(node.id, hub.id, rng.choice(_RELATIONSHIPS)) for node in pointing)
    rng.shuffle(edges)
    nodes = [*path, hub, *asides]
    rng.shuffle(nodes)
    return build_graph(nodes, edges)


def _ids(rng: Random, names: Names) -> Iterator[str]:
    """Yield slugs such as `tolu-marend-7k2`. No two in a graph begin alike, which would only test copying."""
    beginnings: set[str] = set()
    while True:
        words = [names.word() for _ in range(3 if rng.random() < 0.2 else 2)]
        if words[0][:2] in beginnings:
            continue
        beginnings.add(words[0][:2])
        yield f"{'-'.join(words)}-{rng.randint(2, 9)}{rng.choice(ascii_lowercase)}{rng.randint(2, 9)}"

"""The knowledge graph: parses it from JSON, checks it, and finds neighbours and paths to the product.

A graph is a list of nodes, each with its outgoing edges, as CoDreamer's frontend sends it: `[{"id", "content", "edge":
[{"target_id", "relationship", "rationale"}]}]`; `edges`, `target` and `label` are also accepted. Two kinds of node
anchor an email's argument: it starts at a Customer Job and ends at a Product Feature. A node is an anchor if its `kind`
says so, or its content begins with `Customer Job:` or `Product Feature:`, or its id contains these words
(`product-feature-3f`). Cycles are allowed, because facts do support each other; an edge from a node to itself carries
no information and is refused. An edge given twice counts once.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from learnloop_service.environment.base import Json

MAX_NODES = 10_000
MAX_EDGES = 100_000
MAX_ID_CHARACTERS = 200
MAX_CONTENT_CHARACTERS = 20_000
MAX_LABEL_CHARACTERS = 2_000
"""Most characters of a relationship or a rationale."""
_DEFAULT_RELATIONSHIP = "related to"


class GraphError(ValueError):
    """The graph cannot be used; the message names the faulty node."""


class Kind(StrEnum):
    """A node's role in the argument of an email."""

    CUSTOMER_JOB = "Customer Job"
    PRODUCT_FEATURE = "Product Feature"
    FACT = "Fact"


@dataclass(frozen=True, slots=True)
class Node:
    """One statement. `id` is unique within its graph and contains no line break."""

    id: str
    content: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Edge:
    """`source` has `relationship` to `target`, because of `rationale` (which may be empty)."""

    source: str
    target: str
    relationship: str
    rationale: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """A checked graph, created by `build_graph` or `parse_graph` and never changed."""

    nodes: Mapping[str, Node]
    outgoing: Mapping[str, tuple[Edge, ...]]
    """Edges by source, in the order given; every node has an entry."""
    popularity: Mapping[str, int]
    """Number of edges that point at a node."""
    distance: Mapping[str, int]
    """Number of edges on the shortest path to a Product Feature; nodes without such a path are absent."""

    def jobs(self) -> list[str]:
        """Ids of the Customer Jobs from which a Product Feature can be reached, in the order given."""
        return [node.id for node in self.nodes.values() if node.kind is Kind.CUSTOMER_JOB and node.id in self.distance]

    def reachable(self, starts: Iterable[str]) -> set[str]:
        """Return the ids of all nodes that edges lead to from `starts`, including `starts`."""
        reached = set(starts)
        waiting = list(reached)
        while waiting:
            for edge in self.outgoing[waiting.pop()]:
                if edge.target not in reached:
                    reached.add(edge.target)
                    waiting.append(edge.target)
        return reached

    def toward_product(self, node_id: str) -> list[Edge]:
        """Return the node's edges that lead closer to a Product Feature, those with the shortest path first."""
        here = self.distance.get(node_id, 0)
        closer = [edge for edge in self.outgoing[node_id] if self.distance.get(edge.target, here) < here]
        return sorted(closer, key=lambda edge: self.distance[edge.target])

    def path(self, start: str) -> list[str]:
        """Return the ids on a shortest path from `start` to a Product Feature, both included; empty if there is
        none."""
        if start not in self.distance:
            return []
        way = [start]
        while self.distance[way[-1]]:
            way.append(self.toward_product(way[-1])[0].target)
        return way


def build_graph(nodes: Iterable[Node], edges: Iterable[Edge]) -> Graph:
    """Build a graph of these nodes and edges. Raises GraphError."""
    by_id: dict[str, Node] = {}
    for node in nodes:
        if node.id in by_id:
            raise GraphError(f"two nodes have the id {node.id!r}")
        by_id[node.id] = node
    if len(by_id) > MAX_NODES:
        raise GraphError(f"the graph has {len(by_id)} nodes; at most {MAX_NODES} are allowed")
    distinct: dict[tuple[str, str, str], Edge] = {}
    for edge in edges:
        distinct.setdefault((edge.source, edge.target, edge.relationship), edge)
    if len(distinct) > MAX_EDGES:
        raise GraphError(f"the graph has {len(distinct)} edges; at most {MAX_EDGES} are allowed")
    outgoing: dict[str, list[Edge]] = {id: [] for id in by_id}
    incoming: dict[str, list[str]] = {id: [] for id in by_id}
    for edge in distinct.values():
        _check_edge(edge, by_id)
        outgoing[edge.source].append(edge)
        incoming[edge.target].append(edge.source)
    graph = Graph(
        nodes=by_id,
        outgoing={id: tuple(edges_of) for id, edges_of in outgoing.items()},
        popularity={id: len(sources) for id, sources in incoming.items()},
        distance=_distances((n.id for n in by_id.values() if n.kind is Kind.PRODUCT_FEATURE), incoming),
    )
    _check_anchors(graph)
    return graph


def _check_edge(edge: Edge, nodes: Mapping[str, Node]) -> None:
    if edge.source not in nodes:
        raise GraphError(f"an edge starts at node {edge.source!r}, which does not exist")
    if edge.target not in nodes:
        raise GraphError(f"node {edge.source!r} has an edge to {edge.target!r}, which does not exist")
    if edge.source == edge.target:
        raise GraphError(f"node {edge.source!r} has an edge to itself, which says nothing: leave it out")


def _distances(products: Iterable[str], incoming: Mapping[str, list[str]]) -> dict[str, int]:
    """Search breadth-first against the edges, from all products simultaneously."""
    distance = dict.fromkeys(products, 0)
    waiting = deque(distance)
    while waiting:
        node = waiting.popleft()
        for source in incoming[node]:
            if source not in distance:
                distance[source] = distance[node] + 1
                waiting.append(source)
    return distance


def _check_anchors(graph: Graph) -> None:
    for kind in (Kind.CUSTOMER_JOB, Kind.PRODUCT_FEATURE):
        if not any(node.kind is kind for node in graph.nodes.values()):
            raise GraphError(
                f"no node is a {kind}: give one the kind {kind.value!r}, an id that contains it, "
                f"or content that begins with '{kind}:'"
            )
    if not graph.jobs():
        job = next(node.id for node in graph.nodes.values() if node.kind is Kind.CUSTOMER_JOB)
        raise GraphError(f"no path leads from a {Kind.CUSTOMER_JOB} ({job!r}) to a {Kind.PRODUCT_FEATURE}")


def parse_graph(value: Json) -> Graph:
    """Parse a list of node objects; unknown members are ignored. Raises GraphError."""
    if not isinstance(value, list) or not value:
        raise GraphError("a graph is a list of at least two nodes")
    # Check the size before building anything, so that a huge payload is cheap to refuse.
    if len(value) > MAX_NODES:
        raise GraphError(f"the graph has {len(value)} nodes; at most {MAX_NODES} are allowed")
    nodes: list[Node] = []
    edges: list[Edge] = []
    for position, item in enumerate(value):
        node = _parse_node(item, position)
        nodes.append(node)
        edges.extend(_parse_edges(item, node.id))
        if len(edges) > MAX_EDGES:
            raise GraphError(f"up to node {node.id!r} the graph has more than {MAX_EDGES} edges")
    return build_graph(nodes, edges)


def dump_graph(graph: Graph) -> list[Json]:
    """Return the graph in the form that `parse_graph` accepts."""
    return [
        {
            "id": node.id,
            "kind": node.kind,
            "content": node.content,
            "edge": [
                {"target_id": edge.target, "relationship": edge.relationship, "rationale": edge.rationale}
                for edge in graph.outgoing[node.id]
            ],
        }
        for node in graph.nodes.values()
    ]


def size_of(value: Sequence[Json]) -> dict[str, int]:
    """Return `nodes` and `edges` of a graph in the form that `parse_graph` accepts, or of any list."""
    return {"nodes": len(value), "edges": sum(map(_edge_count, value))}


def _edge_count(node: Json) -> int:
    edges = (node.get("edge") or node.get("edges")) if isinstance(node, dict) else None
    return len(edges) if isinstance(edges, list) else 0


def _parse_node(item: Any, position: int) -> Node:
    if not isinstance(item, dict):
        raise GraphError(f"node number {position} is not an object")
    id = _text(item, "id", f"node number {position}", MAX_ID_CHARACTERS)
    if id != id.strip() or not id.isprintable():
        raise GraphError(f"node number {position} has the id {id!r}: no surrounding blanks, no control characters")
    content = _text(item, "content", f"node {id!r}", MAX_CONTENT_CHARACTERS)
    return Node(id, content, _kind(item.get("kind"), id, content))


def _parse_edges(item: Mapping[str, Any], id: str) -> Iterable[Edge]:
    edges = _either(item, "edge", "edges", f"node {id!r}") or []
    if not isinstance(edges, list):
        raise GraphError(f"the edges of node {id!r} are not a list")
    for number, edge in enumerate(edges):
        where = f"edge number {number} of node {id!r}"
        if not isinstance(edge, dict):
            raise GraphError(f"{where} is not an object")
        names = {
            "target": _either(edge, "target_id", "target", where),
            "relationship": _either(edge, "relationship", "label", where) or _DEFAULT_RELATIONSHIP,
            "rationale": edge.get("rationale") or "",
        }
        rationale = "" if names["rationale"] == "" else _text(names, "rationale", where, MAX_LABEL_CHARACTERS)
        yield Edge(
            source=id,
            target=_text(names, "target", where, MAX_ID_CHARACTERS),
            relationship=_text(names, "relationship", where, MAX_LABEL_CHARACTERS),
            rationale=rationale,
        )


def _either(item: Mapping[str, Any], name: str, other: str, where: str) -> Any:
    if item.get(name) is not None and item.get(other) is not None:
        raise GraphError(f"{where} has both {name!r} and {other!r}")
    return item.get(name) if item.get(name) is not None else item.get(other)


def _text(item: Mapping[str, Any], name: str, where: str, limit: int) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value.strip():
        raise GraphError(f"{where} needs a {name}: a string that is not empty")
    if len(value) > limit:
        raise GraphError(f"the {name} of {where} has {len(value)} characters; at most {limit} are allowed")
    if "\0" in value or (not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)):
        raise GraphError(f"the {name} of {where} holds a NUL or half a surrogate pair, which cannot be stored")
    return value


def _kind(declared: Any, id: str, content: str) -> Kind:
    if declared is not None:
        for kind in Kind:
            if isinstance(declared, str) and _words(declared) == _words(kind):
                return kind
        raise GraphError(f"node {id!r} has the kind {declared!r}; there are: {', '.join(Kind)}")
    anchors = (Kind.CUSTOMER_JOB, Kind.PRODUCT_FEATURE)
    for kind in anchors:
        if content.lstrip().casefold().startswith(f"{kind.casefold()}:"):
            return kind
    named = [kind for kind in anchors if f" {_words(kind)} " in f" {_words(id)} "]
    if len(named) > 1:
        raise GraphError(f"the id of node {id!r} names two kinds: say which with 'kind'")
    return named[0] if named else Kind.FACT


def _words(name: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", name.casefold()))

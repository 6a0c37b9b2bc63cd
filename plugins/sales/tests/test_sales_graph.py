"""The graph parser: the forms that it takes, the errors that it gives, and its ways to the product."""

from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learnloop_sales import graph as graph_module
from learnloop_sales.graph import GraphError, Kind, parse_graph

JOB = {"id": "Customer Job", "content": "Makes data", "edge": [{"target_id": "Checks", "relationship": "needs"}]}
MIDDLE = {"id": "Checks", "content": "Checks data", "edge": [{"target_id": "Product Feature"}]}
FEATURE = {"id": "Product Feature", "content": "Collects feedback", "edge": []}


def graph_with(**changes: Any) -> list[dict[str, Any]]:
    """The small graph with members of its middle node changed."""
    return [JOB, {**MIDDLE, **changes}, FEATURE]


def test_the_frontends_form_is_read() -> None:
    graph = parse_graph([JOB, MIDDLE, FEATURE])
    assert [node.kind for node in graph.nodes.values()] == [Kind.CUSTOMER_JOB, Kind.FACT, Kind.PRODUCT_FEATURE]
    assert graph.outgoing["Customer Job"][0].relationship == "needs"
    assert graph.outgoing["Checks"][0].relationship == "related to"
    assert graph.path("Customer Job") == ["Customer Job", "Checks", "Product Feature"]


def test_the_other_spellings_mean_the_same() -> None:
    spelled = [{**JOB, "edge": None, "edges": [{"target": "Checks", "label": "needs"}]}, MIDDLE, FEATURE]
    assert parse_graph(spelled) == parse_graph([JOB, MIDDLE, FEATURE])


@pytest.mark.parametrize(
    "node",
    [
        {"id": "x", "content": "Customer job: makes data"},
        {"id": "customer_job-7k2", "content": "Makes data"},
        {"id": "x", "content": "Makes data", "kind": "customer-job"},
    ],
)
def test_an_anchor_is_known_by_kind_content_or_id(node: dict[str, Any]) -> None:
    graph = parse_graph([{**node, "edge": [{"target": "Product Feature"}]}, FEATURE])
    assert graph.jobs() == [node["id"]]


@pytest.mark.parametrize(
    ("graph", "named"),
    [
        ({}, "list"),
        ([], "list"),
        ([JOB, "Checks"], "node number 1"),
        ([{"content": "x"}], "node number 0 needs a id"),
        (graph_with(id=7), "node number 1"),
        (graph_with(id=" Checks"), "node number 1"),
        (graph_with(id="Che\ncks"), "node number 1"),
        (graph_with(id="c" * 201), "201 characters"),
        (graph_with(id="Customer Job"), "two nodes have the id 'Customer Job'"),
        (graph_with(id="customer job product feature"), "names two kinds"),
        (graph_with(content=""), "'Checks' needs a content"),
        (graph_with(content="a\0b"), "'Checks' holds a NUL"),
        (graph_with(content="a\ud800b"), "'Checks' holds a NUL or half a surrogate"),
        (graph_with(content="x" * 20_001), "'Checks' has 20001 characters"),
        (graph_with(kind="concept"), "'Checks' has the kind 'concept'"),
        (graph_with(edges=[{"target": "Product Feature"}]), "'Checks' has both 'edge' and 'edges'"),
        (graph_with(edge={"target": "Product Feature"}), "edges of node 'Checks'"),
        (graph_with(edge=["Product Feature"]), "edge number 0 of node 'Checks'"),
        (graph_with(edge=[{"relationship": "needs"}]), "edge number 0 of node 'Checks' needs a target"),
        (graph_with(edge=[{"target": "Product Feature", "label": 3}]), "edge number 0 of node 'Checks'"),
        (graph_with(edge=[{"target": "Product Feature", "rationale": ["x"]}]), "edge number 0 of node 'Checks'"),
        (graph_with(edge=[{"target": "Product Feature", "target_id": "x"}]), "both 'target_id' and 'target'"),
        (graph_with(edge=[{"target": "Nowhere"}]), "'Checks' has an edge to 'Nowhere'"),
        (graph_with(edge=[{"target": "Checks"}]), "'Checks' has an edge to itself"),
        (graph_with(edge=[]), "no path leads from a Customer Job ('Customer Job')"),
        ([FEATURE], "no node is a Customer Job"),
        ([{**JOB, "edge": []}], "no node is a Product Feature"),
    ],
)
def test_a_bad_graph_is_refused_with_the_node_at_fault(graph: Any, named: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse_graph(graph)
    assert named in str(caught.value)


def test_cycles_are_allowed_and_equal_edges_count_once() -> None:
    back = {"target": "Customer Job", "label": "limits"}
    graph = parse_graph(graph_with(edge=[back, back, {"target": "Product Feature"}]))
    assert len(graph.outgoing["Checks"]) == 2
    assert graph.popularity["Customer Job"] == 1
    assert [edge.target for edge in graph.toward_product("Checks")] == ["Product Feature"]


def large_graph(nodes: int, edges_each: int) -> list[dict[str, Any]]:
    """A ladder: every node leads to the `edges_each` next ones."""
    items: list[dict[str, Any]] = [
        {
            "id": f"n{i}",
            "content": "x",
            "edge": [{"target": f"n{j}"} for j in range(i + 1, min(i + edges_each + 1, nodes))],
        }
        for i in range(nodes)
    ]
    items[0]["kind"], items[-1]["kind"] = "Customer Job", "Product Feature"
    return items


def test_the_largest_graph_is_taken_and_one_node_more_is_not() -> None:
    graph = parse_graph(large_graph(10_000, 9))
    assert graph.distance["n0"] == 1111
    assert len(graph.reachable(["n0"])) == 10_000
    with pytest.raises(GraphError, match="10001 nodes"):
        parse_graph(large_graph(10_001, 1))


def test_too_many_edges_are_refused_at_the_node_that_adds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module, "MAX_EDGES", 1)
    with pytest.raises(GraphError, match="up to node 'Checks'"):
        parse_graph([JOB, MIDDLE, FEATURE])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "content", "edge", "edges", "target", "target_id", "label", "relationship", "kind"])
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


# No deadline: how long an example takes depends on what else the machine does.
@settings(deadline=None)
@given(json_values)
def test_whatever_comes_in_is_a_graph_or_a_graph_error(value: Any) -> None:
    with suppress(GraphError):
        parse_graph(value)


@given(st.integers(3, 12), st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11))))
def test_paths_are_walkable_shortest_and_found_whenever_there_is_one(count: int, drawn: set[tuple[int, int]]) -> None:
    pairs = {(a, b) for a, b in drawn if a != b and max(a, b) < count} | {(0, count - 1)}
    items: list[dict[str, Any]] = [
        {"id": f"n{i}", "content": "x", "edge": [{"target": f"n{b}"} for a, b in sorted(pairs) if a == i]}
        for i in range(count)
    ]
    items[0]["kind"], items[-1]["kind"] = "Customer Job", "Product Feature"
    graph = parse_graph(items)
    product = f"n{count - 1}"
    for id in graph.nodes:
        path = graph.path(id)
        assert bool(path) == (product in graph.reachable([id]))
        if path:
            assert path[0] == id
            assert path[-1] == product
            assert len(path) == graph.distance[id] + 1
            assert all((int(a[1:]), int(b[1:])) in pairs for a, b in pairwise(path))
        if path and id != product:
            targets = [edge.target for edge in graph.outgoing[id]]
            assert graph.distance[id] == 1 + min(
                graph.distance[target] for target in targets if target in graph.distance
            )

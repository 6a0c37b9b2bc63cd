"""Node scores: what earned reward stays on top, what only looks popular does not."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_sales.environment import SalesEmail, build
from learnloop_sales.graph import Edge, Graph, Kind, Node, build_graph
from learnloop_sales.node_scores import GraphScores, ScoreRule
from learnloop_sales.synthetic import make_world
from learnloop_sales.tools import SalesEpisode
from learnloop_service.environment.base import Reflective, Rewarded, Scenario

JOB, CAUSE, PRODUCT, FAD, DETOUR, ASIDE = "job", "cause", "product", "fad", "detour", "aside"
SCENARIO = Scenario("s", "train", {"start": [JOB]})


def graph() -> Graph:
    """job -> cause -> product is the argument; `fad` is popular and useless, `detour` leads on and persuades nobody."""
    kinds = {JOB: Kind.CUSTOMER_JOB, PRODUCT: Kind.PRODUCT_FEATURE}
    edges = [(JOB, CAUSE), (CAUSE, PRODUCT), (JOB, FAD), (CAUSE, FAD), (DETOUR, FAD), (JOB, DETOUR), (DETOUR, PRODUCT)]
    return build_graph(
        [Node(id, f"{id}.", kinds.get(id, Kind.FACT)) for id in (JOB, CAUSE, PRODUCT, FAD, DETOUR, ASIDE)],
        [Edge(source, target, "leads to") for source, target in edges],
    )


def attempt(reward: float, read: list[str], cited: list[str] | None) -> Rewarded:
    email = None if cited is None else {"subject": "", "body": "", "citations": cited}
    return Rewarded(SCENARIO, {"read": read, "email": email}, reward)


def market(rng: Random) -> Rewarded:
    """An attempt that mostly looks at the fad, often cites it too, and is paid for the argument it makes."""
    way = rng.choice(([JOB, CAUSE, PRODUCT], [JOB, DETOUR, PRODUCT], [JOB, CAUSE], [JOB]))
    read = way + [FAD] * (rng.random() < 0.9)
    cited = [id for id in read if rng.random() < 0.8]
    argued = way[-1] == PRODUCT and PRODUCT in cited
    reward = (0.9 if CAUSE in way else 0.4) if argued else 0.1
    return attempt(reward + rng.gauss(0, 0.1), read, cited)


@pytest.mark.parametrize("seed", range(5))
def test_a_popular_node_that_is_useless_sinks_below_the_useful_ones(seed: int) -> None:
    rng, scores = Random(seed), GraphScores(graph(), ScoreRule.VISITS)
    for _ in range(14):
        scores.reflect([market(rng) for _ in range(64)])
    by_node = scores.scores
    assert by_node[FAD] < 0.5 < min(by_node[JOB], by_node[CAUSE], by_node[PRODUCT])
    assert by_node[DETOUR] < by_node[CAUSE]
    assert by_node[FAD] < by_node[ASIDE], "what nobody tried is taken for average, which the fad is not"


def test_the_plain_rule_cannot_tell_them_apart() -> None:
    rng, scores = Random(0), GraphScores(graph(), ScoreRule.TOP_HALF)
    for _ in range(14):
        scores.reflect([market(rng) for _ in range(64)])
    by_node = scores.scores
    assert abs(by_node[FAD] - by_node[PRODUCT]) < 0.1
    assert by_node[ASIDE] == 1.0, "and what nobody tried stays above both"


def test_the_plain_rule_moves_a_tenth_of_the_way_best_first() -> None:
    scores = GraphScores(graph(), ScoreRule.TOP_HALF)
    scores.reflect([attempt(0.2, [], [JOB]), attempt(0.6, [], [CAUSE, "unknown"]), attempt(-1.0, [], [PRODUCT])])
    assert scores.scores == pytest.approx({JOB: 0.92, CAUSE: 0.96, PRODUCT: 1.0, FAD: 1.0, DETOUR: 1.0, ASIDE: 1.0})


def test_only_a_citation_that_was_read_and_leads_to_a_product_earns() -> None:
    scores = GraphScores(graph(), ScoreRule.VISITS)
    scores.reflect([attempt(1.0, [JOB, FAD], [JOB, PRODUCT, FAD]), attempt(0.0, [JOB, CAUSE], None)])
    by_node = scores.scores
    assert by_node[JOB] == 1.0, "a failure that began there is not its fault"
    assert by_node[PRODUCT] == by_node[FAD] == 0.9
    average = (1 + 0 + 0) / 3
    assert by_node[CAUSE] == by_node[ASIDE], "no evidence: it leads on, and only a failure was there"
    assert by_node[ASIDE] == pytest.approx(1 + 0.1 * (average - 1))


@pytest.mark.parametrize("rule", ScoreRule)
def test_nothing_tried_or_nothing_earned_changes_nothing(rule: ScoreRule) -> None:
    scores = GraphScores(graph(), rule)
    scores.reflect([])
    scores.reflect([attempt(0.0, [JOB], None)])
    assert set(scores.scores.values()) == {1.0}


attempts = st.lists(
    st.builds(
        attempt,
        st.floats(-2, 2),
        st.lists(st.sampled_from([JOB, CAUSE, PRODUCT, FAD, ASIDE])),
        st.none() | st.lists(st.sampled_from([JOB, CAUSE, PRODUCT, FAD, "unknown"])),
    ),
    max_size=12,
)


@given(st.lists(attempts, max_size=4), st.sampled_from(ScoreRule))
def test_scores_stay_in_range_and_come_out_the_same_again(iterations: list[list[Rewarded]], rule: ScoreRule) -> None:
    first, again = GraphScores(graph(), rule), GraphScores(graph(), rule)
    for tried in iterations:
        first.reflect(tried)
        again.restore(dict(again.scores))
        again.reflect(tried)
    assert first.scores == again.scores
    assert all(0.0 <= score <= 1.0 for score in first.scores.values())


@pytest.mark.parametrize("bad", [{JOB: 1.0}, dict.fromkeys(graph().nodes, 1.5), dict.fromkeys(graph().nodes, "1")])
def test_scores_of_something_else_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="score"):
        GraphScores(graph(), ScoreRule.VISITS).restore(bad)


async def test_neighbours_come_by_score_then_by_popularity() -> None:
    episode = SalesEpisode(SCENARIO, graph(), 8)
    before = (await episode.call("get_connected_nodes", {"node_id": JOB})).content.splitlines()
    assert [line.split(" | ")[0] for line in before] == [FAD, CAUSE, DETOUR]
    episode = SalesEpisode(SCENARIO, graph(), 8, {FAD: 0.2, CAUSE: 0.9, DETOUR: 0.95})
    after = (await episode.call("get_connected_nodes", {"node_id": JOB})).content.splitlines()
    assert [line.split(" | ")[0] for line in after] == [DETOUR, CAUSE, FAD]


def test_training_returns_to_the_home_graph_with_new_prospects() -> None:
    environment = SalesEmail()
    assert isinstance(environment, Reflective)
    scenarios = environment.scenarios("train", 24, seed=3)
    home = [scenario for scenario in scenarios if scenario.task["graph"] == "train.3.0"]
    assert [scenario.id for scenario in home] == ["train.3.0", "train.3.8", "train.3.16"]
    assert len({scenario.task["prospect"] for scenario in home}) == 3
    assert len({scenario.task["graph"] for scenario in scenarios}) == 22
    assert environment.showcase(3) == scenarios[0]
    for split in ("validation", "test"):
        drawn = environment.scenarios(split, 24, seed=3)
        assert len({scenario.task["graph"] for scenario in drawn}) == 24


def test_only_attempts_on_the_scored_graph_count_and_only_there() -> None:
    environment = SalesEmail()
    home, other = environment.scenarios("train", 2, seed=0)
    environment.showcase(0)
    path = list(make_world("train", 0, 0).path)
    email = {"subject": "", "body": "", "citations": path}
    environment.reflect([Rewarded(other, {"read": path, "email": email}, 1.0)])
    assert set(environment.state()["node_scores"].values()) == {1.0}
    other_node = next(id for id in environment.state()["node_scores"] if id not in path)
    failed = Rewarded(home, {"read": [other_node], "email": None}, 0.0)
    environment.reflect([Rewarded(home, {"read": path, "email": email}, 1.0), failed])
    state = environment.state()
    assert {state["node_scores"][id] for id in path} == {1.0}
    again = SalesEmail()
    again.restore(state)
    assert again.state() == state


def test_two_runs_do_not_see_each_other(tmp_path: Any) -> None:
    nodes = [
        {"id": JOB, "content": "Customer Job: x", "edge": [{"target_id": PRODUCT}]},
        {"id": PRODUCT, "content": "Product Feature: y"},
        {"id": FAD, "content": "z"},
    ]
    one, two = (build({"graph": nodes}, tmp_path) for _ in range(2))
    assert isinstance(one, SalesEmail)
    assert isinstance(two, SalesEmail)
    scenario = one.showcase(0)
    email = {"subject": "", "body": "", "citations": [JOB]}
    failed = Rewarded(scenario, {"read": [], "email": None}, 0.0)
    one.reflect([Rewarded(scenario, {"read": [JOB, FAD], "email": email}, 1.0), failed])
    assert one.state()["node_scores"][FAD] == 0.9
    assert two.state()["node_scores"] == {JOB: 1.0, PRODUCT: 1.0, FAD: 1.0}


def test_a_rule_that_does_not_exist_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="visits, top_half"):
        build({"node_scores": "luck"}, tmp_path)

"""Synthetic worlds, their splits, what the environment pays, and a user's own graph and task."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from learnloop_sales.environment import SalesEmail, build
from learnloop_sales.graph import Kind
from learnloop_sales.synthetic import make_world, world_of
from learnloop_sales.tools import SalesEpisode
from learnloop_service.environment.base import Environment, Scenario, Split, UnknownScenario
from learnloop_service.environment.invented_names import split_of

GRAPH = [
    {"id": "Customer Job", "content": "Makes data", "edge": [{"target_id": "Product Feature"}, {"target_id": "aside"}]},
    {"id": "Product Feature", "content": "Collects feedback", "edge": []},
    {"id": "aside", "content": "Leads nowhere", "edge": []},
]
SPLITS: tuple[Split, ...] = get_args(Split)


async def follow_the_leads(episode: SalesEpisode) -> None:
    """The strategy that the tools suggest, with nothing from the reference but the email's words."""
    node = episode.scenario.task["start"][0]
    cited = []
    while True:
        content = (await episode.call("get_relevant_context", {"node_id": node})).content
        cited.append(re.search("^cite: (.+)$", content, re.M)[1])  # type: ignore[index]
        leads = re.search(r"^leads to: (.+) \(", content, re.M)
        if leads is None:
            break
        node = leads[1]
    email = episode.scenario.reference["email"]
    await episode.call("finalize_email", {"subject": email["subject"], "body": email["body"], "citations": cited})


@pytest.mark.parametrize("split", SPLITS)
async def test_following_the_leads_succeeds_in_every_world(split: Split) -> None:
    environment = SalesEmail()
    for scenario in environment.scenarios(split, 60, seed=3):
        episode = environment.episode(scenario)
        await follow_the_leads(episode)
        outcome = episode.outcome()
        assert outcome["success"]
        assert outcome["read"] == scenario.reference["path"] == outcome["email"]["citations"]
        assert 4 <= outcome["turns"] <= 5
        json.dumps(outcome)
        parts = environment.reward(outcome, 1.0)
        assert sum(parts.values()) == pytest.approx(0.9 + 0.1 * (1 - outcome["turns"] / 8))


@pytest.mark.parametrize("index", range(20))
def test_a_world_is_one_path_among_dead_ends(index: int) -> None:
    world = make_world("train", 5, index)
    graph = world.graph
    assert graph.path(world.path[0]) == list(world.path)
    assert len(world.path) in (3, 4)
    # Only the path reaches the product: whatever else a step leads to is a wrong turn.
    assert set(graph.distance) == set(world.path)
    assert all(len(graph.outgoing[id]) >= 3 for id in world.path[:-1])
    assert max(graph.popularity, key=graph.popularity.__getitem__) not in world.path
    assert len({id[:2] for id in graph.nodes}) == len(graph.nodes)
    assert graph.reachable([world.path[0]]) == set(graph.nodes)
    assert [node.kind for node in graph.nodes.values()].count(Kind.PRODUCT_FEATURE) == 1
    for here, there in pairwise(world.path):
        assert there in {edge.target for edge in graph.outgoing[here]}


def test_the_same_seed_gives_the_same_scenarios_and_another_seed_others() -> None:
    environment = SalesEmail()
    make_world.cache_clear()
    first = environment.scenarios("train", 5, 1)
    make_world.cache_clear()
    assert environment.scenarios("train", 5, 1) == first
    assert environment.scenarios("train", 3, 1) == first[:3]
    assert environment.scenarios("train", 3, 1, start=2) == first[2:]
    assert {scenario.task["prospect"] for scenario in environment.scenarios("train", 5, 2)}.isdisjoint(
        scenario.task["prospect"] for scenario in first
    )
    assert environment.scenarios("train", 0, 1) == []


def test_splits_share_no_name_id_or_product() -> None:
    names: dict[Split, set[str]] = {split: set() for split in SPLITS}
    for split in SPLITS:
        for scenario in SalesEmail().scenarios(split, 40, seed=0):
            task = scenario.task
            words = [*task["prospect"].split(), task["company"], scenario.reference["product"]]
            for id in world_of(scenario.id).graph.nodes:
                words.extend(id.split("-")[:-1])
                names[split].add(id)
            assert {split_of(word) for word in words} == {split}
            names[split].update(words)
    assert names["train"].isdisjoint(names["validation"] | names["test"])
    assert names["validation"].isdisjoint(names["test"])


def outcome_of(**changes: Any) -> dict[str, Any]:
    outcome = {
        "finish": "finalized",
        "turns": 4,
        "max_turns": 8,
        "email": {"subject": "s", "body": "b", "citations": ["x"]},
        "unknown_citations": [],
        "unread_citations": [],
    }
    facts = ("read_path", "read_product", "named_prospect", "named_company", "citations_read", "success")
    return outcome | dict.fromkeys(facts, True) | changes


@pytest.mark.parametrize(
    ("changes", "score", "total"),
    [
        ({}, 1.0, 0.95),
        ({}, 0.5, 0.75),
        ({"turns": 8}, 1.0, 0.9),
        ({"success": False}, 1.0, 0.5),
        ({"success": False, "citations_read": False, "unread_citations": ["y"]}, 1.0, 0.2),
        ({"success": False, "citations_read": False, "unknown_citations": ["y"], "unread_citations": ["z"]}, 1.0, 0.2),
    ],
)
def test_the_reward_is_made_of_its_parts(changes: dict[str, Any], score: float, total: float) -> None:
    assert sum(SalesEmail().reward(outcome_of(**changes), score).values()) == pytest.approx(total)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"named_company": False}, "the email names no company"),
        (
            {"unknown_citations": ["y"], "unread_citations": ["z"]},
            "the email cites y, which does not exist, cites z unread",
        ),
        ({"cited_product": False, "email": {"citations": []}}, "the email cites nothing"),
        ({"cited_product": False, "email": {"citations": ["a"]}}, "the email cites no product feature"),
        ({"email": None, "finish": "out_of_turns", "detail": ""}, "out of turns"),
    ],
)
def test_an_email_that_is_not_a_success_says_why(changes: dict[str, Any], why: str) -> None:
    environment = SalesEmail()
    outcome = outcome_of(email={"citations": ["a"]}, cited_product=True) | {"success": False} | changes
    assert environment.why_no_success(environment.scenarios("train", 1, 0)[0], outcome, 1.0) == why


async def test_a_malformed_call_costs_half_but_keeps_what_was_read() -> None:
    environment = SalesEmail()
    (scenario,) = environment.scenarios("train", 1, 0)
    episode = environment.episode(scenario)
    await episode.call("get_relevant_context", {"node_id": scenario.reference["path"][1]})
    episode.end("malformed", "no JSON")
    parts = environment.reward(episode.outcome(), 0.0)
    assert (parts["read_path"], parts["read_product"], parts["malformed"]) == (0.1, 0.0, -0.5)
    assert sum(parts.values()) == pytest.approx(-0.4)
    assert environment.answer(episode.outcome()) == {"answer": None, "source_ids": [], "success": False, "email": None}


async def test_reading_only_the_start_node_earns_nothing() -> None:
    environment = SalesEmail()
    (scenario,) = environment.scenarios("train", 1, 0)
    episode = environment.episode(scenario)
    await episode.call("get_relevant_context", {"node_id": scenario.task["start"][0]})
    episode.end("out_of_turns", "")
    assert sum(environment.reward(episode.outcome(), 0.0).values()) == 0.0


def test_a_graph_of_ones_own_gives_prospects_at_its_jobs(tmp_path: Path) -> None:
    environment = build({"graph": GRAPH}, tmp_path)
    scenarios = environment.scenarios("train", 4, 0)
    assert {scenario.task["start"][0] for scenario in scenarios} == {"Customer Job"}
    assert scenarios[0].reference == {"path": ["Customer Job", "Product Feature"]}
    assert environment.scenarios("train", 2, 0, start=2) == scenarios[2:]
    train = {scenario.task["company"] for scenario in environment.scenarios("train", 40, 0)}
    test = {scenario.task["company"] for scenario in environment.scenarios("test", 40, 0)}
    assert train.isdisjoint(test)


async def test_a_users_task_becomes_an_episode(tmp_path: Path) -> None:
    environment = build({"graph": GRAPH}, tmp_path)
    scenario = environment.ask({"prospect": " Ada  Park ", "company": "Nordlys"})
    assert scenario.task["start"] == ["Customer Job"]
    assert scenario.task["prospect"] == "Ada Park"
    episode = environment.episode(scenario, max_turns=2)
    assert "Prospect: Ada Park at Nordlys. Goal: book a call. Start: Customer Job" in episode.messages()[1]["content"]
    await episode.call("get_relevant_context", {"node_id": "Product Feature"})
    email = {"subject": "Nordlys", "body": "Hi Ada", "citations": ["Product Feature"]}
    await episode.call("finalize_email", email)
    answer = environment.answer(episode.outcome())
    assert answer == {"answer": "Hi Ada", "source_ids": ["Product Feature"], "success": True, "email": email}


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({}, "prospect"),
        ({"prospect": "Ada", "company": " "}, "company"),
        ({"prospect": "Ada", "company": "x" * 201}, "201 characters"),
        ({"prospect": "Ada", "company": "N", "start": "nowhere"}, "nowhere"),
        ({"prospect": "Ada", "company": "N", "start": 3}, "start"),
        ({"prospect": "Ada", "company": "N", "start": [["x"]]}, "start"),
        ({"prospect": "Ada", "company": "N", "start": ["aside"]}, "no path leads from 'aside'"),
        ({"prospect": "Ada", "company": "N", "mood": "x"}, "mood"),
    ],
)
def test_an_unfit_task_is_refused(task: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        build({"graph": GRAPH}, tmp_path).ask(task)


def test_a_synthetic_graph_can_be_asked_about_by_its_name() -> None:
    environment = SalesEmail()
    (scenario,) = environment.scenarios("test", 1, 4)
    task_scenario = environment.ask(scenario.task)
    assert task_scenario.task == scenario.task
    assert task_scenario.reference == {}
    with pytest.raises(ValueError, match="no graph was given"):
        environment.ask({"prospect": "Ada", "company": "Nordlys"})
    with pytest.raises(UnknownScenario):
        environment.episode(Scenario("x", "test", {"graph": "test.0.x"}))


@pytest.mark.parametrize("config", [{"graphs": []}, {"graph": []}, {"graph": "synthetic"}])
def test_a_bad_config_is_a_value_error(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="graph"):
        build(config, tmp_path)


def test_it_is_an_environment(tmp_path: Path) -> None:
    environment: Environment = build({}, tmp_path)
    assert (environment.name, environment.default_max_turns) == ("sales_email", 8)
    environment.close()

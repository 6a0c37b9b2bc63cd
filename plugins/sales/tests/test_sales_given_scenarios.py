"""Prospects that a request brings."""

from pathlib import Path
from typing import Any

import pytest

from learnloop_sales.environment import SalesEmail, build
from learnloop_service.environment.base import UnknownScenario

GRAPH = [
    {"id": "job", "content": "Customer Job: x", "edge": [{"target_id": "product"}]},
    {"id": "product", "content": "Product Feature: y"},
    {"id": "alone", "content": "z"},
]


def prospects(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [{"prospect": f"Ada {number}", "company": "Zolem", **changes} for number in range(count)]


def environment(scenarios: Any) -> SalesEmail:
    built = build({"graph": GRAPH, "scenarios": scenarios}, Path())
    assert isinstance(built, SalesEmail)
    return built


@pytest.mark.parametrize("count", [3, 4, 10, 100])
def test_each_split_gets_its_own_and_none_is_empty(count: int) -> None:
    sales = environment(prospects(count))
    drawn = {split: sales.scenarios(split, count, seed=0) for split in ("train", "validation", "test")}
    ids = {split: {scenario.id for scenario in scenarios} for split, scenarios in drawn.items()}
    assert all(ids.values())
    assert len(set.union(*ids.values())) == sum(map(len, ids.values())) == count
    assert sales.showcase(0).id == "given.0"
    assert sales.showcase(0).split == "train"


def test_numbers_go_on_and_no_pass_repeats_one() -> None:
    sales = environment(prospects(20))
    size = len({scenario.id for scenario in sales.scenarios("train", 40, seed=1)})
    whole = sales.scenarios("train", 2 * size, seed=1)
    assert len({scenario.id for scenario in whole[:size]}) == size
    assert whole[5:9] == sales.scenarios("train", 4, seed=1, start=5)


def test_splits_may_be_named() -> None:
    sales = environment(
        [
            {**prospect, "split": split}
            for prospect, split in zip(prospects(3), ("test", "train", "validation"), strict=True)
        ]
    )
    assert [scenario.id for scenario in sales.scenarios("test", 1, seed=0)] == ["given.0"]


@pytest.mark.parametrize(
    ("scenarios", "message"),
    [
        ("all", "3 to 10000"),
        (prospects(2), "3 to 10000"),
        ([*prospects(2), "Ada"], "number 2 is not an object"),
        ([*prospects(2), {"prospect": "Ada"}], "number 2: company"),
        ([*prospects(2), *prospects(1, start="alone")], "number 2: no path leads from 'alone'"),
        ([*prospects(2), *prospects(1, start="nowhere")], "number 2: start names the node 'nowhere'"),
        ([*prospects(2), *prospects(1, age=3)], "number 2 has no age"),
        ([*prospects(2), *prospects(1, graph="x")], "number 2 has no graph"),
        ([*prospects(2), *prospects(1, split="dev")], "number 2 has the split 'dev'"),
        ([*prospects(2), *prospects(1, split="test")], "either no scenario names its split"),
        (prospects(3, split="test"), "either no scenario names its split"),
    ],
)
def test_bad_ones_are_named(scenarios: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        environment(scenarios)


def test_prospects_need_a_graph() -> None:
    with pytest.raises(ValueError, match="scenarios need a graph"):
        build({"scenarios": prospects(3)}, Path())


def test_a_synthetic_state_is_not_one_of_a_given_graph() -> None:
    synthetic = SalesEmail()
    synthetic.showcase(0)
    with pytest.raises(ValueError, match="another graph"):
        environment(prospects(3)).restore(synthetic.state())
    with pytest.raises((ValueError, UnknownScenario)):
        SalesEmail().restore({"graph": "train.x.0", "node_scores": {}})

"""Epochs: as the learn loop draws scenarios, none comes a second time before all of its split have come once."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from learnloop_sales import environment as sales_email
from learnloop_service.environment.base import Environment
from learnloop_service.environment.email_search import environment as email_search
from learnloop_service.environment.email_search.inbox import write_inbox
from learnloop_service.environment.email_search.synthetic import make_world
from tests.fakes.sales_agent import GRAPH

COUNT = 11
"""Training scenarios of each environment."""
_SPLITS = ["train"] * COUNT + ["validation", "test"]


def questions(data_dir: Path) -> Environment:
    world = make_world("train", 0, 0)
    write_inbox(email_search.inbox_path(data_dir, "own"), world.emails)
    rows = [
        {"question": f"What is {n}?", "answer": f"{n}", "source_ids": [world.source_id], "split": split}
        for n, split in enumerate(_SPLITS)
    ]
    return email_search.build({"inbox": "own", "scenarios": rows}, data_dir)


def prospects(data_dir: Path) -> Environment:
    rows = [{"prospect": f"Person {n}", "company": "Zolem", "split": split} for n, split in enumerate(_SPLITS)]
    return sales_email.build({"graph": GRAPH, "scenarios": rows}, data_dir)


@pytest.mark.parametrize("make", [questions, prospects])
@pytest.mark.parametrize("groups", [1, 3, 4, COUNT, 2 * COUNT + 1])
def test_no_scenario_comes_again_before_all_have_come(
    make: Callable[[Path], Environment], groups: int, tmp_path: Path
) -> None:
    environment = make(tmp_path)
    used: Counter[str] = Counter()
    for iteration in range(1, 3 * COUNT):
        for scenario in environment.scenarios("train", groups, seed=5, start=(iteration - 1) * groups):
            assert used[scenario.id] == (used.total() // COUNT), "the epoch's number, so far"
            used[scenario.id] += 1
    assert len(used) == COUNT
    environment.close()

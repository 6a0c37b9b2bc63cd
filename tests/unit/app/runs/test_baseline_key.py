"""Runs whose baselines are equal have one key; any difference that could show makes another, or none."""

from typing import Any

import pytest

from app.domain.stored_request import StoredRequest
from app.runs.baseline_key import baseline_key
from tests.fakes.stored_request import stored_request

POLICY: dict[str, Any] = {"fingerprint": "a", "step": 0, "learned": None}
INBOX = {"sha256": "b" * 64, "name": "mine"}
SCENARIOS = {"sha256": "c" * 64, "count": 40}


def key(policy: dict[str, Any] = POLICY, **request: Any) -> str | None:
    return baseline_key(StoredRequest.parse(stored_request(**request)), **policy)


def email(**config: Any) -> dict[str, Any]:
    return {"name": "email_search", "config": config}


def test_what_happens_after_the_baseline_does_not_matter() -> None:
    assert key() is not None
    after: dict[str, Any] = {
        "iterations": 3,
        "learning_rate": 1e-5,
        "groups_per_iteration": 2,
        "concurrency": 1,
        "evaluation": {"every": 9, "scenarios": 24, "samples": 2, "test_scenarios": 64},
        "model": {"project": "other", "name": "mine", "base_model": "p/n@3"},
        "reuse_baseline": False,
    }
    assert key(**after) == key()


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"temperature": 0.5},
        {"max_turns": 3},
        {"max_completion_tokens": 9},
        {"rollout_timeout_s": 5.0},
        {"evaluation": {"scenarios": 23}},
        {"evaluation": {"samples": 3}},
        {"evaluation": {"test_scenarios": 0}},
        {"environment": email(reward="default")},
        {"environment": email(inbox=INBOX, scenarios=SCENARIOS)},
        {"environment": {"name": "sales_email"}},
        {"judge": {"name": "grounding"}},
        {"policy": POLICY | {"fingerprint": "b"}},
        {"policy": POLICY | {"step": 1}},
        {"policy": POLICY | {"learned": {"graph": None, "node_scores": {"a": 0.9}}}},
    ],
)
def test_whatever_decides_it_makes_another_key(changed: dict[str, Any]) -> None:
    assert key(**changed) not in (None, key())


@pytest.mark.parametrize(
    "unsure",
    [
        {"policy": POLICY | {"fingerprint": None}},
        {"judge": {"name": "ruler"}},
        {"judge": {"name": "feedback"}},
        {"judge": {"name": "blend", "config": {}}},
        {"agent": {"name": "langgraph"}},
        {"environment": {"name": "mcp", "config": {"server": "time"}}},
        {"environment": {"name": "agent"}},
        {"environment": {"name": "of another package"}},
        {"environment": email(inbox="imported", scenarios=SCENARIOS)},
        {"environment": email(inbox=INBOX)},
        {"evaluation": {"scenarios": 0, "test_scenarios": 0}},
    ],
)
def test_what_may_come_out_otherwise_has_none(unsure: dict[str, Any]) -> None:
    assert key(**unsure) is None

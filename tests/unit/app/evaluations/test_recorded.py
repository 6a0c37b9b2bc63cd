"""Which model of an earlier evaluation made the rollouts that a contestant would repeat."""

from typing import Any

import pytest

from learnloop_service.app.domain.stored_evaluation import Comparison, parse_evaluation
from learnloop_service.app.evaluations.recorded import same_model
from tests.stored_evaluations import COMPARISON, WHAT_IF

PROMPT = {"sha256": "a" * 64, "name": "mail", "version": 3}
MODELS: list[dict[str, Any]] = [model | {"prompt": PROMPT} for model in COMPARISON["models"]]


def same(request: dict[str, Any] | None = None, earlier: dict[str, Any] | None = None, **model: Any) -> int | None:
    """The number of the model that is the second one of the request, which has these changes in both evaluations."""
    models = {"models": [MODELS[0], MODELS[1] | model]}
    asked = Comparison.model_validate(COMPARISON | models | (request or {}))
    return same_model(asked, asked.models[1], parse_evaluation(COMPARISON | models | (earlier or {})))


def test_it_is_the_same_model_with_the_same_prompt_whatever_they_are_called() -> None:
    assert same() == 1
    renamed = {"label": "candidate", "prompt": PROMPT | {"name": "post", "version": 1}}
    assert same(earlier={"models": [MODELS[1] | renamed]}) == 0
    assert same(request={"judge": {"name": "ruler", "config": {}}, "scenarios": 4, "samples": 1, "concurrency": 1}) == 1
    for other in ({"prompt": None}, {"prompt": PROMPT | {"sha256": "b" * 64}}, {"step": 4}, {"model": "p/m@4"}):
        assert same(earlier={"models": [MODELS[0], MODELS[1] | other]}) is None


@pytest.mark.parametrize(
    ("both", "model"),
    [
        ({}, {"kind": "prompted"}),
        ({}, {"spec": {"project": "p", "name": "m", "base_model": "Qwen/Q"}}),
        ({"agent": {"name": "my_agent", "config": {}}}, {}),
        ({"environment": {"name": "agent", "config": {}}}, {}),
    ],
)
def test_where_the_world_can_change_meanwhile_there_is_none(both: dict[str, Any], model: dict[str, Any]) -> None:
    assert same(both, both, **model) is None


def test_continuations_of_a_rollout_are_not_repeated() -> None:
    assert same(earlier={"what_if": WHAT_IF}) is None

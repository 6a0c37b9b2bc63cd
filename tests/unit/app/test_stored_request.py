"""Stored requests are read as they were meant when they were stored."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from learnloop_service.app.domain.stored_request import Choice, KeptCheckpoints, StoredBudget, StoredRequest
from learnloop_service.app.operations.start.run_plan import plan_of
from learnloop_service.app.schemas.run_request import EnvironmentChoice, LearnLoopRequest
from learnloop_service.app.settings import load_settings
from learnloop_service.training.protocol.validation_message import message_of
from learnloop_service.training.types import EvaluationConfig, RunConfig
from tests.fakes.stored_request import stored_request


def test_what_older_versions_did_not_store_has_its_default() -> None:
    request = StoredRequest.parse(stored_request(iterations=3, evaluation={"every": 2}))
    assert request.config == RunConfig(iterations=3, evaluation=EvaluationConfig(every=2))
    assert request.environment.config == {}
    assert request.budget is None
    assert request.checkpoints is None


def test_all_that_a_request_may_say_is_read() -> None:
    settings: dict[str, Any] = {
        "iterations": 5,
        "groups_per_iteration": 2,
        "rollouts_per_group": 3,
        "replace_groups": True,
        "max_turns": 4,
        "max_completion_tokens": 64,
        "learning_rate": 1e-4,
        "warmup_iterations": 2,
        "temperature": 0.5,
        "seed": 7,
        "concurrency": 8,
    }
    request_body = LearnLoopRequest.model_validate(
        settings
        | {
            "evaluation": {"every": 1, "scenarios": 2, "test_scenarios": 3, "samples": 4},
            "budget": {"max_tokens": 9},
            "checkpoints": {"keep_last": 3, "keep_every": 5},
            "model": {"project": "mail", "name": "agent", "base_model": "learnloop/tiny"},
        }
    )
    plan = replace(plan_of(request_body, load_settings(_env_file=None), "01K"), judge=Choice(name="reference"))
    request = StoredRequest.parse(plan.stored())
    evaluation = EvaluationConfig(every=1, scenarios=2, test_scenarios=3, samples=4, seed=0)
    assert request.config == RunConfig(**settings, evaluation=evaluation)
    assert request.budget == StoredBudget(max_tokens=9)
    assert request.checkpoints == KeptCheckpoints(keep_best=1, keep_last=3, keep_every=5)
    assert request.model.project == "mail"
    assert request.model.name == "agent"
    assert request.model.base_model == "learnloop/tiny"


def test_held_out_scenarios_have_another_seed_except_in_earlier_versions() -> None:
    assert RunConfig(seed=7).held_out_seed == 7
    assert RunConfig(seed=7, evaluation=EvaluationConfig(seed=0)).held_out_seed == 0
    assert LearnLoopRequest.model_validate({"seed": 7}).evaluation.seed == 0


@pytest.mark.parametrize("lacking", ["environment", "judge", "model"])
def test_a_request_without_its_choices_is_refused(lacking: str) -> None:
    request = stored_request()
    del request[lacking]
    with pytest.raises(ValidationError, match=lacking):
        StoredRequest.parse(request)


def test_an_environment_may_be_its_name_alone() -> None:
    named = LearnLoopRequest.model_validate({"environment": "sales_email"})
    assert named.environment == EnvironmentChoice(name="sales_email")
    with pytest.raises(ValidationError) as refused:
        LearnLoopRequest.model_validate({"environment": ["sales_email"]})
    assert [message_of(error) for error in refused.value.errors()] == ["Input should be an object"]

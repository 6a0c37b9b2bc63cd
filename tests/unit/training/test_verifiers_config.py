"""What a run can say of the environment `verifiers`, and what is reported of its rollouts, without that package."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.runs.configuration import make_player
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.settings import load_settings
from learnloop_service.environment.base import REPORTED_REWARD, Scenario
from learnloop_service.environment.registry import build
from learnloop_service.training.gyms.verifiers_agent import VerifiersAgent
from learnloop_service.training.gyms.verifiers_report import GymReport, report_of

UNUSED = Path("unused")
SCENARIO = Scenario("dataset.0", "train", {"from": "dataset", "row": 0, "prompt": [{"role": "user", "content": "x"}]})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"colour": "red"}, "verifiers has no setting colour; it takes: args, env, success_from"),
        ({"env": 3}, "env must be a module with load_environment"),
        ({"env": "wordle", "args": []}, "args must be an object"),
        ({"env": "wordle", "success_from": "high"}, "success_from must be a number"),
    ],
)
def test_a_bad_config_is_said_plainly(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("verifiers", config, UNUSED)


def test_a_module_is_loaded_only_where_the_operator_allows_it() -> None:
    access = EnvironmentAccess(load_settings(environment_modules=("wordle",)))
    with pytest.raises(ValueError, match=r"'os' may not be loaded here: .* LEARNLOOP_ENVIRONMENT_MODULES"):
        build("verifiers", {"env": "os:getcwd"}, UNUSED, access)
    with pytest.raises(ValueError, match="verifiers needs an env"):
        build("verifiers", {}, UNUSED, access)
    with pytest.raises(ValueError, match="was not loaded"):
        build("verifiers", {"env": "wordle"}, UNUSED).scenarios("train", 1, seed=0)


def test_its_rollouts_are_made_by_its_own_loop() -> None:
    assert isinstance(make_player(None, Choice(name="verifiers", config={"env": "wordle"}), ()), VerifiersAgent)


def rubric(*weighted: tuple[str, float]) -> Any:
    names, weights = [name for name, _ in weighted], [weight for _, weight in weighted]
    return SimpleNamespace(
        rubric=SimpleNamespace(_get_reward_func_names=lambda: names, _get_reward_weights=lambda: weights)
    )


def output(reward: float, **metrics: float) -> dict[str, Any]:
    messages = [{"role": "assistant", "content": "4"}, {"role": "user", "content": "more"}]
    return {"reward": reward, "metrics": metrics, "completion": messages, "stop_condition": "max_turns_reached"}


def test_the_weighted_metrics_are_the_parts_of_the_reward() -> None:
    report = report_of(
        rubric(("right", 1.0), ("short", 0.5), ("turns", 0.0)), output(1.25, right=1, short=0.5, turns=3)
    )
    environment = build("verifiers", {"env": "x", "success_from": 1.2}, UNUSED)
    episode: Any = environment.episode(SCENARIO)
    assert episode.messages() == [{"role": "user", "content": "x"}]
    episode.report(report.text())
    outcome = episode.outcome()
    assert outcome == {
        "finish": "reported", "detail": "", REPORTED_REWARD: 1.25, "parts": {"right": 1.0, "short": 0.25},
        "metrics": {"right": 1, "short": 0.5, "turns": 3}, "answer": "4", "stop_condition": "max_turns_reached",
    }  # fmt: skip
    assert environment.reward(outcome, 1.0) == {"right": 1.0, "short": 0.25}
    assert environment.success(outcome, 1.0)
    assert environment.answer(outcome) == {"answer": "4", "source_ids": [], "success": True}


@pytest.mark.parametrize(
    ("weighted", "metrics"),
    [
        ([("right", 1.0)], {"right": 0.5}),
        ([("right", 1.0), ("right", 1.0)], {"right": 1.0}),
        ([], {}),
    ],
)
def test_where_they_are_not_the_whole_reward_it_has_no_parts(weighted: Any, metrics: dict[str, float]) -> None:
    assert report_of(rubric(*weighted), output(2.0, **metrics)).parts == {"reward": 2.0}


def test_a_reward_that_is_no_number_is_none() -> None:
    with pytest.raises(ValueError, match="a reward of nan"):
        report_of(rubric(), output(math.nan)).text()
    unscored = report_of(rubric(("right", 1.0)), output(1.0, right=1.0, odd=math.inf)).text()
    assert GymReport.parse(unscored).metrics == {"right": 1.0, "odd": None}
    assert json.loads(unscored)["reward"] == 1.0

"""The benchmark of a real model, with the tiny base model in its place."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning.real_model import held_out
from benchmarks.learning.real_model.arms import ARMS, CHECK, GRPO, GRPO_ONLY, PROMPTED, WARM_START, Settings, with_given
from benchmarks.learning.real_model.arms import request as learn_loop
from benchmarks.learning.real_model.held_out import MODES, asked, figures_of
from benchmarks.learning.real_model.measuring import Measurement, measure
from benchmarks.learning.real_model.report import table, transcript
from benchmarks.learning.real_model.training import k3
from benchmarks.learning.real_model.workers import Workers
from learnloop_service.app.schemas.evaluations import EvaluationRequest
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.training.engine.__main__ import TINY_NAME
from learnloop_service.training.engine_flags import parse_open


@pytest.mark.long
def test_each_arm_answers_the_test_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "PROMISING", 0.0)
    settings = with_given(Settings(), {**CHECK, "iterations": 2})
    what = Measurement(tmp_path / "data", TINY_NAME, settings, "cpu", 1, tmp_path / "read", share=2.0)
    by_arm = {measured["arm"]: measured for measured in measure(what, Workers.named("1"), ARMS, [0], lambda _: None)}
    assert {arm: measured.get("error") for arm, measured in by_arm.items()} == dict.fromkeys(ARMS)
    for arm, measured in by_arm.items():
        assert {mode: measured["held_out"][mode]["rollouts"] for mode in MODES} == {"greedy": 3, "sampled": 3}
        text = (tmp_path / "read" / f"{arm}-0.md").read_text()
        assert text.count("\n## ") == 2
    assert by_arm[PROMPTED]["training"] is None
    assert [row["iteration"] for row in by_arm[WARM_START]["training"]["iterations"]] == [0, 1]
    assert by_arm[WARM_START]["training"]["k3"] is None
    for arm in (GRPO, GRPO_ONLY):
        rows = by_arm[arm]["training"]["iterations"]
        saved = [row["saved_s"] for row in rows if row["success"] is not None]
        assert (len(saved), saved) == (2, sorted(saved))
        assert [time_row["saved_s"] for time_row in by_arm[arm]["time_to_share"]] == saved
    assert table(list(by_arm.values()), ARMS).row_count == len(ARMS) * len(MODES)


def test_workers_are_named_as_the_engine_starts_them() -> None:
    for text, expected in {"2": (2, None, None, 0), "1+1": (1, 1, 1, 0), "3+1:2": (1, 3, 1, 2)}.items():
        workers = Workers.named(text)
        flags = parse_open(workers.flags.split())
        assert (flags.workers, flags.samplers, flags.trainers, workers.staleness) == expected, text


def test_what_is_not_given_is_left_to_the_service() -> None:
    for arm in (WARM_START, GRPO, GRPO_ONLY):
        request = LearnLoopRequest.model_validate(learn_loop(arm, "other", Settings(), 2))
        fixed = {"environment", "model", "seed", "checkpoints", "warm_start"}
        fixed |= {"iterations"} if arm == WARM_START else set()
        assert request.model_fields_set == fixed, arm
        assert (request.seed, request.warm_start is None) == (2, arm == GRPO_ONLY)
        if request.warm_start is not None:
            assert request.warm_start.model_fields_set == {"demonstrations"}


def test_what_is_given_reaches_the_service() -> None:
    options = {"inbox": "mail@1", "iterations": 45, "groups": 16, "learning_rate": 1e-4, "max_completion_tokens": 128}
    settings = with_given(Settings(), {**options, "rollouts": None})
    request = LearnLoopRequest.model_validate(learn_loop(GRPO_ONLY, "other", settings, 0, staleness=1))
    assert (request.iterations, request.groups_per_iteration, request.learning_rate) == (45, 16, 1e-4)
    assert request.environment.config == {"inbox": "mail@1"}
    assert request.pipeline is not None
    assert request.pipeline.max_staleness == 1
    evaluation = EvaluationRequest.model_validate(asked("other", settings, 0, 1.0))
    assert (evaluation.scenarios, evaluation.max_completion_tokens) == (152, 128)


def test_the_k3_estimate_is_that_of_the_last_iterations_and_the_highest() -> None:
    rows: list[dict[str, Any]] = [{"k3": value} for value in (None, 0.5, 0.1, 0.1, 0.1, 0.1, 0.1)]
    estimate = k3(rows)
    assert (estimate["last"], estimate["highest"], estimate["iterations"]) == (pytest.approx(0.1), 0.5, 6)
    assert k3([{"k3": None}]) is None


def test_shares_are_those_of_the_rollouts() -> None:
    answered = {"outcome": {"turns": 3, "finish": "answered"}}
    prose = {"outcome": {"turns": 0, "finish": "malformed"}}
    no_such_tool = {"outcome": {"turns": 1, "finish": "malformed"}}
    figures = figures_of(_reported(0.5), [answered, prose, no_such_tool, answered])
    assert (figures["called_a_tool"], figures["malformed"]) == (0.75, 0.5)


def test_seeds_are_summed_up_in_a_row_of_their_own() -> None:
    outcomes = [{"outcome": {"turns": 1, "finish": "answered"}}]
    results = [
        {
            "arm": arm,
            "seed": seed,
            "training": {"seconds": 12.0},
            "held_out": {mode: figures_of(_reported(success), outcomes) for mode in MODES},
        }
        for arm in ARMS
        for seed, success in enumerate((0.25, 0.75))
    ]
    printed_table = table(results, ARMS)
    successes = list(printed_table.columns[3].cells)
    assert successes[:3] == ["25.0% [20.0%, 30.0%]", "75.0% [70.0%, 80.0%]", "50.0% +- 35.4%"]
    assert len(successes) == 3 * len(ARMS) * len(MODES)


def test_a_transcript_has_the_question_the_calls_and_the_verdict() -> None:
    call = {"function": {"name": "search", "arguments": '{"keywords": ["budget"]}'}}
    text = transcript(
        {
            "mode": "greedy",
            "scenario_id": "test:1",
            "scenario": {"reference": {"answer": "12 March", "source_ids": ["mail-1"]}},
            "reward": 1.5,
            "success": True,
            "outcome": {"finish": "answered"},
            "error": None,
            "messages": [
                {"role": "user", "content": "When?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ],
        }
    )
    assert "## test:1 (greedy): right, reward +1.50" in text
    assert "expected: 12 March from mail-1" in text
    assert "[user] When?" in text
    assert '-> search {"keywords": ["budget"]}' in text


def _reported(success: float) -> dict[str, Any]:
    """A model's part of a report."""
    interval = {"mean": success, "low": success - 0.05, "high": success + 0.05}
    return {"success": interval, "reward": interval, "turns": interval, "difference": {}, "errors": {}, "rollouts": 1}

"""The benchmark of a real model on one GPU and on two, with the tiny base model in its place."""

from pathlib import Path

import pytest

from app.schemas.run_request import LearnLoopRequest
from benchmarks.learning import real_model
from benchmarks.learning.real_model import PLANS, Plan, Workers, measure, request
from benchmarks.learning.smollm2 import PLANS as SMOLLM2_PLANS
from benchmarks.learning.smollm2 import prepare
from tests.integration.cli.test_data import archive
from training.engine.__main__ import TINY_BASE
from training.engine_flags import parse_open


@pytest.mark.long
def test_a_run_is_measured_and_its_checkpoints_are_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(tmp_path / "mail.mbox", 60)
    prepare(tmp_path / "data", tmp_path / "mail.mbox", TINY_BASE, SMOLLM2_PLANS["check"])
    monkeypatch.setattr(real_model, "PROMISING", 0.0)
    for name in ("LEARNLOOP_ENGINE_ARGS", "LEARNLOOP_ENGINE_BASE_MODELS"):
        monkeypatch.setenv(name, "")  # what the benchmark sets ends with the test
    plan = Plan(4, iterations=2, groups=2, rollouts=4, questions=3)
    run, *checkpoints = measure(TINY_BASE, tmp_path / "data", plan, Workers.named("1"), 0, share=2.0, device="cpu")
    rows = run["iterations"]
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3, 4]
    assert run["rollouts"] == 16
    saved = [row["saved_s"] for row in rows]
    assert saved == sorted(saved)
    assert [each["saved_s"] for each in checkpoints] == saved[-2:]


def test_workers_are_named_as_the_engine_starts_them() -> None:
    for text, expected in {"2": (2, None, None, 0), "1+1": (1, 1, 1, 0), "3+1:2": (1, 3, 1, 2)}.items():
        workers = Workers.named(text)
        flags = parse_open(workers.flags.split())
        assert (flags.workers, flags.samplers, flags.trainers, workers.staleness) == expected, text


@pytest.mark.parametrize("plan", PLANS)
def test_the_service_takes_each_plan(plan: str) -> None:
    whole = LearnLoopRequest.model_validate(request(PLANS[plan], 2, staleness=1))
    assert (whole.iterations, whole.seed, whole.pipeline and whole.pipeline.max_staleness) == (
        PLANS[plan].iterations,
        2,
        1,
    )

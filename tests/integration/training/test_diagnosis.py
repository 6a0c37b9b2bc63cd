"""Runs of the tiny model on a real engine: faults are named by their cause, and a healthy run has none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning.examined_run import TINY
from learnloop_service.training.backends.embedded import EmbeddedBackend, EmbeddedPolicy, connect
from learnloop_service.training.diagnosis.diagnose import not_examined
from learnloop_service.training.diagnosis.diagnosis import Cause, DiagnosisSettings
from learnloop_service.training.rollout.chat import EndpointChat
from tests.fakes.diagnosed_run import CONFIG, SMALL, examined, named
from tests.fakes.engine_process import EngineProcess
from tests.fakes.faulty_engine import Planted


@pytest.mark.long
async def test_a_healthy_run_has_no_diagnosis_although_everything_is_examined(backend: EmbeddedBackend) -> None:
    facts = await examined(backend, CONFIG)
    assert named(facts, CONFIG) == []
    missing = [gap.cause for gap in not_examined(facts, DiagnosisSettings(CONFIG, TINY))]
    assert missing == [Cause.TOOL_ERRORS, Cause.OVERFITS]
    assert len({fact.weights_sha256 for fact in facts}) == 4
    assert [fact.base_model for fact in facts] == [TINY] * 4
    assert all(fact.has_oracle for fact in facts)
    for probe in [fact.probe for fact in facts[1:]]:
        assert probe is not None
        assert 1 <= probe.tokens <= 5
        assert probe.moved > 1e-3
        assert max(probe.noise, probe.sampler_after) < 1e-4


async def test_replies_cut_at_12_tokens_are_named(backend: EmbeddedBackend) -> None:
    config = replace(CONFIG, max_completion_tokens=12)
    facts = await examined(backend, config)
    truncated, malformed = named(facts, config)
    assert truncated.cause == Cause.TRUNCATED_REPLIES
    assert truncated.first_iteration == 1
    assert truncated.named_at_iteration == 1
    assert truncated.remedy.request == {"checkpoint": 0, "max_completion_tokens": 24}
    assert malformed.cause == Cause.MALFORMED_REPLIES
    assert malformed.explained_by == Cause.TRUNCATED_REPLIES
    assert malformed.named_at_iteration <= 3
    forms = malformed.evidence["forms"]
    assert "<tool_call>" in forms[0]["text"]
    assert 1 <= len(forms) <= 3


@pytest.mark.parametrize("rate", [0.1, 1e-12])
async def test_a_learning_rate_far_from_the_default_is_named_first(backend: EmbeddedBackend, rate: float) -> None:
    config = replace(SMALL, learning_rate=rate, iterations=1)
    diagnoses = named(await examined(backend, config), config)
    assert diagnoses[0].cause == Cause.UNUSUAL_LEARNING_RATE
    assert diagnoses[0].named_at_iteration == 1
    assert diagnoses[0].remedy.request == {"checkpoint": 0, "learning_rate": 7e-4}


@pytest.mark.long
async def test_steps_that_change_no_weight_are_named(backend: EmbeddedBackend) -> None:
    """In float32 this learning rate is 0, so that the engine takes steps and commits checkpoints without effect."""
    config = replace(SMALL, learning_rate=1e-60)
    facts = await examined(backend, config)
    assert [fact.step for fact in facts] == [0, 1, 2]
    unchanged, unusual = named(facts, config)
    assert unchanged.cause == Cause.WEIGHTS_UNCHANGED
    assert unusual.cause == Cause.UNUSUAL_LEARNING_RATE
    assert unchanged.named_at_iteration <= 2
    assert unchanged.remedy.request == {"checkpoint": unchanged.first_iteration - 1, "learning_rate": 7e-4}


async def test_an_evaluation_that_reads_tool_calls_differently_is_named(
    backend: EmbeddedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies at temperature 0 lose the last brace of their calls, as if another parser had read them."""
    complete = EndpointChat.complete

    async def without_brace(self: EndpointChat, body: Any) -> Any:
        completion = await complete(self, body)
        for call in completion.choices[0].message.tool_calls or ():
            if call.type == "function" and body["temperature"] == 0:
                call.function.arguments = call.function.arguments[:-1]
        return completion

    monkeypatch.setattr(EndpointChat, "complete", without_brace)
    config = replace(SMALL, iterations=1)
    facts = await examined(backend, config)
    drift = named(facts, config)[0]
    assert drift.cause == Cause.PARSER_DRIFT
    assert drift.named_at_iteration == 0
    assert facts[1].readings["train"].different == 0 < facts[1].readings["train"].read
    assert drift.evidence["evaluation"]["different"] > 0
    assert "<tool_call>" in str(drift.evidence["text"])


@pytest.mark.long
async def test_a_sampler_that_stays_at_the_first_step_is_named_at_once(
    backend: EmbeddedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever checkpoint is asked for, step 0 answers, as if an adapter never arrived."""
    endpoint = EmbeddedPolicy.endpoint
    monkeypatch.setattr(EmbeddedPolicy, "endpoint", lambda self, step=None: endpoint(self, 0))
    facts = await examined(backend, SMALL)
    fault = named(facts, SMALL)[0]
    assert fault.cause == Cause.SAMPLER_IS_NOT_TRAINER
    assert fault.named_at_iteration == 1
    assert fault.summary == "The sampler was asked for step 1 and still has the weights of the step before."
    assert fault.evidence["ratio"] == pytest.approx(1, abs=0.01)


@pytest.mark.long
@pytest.mark.parametrize(
    ("planted", "cause"),
    [(Planted.STEP_SKIPPED, Cause.WEIGHTS_UNCHANGED), (Planted.SAMPLER_STAYS, Cause.SAMPLER_IS_NOT_TRAINER)],
)
async def test_a_fault_in_the_engine_itself_is_named(tmp_path: Path, planted: Planted, cause: Cause) -> None:
    with EngineProcess(tmp_path, command=("tests.fakes.faulty_engine", planted)) as engine:
        backend = await connect(engine.base_url, "none")
        try:
            facts = await examined(backend, SMALL)
        finally:
            await backend.close()
    [fault] = named(facts, SMALL)
    assert fault.cause == cause
    assert fault.named_at_iteration <= 2

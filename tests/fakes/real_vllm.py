"""The real vLLM as the sampler of a tiny engine, on a CPU or a GPU. `LEARNLOOP_VLLM` names its command."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from learnloop_service.training.backends.embedded import connect
from learnloop_service.training.diagnosis.diagnosis import Diagnosis
from learnloop_service.training.diagnosis.facts import Facts
from learnloop_service.training.engine.engine import Engine
from learnloop_service.training.engine.registry.model_record import Target
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.constraint import Grammar, Vocabulary
from learnloop_service.training.engine.sampling.requests import Sample, SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.trainer.trajectories import Group
from learnloop_service.training.engine.vllm.compute import VllmCompute
from learnloop_service.training.engine.vllm.server import StartedVllm
from learnloop_service.training.tuning import Tuning
from tests.fakes.diagnosed_run import SMALL, examined, named
from tests.fakes.engine import odd_share, trajectory
from tests.fakes.engine_process import EngineProcess
from tests.fakes.faulty_engine import Planted

COMMAND = os.environ.get("LEARNLOOP_VLLM")
TINY = Path(__file__).parents[2] / "training" / "engine" / "tiny_base" / "model"
LEARNING_RATES = {"full": 2e-4, "lora": 2e-3}
"""Learning rates at which three steps change log-probabilities by half a nat per token or more, while replies still
differ from each other."""
QUESTION = ({"role": "user", "content": "When is the kickoff?"},)


@asynccontextmanager
async def vllm_compute(
    directory: Path, flags: Sequence[str], environment: Mapping[str, str], device: str = "cpu"
) -> AsyncIterator[VllmCompute]:
    """Run an engine with the base model `tiny` and its data in `directory`, and vLLM with these flags."""
    engine = Engine(Registry(directory, {"tiny": TINY}), Sampler(), device=device, samples=False)
    compute = VllmCompute(engine, StartedVllm([COMMAND or ""], flags, {**environment, **os.environ}))
    compute.start()
    yield compute
    await compute.close()


def prompt(engine: Engine, target: Target) -> tuple[int, ...]:
    return tuple(engine.tokenizer(target).prompt(QUESTION, None))


async def sample(compute: VllmCompute, name: str, seed: int, **options: object) -> Sample:
    engine = compute._engine
    target = engine.registry.resolve(name)
    tokenizer = engine.tokenizer(target)
    settings = {"max_tokens": 24, "stop_ids": tokenizer.stop_ids} | options
    return await compute.sample(target, SampleRequest(prompt(engine, target), target.key, seed=seed, **settings))  # type: ignore[arg-type]


async def group(compute: VllmCompute, name: str) -> Group:
    """Sample a group concurrently, at a temperature that the log-probabilities must not show."""
    samples = await asyncio.gather(*(sample(compute, name, seed, temperature=1.3) for seed in range(8)))
    decode = compute._engine.tokenizer(compute._engine.registry.resolve(name)).decode
    return tuple(trajectory(QUESTION, decode(sampled.ids), sampled, odd_share(sampled.ids)) for sampled in samples)


async def sample_by_grammar(compute: VllmCompute) -> tuple[str, Sample]:
    """Return the text and the sample of a reply of the base model, under a grammar that allows only one text."""
    tokenizer = compute._engine.tokenizer(compute._engine.registry.resolve("tiny"))
    rules = r'start: "<tool_call>" WS "{\"name\": \"find\"}" WS "</tool_call>"' + "\nWS: /\\x0A/"
    grammar = Grammar(Vocabulary(tokenizer.fast, sorted(tokenizer.stop_ids)), rules)
    reply = await sample(compute, "tiny", 3, grammar=grammar, max_tokens=60)
    return tokenizer.decode(reply.ids), reply


def processes() -> tuple[psutil.Process, list[psutil.Process]]:
    """Return the vLLM process that holds the weights, and all processes of vLLM."""
    [vllm] = [child for child in psutil.Process().children() if "serve" in child.cmdline()]
    below = vllm.children(recursive=True)
    [core] = [process for process in below if "VLLM::EngineCore" in " ".join(process.cmdline())]
    return core, [vllm, *below]


def alive(candidates: Sequence[psutil.Process]) -> list[int]:
    return [process.pid for process in candidates if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


async def diagnosed_run(
    directory: Path, fault: Planted | None, vllm_flags: Sequence[str], environment: Mapping[str, str], device: str
) -> tuple[list[Facts], list[Diagnosis]]:
    """Train an adapter for two iterations in an engine process that samples from vLLM, with `fault` planted in it.

    Returns the facts of the baseline and of both iterations, and what they are diagnosed as.
    """
    config = replace(SMALL, learning_rate=LEARNING_RATES["lora"])
    command = ("learnloop_service.training.engine",) if fault is None else ("tests.fakes.faulty_engine", fault)
    flags = ["--device", device, "--sampler", "vllm", "--vllm-command", COMMAND or "", "--slots", "16"]
    flags.append(f"--vllm-args={' '.join(vllm_flags)}")
    with EngineProcess(directory, *flags, environment=dict(environment), command=command) as engine:
        backend = await connect(engine.base_url, "none")
        try:
            facts = await examined(backend, config, tuning=Tuning("lora"))
        finally:
            await backend.close()
    return facts, named(facts, config)

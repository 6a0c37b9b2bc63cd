"""vLLM as the sampler, against a server process that speaks its protocol and fails on demand."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from learnloop_service.training.engine.computing import EngineStopped
from learnloop_service.training.engine.engine import Engine
from learnloop_service.training.engine.registry.checkpoints import ADAPTER_FILE, OPTIMIZER_FILE, CorruptCheckpoint
from learnloop_service.training.engine.registry.model_record import ModelRecord, Target, UnknownModel
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.constraint import Grammar, Vocabulary
from learnloop_service.training.engine.sampling.requests import (
    ContextTooLong,
    NotSampledThere,
    Sample,
    SampleRequest,
    SamplerUnavailable,
)
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.vllm.compute import VllmCompute
from learnloop_service.training.engine.vllm.running import ADAPTERS
from learnloop_service.training.engine.vllm.server import GivenVllm, StartedVllm, VllmServer, open_vllm
from learnloop_service.training.engine_flags import parser
from learnloop_service.training.tuning import Tuning
from tests.conditions import until
from tests.fakes.tiny_model import make_tiny_model
from tests.fakes.vllm_server import LOGPROB, SCORED, expected_ids, weights_in

FAKE = Path(__file__).parents[2] / "fakes" / "vllm_server.py"
PROMPT = (30, 31, 32)

Opened = Callable[..., AbstractAsyncContextManager[VllmCompute]]


class Notes:
    """The faults that the fake is to have, and the requests that it got."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()

    def tell(self, *faults: str) -> None:
        for fault in faults:
            (self.directory / fault).touch()

    def requests(self, kind: str) -> list[dict[str, Any]]:
        path = self.directory / "notes.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [note for note in map(json.loads, lines) if note["kind"] == kind]

    def bodies(self, kind: str) -> list[Any]:
        return [note["body"] for note in self.requests(kind)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def engine(base: Path, tmp_path: Path) -> Engine:
    return Engine(Registry(tmp_path / "data", {"tiny": base}), Sampler(), samples=False)


@pytest.fixture
def opened(engine: Engine, notes: Notes) -> Opened:
    """Opens a compute whose vLLM is the fake."""

    @asynccontextmanager
    async def opened(server: VllmServer | None = None, **options: float) -> AsyncIterator[VllmCompute]:
        environment = {"FAKE_VLLM": str(notes.directory)}
        started = StartedVllm([sys.executable, str(FAKE)], (), environment, **options)
        compute = VllmCompute(engine, server or started)
        compute.start()
        try:
            yield compute
        finally:
            await compute.close()

    return opened


def _model(engine: Engine, name: str, mode: str) -> ModelRecord:
    tuning = Tuning("lora" if mode == "lora" else "full")
    return engine.registry.create(project="test", name=name, base_model="tiny", tuning=tuning)


def _train(engine: Engine, record: ModelRecord) -> None:
    """Commit a checkpoint as training leaves it, except that the weights are a few new bytes."""
    newest = engine.registry.newest(record.id)
    name = ADAPTER_FILE if record.tuning.mode == "lora" else "model.safetensors"

    def save(directory: Path) -> None:
        (directory / name).write_text(uuid4().hex)
        (directory / OPTIMIZER_FILE).write_text("not weights")

    engine.registry.commit(record.id, newest, {}, save)


def _request(target: Target, seed: int | None = 1, **options: Any) -> SampleRequest:
    return SampleRequest(PROMPT, target.key, options.pop("max_tokens", 6), seed=seed, **options)


def _expected(target: Target, seed: int, count: int = 6) -> list[int]:
    """What the fake samples from the target's weights."""
    weights = weights_in(str(target.base_directory), "model.safetensors")
    if (target.directory / ADAPTER_FILE).exists():
        weights += weights_in(str(target.directory), ADAPTER_FILE)
    return expected_ids(weights, list(PROMPT), seed, count)


async def test_a_sample_is_what_vllm_sampled(engine: Engine, opened: Opened, notes: Notes) -> None:
    target = engine.registry.resolve("tiny")
    async with opened() as compute:
        request = _request(target, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, stop_ids=frozenset({2}))
        sample = await compute.sample(target, request)
        fresh = await compute.sample(target, _request(target, seed=None))
    assert sample == Sample(_expected(target, 1), [LOGPROB] * 6, "length", 1, len(PROMPT), 3)
    assert fresh.ids == _expected(target, fresh.seed)
    body = notes.bodies("/v1/completions")[0]
    assert body["prompt"] == list(PROMPT)
    assert {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.0,
    }.items() <= body.items()
    assert {"seed": 1, "stop_token_ids": [2], "ignore_eos": True, "max_tokens": 6}.items() <= body.items()


async def test_tokens_are_told_as_they_come(engine: Engine, opened: Opened) -> None:
    target = engine.registry.resolve("tiny")
    tokens: list[tuple[int, float]] = []
    async with opened() as compute:
        sample = await compute.sample(
            target, _request(target, top_logprobs=2), lambda id, logprob: tokens.append((id, logprob))
        )
    assert [id for id, _ in tokens] == sample.ids == _expected(target, 1)
    assert sample.cached_tokens == 3
    assert sample.top == [[(id, LOGPROB), (1, -3.0)] for id in sample.ids]


async def test_a_constrained_reply_has_the_log_probabilities_of_the_model(
    engine: Engine, opened: Opened, notes: Notes
) -> None:
    """vLLM's are those under the grammar."""
    target = engine.registry.resolve("tiny")
    tokenizer = engine.tokenizer(target)
    grammar = Grammar(Vocabulary(tokenizer.fast, sorted(tokenizer.stop_ids)), 'start: "a"')
    tokens: list[tuple[int, float]] = []
    async with opened() as compute:
        request = _request(target, grammar=grammar)
        sample = await compute.sample(target, request, lambda id, logprob: tokens.append((id, logprob)))
    assert sample.logprobs == [SCORED] * 6
    assert tokens == list(zip(_expected(target, 1), sample.logprobs, strict=True))
    sampling, scoring = notes.bodies("/v1/completions")
    assert sampling["structured_outputs"] == {"grammar": 'start: "a"'}
    assert scoring["prompt"] == [*PROMPT, *sample.ids]


async def test_the_context_is_vllms(engine: Engine, opened: Opened) -> None:
    target = engine.registry.resolve("tiny")
    async with opened() as compute:
        request = SampleRequest((30,) * 128, target.key, 6)
        with pytest.raises(ContextTooLong):
            await compute.sample(target, request)


@pytest.mark.parametrize("mode", ["full", "lora"])
async def test_each_step_is_sampled_from_its_own_weights(mode: str, engine: Engine, opened: Opened) -> None:
    """Also when requests for several steps, and for other models, come at the same time."""
    records = [_model(engine, f"m{number}", mode) for number in range(2)]
    async with opened() as compute:
        for record in records:
            before = engine.registry.resolve(record.full_name)
            assert (await compute.sample(before, _request(before))).ids == _expected(before, 1)
            _train(engine, record)
            after = engine.registry.resolve(record.full_name)
            assert (await compute.sample(after, _request(after))).ids == _expected(after, 1)
        names = ["tiny", *(f"{record.full_name}@{step}" for record in records for step in (0, 1))]
        targets = [engine.registry.resolve(name) for name in names * 4]
        samples = await asyncio.gather(
            *(compute.sample(target, _request(target, seed)) for seed, target in enumerate(targets))
        )
    assert [sample.ids for sample in samples] == [_expected(target, seed) for seed, target in enumerate(targets)]


async def test_a_step_that_is_trained_anew_is_not_taken_for_the_lost_one(
    engine: Engine, opened: Opened, base: Path, tmp_path: Path
) -> None:
    record = _model(engine, "agent", "lora")
    _train(engine, record)
    async with opened() as compute:
        first = engine.registry.resolve("test/agent@1")
        lost = await compute.sample(first, _request(first))
        (first.directory / ADAPTER_FILE).write_text("another length")
        engine.registry = Registry(tmp_path / "data", {"tiny": base})
        _train(engine, record)
        second = engine.registry.resolve("test/agent@1")
        again = await compute.sample(second, _request(second))
    assert again.ids == _expected(second, 1) != lost.ids


async def test_adapters_that_nobody_uses_are_unloaded(engine: Engine, opened: Opened, notes: Notes) -> None:
    record = _model(engine, "agent", "lora")
    async with opened() as compute:
        for _ in range(ADAPTERS + 3):
            _train(engine, record)
            target = engine.registry.resolve("test/agent")
            await compute.sample(target, _request(target))
    loaded = [body["lora_name"] for body in notes.bodies("/v1/load_lora_adapter")]
    unloaded = [body["lora_name"] for body in notes.bodies("/v1/unload_lora_adapter")]
    assert len(loaded) == ADAPTERS + 3
    assert unloaded == loaded[:3]


async def test_a_conversation_begins_again_when_vllm_dies(engine: Engine, opened: Opened, notes: Notes) -> None:
    """With the same seed, in a new process that gets the weights again."""
    for mode in ("full", "lora"):
        _train(engine, _model(engine, mode, mode))
    targets = [engine.registry.resolve("test/full"), engine.registry.resolve("test/lora")]
    async with opened() as compute:
        for target in targets:
            notes.tell("die")
            assert (await compute.sample(target, _request(target))).ids == _expected(target, 1)
            assert (await compute.sample(target, _request(target, 2))).ids == _expected(target, 2)
    assert len({note["pid"] for note in notes.requests("started")}) == 3


async def test_a_vllm_that_hangs_is_ended_and_started_again(engine: Engine, opened: Opened, notes: Notes) -> None:
    target = engine.registry.resolve("tiny")
    notes.tell("hang")
    async with opened(stall_s=2.0) as compute:
        assert (await compute.sample(target, _request(target))).ids == _expected(target, 1)
    [hung, _] = notes.requests("started")
    assert not psutil.pid_exists(hung["pid"])


async def test_a_vllm_whose_engine_is_dead_is_started_again(engine: Engine, opened: Opened, notes: Notes) -> None:
    """It answers each request with 500 until it has ended, which takes it a while."""
    target = engine.registry.resolve("tiny")
    async with opened() as compute:
        await compute.sample(target, _request(target))
        notes.tell("dead")
        assert (await compute.sample(target, _request(target))).ids == _expected(target, 1)
    assert len(notes.requests("started")) == 2


async def test_a_failure_that_lasts_is_told(engine: Engine, opened: Opened, notes: Notes) -> None:
    target = engine.registry.resolve("tiny")
    async with opened() as compute:
        notes.tell("fail")
        assert (await compute.sample(target, _request(target))).ids == _expected(target, 1)
        notes.tell("always", "die")
        with pytest.raises(SamplerUnavailable, match="ended with the status 9"):
            await compute.sample(target, _request(target))
        assert compute.details["sampler"]["trouble"]
        (notes.directory / "die").unlink()
        assert (await compute.sample(target, _request(target))).ids == _expected(target, 1)
        notes.tell("nonsense")
        with pytest.raises(SamplerUnavailable, match="1 tokens and 0 log-probabilities"):
            await compute.sample(target, _request(target))


async def test_a_reply_that_was_begun_to_be_told_is_not_begun_again(
    engine: Engine, opened: Opened, notes: Notes
) -> None:
    target = engine.registry.resolve("tiny")
    tokens: list[int] = []
    async with opened() as compute:
        notes.tell("die-midway")
        with pytest.raises(SamplerUnavailable):
            await compute.sample(target, _request(target), lambda id, _: tokens.append(id))
    assert tokens == _expected(target, 1)[: len(tokens)]
    assert len(notes.requests("/v1/completions")) == 1


async def test_a_vllm_that_does_not_start_says_why(engine: Engine, opened: Opened, notes: Notes) -> None:
    target = engine.registry.resolve("tiny")
    async with opened() as compute:
        notes.tell("always", "broken")
        with pytest.raises(SamplerUnavailable, match=r"status 1\..*the model cannot be read"):
            await compute.sample(target, _request(target))
    with pytest.raises(EngineStopped):
        await compute.sample(target, _request(target))


async def test_a_command_that_is_not_there_is_told(engine: Engine, opened: Opened, tmp_path: Path) -> None:
    target = engine.registry.resolve("tiny")
    async with opened(StartedVllm([str(tmp_path / "vllm")])) as compute:
        with pytest.raises(SamplerUnavailable, match="cannot be started"):
            await compute.sample(target, _request(target))


async def test_lost_files_are_told_and_do_not_end_vllm(engine: Engine, opened: Opened, notes: Notes) -> None:
    record = _model(engine, "agent", "full")
    _train(engine, record)
    base, target = engine.registry.resolve("tiny"), engine.registry.resolve("test/agent")
    async with opened() as compute:
        await compute.sample(base, _request(base))
        for file in target.directory.iterdir():
            file.unlink()
        target.directory.rmdir()
        with pytest.raises(CorruptCheckpoint, match="cannot be read"):
            await compute.sample(target, _request(target))
        assert (await compute.sample(base, _request(base))).ids == _expected(base, 1)
    assert len(notes.requests("started")) == 1


async def test_a_model_that_was_deleted_meanwhile_gives_no_sample(engine: Engine, opened: Opened, notes: Notes) -> None:
    record = _model(engine, "agent", "lora")
    target = engine.registry.resolve("test/agent")
    async with opened() as compute:
        await compute.delete_model(record.id)
        with pytest.raises(UnknownModel):
            await compute.sample(target, _request(target))


async def test_cancelling_frees_the_turn_and_closing_ends_the_process(
    engine: Engine, opened: Opened, notes: Notes
) -> None:
    _train(engine, _model(engine, "agent", "full"))
    base, target = engine.registry.resolve("tiny"), engine.registry.resolve("test/agent")
    async with opened() as compute:
        notes.tell("hang")
        first = asyncio.create_task(compute.sample(base, _request(base)))
        await until(lambda: notes.requests("/v1/completions"))
        second = asyncio.create_task(compute.sample(target, _request(target)))
        first.cancel()
        assert (await second).ids == _expected(target, 1)
        assert compute.details == {
            "sampler": {"name": "vllm", "state": "running", "version": "0.0.fake", "trouble": None}
        }
        assert (await compute.check(target.model.id if target.model else "")).reproducible is False
    [started] = notes.requests("started")
    assert not psutil.pid_exists(started["pid"])


@pytest.fixture
async def url(base: Path, notes: Notes) -> AsyncIterator[str]:
    """The address of a fake that another process runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(FAKE), "serve", str(base)), env={"FAKE_VLLM": str(notes.directory)}
    )
    port = notes.directory / "port"
    await until(lambda: port.exists() and port.read_text())
    yield f"http://127.0.0.1:{port.read_text()}"
    process.kill()
    await process.wait()


async def test_a_vllm_of_somebody_else(engine: Engine, opened: Opened, url: str, base: Path, tmp_path: Path) -> None:
    """Takes adapters of its base; weights of whole models would be lost when it is started again, unseen."""
    _train(engine, _model(engine, "whole", "full"))
    _train(engine, _model(engine, "agent", "lora"))
    other = make_tiny_model(tmp_path / "other", seed=1)
    engine.registry = Registry(tmp_path / "data", {"tiny": base, "other": other})
    async with opened(GivenVllm(url)) as compute:
        for name in ("tiny", "test/agent"):
            target = engine.registry.resolve(name)
            assert (await compute.sample(target, _request(target))).ids == _expected(target, 1)
        for name, why in (("test/whole", "--vllm-command"), ("other", f"vllm serve {other}")):
            target = engine.registry.resolve(name)
            with pytest.raises(NotSampledThere, match=why):
                await compute.sample(target, _request(target))


async def test_a_vllm_of_somebody_else_gets_its_key(engine: Engine, opened: Opened, url: str, notes: Notes) -> None:
    target = engine.registry.resolve("tiny")
    options = parser("engine").parse_args(["--data-dir", "x", "--sampler", "vllm", "--vllm-url", url])
    async with opened(open_vllm(options, {"VLLM_API_KEY": "key", "HF_TOKEN": "other"})) as compute:
        await compute.sample(target, _request(target))
    assert set(notes.bodies("authorization")) == {"Bearer key"}


async def test_a_vllm_that_cannot_be_reached(engine: Engine, opened: Opened) -> None:
    target = engine.registry.resolve("tiny")
    async with opened(GivenVllm("http://127.0.0.1:9")) as compute:
        with pytest.raises(SamplerUnavailable, match=r"127\.0\.0\.1:9"):
            await compute.sample(target, _request(target))


def test_a_vllm_that_is_started_gets_no_secret() -> None:
    options = parser("engine").parse_args(["--data-dir", "x", "--sampler", "vllm", "--api-key-env", "ENGINE_PASS"])
    secrets = (
        "LEARNLOOP_OPERATOR_KEY",
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "AWS_ACCESS_KEY_ID",
        "DATABASE_URL",
        "ENGINE_PASS",
    )
    others = ("PATH", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "VLLM_LOGGING_LEVEL")
    server = open_vllm(options, dict.fromkeys((*secrets, *others), "1"))
    assert isinstance(server, StartedVllm)
    assert server._environment.keys() >= set(others)
    assert not server._environment.keys() & set(secrets)

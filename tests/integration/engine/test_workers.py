"""Several worker processes behind one front: they answer as one engine does, and go on when one of them is killed."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from safetensors.torch import load_file

from learnloop_service.training.call_sequences import SampledCall, TokenSequence, joined
from learnloop_service.training.engine.computing import ModelDeleted, PolicyStep, RestoredStep, Steps, SupervisedSteps
from learnloop_service.training.engine.engine import Engine, StepConflict, TrainResult, finish
from learnloop_service.training.engine.http.jobs import Jobs
from learnloop_service.training.engine.registry.model_record import NewModel, UnknownModel
from learnloop_service.training.engine.sampling.constraint import Grammar, Vocabulary
from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.trainer.grpo_loss import BadOptions, TrainOptions
from learnloop_service.training.engine.trainer.sft import Example, SftOptions
from learnloop_service.training.engine.trainer.trajectories import BadTrajectory, Group
from learnloop_service.training.tuning import Tuning
from tests.conditions import answered, until
from tests.fakes.engine import make_engine, odd_share, sampled_group
from tests.fakes.engine_process import EngineProcess
from tests.fakes.worker_pool import MICRO_BATCH_TOKENS, Following, Pool, worker_pool
from tests.integration.engine.training_client import create_model, sample

PROMPT = (30, 31, 32)
FULL = Tuning("full")
EVERYTHING = TrainOptions(
    learning_rate=1e-3, max_kl=1e-4, kl_penalty_coef=0.1, precalculate_logprobs=True, truncated_importance_sampling=2.0
)
ROUNDED = 1e-6
"""Weights are near 1, and their gradients are added up in another order."""


@pytest.fixture
def alone(tmp_path: Path) -> Engine:
    """One engine in this process, which says what is right."""
    engine = make_engine(tmp_path / "alone", micro_batch_tokens=MICRO_BATCH_TOKENS)
    engine.registry.create(project="test", name="agent", base_model="tiny", tuning=FULL)
    return engine


@pytest.fixture
def base(alone: Engine) -> Path:
    return alone.registry.base_directory("tiny")


def groups_of(engine: Engine, count: int = 6) -> list[Group]:
    return [sampled_group(engine, "test/agent", odd_share, question=f"{number}: when?") for number in range(count)]


def examples(count: int) -> list[Example]:
    question = {"role": "user", "content": "Who?"}
    replies = [f"Mara, the {number}th." * (number % 3 + 1) for number in range(count)]
    return [Example((question, {"role": "assistant", "content": reply})) for reply in replies]


async def agent(pool: Pool, name: str = "agent", tuning: Tuning = FULL) -> str:
    return (await pool.create_model(NewModel("test", name, "tiny", tuning=tuning))).id


def weights(engine: Engine | Pool, model_id: str) -> dict[str, torch.Tensor]:
    directory = engine.registry.newest(model_id).directory
    [file] = directory.glob("*model.safetensors")
    return load_file(file) | load_file(directory / "optimizer.safetensors")


def request(key: str, prompt: Sequence[int] = PROMPT, max_tokens: int = 12, seed: int | None = 1) -> SampleRequest:
    return SampleRequest(tuple(prompt), key, max_tokens, seed=seed)


def runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_conversations_are_shared_out_and_stay_where_they_are(tmp_path: Path, alone: Engine, base: Path) -> None:
    target = alone.registry.resolve("tiny")
    requests = [request("tiny", seed=seed) for seed in range(4)]
    async with worker_pool(tmp_path / "data", base) as pool:
        first = await asyncio.gather(*(pool.sample(target, sample_request) for sample_request in requests))
        assert [sample.ids for sample in first] == [sample.ids for sample in alone.sample(target, requests)]
        assert all(worker["figures"]["sampled_tokens"] for worker in pool.workers)
        for turn in first:
            sequence = (*PROMPT, *turn.ids)
            again = await pool.sample(target, request("tiny", (*sequence, 40, 41)))
            assert again.cached_tokens >= len(sequence) - 1
        assert pool.sampling.sampled_tokens == sum(worker["figures"]["sampled_tokens"] for worker in pool.workers)
        assert pool.reproducibility is not None
        assert pool.reproducibility.reproducible


async def test_constrained_replies_are_those_of_one_engine(tmp_path: Path, alone: Engine, base: Path) -> None:
    target = alone.registry.resolve("tiny")
    tokenizer = alone.tokenizer(target)
    grammar = Grammar(Vocabulary(tokenizer.fast, sorted(tokenizer.stop_ids)), r"start: /[a-c]{3,9}/")
    requests = [replace(request("tiny", seed=seed), grammar=grammar, stop_ids=tokenizer.stop_ids) for seed in range(6)]
    async with worker_pool(tmp_path / "data", base) as pool:
        replies = await asyncio.gather(*(pool.sample(target, sample_request) for sample_request in requests))
    assert [sample.ids for sample in replies] == [sample.ids for sample in alone.sample(target, requests)]
    assert all(set(tokenizer.decode(sample.ids)) <= set("abc") for sample in replies)


async def test_what_a_worker_refuses_is_refused(tmp_path: Path, base: Path, alone: Engine) -> None:
    target = alone.registry.resolve("tiny")
    async with worker_pool(tmp_path / "data", base) as pool:
        with pytest.raises(ValueError, match="max_tokens"):
            await pool.sample(target, request("tiny", max_tokens=0))
        model = await agent(pool)
        with pytest.raises(BadOptions, match="learning_rate has 1 values"):
            await pool.trained(SupervisedSteps(model, examples(4), SftOptions(learning_rate=[1.0])))
        assert pool.registry.newest(model).step == 0
        assert (await pool.trained(SupervisedSteps(model, examples(4), SftOptions()))).step == 1


@pytest.mark.long
@pytest.mark.parametrize("tuning", [FULL, Tuning("lora")], ids=lambda tuning: tuning.mode)
async def test_two_trainers_train_what_one_does(tmp_path: Path, base: Path, alone: Engine, tuning: Tuning) -> None:
    record = alone.registry.create(project="test", name="other", base_model="tiny", tuning=tuning)
    groups = groups_of(alone)

    def steps(model_id: str) -> list[Steps]:
        # The last batch has one conversation: one of the trainers has nothing to do.
        taught = SupervisedSteps(model_id, examples(5), SftOptions(learning_rate=1e-3), examples(3))
        return [PolicyStep(model_id, groups, EVERYTHING), taught]

    expected = [finish(step.start(alone)) for step in steps(record.id)]
    trained = []
    async with worker_pool(tmp_path / "data", base) as pool:
        for name in ("one", "two"):
            model_id = await agent(pool, name, tuning)
            for step, right in zip(steps(model_id), expected, strict=True):
                result = await pool.trained(step)
                assert result.step == right.step
                metrics = right.metrics | {"seconds": result.metrics["seconds"]}
                assert result.metrics == pytest.approx(metrics, rel=1e-3, abs=1e-6)
            trained.append(weights(pool, model_id))
        reply = await pool.sample(pool.registry.resolve("test/one"), request("test/one@2"))
    [right_reply] = alone.sample(alone.registry.resolve("test/other"), [request("test/other@2")])
    assert reply.ids == right_reply.ids
    right_weights = weights(alone, record.id)
    assert trained[0].keys() == right_weights.keys()
    for name, exact in right_weights.items():
        equal = torch.isclose(trained[0][name], exact, rtol=1e-4, atol=ROUNDED)
        # Adam's first step is as long for a gradient that is nearly zero, whose sign is a matter of rounding.
        assert float(equal.float().mean()) > 0.998, name
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in right_weights)


async def test_samplers_apart_have_the_new_weights(tmp_path: Path, base: Path, alone: Engine) -> None:
    async with worker_pool(tmp_path / "data", base, [(True, False), (False, True)]) as pool:
        model_id = await agent(pool)
        await pool.trained(PolicyStep(model_id, groups_of(alone), TrainOptions(learning_rate=1e-2)))
        target = pool.registry.resolve("test/agent")
        assert target.step == 1
        sampled = await pool.sample(target, request(target.key))
        assert [worker["loaded"] for worker in pool.workers] == [["test/agent@1"], []]
    finish(alone.train(alone.registry.models()[0].id, groups_of(alone), TrainOptions(learning_rate=1e-2)))
    [right] = alone.sample(alone.registry.resolve("test/agent"), [request("test/agent@1")])
    assert sampled.ids == right.ids
    assert sampled.logprobs == right.logprobs


async def test_trainers_continue_from_a_checkpoint_that_was_restored(tmp_path: Path, base: Path, alone: Engine) -> None:
    """With the weights and the optimizer's state of the first step, so that the third has the bits of the second."""
    groups, steps = groups_of(alone), TrainOptions(learning_rate=1e-2)
    async with worker_pool(tmp_path / "data", base, [(True, True)]) as pool:
        model_id = await agent(pool)
        await pool.trained(PolicyStep(model_id, groups, steps))
        await pool.trained(PolicyStep(model_id, groups, steps))
        second = weights(pool, model_id)
        with pytest.raises(StepConflict):
            await pool.trained(RestoredStep(model_id, 1, expected_step=1))
        restored = await pool.trained(RestoredStep(model_id, 1, expected_step=2))
        assert restored.step == 3
        assert restored.metrics == {"restored_step": 1.0}
        await pool.trained(PolicyStep(model_id, groups, steps, expected_step=3))
        again = weights(pool, model_id)
    assert again.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in again.items())


async def test_one_trainer_of_two_workers_changes_no_bit(tmp_path: Path, base: Path, alone: Engine) -> None:
    """Neither of the replies, whichever worker gives them and although one of them is killed, nor of the weights."""
    groups, steps = groups_of(alone), TrainOptions(learning_rate=1e-2)
    async with worker_pool(tmp_path / "data", base, [(True, True), (True, False)]) as pool:
        model_id = await agent(pool)
        await pool.trained(PolicyStep(model_id, groups, steps))
        target = pool.registry.resolve("test/agent")
        requests = [request(target.key, (30 + number, 31), 100, seed=number) for number in range(6)]
        sampling = asyncio.gather(*(pool.sample(target, sample_request) for sample_request in requests))
        await until(lambda: pool.workers[1].get("figures", {}).get("sampled_tokens", 0) > 0)
        pool.kill(1)
        samples = await sampling
        assert pool.workers[0]["figures"]["sampled_tokens"] > 0
        got = weights(pool, model_id)
    record = alone.registry.models()[0]
    finish(alone.train(record.id, groups, steps))
    right = alone.sample(
        alone.registry.resolve("test/agent"),
        [replace(sample_request, weights_key="test/agent@1") for sample_request in requests],
    )
    assert [(sample.ids, sample.logprobs) for sample in samples] == [(sample.ids, sample.logprobs) for sample in right]
    assert all(torch.equal(got[name], tensor) for name, tensor in weights(alone, record.id).items())


async def test_a_sample_continues_when_its_worker_is_killed(tmp_path: Path, base: Path, alone: Engine) -> None:
    target = alone.registry.resolve("tiny")
    tokens: list[tuple[int, float]] = []
    async with worker_pool(tmp_path / "data", base) as pool:
        sampling = asyncio.create_task(
            pool.sample(target, request("tiny", max_tokens=400), lambda *token: tokens.append(token))
        )
        await until(lambda: len(tokens) > 5)
        pid = pool.pid(killed := pool.busiest())
        pool.kill(killed)
        sampled = await sampling
        [right] = alone.sample(target, [request("tiny", max_tokens=400)])
        assert sampled.ids == right.ids
        assert tokens == list(zip(right.ids, right.logprobs, strict=True))
        await until(lambda: pool.workers[killed]["up"])
        assert pool.pid(killed) != pid


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_step_is_taken_once_when_a_trainer_is_killed(
    tmp_path: Path, base: Path, alone: Engine, rank: int
) -> None:
    groups = groups_of(alone, 12)
    async with worker_pool(tmp_path / "data", base) as pool:
        whole = await agent(pool, "whole")
        await pool.trained(PolicyStep(whole, groups, EVERYTHING))
        right = weights(pool, whole)
        model_id = await agent(pool)
        training = Following(pool, PolicyStep(model_id, groups, EVERYTHING, expected_step=0))
        await training.begun.wait()
        pool.kill(rank)
        outcome = await training.end
        assert isinstance(outcome, TrainResult)
        assert outcome.step == 1
        assert pool.train_steps == 2
        assert sum(report.metrics is not None for report in training.seen) == 1
        assert [checkpoint.step for checkpoint in pool.registry.steps(model_id)] == [0, 1]
        assert all(torch.equal(right[name], tensor) for name, tensor in weights(pool, model_id).items())


async def test_a_model_is_deleted_while_it_is_trained(tmp_path: Path, base: Path, alone: Engine) -> None:
    groups = groups_of(alone, 12)
    async with worker_pool(tmp_path / "data", base) as pool:
        model_id = await agent(pool)
        training = Following(pool, PolicyStep(model_id, groups, EVERYTHING))
        await training.begun.wait()
        await pool.delete_model(model_id)
        assert isinstance(await training.end, ModelDeleted)
        with pytest.raises(UnknownModel):
            pool.registry.resolve("test/agent")
        # Who left a step can take the next one.
        assert (await pool.trained(PolicyStep(await agent(pool), groups, TrainOptions()))).step == 1


async def test_workers_end_with_their_front(tmp_path: Path, base: Path) -> None:
    with EngineProcess(
        tmp_path / "data", "--base-model", f"tiny={base}", "--workers", "2", "--trainers", "1"
    ) as engine:
        async with httpx.AsyncClient(base_url=engine.base_url, timeout=60) as http:
            url = engine.base_url.removesuffix("/v1") + "/health"
            health = (
                await answered(
                    lambda: http.get(url), lambda reply: all(worker["up"] for worker in reply.json()["workers"])
                )
            ).json()
            await create_model(http, "agent")
            assert len((await sample(http, "agent", seed=1, max_tokens=4))["logprobs"]["content"]) == 4
        assert [worker["roles"] for worker in health["workers"]] == [["samples", "trains"], ["samples"]]
        pids = [int(worker["place"].split()[-1]) for worker in health["workers"]]
        assert all(map(runs, pids))
        os.kill(engine.pid, signal.SIGKILL)
        await until(lambda: not any(map(runs, pids)))


async def test_sequences_are_scored_again_if_a_trainer_dies(tmp_path: Path, alone: Engine, base: Path) -> None:
    recorded = [
        joined([SampledCall((30, 31, number + 5), tuple(sample.ids), tuple(sample.logprobs))])
        for number in range(9)
        for sample in alone.sample(alone.registry.resolve("tiny"), [request("tiny", (30, 31, number + 5), 20)])
    ]
    async with worker_pool(tmp_path / "data", base, ((True, False), (False, True), (False, True))) as pool:
        model, jobs = await agent(pool), Jobs(pool)
        target = pool.registry.resolve("test/agent")
        for kills in (False, True):
            if kills:  # a stopped process answers nothing before it is killed
                os.kill(pool.pid(1), signal.SIGSTOP)
            scoring = asyncio.create_task(jobs.score(target, recorded))
            if kills:
                await asyncio.sleep(0)  # it waits for its turn
                pool.kill(1)
            for scores, sequence in zip(await scoring, recorded, strict=True):
                assert scores == pytest.approx(sequence.logprobs, abs=1e-5)
        with pytest.raises(BadTrajectory, match="context is 512"):
            await jobs.score(target, [*recorded, TokenSequence((5,) * 600, (599,), ())])
        assert pool.train_steps == 0
        result = await pool.trained(PolicyStep(model, groups_of(alone), TrainOptions(learning_rate=1e-2)))
        [after] = await jobs.score(pool.registry.resolve(f"test/agent@{result.step}"), recorded[:1])
        [before] = await jobs.score(target, recorded[:1])
        assert before == pytest.approx(recorded[0].logprobs, abs=1e-5)
        assert max(abs(one - other) for one, other in zip(before, after, strict=True)) > 1e-3
        assert (await pool.trained(PolicyStep(model, groups_of(alone), TrainOptions(learning_rate=1e-2)))).step == 2

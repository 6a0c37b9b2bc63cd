"""Exact log-probabilities of recorded tokens, by any checkpoint."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import learnloop_service.training.engine.tiny_base
from learnloop_service.training.bases.defaults import TINY_BASE
from learnloop_service.training.call_sequences import SampledCall, TokenSequence, joined
from learnloop_service.training.engine.compute import Compute
from learnloop_service.training.engine.computing import ModelDeleted, PolicyStep
from learnloop_service.training.engine.engine import Engine, finish
from learnloop_service.training.engine.http.jobs import Jobs, new_job
from learnloop_service.training.engine.registry.model_record import UnknownModel
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.trajectories import BadTrajectory
from learnloop_service.training.tuning import Tuning
from tests.fakes.engine import make_engine, odd_share, sampled_group

LORA = Tuning("lora", rank=4, alpha=8)
TINY = Path(learnloop_service.training.engine.tiny_base.__path__[0]) / "model"
EXACT = 1e-5


def created(engine: Engine, tuning: Tuning | None = None) -> str:
    return engine.registry.create(project="test", name="agent", base_model="tiny", tuning=tuning).id


def trained(engine: Engine, model: str, steps: int = 1) -> None:
    for _ in range(steps):
        group = sampled_group(engine, "test/agent", odd_share, count=8)
        assert finish(engine.train(model, [group], TrainOptions(learning_rate=1e-2))).trained


def sampled(engine: Engine, name: str, count: int, max_tokens: int = 20, words: str = "word " * 9) -> list[SampledCall]:
    """Replies at temperature 1 to prompts of which some begin alike."""
    target = engine.registry.resolve(name)
    tokenizer = engine.tokenizer(target)
    prompts = [
        tuple(tokenizer.prompt([{"role": "user", "content": f"{words * (number % 3)}{number}: when?"}], None))
        for number in range(count)
    ]
    samples = engine.sample(
        target,
        [SampleRequest(prompt, target.key, max_tokens, seed=seed) for seed, prompt in enumerate(prompts)],
    )
    return [
        SampledCall(prompt, tuple(sample.ids), tuple(sample.logprobs))
        for prompt, sample in zip(prompts, samples, strict=True)
    ]


def sequences(calls: Sequence[SampledCall]) -> list[TokenSequence]:
    return [joined([call]) for call in calls]


def scored(engine: Engine, name: str, calls: Sequence[SampledCall]) -> Sequence[Sequence[float]]:
    return finish(engine.score(engine.registry.resolve(name), sequences(calls))).logprobs


def assert_equal(scores: Sequence[Sequence[float]], expected: Sequence[Sequence[float]], within: float = EXACT) -> None:
    assert [len(values) for values in scores] == [len(values) for values in expected]
    for values, exact in zip(scores, expected, strict=True):
        assert values == pytest.approx(exact, abs=within)


@pytest.mark.parametrize(
    ("family", "tuning"), [("qwen3", Tuning()), ("qwen3", LORA), ("gpt_neox", Tuning()), ("mistral", LORA)]
)
def test_scores_are_those_of_the_sampler(tmp_path: Path, family: str, tuning: Tuning) -> None:
    engine = make_engine(tmp_path, family=family, micro_batch_tokens=200)
    model = created(engine, tuning)
    trained(engine, model, 2)
    before = {}
    for step in (0, 1, 2):
        calls = sampled(engine, f"test/agent@{step}", 6)
        before[step] = scored(engine, f"test/agent@{step}", calls)
        assert_equal(before[step], [call.logprobs for call in calls])
    # What was in memory and what is read from disk, after a restart too, score alike.
    assert engine.registry.newest(model).step == 2
    again = make_engine(tmp_path, family=family, micro_batch_tokens=200)
    assert scored(again, "test/agent@2", calls) == before[2]
    other = scored(engine, "test/agent@0", calls)
    assert max(abs(one - two) for one, two in zip(other[0], before[2][0], strict=True)) > 1e-3, "nothing was trained"
    # Scoring leaves the newest checkpoint the one that is trained.
    trained(engine, model)
    assert engine.registry.newest(model).step == 3


def test_a_conversation_of_several_calls_is_scored(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    created(engine)
    [first] = sampled(engine, "test/agent", 1)
    target = engine.registry.resolve("test/agent")
    prompt = (*first.prompt, *first.reply, 40, 41)
    [reply] = engine.sample(target, [SampleRequest(prompt, target.key, 9, seed=3)])
    second = SampledCall(prompt, tuple(reply.ids), tuple(reply.logprobs))
    sequence = joined([first, second])
    assert_equal(finish(engine.score(target, [sequence])).logprobs, [sequence.logprobs])
    unlikely = TokenSequence((*sequence.ids[:-1], 7), sequence.trained, ())
    [scores] = finish(engine.score(target, [unlikely])).logprobs
    assert len(scores) == len(sequence.trained), "a token that no sampler would take has a score as well"
    assert list(finish(engine.score(target, [])).logprobs) == []


def test_the_included_base_scores_300_answers_within_seconds(tmp_path: Path) -> None:
    registry = Registry(tmp_path, {TINY_BASE: TINY})
    engine = Engine(registry, Sampler(slots=64))
    registry.create(project="test", name="agent", base_model=TINY_BASE)
    calls = sampled(engine, "test/agent", 300, 100, "Where is the budget of the second quarter? ")
    began = time.process_time()
    scores = scored(engine, "test/agent", calls)
    seconds = time.process_time() - began  # on one core, whatever else the machine does
    # Float32 puts single tokens of the sampler and of the trainer up to 6e-5 away from the same model in float64.
    assert_equal(scores, [call.logprobs for call in calls], within=1e-4)
    pairs = [pair for row, call in zip(scores, calls, strict=True) for pair in zip(row, call.logprobs, strict=True)]
    assert sum(abs(one - other) <= EXACT for one, other in pairs) >= 0.99 * len(pairs) > 29_000
    assert seconds < 20, f"{len(pairs)} tokens took {seconds:.1f} s"


def test_what_cannot_be_scored_is_refused(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    model = created(engine)
    target = engine.registry.resolve("test/agent")
    with pytest.raises(BadTrajectory, match="context is 512"):
        finish(engine.score(target, [TokenSequence((5,) * 600, (599,), ())]))
    with pytest.raises(UnknownModel, match="has no checkpoint 1"):
        finish(engine.score(target.next, sequences(sampled(engine, "test/agent", 1))))
    assert engine.registry.newest(model).step == 0


async def test_scoring_takes_its_turn_among_the_trainings(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, micro_batch_tokens=60)
    model = created(engine)
    calls = sampled(engine, "test/agent", 4)
    group = sampled_group(engine, "test/agent", odd_share)
    compute = Compute(engine)
    jobs = Jobs(compute)
    compute.start()
    try:
        step = [PolicyStep(model, [group], TrainOptions(learning_rate=1e-3), number) for number in range(2)]
        first = jobs.submit(new_job(model, 1, 0), step[0])
        target = engine.registry.resolve("test/agent@0")
        scoring = asyncio.create_task(jobs.score(target, sequences(calls)))
        assert_equal(await scoring, [call.logprobs for call in calls])
        assert first.finished
        second = jobs.submit(new_job(model, 1, 1), step[1])
        while not second.finished:
            await second.changed.wait()
        assert compute.train_steps == 2
        with pytest.raises(BadTrajectory):
            await jobs.score(target, [TokenSequence((5,) * 600, (599,), ())])
        with pytest.raises(UnknownModel, match="tiny is not a trainable model"):
            await jobs.score(engine.registry.resolve("tiny"), sequences(calls))
    finally:
        await compute.close()


async def test_the_scoring_of_a_deleted_model_ends(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, micro_batch_tokens=60)
    model = created(engine)
    calls = sampled(engine, "test/agent", 40)
    compute = Compute(engine)
    compute.start()
    try:
        scoring = asyncio.create_task(Jobs(compute).score(engine.registry.resolve("test/agent"), sequences(calls)))
        await asyncio.sleep(0)
        await compute.delete_model(model)
        with pytest.raises(ModelDeleted):
            await scoring
    finally:
        await compute.close()

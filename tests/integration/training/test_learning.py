"""The learn loop on a real engine, over HTTP."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import httpx
import pytest

from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.base import ModelSpec
from learnloop_service.training.backends.embedded import EmbeddedBackend
from learnloop_service.training.loop.collector import RolloutsFailed
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.rollout.rollout import Player
from learnloop_service.training.types import EvaluationConfig, IterationProgress, IterationResult, RunConfig
from tests.conditions import answered
from tests.fakes.engine_process import EngineProcess

CONFIG = RunConfig(
    iterations=2,
    groups_per_iteration=2,
    rollouts_per_group=3,
    max_turns=3,
    max_completion_tokens=60,
    evaluation=EvaluationConfig(every=2, scenarios=1, samples=1, test_scenarios=1),
)


def learn(
    backend: EmbeddedBackend,
    config: RunConfig,
    name: str,
    base: str,
    progress: Callable[[IterationProgress], None],
    agent: Player | None = None,
) -> AsyncIterator[IterationResult]:
    """The loop for a model of that name."""

    async def results() -> AsyncIterator[IterationResult]:
        policy = await backend.register(ModelSpec("learning", name, base))
        loop = learn_loop(config, SyntheticEmailSearch(), ReferenceJudge(), policy, progress=progress, agent=agent)
        async with aclosing(loop):
            async for result in loop:
                yield result

    return results()


def figures(result: IterationResult) -> list[Any]:
    """All that the seed decides."""
    groups = [[(scored.reward, scored.rollout.outcome) for scored in group.rollouts] for group in result.groups]
    evaluations = [[(scored.reward, scored.rollout.outcome) for scored in e.rollouts] for e in result.evaluations]
    metrics = {name: value for name, value in result.train_metrics.items() if name != "seconds"}
    return [groups, evaluations, result.step, result.best_step, metrics]


def weights(engine: EngineProcess, name: str, step: int) -> str:
    """The hash of a checkpoint's weights."""
    path = engine.data_dir / "models" / "learning" / name / "checkpoints" / f"{step:06d}" / "model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.long
async def test_the_same_seed_gives_the_same_rewards_and_the_same_weights(
    engine: EngineProcess, backend: EmbeddedBackend
) -> None:
    """However many rollouts run together, and whether the loop is the built-in one or a LangGraph graph."""
    from learnloop_service.training.rollout.agents.langgraph_react import LangGraphAgent  # its import takes a second

    one, other = [
        [result async for result in learn(backend, config, name, "learnloop/tiny", lambda _: None, agent)]
        for name, config, agent in (("one", CONFIG, None), ("other", replace(CONFIG, concurrency=3), LangGraphAgent()))
    ]
    assert [result.iteration for result in one] == [0, 1, 2]
    assert list(map(figures, one)) == list(map(figures, other))
    steps = range(one[-1].step + 1)
    assert len(steps) > 1, "nothing was trained"
    hashes = [weights(engine, "one", step) for step in steps]
    assert hashes == [weights(engine, "other", step) for step in steps]
    assert len(set(hashes)) == len(steps)
    for result in one:
        assert result.failed_rollouts == 0
        assert result.timing.completion_tokens > 0
        for group in result.groups:
            for scored in group.rollouts:
                assert scored.reward == pytest.approx(sum(scored.reward_parts.values()))
    best = max(
        (evaluation for result in one for evaluation in result.evaluations if evaluation.split == "validation"),
        key=lambda evaluation: (evaluation.mode == "sampled", evaluation.success, evaluation.mean_reward),
    )
    assert one[-1].best_step == best.step


async def test_cancelling_in_the_middle_of_rollouts_leaves_the_engine_idle(
    engine: EngineProcess, backend: EmbeddedBackend
) -> None:
    before = asyncio.all_tasks()
    # At this temperature a random model goes round in circles and does not end its turn.
    config = replace(CONFIG, temperature=0.01, max_completion_tokens=30_000, max_turns=1)
    begun = asyncio.Event()

    async def consume() -> None:
        async for _ in learn(backend, config, "cancelled", "random", lambda _: begun.set()):
            raise AssertionError("the baseline takes a minute")

    work = asyncio.create_task(consume())
    async with httpx.AsyncClient(base_url=engine.base_url.removesuffix("/v1"), timeout=60) as http:

        async def sampling_s() -> float:
            seconds: float = (await http.get("/health")).json()["busy_seconds"]["sampling"]
            return seconds

        await begun.wait()
        at_first = await sampling_s()
        await answered(sampling_s, lambda seconds: seconds >= at_first + 0.2)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        async with asyncio.timeout(60):
            seconds_so_far = [-1.0, await sampling_s()]
            while seconds_so_far[-1] != seconds_so_far[-2]:
                await asyncio.sleep(0.1)
                seconds_so_far.append(await sampling_s())
    assert asyncio.all_tasks() == before


async def test_an_engine_that_refuses_every_request_fails_the_loop(backend: EmbeddedBackend) -> None:
    config = replace(CONFIG, temperature=1.0, max_completion_tokens=0)
    with pytest.raises(RolloutsFailed, match=r"all \d+ rollouts of iteration 0 failed, the first: .*max_tokens"):
        async for _ in learn(backend, config, "refused", "random", lambda _: None):
            pass

"""The schedule of rollouts that run ahead, and who rolls out first."""

import asyncio
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.training.loop.rollout_gate import RolloutGate
from learnloop_service.training.loop.rollout_schedule import sampled_after, sampled_with
from learnloop_service.training.types import PipelineConfig, RunConfig, WarmStartConfig

CONFIGS = st.builds(
    lambda iterations, supervised, staleness: RunConfig(
        iterations=iterations,
        warm_start=WarmStartConfig(supervised) if supervised else None,
        pipeline=PipelineConfig(staleness),
    ),
    st.integers(1, 12),
    st.integers(0, 5),
    st.integers(0, 6),
)


@given(CONFIGS)
def test_rollouts_are_as_stale_as_allowed_and_never_staler(config: RunConfig) -> None:
    most, first = config.pipeline.max_staleness, config.supervised_iterations
    for iteration in range(first + 1, config.all_iterations + 1):
        behind = iteration - 1 - sampled_after(config, iteration)
        assert behind == min(most, iteration - 1 - first)


@given(CONFIGS)
def test_rollouts_begin_with_their_policy_and_within_the_staleness(
    config: RunConfig,
) -> None:
    begun = list[int]()
    for completed in range(config.all_iterations + 1):
        for iteration in sampled_with(config, completed):
            assert (
                sampled_after(config, iteration)
                == completed
                < iteration
                <= completed + 1 + config.pipeline.max_staleness
            )
            begun.append(iteration)
        assert (
            completed + 1 in begun
            or completed + 1 <= config.supervised_iterations
            or completed == config.all_iterations
        )
    assert begun == list(range(config.supervised_iterations + 1, config.all_iterations + 1))


async def test_of_those_that_wait_the_earliest_iteration_goes_first() -> None:
    gate, entered = RolloutGate(1), list[int]()

    async def rollout(iteration: int) -> None:
        async with gate.turn(iteration):
            entered.append(iteration)
            await asyncio.sleep(0)

    await asyncio.gather(*map(rollout, (5, 7, 6, 6, 5, 4)))
    assert entered == [5, 4, 5, 6, 6, 7]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), max_size=12), st.integers(1, 3))
def test_no_turn_is_lost_to_those_that_leave_and_none_is_given_twice(
    rollouts: list[tuple[int, int]], size: int
) -> None:
    """Each is of an iteration, and cancelled when the loop has gone round so often."""

    async def scenario() -> None:
        gate, inside = RolloutGate(size), 0

        async def rollout(iteration: int) -> None:
            nonlocal inside
            async with gate.turn(iteration):
                inside += 1
                assert inside <= size
                try:
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                finally:
                    inside -= 1

        tasks = [(asyncio.create_task(rollout(iteration)), rounds) for iteration, rounds in rollouts]
        for passed in range(13):
            for task, rounds in tasks:
                if rounds == passed:
                    task.cancel()
            await asyncio.sleep(0)
        for task, _ in tasks:
            with suppress(asyncio.CancelledError):
                await task
        async with asyncio.timeout(60):
            await asyncio.gather(*(rollout(1) for _ in range(size + 1)))

    asyncio.run(scenario())

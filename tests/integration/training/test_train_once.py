"""One train step an iteration, wherever the work breaks off."""

import asyncio
import hashlib
import json
import signal
from collections.abc import AsyncIterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import (
    BackendUnavailable,
    ModelSpec,
    Policy,
    RestoreRequest,
    StepConflict,
    TrainingFailed,
    TrainingInterrupted,
    TrainingStalled,
    TrainOutcome,
    TrainRequest,
)
from learnloop_service.training.backends.embedded import EmbeddedBackend, EmbeddedPolicy, connect
from learnloop_service.training.best_checkpoint import BestCheckpoint, Validation
from learnloop_service.training.journal import IterationJournal
from learnloop_service.training.loop.learn_loop import CheckpointLost, learn_loop
from learnloop_service.training.loop.train_step import TrainStep, _trajectories
from learnloop_service.training.types import Group, Resume, RunConfig, Snapshot
from tests.conditions import answered
from tests.fakes.engine_process import EngineProcess
from tests.fakes.faulty_policy import Fault, FaultyPolicy
from tests.fakes.lossy_proxy import LossyProxy, Moment, nothing
from tests.integration.training.killed_steps import Entries, Killed, group_of, sampled, take
from tests.policies import train

JOBS = "POST /v1/preview/training-jobs"
_names = count()


@pytest.fixture
def words() -> list[Group]:
    """Groups that only a policy that looks at nothing can be trained on."""
    art = import_art()
    return [group_of([art.Trajectory(reward=float(n)) for n in range(2)])]


@pytest.mark.parametrize(
    ("fault", "before", "after"),
    [
        (None, "train.intent", ""),
        (None, "", "train.intent"),
        (Fault.BEFORE_POST, "", ""),
        (Fault.REPLY_LOST, "", ""),
        (None, "train", ""),
        (None, "", "train"),
    ],
)
async def test_the_step_is_taken_once(words: list[Group], fault: Fault | None, before: str, after: str) -> None:
    policy, journal = FaultyPolicy(fault), Entries(before, after)
    with pytest.raises((Killed, BackendUnavailable)):
        await take(policy, journal, words)
    for _ in range(2):
        assert await take(policy, journal, words) == TrainOutcome(1, {"loss": 1.0})
    assert policy.trained == [0]
    assert json.loads(journal.saved[1]["train"]) == {"step": 1, "metrics": {"loss": 1.0}}


async def test_a_request_that_lands_late_is_adopted_and_never_doubled(words: list[Group]) -> None:
    policy, journal = FaultyPolicy(Fault.STILL_QUEUED), Entries()
    with pytest.raises(BackendUnavailable):
        await take(policy, journal, words)
    assert policy.trained == []  # the next process sees nothing of it yet
    assert await take(policy, journal, words) == TrainOutcome(1, {"loss": 1.0})
    assert policy.trained == [0]
    assert policy.expected == [0, 0]


class _FailingPolicy(FaultyPolicy):
    """Its first job fails and stays failed."""

    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self.jobs: list[str] = []
        self._failure = failure

    async def submit(self, request: TrainRequest) -> str:
        if self.jobs:
            await super().submit(request)
        self.jobs.append(f"job-{len(self.jobs)}")
        return self.jobs[-1]

    async def follow(self, job_id: str, expected_step: int) -> TrainOutcome:
        if job_id == "job-0":
            raise self._failure
        return TrainOutcome(expected_step + 1, {"loss": 1.0})


@pytest.mark.parametrize(
    ("failure", "jobs"), [(TrainingInterrupted("no space"), 2), (TrainingFailed("oom"), 2), (TrainingStalled("?"), 1)]
)
async def test_a_failed_job_is_withdrawn_unless_it_may_still_take_effect(
    words: list[Group], failure: Exception, jobs: int
) -> None:
    policy, journal = _FailingPolicy(failure), Entries()
    with pytest.raises(type(failure)):
        await take(policy, journal, words)
    if jobs == 2:
        assert (await take(policy, journal, words)).step == 1
        assert policy.trained == [0]
    else:
        with pytest.raises(type(failure)):
            await take(policy, journal, words)
    assert len(policy.jobs) == jobs


async def test_a_zombies_request_trains_nothing(words: list[Group]) -> None:
    policy, zombie = FaultyPolicy(), Entries(after="train.intent")
    with pytest.raises(Killed):
        await take(policy, zombie, words)
    journal = Entries()
    journal.saved[1] |= zombie.saved[1]
    await take(policy, journal, words)
    assert (await take(policy, zombie, words)).step == 1
    with pytest.raises(StepConflict):
        await train(policy, expected_step=0)
    assert policy.trained == [0]


@pytest.mark.parametrize("intent", [True, False])
async def test_a_foreign_writer_is_told_of(words: list[Group], intent: bool) -> None:
    """Two steps more are not ours, whether the request comes after them or finds them."""
    policy, journal = FaultyPolicy(), Entries(after="train.intent" if intent else "")
    if intent:
        with pytest.raises(Killed):
            await take(policy, journal, words)
    policy.trained += [0, 1]
    with pytest.raises(StepConflict, match="left the policy at step 0; it is at step 2 now"):
        await take(policy, journal, words)
    assert policy.trained == [0, 1]
    assert "train" not in journal.saved[1]


async def test_a_step_whose_checkpoint_was_torn_later_is_trained_again(tmp_path: Path) -> None:
    """The journal suffices for the same weights. The file was cut short while the engine was down."""
    journal, spec, hashes = Entries(), ModelSpec("once", "torn", "learnloop/tiny"), []
    newest = tmp_path / "models" / "once" / "torn" / "checkpoints" / "000002" / "model.safetensors"
    for torn in (False, True, True):
        with EngineProcess(tmp_path) as engine:
            backend = await connect(engine.base_url, "none")
            policy = await backend.register(spec)
            if not torn:
                groups = await sampled(policy)
                await train(policy, _trajectories(groups), expected_step=0)  # so that the optimizer has a state
            outcome = await take(policy, journal, groups, step=1)
            again = await take(policy, journal, groups, step=1)
            await backend.close()
            engine.stop(signal.SIGKILL)
        assert outcome.step == again.step == 2
        whole = newest.read_bytes()
        hashes.append(hashlib.sha256(whole).hexdigest())
        newest.write_bytes(whole[: len(whole) // 2])
    assert len(set(hashes)) == 1
    assert {path.name for path in newest.parent.parent.iterdir()} > {"000001", "000002", "000002.torn"}


async def test_a_run_whose_saved_checkpoint_is_gone_says_so(tmp_path: Path) -> None:
    policy = FaultyPolicy()
    resume = Resume(3, Snapshot(2), BestCheckpoint(1, Validation(0.1, 0.1)))
    loop = learn_loop(RunConfig(iterations=3), SyntheticEmailSearch(), ReferenceJudge(), policy, resume=resume)
    with pytest.raises(CheckpointLost, match="checkpoint 2, which iteration 2 led to, is lost"):
        await anext(loop)


class Faults:
    """What happens to the next requests that match; `happened` counts."""

    def __init__(self, moment: Moment, request: str, times: int = 1) -> None:
        self.left = times
        self.happened = asyncio.Event()
        self._moment = moment
        self._request = request

    async def __call__(self, moment: Moment, request: str) -> bool:
        if moment != self._moment or not request.startswith(self._request) or not self.left:
            return False
        self.left -= 1
        self.happened.set()
        return True


@pytest.fixture
async def distant(proxy: LossyProxy) -> AsyncIterator[EmbeddedBackend]:
    """A backend whose requests go through the proxy."""
    backend = await connect(proxy.url, "none")
    yield backend
    await backend.close()


async def agent(backend: EmbeddedBackend) -> tuple[EmbeddedPolicy, str]:
    """A policy and its model's name."""
    name = f"once-{next(_names)}"
    return await backend.register(ModelSpec("once", name, "random")), name


async def landed(policy: EmbeddedPolicy) -> None:
    await answered(policy.step, lambda step: step > 0, 60)


@pytest.mark.parametrize(
    ("moment", "lost", "posts"),
    [
        ("request", JOBS, 2),  # before the engine has it
        ("reply", JOBS, 1),  # the engine trains, and we do not know the job
        ("reply", "GET /v1/preview/training-jobs/", 1),  # the job has ended, and we did not see it
    ],
)
async def test_the_engine_takes_the_step_once(
    proxy: LossyProxy, distant: EmbeddedBackend, moment: Moment, lost: str, posts: int
) -> None:
    policy, _ = await agent(distant)
    groups, journal = await sampled(policy), Entries()
    proxy.loses = Faults(moment, lost, times=4)
    with pytest.raises(BackendUnavailable):
        await take(policy, journal, groups)
    proxy.loses = nothing
    if posts == 1:
        await landed(policy)
    outcome = await take(policy, journal, groups)
    assert outcome.step == 1
    assert outcome.metrics["num_groups_trainable"] == 1
    assert await policy.step() == 1
    assert proxy.requests.count(JOBS) == posts


async def restore(policy: Policy, journal: Entries, step: int = 1, *, at: int = 2) -> TrainOutcome:
    """The return to an earlier step of iteration 1, as a process that has just been started makes it."""
    entries = await IterationJournal.open(journal, 1)
    return await TrainStep(policy, entries, at).take(RestoreRequest(step))


async def trained_twice(policy: EmbeddedPolicy) -> tuple[list[Group], list[str | None]]:
    """Groups of which two steps were made, and the hashes of their weights."""
    groups, hashes = await sampled(policy), []
    for step in range(2):
        await take(policy, Entries(), groups, step)
        hashes.append(await policy.weights_sha256(step + 1))
    return groups, hashes


async def test_a_return_has_the_weights_and_the_optimizer_of_the_earlier_step(backend: EmbeddedBackend) -> None:
    policy, _ = await agent(backend)
    groups, [good, broken] = await trained_twice(policy)
    outcome = await restore(policy, Entries())
    assert outcome.step == 3
    assert outcome.metrics == {"restored_step": 1.0}
    assert await policy.weights_sha256(3) == good != broken
    await take(policy, Entries(), groups, 3)
    assert await policy.weights_sha256(4) == broken, "the same step from there has other bits"


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ("train.intent", "", ""),
        ("", "train.intent", ""),
        ("train.job", "", ""),
        ("train", "", ""),
        ("", "train", ""),
        ("", "", "request"),
        ("", "", "reply"),
    ],
)
async def test_a_return_is_made_once_wherever_it_breaks_off(
    proxy: LossyProxy, distant: EmbeddedBackend, before: str, after: str, lost: Moment | Literal[""]
) -> None:
    policy, _ = await agent(distant)
    _, [good, _] = await trained_twice(policy)
    journal = Entries(before, after)
    if lost:
        proxy.loses = Faults(lost, "POST /v1/preview/restore-jobs", times=4)
    with pytest.raises((Killed, BackendUnavailable)):
        await restore(policy, journal)
    proxy.loses = nothing
    for _ in range(2):
        assert (await restore(policy, journal)).step == 3
    assert await policy.step() == 3
    assert await policy.weights_sha256(3) == good


async def test_an_engine_that_is_killed_while_it_goes_back(tmp_path: Path) -> None:
    """It dies once before the copy is in its place, and once after it, when no process knows the job any more."""
    spec, journal = ModelSpec("once", "killed", "learnloop/tiny"), Entries(after="train.job")
    with EngineProcess(tmp_path) as engine:
        backend = await connect(engine.base_url, "none")
        policy = await backend.register(spec)
        _, [good, _] = await trained_twice(policy)
        with pytest.raises(Killed):
            await restore(policy, journal)
        engine.stop(signal.SIGKILL)
        await backend.close()
    hashes = []
    for _ in range(2):
        with EngineProcess(tmp_path) as engine:
            backend = await connect(engine.base_url, "none")
            policy = await backend.register(spec)
            assert (await restore(policy, journal)).step == 3
            hashes.append(await policy.weights_sha256(3))
            await backend.close()
            engine.stop(signal.SIGKILL)
    assert hashes == [good, good]


async def test_a_return_to_a_checkpoint_that_is_gone_is_refused(backend: EmbeddedBackend) -> None:
    policy, _ = await agent(backend)
    await trained_twice(policy)
    await policy.delete_checkpoints({0, 2})
    with pytest.raises(ValueError, match=r"checkpoint 1 is not among \[0, 2\]"):
        await restore(policy, Entries())
    with pytest.raises(ValueError, match="does not go back to earlier checkpoints"):
        await restore(FaultyPolicy(), Entries())
    assert await policy.step() == 2


async def test_what_is_adopted_has_the_figures_of_the_training(backend: EmbeddedBackend) -> None:
    (one, _), (other, _) = await agent(backend), await agent(backend)
    groups = await sampled(one)
    trained = await take(one, Entries(), groups)
    lost = Entries(before="train")
    with pytest.raises(Killed):
        await take(other, lost, groups)
    adopted = await take(other, lost, groups)

    def decided(outcome: TrainOutcome) -> dict[str, float]:
        return {name: value for name, value in outcome.metrics.items() if name != "seconds"}

    assert adopted.step == trained.step
    assert decided(adopted) == decided(trained)


async def test_the_engine_refuses_a_zombies_request(
    proxy: LossyProxy, distant: EmbeddedBackend, backend: EmbeddedBackend
) -> None:
    """It is on its way while its successor trains, and adopts what that did."""
    slow, name = await agent(distant)
    groups, zombie = await sampled(slow), Entries()
    arrived, released = asyncio.Event(), asyncio.Event()

    async def hold(moment: Moment, request: str) -> bool:
        if (moment, request) == ("request", JOBS):
            arrived.set()
            await released.wait()
        return False

    proxy.loses = hold
    late = asyncio.create_task(take(slow, zombie, groups))
    await asyncio.wait_for(arrived.wait(), 60)
    successor, journal = await backend.register(ModelSpec("once", name, "random")), Entries()
    journal.saved[1] |= zombie.saved[1]
    assert (await take(successor, journal, groups)).step == 1
    released.set()
    assert (await late).step == 1
    assert await successor.step() == 1


async def test_the_engine_and_a_foreign_writer(backend: EmbeddedBackend) -> None:
    policy, _ = await agent(backend)
    groups, journal = await sampled(policy), Entries(after="train.intent")
    with pytest.raises(Killed):
        await take(policy, journal, groups)
    for step in range(2):
        await take(policy, Entries(), groups, step)
    for entries in (journal, Entries()):
        with pytest.raises(StepConflict, match="left the policy at step 0; it is at step 2 now"):
            await take(policy, entries, groups)
    assert await policy.step() == 2


async def test_a_training_that_is_still_under_way_is_waited_for(
    engine: EngineProcess, proxy: LossyProxy, distant: EmbeddedBackend, backend: EmbeddedBackend
) -> None:
    """The process before us sent it; the engine does not take a second one, and nothing has landed yet."""
    policy, name = await agent(distant)
    groups, journal = await sampled(policy), Entries()
    queued = await agent(backend)
    # Another model's training is before ours in the engine's queue, long enough for the next process to come.
    long = await sampled(queued[0], tokens=400)
    before_us = asyncio.create_task(take(queued[0], Entries(), long * 30))
    async with httpx.AsyncClient(base_url=engine.base_url.removesuffix("/v1"), timeout=60) as http:
        await answered(
            lambda: http.get("/health"), lambda health: health.json()["busy_seconds"]["training"] > 0, timeout_s=60
        )
    proxy.loses = Faults("reply", JOBS)
    with pytest.raises(BackendUnavailable):
        await take(policy, journal, groups)
    outcome = await take(policy, journal, groups)
    await before_us
    assert outcome.step == 1
    assert await policy.step() == 1
    assert proxy.requests.count(JOBS) > 1, f"{name} was never in the way"


async def test_an_engine_that_stops_in_mid_training_is_away_and_did_not_fail() -> None:
    from tests.fakes.scripted_chat import Reply, scripted_chat

    events = {"engine_stopped": BackendUnavailable, "step_conflict": StepConflict, "bad_trajectory": TrainingFailed}
    for code, raised in events.items():

        async def script(request: Mapping[str, Any], code: str = code) -> Reply:
            if "base_model" in request:
                return Reply(body={"id": "model-1", "entity": "e", "run_id": None, **request})
            if "trajectory_groups" in request:
                return Reply(body={"id": "job-1"})
            event = {"id": "event-1", "type": "training_failed", "data": {"error_message": "as scripted", "code": code}}
            return Reply(body={"data": [event], "reproducible": True, "reason": "as scripted"})

        async with scripted_chat(script) as server:
            backend = await connect(server.url, "key")
            policy, _ = await agent(backend)
            with pytest.raises(raised, match="as scripted"):
                await train(policy, expected_step=0)
            await backend.close()

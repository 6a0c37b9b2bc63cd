"""The backend `serverless` on a server that speaks the hosted protocol, and does all that one can do wrong."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx
import pytest

from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import (
    BackendRefused,
    BackendUnavailable,
    JobForgotten,
    ModelSpec,
    NotAccepted,
    StepConflict,
    TrainingFailed,
)
from learnloop_service.training.backends.serverless import (
    ServerlessAccess,
    ServerlessBackend,
    ServerlessPolicy,
    connect,
)
from learnloop_service.training.backends.train_options import SERVERLESS
from learnloop_service.training.loop.train_step import UNSURE
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.types import Group
from tests import policies
from tests.conditions import until
from tests.fakes.hosted_server import CHAT, EVENTS, JOBS, KEY, MODEL, MODELS, HostedServer, hosted_server
from tests.integration.training.killed_steps import Entries, Killed, group_of, take

_names = count()


def access(server: HostedServer, **patience: Any) -> ServerlessAccess:
    quick = {"settle_timeout_s": 0.2, "stall_timeout_s": 20.0, "lag_s": 10.0, "request_timeout_s": 20.0, "poll_s": 0.01}
    return ServerlessAccess(KEY, server.url, **{**quick, **patience})


@asynccontextmanager
async def backend_on(server: HostedServer, **patience: Any) -> AsyncIterator[ServerlessBackend]:
    backend = await connect(access(server, **patience))
    yield backend
    await backend.close()


@pytest.fixture(autouse=True)
def _impatient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """ART's client is OpenAI's, which asks again after half a second, one and two."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[HostedServer]:
    async with hosted_server() as server:
        yield server


@pytest.fixture
async def backend(server: HostedServer) -> AsyncIterator[ServerlessBackend]:
    async with backend_on(server) as backend:
        yield backend


@pytest.fixture
async def policy(backend: ServerlessBackend) -> ServerlessPolicy:
    return await backend.register(spec())


@pytest.fixture
def groups() -> list[Group]:
    art = import_art()
    return [group_of([art.Trajectory(reward=float(n)) for n in range(2)])]


def spec() -> ModelSpec:
    return ModelSpec("mail", f"agent-{next(_names)}", "OpenPipe/Qwen3-14B-Instruct")


async def train(policy: ServerlessPolicy, expected_step: int = 0, **options: Any) -> Any:
    return await policies.train(policy, learning_rate=1e-5, expected_step=expected_step, **options)


def only(server: HostedServer) -> Any:
    [model] = server.models.values()
    return model


async def test_a_policy_is_trained_step_by_step_and_found_again(
    server: HostedServer, backend: ServerlessBackend
) -> None:
    model = spec()
    policy = await backend.register(model)
    outcome = await train(policy, epsilon=0.2)
    assert outcome.step == 1
    assert dict(outcome.metrics) == {"grad_norm": 2.0, "loss": 0.75}
    assert (await train(policy, 1)).step == 2
    again = await backend.register(model)
    assert await again.step() == 2
    assert only(server).bodies[0]["experimental_config"] == {"learning_rate": 1e-5, "epsilon": 0.2}
    assert "expected_step" not in only(server).bodies[0]


async def test_checkpoints_are_sampled_by_the_names_of_their_artifacts(policy: ServerlessPolicy) -> None:
    name = policy.endpoint(3).model
    assert name == policy.artifact(3)
    assert name.startswith("wandb-artifact:///acme/mail/agent-")
    assert name.endswith(":step3")
    assert policy.endpoint().model == name.removesuffix(":step3")
    async with open_chat(policy.endpoint(3)) as chat:
        completion = await chat.client.chat.completions.create(
            model=chat.model, messages=[{"role": "user", "content": "When?"}], logprobs=True
        )
    assert completion.model == name
    assert completion.choices[0].message.content == "At noon."
    assert KEY not in repr(policy.endpoint())


async def test_the_best_and_the_last_checkpoint_are_kept(policy: ServerlessPolicy) -> None:
    for step in range(4):
        await train(policy, step)
    assert await policy.delete_checkpoints(keep={2}) == [0, 1, 3]
    assert await policy.step() == 4


async def test_options_that_the_protocol_has_no_place_for_are_a_value_error(
    server: HostedServer, policy: ServerlessPolicy
) -> None:
    with pytest.raises(ValueError, match="takes no option kl_penalty_coef"):
        await train(policy, kl_penalty_coef=0.1)
    assert JOBS not in server.requests


def test_the_options_are_those_of_arts_client() -> None:
    config = import_art("art.serverless.client").ExperimentalTrainingConfig
    assert set(config.__annotations__) - {"learning_rate", "ppo"} | {"loss"} == SERVERLESS


async def test_a_base_model_that_is_not_served(backend: ServerlessBackend) -> None:
    with pytest.raises(ValueError, match="unsupported base model 'tiny'"):
        await backend.register(ModelSpec("mail", "agent", "tiny"))


async def test_a_model_is_deleted(server: HostedServer, backend: ServerlessBackend) -> None:
    model = spec()
    await backend.register(model)
    await backend.delete(model)
    assert server.models == {}


async def test_a_key_that_is_not_taken_is_told_with_its_setting_and_never_itself(server: HostedServer) -> None:
    backend = await connect(ServerlessAccess("wrong-canary-key", server.url))
    with pytest.raises(BackendRefused, match=r"key of WANDB_API_KEY: bad key Bearer \*\*\*") as caught:
        await backend.register(spec())
    await backend.close()
    assert "wrong-canary-key" not in str(caught.value)


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_look_that_fails_now_and_then_is_repeated(
    server: HostedServer, policy: ServerlessPolicy, status: int
) -> None:
    server.refuses[EVENTS] += [status] * 2
    server.refuses[MODEL] += [status] * 2
    assert (await train(policy)).step == 1


async def test_a_server_in_trouble_is_unavailable(server: HostedServer, backend: ServerlessBackend) -> None:
    server.refuses[MODELS] += [500]
    with pytest.raises(BackendUnavailable, match="W&B Training does not answer as it should: as scripted"):
        await backend.register(spec())


async def test_a_job_that_fails_says_why(server: HostedServer, policy: ServerlessPolicy) -> None:
    server.failure = "out of memory on rank 3"
    with pytest.raises(TrainingFailed, match="out of memory on rank 3"):
        await train(policy)


async def test_a_job_that_never_ends_is_given_up(server: HostedServer) -> None:
    server.endless = True
    async with backend_on(server, stall_timeout_s=0.1) as backend:
        with pytest.raises(TrainingFailed, match=r"the training job job-\d+ sent no event for 0 s"):
            await train(await backend.register(spec()))


async def test_a_job_without_signal_leaves_the_step(server: HostedServer, policy: ServerlessPolicy) -> None:
    server.no_signal = True
    assert (await train(policy)).step == 0


@pytest.mark.parametrize("request_line", [MODELS, JOBS, EVENTS, MODEL])
async def test_a_server_that_hangs_is_unavailable(server: HostedServer, request_line: str) -> None:
    async with backend_on(server, request_timeout_s=1.0) as backend:
        policy = await backend.register(spec())
        server.hangs.add(request_line)
        with pytest.raises(BackendUnavailable, match="timed out"):
            await (backend.register(spec()) if request_line == MODELS else train(policy))


async def test_a_checkpoint_that_is_listed_late_is_waited_for(server: HostedServer, policy: ServerlessPolicy) -> None:
    server.lag_s = 0.2
    assert (await train(policy)).step == 1
    assert (await train(policy, 1)).step == 2


async def test_a_checkpoint_that_is_not_listed_in_time_is_adopted_when_it_is(
    server: HostedServer, groups: list[Group]
) -> None:
    server.lag_s = 1.0
    async with backend_on(server, lag_s=0.0) as backend:
        policy, journal = await backend.register(spec()), Entries()
        with pytest.raises(BackendUnavailable, match="lists checkpoints up to step 0, not 1 yet"):
            await take(policy, journal, groups)
        await until(lambda: 1 in only(server).checkpoints)
        assert (await take(policy, journal, groups)).step == 1
    assert only(server).trained == [0]


@pytest.mark.parametrize("status", [401, 429])
async def test_a_request_that_is_turned_away_is_sent_again_without_ado(
    server: HostedServer, policy: ServerlessPolicy, groups: list[Group], status: int
) -> None:
    """Nothing can have come of it: no quiet period, and no flag."""
    server.refuses[JOBS] += [status]
    journal = Entries()
    with pytest.raises((NotAccepted, BackendRefused)):
        await take(policy, journal, groups)
    outcome = await take(policy, journal, groups)
    assert outcome.step == 1
    assert UNSURE not in outcome.metrics
    assert only(server).trained == [0]


async def test_nobody_at_the_address_has_accepted_nothing(groups: list[Group]) -> None:
    async with hosted_server() as server:
        backend = await connect(access(server))
        policy, journal = await backend.register(spec()), Entries()
    with pytest.raises(NotAccepted):
        await take(policy, journal, groups)
    await backend.close()
    assert list(journal.saved[1]) == ["train.intent", "train.withdrawn"]


async def test_the_job_is_followed_by_whoever_comes_after_us(
    server: HostedServer, policy: ServerlessPolicy, groups: list[Group]
) -> None:
    server.job_s = 0.5  # far longer than the quiet period
    journal = Entries(after="train.job")
    with pytest.raises(Killed):
        await take(policy, journal, groups)
    outcome = await take(policy, journal, groups)
    assert outcome.step == 1
    assert dict(outcome.metrics) == {"grad_norm": 2.0, "loss": 0.75}
    assert only(server).trained == [0]


async def test_a_job_whose_id_was_lost_is_watched_for_and_adopted(server: HostedServer, groups: list[Group]) -> None:
    server.job_s = 0.2
    async with backend_on(server, settle_timeout_s=10.0) as backend:
        policy, journal = await backend.register(spec()), Entries(before="train.job")
        with pytest.raises(Killed):
            await take(policy, journal, groups)
        outcome = await take(policy, journal, groups)
    assert outcome.step == 1
    assert dict(outcome.metrics) == {"loss": 0.75}
    assert only(server).trained == [0]


async def test_what_does_not_land_in_the_quiet_period_is_repeated_and_flagged(
    server: HostedServer, policy: ServerlessPolicy, groups: list[Group]
) -> None:
    server.refuses[JOBS] += [502]
    journal = Entries()
    with pytest.raises(BackendUnavailable):
        await take(policy, journal, groups)
    outcome = await take(policy, journal, groups)
    assert outcome.step == 1
    assert outcome.metrics[UNSURE] == 1.0
    assert list(journal.saved[1]) == ["train.intent", "train.intent/1", "train.job/1", "train"]
    assert only(server).trained == [0]


async def test_the_flag_survives_the_one_who_raised_it(
    server: HostedServer, policy: ServerlessPolicy, groups: list[Group]
) -> None:
    journal = Entries(after="train.intent")
    with pytest.raises(Killed):
        await take(policy, journal, groups)
    second = Entries(before="train")
    second.saved[1] |= journal.saved[1]
    with pytest.raises(Killed):
        await take(policy, second, groups)
    assert (await take(policy, second, groups)).metrics[UNSURE] == 1.0
    assert only(server).trained == [0]


async def test_a_job_that_the_server_forgot_is_settled_by_the_step(
    server: HostedServer, policy: ServerlessPolicy, groups: list[Group]
) -> None:
    journal = Entries(after="train.job")
    with pytest.raises(Killed):
        await take(policy, journal, groups)
    await until(lambda: 1 in only(server).checkpoints)
    server.forget_jobs()
    with pytest.raises(JobForgotten):
        await policy.follow("job-0", 0)
    assert (await take(policy, journal, groups)).step == 1
    assert only(server).trained == [0]


@pytest.mark.parametrize("fault", ["train.intent", "train.job", ""])
async def test_a_foreign_writer_is_told_of(
    server: HostedServer, policy: ServerlessPolicy, groups: list[Group], fault: str
) -> None:
    journal = Entries(after=fault)
    if fault:
        with pytest.raises(Killed):
            await take(policy, journal, groups)
    checkpoints = only(server).checkpoints
    await until(lambda: fault != "train.job" or 1 in checkpoints)
    checkpoints |= {1: {}, 2: {}}
    with pytest.raises(StepConflict, match="left the policy at step 0; it is at step 2 now"):
        await take(policy, journal, groups)
    assert "train" not in journal.saved[1]


async def test_a_job_that_failed_while_nobody_looked_is_not_repeated(
    server: HostedServer, policy: ServerlessPolicy, groups: list[Group]
) -> None:
    server.failure = "a bad trajectory"
    journal = Entries(after="train.job")
    with pytest.raises(Killed):
        await take(policy, journal, groups)
    with pytest.raises(TrainingFailed, match="a bad trajectory"):
        await take(policy, journal, groups)
    assert server.requests.count(JOBS) == 1


async def test_who_is_cancelled_stops_at_once_and_leaves_the_job_to_be_followed(
    server: HostedServer, policy: ServerlessPolicy, groups: list[Group]
) -> None:
    """The protocol has no way to end a job."""
    server.endless = True
    journal = Entries()
    working = asyncio.create_task(take(policy, journal, groups))
    await until(lambda: any(line.startswith(EVENTS) for line in server.requests))
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert "train.job" in journal.saved[1]


async def test_the_fake_knows_its_key(server: HostedServer) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        assert (await http.post(server.url + CHAT.removeprefix("POST /v1"), json={})).status_code == 401

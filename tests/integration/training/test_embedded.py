"""The backend `embedded` on a real engine, and on servers that answer as no engine should."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import (
    BackendUnavailable,
    StepConflict,
    StoringBackend,
    TrainingFailed,
    TrainRequest,
)
from learnloop_service.training.backends.embedded import EmbeddedBackend, EmbeddedPolicy, connect
from learnloop_service.training.call_sequences import SampledCall, TokenSequence, joined
from learnloop_service.training.rollout.agents.base import AgentTask
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.rollout.rollout import RolloutLimits, rollout
from learnloop_service.training.tuning import Tuning
from tests import policies
from tests.fakes.engine_process import EngineProcess
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.integration.training.embedded_models import spec, train
from tests.policies import sampled_group


@pytest.fixture
async def policy(backend: EmbeddedBackend) -> EmbeddedPolicy:
    return await backend.register(spec())


@pytest.mark.parametrize("tuning", [Tuning("lora", rank=4, alpha=8, target_modules=("q_proj",)), Tuning("full")])
async def test_the_part_that_was_asked_for_is_trained(backend: EmbeddedBackend, tuning: Tuning) -> None:
    model = replace(spec(), tuning=tuning)
    policy = await backend.register(model)
    assert await backend.tuning(model.project, model.name) == tuning
    assert await train(policy, await sampled_group(policy), 0) == 1
    assert await (await backend.register(model)).step() == 1
    assert await (await backend.register(replace(model, tuning=None))).step() == 1
    other = Tuning("lora", rank=2)
    with pytest.raises(ValueError, match=f"is trained {tuning}, not by a LoRA of rank 2"):
        await backend.register(replace(model, tuning=other))
    fork = replace(spec(base_model=f"{model.project}/{model.name}@1"), tuning=other)
    with pytest.raises(ValueError, match="a fork keeps that"):
        await backend.register(fork)


async def test_a_model_that_does_not_exist_has_no_tuning(backend: EmbeddedBackend) -> None:
    assert await backend.tuning("embedded", "nothing") is None


class Wanderer:
    """An agent that forks, asks in parallel, rewrites its history and drops a part of it."""

    name = "wanderer"

    async def run(self, task: AgentTask) -> str:
        async def ask(*messages: Any) -> Any:
            client = httpx.AsyncClient(transport=task.model.http_client._transport)
            body = {"model": task.model.model, "messages": messages, "max_tokens": 6}
            answer = await client.post(f"{task.model.base_url}/chat/completions", json=body)
            return answer.raise_for_status().json()["choices"][0]["message"]

        system, question = task.messages
        one, other = await asyncio.gather(ask(system, question), ask(system, question))
        more = {"role": "user", "content": "And then?"}
        two = await ask(system, question, one, more)
        await ask(system, question, one, {"role": "user", "content": "Or else?"})  # a fork
        await ask(system, question, other, more, two, more)  # `two` is text here: it was said in another conversation
        await ask(system, question, {**one, "content": "In short."}, more)
        await ask(system, {"role": "user", "content": "Something else."})
        await ask(system, question, one, more, two, more)
        return "done"


async def test_whatever_an_agent_does_to_its_history_is_trained_as_sampled(policy: EmbeddedPolicy) -> None:
    environment = SyntheticEmailSearch()
    [scenario] = environment.scenarios("train", 1, seed=0)
    async with open_chat(policy.endpoint()) as chat:
        options: Any = {"limits": RolloutLimits(max_turns=8), "agent": Wanderer()}
        rollouts = [await rollout(environment, scenario, chat, id=str(seed), seed=seed, **options) for seed in range(2)]
    assert [played.error for played in rollouts] == [None, None]
    group = import_art().TrajectoryGroup([played.trajectory for played in rollouts])
    for reward, trajectory in enumerate(group.trajectories):
        trajectory.reward = float(reward)
        histories: list[Any] = [trajectory, *trajectory.additional_histories]
        choices = [
            [item for item in history.messages_and_choices if not isinstance(item, dict)] for history in histories
        ]
        assert sorted(len(sampled) for sampled in choices) == [1, 1, 1, 2, 3]
    assert await train(policy, group, 0) == 1
    # The engine refuses what was not sampled so.
    first = max(choices, key=len)[0]
    first.prompt_token_ids = [*first.prompt_token_ids, 5]
    with pytest.raises(ValueError, match="are no single conversation: the prompt of call 1"):
        await train(policy, group, 1)


@pytest.mark.parametrize(("base", "is_bounded"), [("random", True), ("learnloop/tiny", False)])
async def test_a_step_is_bounded_for_whole_rollouts_on_bases_above_the_tiny_one(
    backend: EmbeddedBackend, base: str, is_bounded: bool
) -> None:
    policy = await backend.register(spec(base_model=base))
    request = TrainRequest([await sampled_group(policy)], 0.05, 0, {"max_kl": 1e6})
    metrics = (await policy.follow(await policy.submit(request), 0)).metrics
    assert (metrics["rollout_kl"] <= 0.5) is is_bounded
    assert (metrics["step_share"] < 1) is is_bounded


async def test_the_sampler_scores_the_tokens_at_which_a_step_was_measured(policy: EmbeddedPolicy) -> None:
    assert await policy.measured(0) == []
    before = await policy.weights_sha256(0)
    assert await train(policy, await sampled_group(policy), 0, max_kl=10.0) == 1
    measured = await policy.measured(1)
    assert 1 <= len(measured) <= 4
    tokens = [token.token_ids for token in measured]
    for step, expected in ((0, [token.before for token in measured]), (1, [token.after for token in measured])):
        scores = await policy.logprobs(step, tokens)
        scored = [(score, value) for score, value in zip(scores, expected, strict=True) if score is not None]
        assert all(score == pytest.approx(value, abs=1e-4) for score, value in scored)
    assert [token.recorded for token in measured] == pytest.approx([token.before for token in measured], abs=1e-4)
    assert max(abs(token.after - token.before) for token in measured) > 1e-3
    assert None not in (before, await policy.weights_sha256(1))
    assert before != await policy.weights_sha256(1)
    assert await policy.weights_sha256(0) is None  # only the newest is reported
    assert await policy.logprobs(1, []) == []
    with pytest.raises(ValueError, match="token_ids"):
        await policy.logprobs(1, [[5]])
    with pytest.raises(ValueError, match="no"):
        await policy.logprobs(9, tokens)


async def test_recorded_replies_are_scored_as_they_were_sampled(policy: EmbeddedPolicy) -> None:
    question: Any = {"role": "user", "content": "When?"}
    async with open_chat(policy.endpoint()) as chat:
        greedy: Any = {"temperature": 0, "max_tokens": 8, "logprobs": True}
        [choice] = (await chat.client.chat.completions.create(model=chat.model, messages=[question], **greedy)).choices
    conversation = [question, choice.model_dump(mode="json")]
    scored = await policy.reply_logprobs(0, conversation, [], [1])
    assert choice.logprobs
    assert scored == pytest.approx([token.logprob for token in choice.logprobs.content or ()], abs=1e-4)
    assert len(scored) == 8
    with pytest.raises(ValueError, match="message 0 is not a reply with sampled tokens"):
        await policy.reply_logprobs(0, conversation, [], [0])
    assert len(await policy.reply_logprobs(0, conversation, [], [1] * 200)) == 1_600
    assert await policy.reply_logprobs(0, conversation, [], []) == []
    with pytest.raises(ValueError, match="no"):
        await policy.reply_logprobs(9, conversation, [], [1])


async def test_recorded_sequences_are_scored_by_any_checkpoint(policy: EmbeddedPolicy) -> None:
    sampled, exact = [], {"max_tokens": 40, "logprobs": True, "extra_body": {"return_token_ids": True}}
    async with open_chat(policy.endpoint()) as chat:
        for seed in range(4):
            asked: Any = {"messages": [{"role": "user", "content": f"When, {seed}?"}], "seed": seed, **exact}
            completion: Any = await chat.client.chat.completions.create(model=chat.model, **asked)
            [choice] = completion.choices
            logprobs = tuple(token.logprob for token in choice.logprobs.content)
            sampled.append(joined([SampledCall(tuple(completion.prompt_token_ids), tuple(choice.token_ids), logprobs)]))
    before = await policy.score_sequences(0, sampled)
    for scores, sequence in zip(before, sampled, strict=True):
        assert scores == pytest.approx(sequence.logprobs, abs=1e-5)
    assert await train(policy, await sampled_group(policy), 0) == 1
    after = await policy.score_sequences(1, sampled)
    assert await policy.score_sequences(0, sampled) == before != after
    assert await policy.score_sequences(1, []) == []
    ids, trained = sampled[0].ids, sampled[0].trained
    for wrong in (
        TokenSequence((*ids[:-1], 10**6), trained, ()),
        TokenSequence(ids, (len(ids),), ()),
        TokenSequence(ids, (0,), ()),
        TokenSequence(ids, trained[::-1], ()),
        TokenSequence(ids, (), ()),
    ):
        with pytest.raises(ValueError, match="sequence"):
            await policy.score_sequences(1, [sampled[1], wrong])
    with pytest.raises(ValueError, match="no"):
        await policy.score_sequences(9, sampled)


async def test_the_engine_says_whether_a_model_repeats_to_the_bit(
    backend: EmbeddedBackend, engine: EngineProcess
) -> None:
    policy = await backend.register(spec())
    assert policy.reproducibility.reproducible, policy.reproducibility.reason
    assert "matrix products" in policy.reproducibility.reason
    async with httpx.AsyncClient(timeout=60) as client:
        health = (await client.get(engine.base_url.removesuffix("v1") + "health")).json()
    assert health["reproducible"] is True


async def test_an_engine_that_does_not_check_is_not_vouched_for() -> None:
    """One of an earlier version, which others may share with us."""

    async def script(request: Mapping[str, Any]) -> Reply:
        if "base_model" in request:
            return Reply(body={"id": "model-1", "entity": "e", "run_id": None, **request})
        return Reply(status=404, body={"error": {"message": "Not Found: no such route", "code": "not_found"}})

    async with scripted_chat(script) as server:
        backend = await connect(server.url, "key")
        policy = await backend.register(spec())
        assert not policy.reproducibility.reproducible
        assert not (await policy.overlong([{"messages": []}])).tokens, "nor does it count"
        await backend.close()


async def test_a_policy_is_trained_step_by_step_and_found_again(backend: EmbeddedBackend) -> None:
    model = spec()
    policy = await backend.register(model)
    assert await policy.step() == 0
    assert policy.endpoint().model == f"embedded/{model.name}"
    assert policy.endpoint(3).model == f"embedded/{model.name}@3"
    group = await sampled_group(policy, step=0)
    assert await train(policy, group, expected_step=0) == 1
    assert await train(policy, group, expected_step=1, scale_rewards=False) == 2
    again = await backend.register(model)
    assert await again.step() == 2
    assert "none" not in repr(again.endpoint())


async def test_another_step_than_expected_is_a_conflict_and_trains_nothing(policy: EmbeddedPolicy) -> None:
    group = await sampled_group(policy)
    await train(policy, group, expected_step=0)
    for wrong in (0, 2):
        with pytest.raises(StepConflict, match=f"step 1, not {wrong}"):
            await train(policy, group, expected_step=wrong)
    assert await policy.step() == 1


async def test_of_two_trainings_at_once_one_is_refused(policy: EmbeddedPolicy) -> None:
    group = await sampled_group(policy)
    outcomes = await asyncio.gather(*(train(policy, group, expected_step=0) for _ in range(2)), return_exceptions=True)
    assert sorted(map(type, outcomes), key=str) == sorted((int, StepConflict), key=str)
    assert await policy.step() == 1


async def test_groups_without_signal_leave_the_step(policy: EmbeddedPolicy) -> None:
    group = await sampled_group(policy)
    for trajectory in group.trajectories:
        trajectory.reward = 1.0
    outcome = await policies.train(policy, [group], expected_step=0)
    assert outcome.step == 0
    assert outcome.metrics["num_groups_equal_rewards"] == 1
    assert outcome.metrics["num_groups_trainable"] == 0


async def test_the_engine_says_how_much_room_its_disk_has(backend: EmbeddedBackend) -> None:
    assert isinstance(backend, StoringBackend)
    assert (free := await backend.free_bytes()) is not None
    assert 10**6 < free < 10**18


async def test_checkpoints_are_deleted_but_for_those_to_keep_and_the_newest(policy: EmbeddedPolicy) -> None:
    assert await policy.delete_checkpoints(set()) == []
    group = await sampled_group(policy)
    for step in range(4):
        await train(policy, group, expected_step=step)
    assert await policy.delete_checkpoints({1, 7}) == [0, 2, 3]
    assert await policy.delete_checkpoints({1}) == []
    assert await policy.delete_checkpoints(set()) == [1]
    assert await policy.step() == 4
    assert await train(policy, group, expected_step=4) == 5


async def test_more_checkpoints_than_a_page_of_the_protocol_holds(policy: EmbeddedPolicy) -> None:
    group = await sampled_group(policy)
    for step in range(22):
        await train(policy, group, expected_step=step)
    assert await policy.step() == 22
    assert await policy.delete_checkpoints({5}) == [step for step in range(22) if step != 5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"base_model": "nobody"}, "nobody"), ({"name": "../x"}, r"\.\./x"), ({"project": "a b"}, "a b")],
)
async def test_a_model_that_cannot_be_is_a_value_error(
    backend: EmbeddedBackend, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        await backend.register(spec(**changes))


async def test_a_model_of_another_base_is_not_continued(backend: EmbeddedBackend, policy: EmbeddedPolicy) -> None:
    name = policy.endpoint().model.partition("/")[2]
    with pytest.raises(ValueError, match="exists with base model 'random', not 'learnloop/tiny'"):
        await backend.register(spec(name=name, base_model="learnloop/tiny"))


async def test_bad_options_are_a_value_error(policy: EmbeddedPolicy) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        await train(policy, await sampled_group(policy), expected_step=0, nonsense=1)
    assert await policy.step() == 0


async def test_a_training_that_fails_says_why(policy: EmbeddedPolicy) -> None:
    group = await sampled_group(policy)
    long: Any = {"role": "user", "content": "When? " * 40_000}
    for trajectory in group.trajectories:
        trajectory.messages_and_choices.insert(0, long)
    with pytest.raises(TrainingFailed, match="the model's context is 32768"):
        await train(policy, group, expected_step=0)
    assert await policy.step() == 0


async def test_a_key_that_is_not_taken() -> None:
    async def script(request: Mapping[str, Any]) -> Reply:
        return Reply(status=401)

    async with scripted_chat(script) as server:
        backend = await connect(server.url, "canary-key")
        with pytest.raises(BackendUnavailable, match="as scripted") as caught:
            await backend.register(spec())
        await backend.close()
    assert "canary-key" not in f"{caught.value!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize("status", [500, 503, 507])
async def test_an_engine_in_trouble_is_unavailable(status: int) -> None:
    async def script(request: Mapping[str, Any]) -> Reply:
        return Reply(status=status)

    async with scripted_chat(script) as server:
        backend = await connect(server.url, "key")
        with pytest.raises(BackendUnavailable, match="does not answer as it should: as scripted"):
            await backend.register(spec())
        await backend.close()


async def test_nobody_at_the_port_is_unavailable() -> None:
    async def script(request: Mapping[str, Any]) -> Reply:
        raise AssertionError

    async with scripted_chat(script) as server:
        pass
    backend = await connect(server.url, "key")
    with pytest.raises(BackendUnavailable):
        await backend.register(spec())
    await backend.close()


async def test_a_job_that_a_restarted_engine_has_forgotten(policy: EmbeddedPolicy) -> None:
    async def script(request: Mapping[str, Any]) -> Reply:
        if "base_model" in request:
            return Reply(body={"id": "model-1", "entity": "e", "run_id": None, **request})
        if "trajectory_groups" in request:
            return Reply(body={"id": "job-1"})
        return Reply(status=404, body={"error": {"message": "no training job 'job-1'", "code": "job_not_found"}})

    async with scripted_chat(script) as server:
        backend = await connect(server.url, "key")
        restarted = await backend.register(spec())
        with pytest.raises(BackendUnavailable, match="restarted while it trained"):
            await policies.train(restarted, [await sampled_group(policy)], expected_step=0)
        await backend.close()

"""From ART's dumps to weighted sequences."""

import math
from typing import Any

import pytest

from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.engine.trainer.trajectories import (
    BadTrajectory,
    Conversation,
    TrainingTrajectory,
    counts,
    read_groups,
    sequences,
)
from tests.fakes.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer(make_tiny_model(tmp_path_factory.mktemp("base") / "tiny"))


def _choice(ids: list[int], text: str = "said") -> dict[str, Any]:
    tokens = [
        {"token": f"token_id:{token}", "bytes": [], "logprob": -0.5 * token / 100, "top_logprobs": []} for token in ids
    ]
    return {
        "finish_reason": "stop",
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": tokens, "refusal": None},
    }


def _dump(*rewards: float) -> list[dict[str, Any]]:
    return [
        {
            "messages_and_choices": [{"role": "user", "content": "a"}, _choice([40, 41, 42][: 1 + number % 3])],
            "tools": None,
            "reward": reward,
            "additional_histories": [],
            "metrics": {},
        }
        for number, reward in enumerate(rewards)
    ]


def _group(*rewards: float) -> tuple[TrainingTrajectory, ...]:
    [group] = read_groups([{"trajectories": _dump(*rewards)}])
    return group


def test_a_choice_without_logprobs_is_context() -> None:
    choice = {**_choice([40]), "logprobs": None}
    dump = {"messages_and_choices": [{"role": "user", "content": "a"}, choice, {"role": "user", "content": "b"}]}
    [[trajectory]] = read_groups([{"trajectories": [{**dump, "reward": 1}]}])
    [conversation] = trajectory.conversations
    assert conversation.exact == {}
    assert [message["role"] for message in conversation.messages] == ["user", "assistant", "user"]


def test_arts_own_dump_is_read(tokenizer: ChatTokenizer) -> None:
    import art
    from openai.types.chat.chat_completion import Choice

    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "a"}, Choice.model_validate(_choice([40, 41]))],
        additional_histories=[
            art.trajectories.History(
                messages_and_choices=[{"role": "user", "content": "b"}, Choice.model_validate(_choice([42]))]
            )
        ],
        reward=1.0,
    )
    other = art.Trajectory(messages_and_choices=trajectory.messages_and_choices, reward=0.0)
    group = art.TrajectoryGroup([trajectory, other]).model_dump(mode="json")
    [first, forked, second] = sequences(read_groups([group]), tokenizer, scale_rewards=True)
    assert [len(item.trained) for item in (first, forked, second)] == [2, 1, 2]
    assert [first.ids[position] for position in first.trained] == [40, 41]
    assert first.logprobs == (-0.2, -0.205)
    # Both histories of a trajectory share its weight, as their tokens count together.
    assert first.weight == forked.weight == pytest.approx(1 / 3)
    assert second.weight == pytest.approx(1 / 2)
    assert (first.advantage, second.advantage) == pytest.approx((1, -1), abs=1e-5)


def test_what_can_teach_is_counted() -> None:
    count = counts([_group(0.0, 1.0, 0.5), _group(1.0, 1.0), ()])
    assert count.groups == 3
    assert count.groups_with_signal == 1
    assert count.groups_trainable == 1
    assert count.trajectories == 5
    assert count.trajectories_trainable == 2


def test_rewards_alone_teach_nothing() -> None:
    """Without a sampled token there is nothing to train on, however much the rewards differ."""
    dump = _dump(0.0, 1.0)
    dump[0]["messages_and_choices"][1]["logprobs"] = None
    [half] = read_groups([{"trajectories": dump}])
    dump[1]["messages_and_choices"][1]["logprobs"] = None
    [nothing] = read_groups([{"trajectories": dump}])
    count = counts([half, nothing])
    assert count.groups_with_signal == 2
    assert count.groups_trainable == 1
    assert count.trajectories_trainable == 1


def test_calls_in_langchains_form_are_read(tokenizer: ChatTokenizer) -> None:
    """`art.langgraph` passes on messages that a framework rebuilt with calls as LangChain keeps them."""
    call = {"name": "search", "args": {"words": ["a"]}, "id": "c1", "type": "tool_call"}
    reply = {"role": "assistant", "content": "", "tool_calls": [call]}
    dump = {"messages_and_choices": [{"role": "user", "content": "a"}, reply, _choice([40])]}
    group = {"trajectories": [{**dump, "reward": reward} for reward in (0.0, 1.0)]}
    [[conversation], _] = [trajectory.conversations for trajectory in read_groups([group])[0]]
    [read] = conversation.messages[1]["tool_calls"]
    assert read == {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"words": ["a"]}'}}
    assert len(list(sequences(read_groups([group]), tokenizer, scale_rewards=True))) == 2


@pytest.mark.parametrize("calls", ["x", [3], [{"id": "c1"}], [{"function": {"name": "f"}}], [{"args": {}}]])
def test_a_call_has_a_name_and_arguments(calls: Any) -> None:
    dump = {"messages_and_choices": [{"role": "assistant", "content": "", "tool_calls": calls}], "reward": 1.0}
    with pytest.raises(BadTrajectory, match=r"messages_and_choices\[0\].*tool.call"):
        read_groups([{"trajectories": [dump]}])


def test_several_sampled_turns_keep_their_order(tokenizer: ChatTokenizer) -> None:
    messages = (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "y"},
    )
    conversation = Conversation(messages, None, {3: (44,), 1: (42, 43)}, {3: (-3.0,), 1: (-1.0, -2.0)})
    group = (TrainingTrajectory((conversation,), 1.0), TrainingTrajectory((conversation,), 0.0))
    item = next(sequences([group], tokenizer, scale_rewards=True))
    assert [item.ids[position] for position in item.trained] == [42, 43, 44]
    assert item.logprobs == (-1.0, -2.0, -3.0)
    assert item.ids[-1] == 44


@pytest.mark.parametrize("reward", [math.nan, math.inf, "1", None, True])
def test_a_reward_is_a_number(reward: Any) -> None:
    with pytest.raises(BadTrajectory, match=r"trajectories\[1\].reward"):
        read_groups([{"trajectories": [*_dump(1.0), {**_dump(0.0)[0], "reward": reward}]}])


@pytest.mark.parametrize("logprob", [math.nan, -math.inf, 1.0, "x", None])
def test_a_log_probability_is_a_negative_number(logprob: Any) -> None:
    [dump] = _dump(1.0)
    dump["messages_and_choices"][1]["logprobs"]["content"][0]["logprob"] = logprob
    with pytest.raises(BadTrajectory, match="logprob"):
        read_groups([{"trajectories": [dump]}])


def _exact(prompt: list[int], ids: list[int]) -> dict[str, Any]:
    return {**_choice(ids), "prompt_token_ids": prompt}


def _conversations(*items: list[Any]) -> list[Any]:
    """A group of two trajectories with a reward each; the first has these conversations."""
    first, *others = ({"messages_and_choices": messages, "tools": None} for messages in items)
    two = [{**first, "additional_histories": others, "reward": 1.0}, *_dump(0.0)]
    return read_groups([{"trajectories": two}])


QUESTION = {"role": "user", "content": "a"}
TOLD = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}


def test_choices_that_tell_their_prompts_are_trained_in_just_these(tokenizer: ChatTokenizer) -> None:
    """Whatever the messages say: a fork has its context from the prompt, and shares the trajectory's advantage."""
    groups = _conversations(
        [QUESTION, _exact([7, 8], [40, 41]), QUESTION, _exact([7, 8, 40, 41, 9], [42])],
        [QUESTION, TOLD, QUESTION, _exact([7, 8, 40, 41, 10], [43])],
    )
    trunk, fork, _ = sequences(groups, tokenizer, scale_rewards=True)
    assert trunk.ids == (7, 8, 40, 41, 9, 42)
    assert trunk.trained == (2, 3, 5)
    assert fork.ids == (7, 8, 40, 41, 10, 43)
    assert fork.trained == (5,)
    assert trunk.logprobs == pytest.approx([-0.2, -0.205, -0.21])
    assert fork.logprobs == pytest.approx([-0.215])
    assert trunk.advantage == fork.advantage
    assert trunk.weight == fork.weight
    assert trunk.weight == pytest.approx(1 / 4)


def test_choices_that_tell_no_prompts_are_rendered_as_before(tokenizer: ChatTokenizer) -> None:
    [first, _] = sequences(_conversations([QUESTION, _choice([40])]), tokenizer, scale_rewards=True)
    [mixed, _] = sequences(
        _conversations([QUESTION, {**_choice([40]), "prompt_token_ids": None}]), tokenizer, scale_rewards=True
    )
    assert first == mixed
    assert first.ids[-1] == 40


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([_exact([7], [40]), _exact([7, 41], [42])], "no single conversation: the prompt of call 1"),
        ([_exact([], [40])], "prompt_token_ids must be a list of token ids"),
        ([_exact(["7"], [40])], "prompt_token_ids must be a list of token ids"),  # type: ignore[list-item]
        ([_exact([True], [40])], "prompt_token_ids must be a list of token ids"),
        ([_exact([-1], [40])], "prompt_token_ids must be a list of token ids"),
        ([_exact([10**6], [40])], "a prompt holds token id 1000000"),
    ],
)
def test_prompts_that_cannot_have_been_are_refused(tokenizer: ChatTokenizer, items: list[Any], message: str) -> None:
    with pytest.raises(BadTrajectory, match=message):
        list(sequences(_conversations(items), tokenizer, scale_rewards=True))

"""The tokens of a rollout, as they are kept for people to read."""

from typing import Any, cast

from openai.types.chat.chat_completion import Choice

from learnloop_service.environment.base import Scenario
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.rollout.rollout import sampled_tokens
from learnloop_service.training.types import Rollout


def choice(tokens: list[tuple[str, bytes | None, float]] | None) -> Choice:
    content = (
        None
        if tokens is None
        else [
            {"token": name, "bytes": None if raw is None else list(raw), "logprob": logprob, "top_logprobs": []}
            for name, raw, logprob in tokens
        ]
    )
    logprobs = None if content is None else {"content": content, "refusal": None}
    message = {"role": "assistant", "content": "something"}
    return Choice.model_validate({"index": 0, "finish_reason": "stop", "message": message, "logprobs": logprobs})


def rollout(*items: Any) -> Rollout:
    trajectory = import_art().Trajectory(messages_and_choices=list(items))
    return Rollout("t", Scenario("s", "train", {}, {}), trajectory, cast(Any, {}))


def test_each_turn_names_its_message_and_its_tokens() -> None:
    question = {"role": "user", "content": "Where?"}
    sampled = rollout(question, choice([("token_id:5", b"He", -0.123456), ("token_id:6", b"re", 0.0)]))
    assert sampled_tokens(sampled) == [{"message": 1, "texts": ["He", "re"], "logprobs": [-0.1235, 0.0]}]


def test_a_character_of_several_tokens_is_the_last_ones() -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    sampled = rollout(choice([("a", first, -1.0), ("b", second, -2.0), ("c", b"\xff", -3.0)]))
    assert sampled_tokens(sampled)[0]["texts"] == ["", "é", "�"]


def test_turns_without_log_probabilities_are_left_out() -> None:
    assert sampled_tokens(rollout(choice(None), choice([]))) == []
    assert sampled_tokens(rollout(choice([("plain", None, -1.0)])))[0]["texts"] == ["plain"]

"""Converts groups of scored trajectories, as ART dumps them, to weighted token sequences.

Advantages, weights and their normalisation are those of ART (openpipe-art 0.5.18, `preprocessing/tokenize.py` and
`preprocessing/pack.py`). Training uses the sampled ids with the sampler's log-probabilities; text is never tokenised
again. If all choices of a conversation give their prompt's ids (`prompt_token_ids`), these are the context and nothing
is rendered.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

from learnloop_service.environment.json_type import Json
from learnloop_service.training.advantages import advantages
from learnloop_service.training.call_sequences import NotOneSequence, SampledCall, TokenSequence, joined

Message = dict[str, Json]


class BadTrajectory(ValueError):
    """A trajectory cannot be trained on. The message says which one and why."""


class NothingToTrain(Exception):
    """The rewards differ in no group, so there is no gradient. `metrics` say what there was, if anything."""

    def __init__(self, reason: str, metrics: dict[str, float] | None = None) -> None:
        super().__init__(reason)
        self.metrics = metrics or {}


class NoSampledTokens(Exception):
    """Rewards differ, but only between trajectories without any token that is known to have been sampled."""

    def __init__(self, groups: int) -> None:
        super().__init__(
            f"the rewards of {groups} groups differ, but no message in them is known to be sampled from this model. "
            "Put the choices of its chat completions into messages_and_choices, with their logprobs. Copies of replies "
            "are recognised for a while after they were sampled, in the same conversation and with the same tools."
        )


class SequenceTokenizer(Protocol):
    """The part of `tokens.ChatTokenizer` that is needed here."""

    vocab_size: int

    def training_sequence(
        self, messages: Sequence[Mapping[str, Json]], tools: Json, exact: Mapping[int, Sequence[int]]
    ) -> tuple[list[int], list[int | None]]: ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order. `exact` and `logprobs` hold the sampled ids and their log-probabilities by message index.

    `choices` are the indices of all messages that are choices of a completion, including those without
    log-probabilities. `tokens` are the token ids as they were sampled in context, if the choices give them.
    """

    messages: tuple[Message, ...]
    tools: list[Json] | None
    exact: Mapping[int, tuple[int, ...]]
    logprobs: Mapping[int, tuple[float, ...]]
    choices: frozenset[int] = frozenset()
    tokens: TokenSequence | None = None


@dataclass(frozen=True, slots=True)
class TrainingTrajectory:
    """One rollout, which is usually one conversation, or several if it forked."""

    conversations: tuple[Conversation, ...]
    reward: float

    @property
    def has_sampled_tokens(self) -> bool:
        """Whether the trajectory has anything to train on."""
        return any(ids for conversation in self.conversations for ids in conversation.exact.values())


Group = tuple[TrainingTrajectory, ...]


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """A conversation's token ids. `trained` are the positions (> 0) in `ids` of sampled tokens.

    `logprobs` are the sampler's, one per trained position. `advantage` and `weight` apply to all of them.
    """

    ids: tuple[int, ...]
    trained: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    weight: float


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Counts of what can teach: trajectories that have a nonzero advantage and sampled tokens, and groups with such
    trajectories. In `groups_with_signal` rewards differ, whether or not anything in them was sampled."""

    groups: int
    groups_with_signal: int
    groups_trainable: int
    trajectories: int
    trajectories_trainable: int

    def metrics(self) -> dict[str, float]:
        """Return the counts as metrics of a training step."""
        return {
            "num_trajectories": float(self.trajectories),
            "num_trajectories_trainable": float(self.trajectories_trainable),
            "num_groups_submitted": float(self.groups),
            "num_groups_equal_rewards": float(self.groups - self.groups_with_signal),
            "num_groups_trainable": float(self.groups_trainable),
        }

    @property
    def warning(self) -> str | None:
        """Say how many groups teach nothing because all their rewards are equal; None if there are none."""
        if not (equal := self.groups - self.groups_with_signal):
            return None
        return (
            f"In {equal} of {self.groups} groups all rewards are equal. Such a group teaches nothing, because each "
            "trajectory is compared with the others of its group. More trajectories in a group, a higher temperature, "
            "or rewards that tell good attempts from bad ones make them differ."
        )


def read_groups(value: Json) -> list[Group]:
    """Parse groups from JSON as written by ART's `TrajectoryGroup.model_dump(mode="json")`. Raises BadTrajectory."""
    if not isinstance(value, list):
        raise BadTrajectory("trajectory_groups must be a list")
    groups = []
    for g, group in enumerate(value):
        where = f"trajectory_groups[{g}]"
        if not isinstance(group, dict) or not isinstance(group.get("trajectories"), list):
            raise BadTrajectory(f"{where} must be an object with a list `trajectories`")
        groups.append(
            tuple(_trajectory(item, f"{where}.trajectories[{t}]") for t, item in enumerate(group["trajectories"]))
        )
    return groups


def replies(value: Json, tokenizer: SequenceTokenizer) -> TokenSequence:
    """Return the token sequence of a conversation, as ART dumps it, with the sampled tokens of those messages that
    `replies` in it names by their indices. Raises BadTrajectory."""
    conversation, chosen = _conversation(value, "conversation"), value["replies"]
    if unknown := [index for index in chosen if index not in conversation.exact]:
        raise BadTrajectory(f"message {unknown[0]} is not a reply with sampled tokens")
    sequence = _tokenised(conversation, tokenizer)
    positions = iter(sequence.trained)
    parts = {index: list(islice(positions, len(ids))) for index, ids in sorted(conversation.exact.items())}
    return TokenSequence(sequence.ids, tuple(chain.from_iterable(parts[index] for index in chosen)), ())


def sequences(
    groups: Sequence[Group], tokenizer: SequenceTokenizer, *, scale_rewards: bool, least_spread: float = 0.0
) -> Iterator[TrainSequence]:
    """Yield the token sequences of all trajectories with an advantage, in the order given. Raises BadTrajectory.

    advantage = (reward - group mean) / (group std + 1e-6); weight = 1 / (trained tokens of the trajectory).
    """
    for group in groups:
        for trajectory, advantage in zip(group, _advantages(group, scale_rewards, least_spread), strict=True):
            if advantage == 0:
                continue
            tokenised = [
                _tokenised(conversation, tokenizer) for conversation in trajectory.conversations if conversation.exact
            ]
            weight = 1 / (sum(len(sequence.trained) for sequence in tokenised) + 1e-6)
            for sequence in tokenised:
                yield TrainSequence(sequence.ids, sequence.trained, sequence.logprobs, advantage, weight)


def _advantages(group: Group, scale_rewards: bool, least_spread: float = 0.0) -> list[float]:
    """Return the advantage of every trajectory of a group."""
    return advantages([trajectory.reward for trajectory in group], scale=scale_rewards, least_spread=least_spread)


def counts(groups: Sequence[Group]) -> GroupCounts:
    """Count what in `groups` can teach (see GroupCounts)."""
    with_signal = [
        [trajectory for trajectory, advantage in zip(group, _advantages(group, False), strict=True) if advantage != 0]
        for group in groups
    ]
    trainable = [sum(trajectory.has_sampled_tokens for trajectory in trajectories) for trajectories in with_signal]
    return GroupCounts(
        groups=len(groups),
        groups_with_signal=sum(bool(trajectories) for trajectories in with_signal),
        groups_trainable=sum(count > 0 for count in trainable),
        trajectories=sum(map(len, groups)),
        trajectories_trainable=sum(trainable),
    )


def normalised(
    items: Sequence[TrainSequence], *, advantage_balance: float, by_trajectory: bool
) -> list[tuple[float, float]]:
    """Return (advantage, weight) of each sequence, scaled as in ART's packing so that the mean weight and the mean
    |advantage| x weight over all trained tokens are 1. Raises NothingToTrain if nothing is left."""
    tokens = [len(item.trained) for item in items]
    weights = [item.weight if by_trajectory else 1.0 for item in items]
    balanced = [_balance(item.advantage, advantage_balance) for item in items]
    total = sum(tokens)
    magnitude = sum(abs(a) * w * n for a, w, n in zip(balanced, weights, tokens, strict=True))
    if total == 0 or magnitude == 0:
        raise NothingToTrain("no group holds sampled tokens with differing rewards")
    mean_weight = sum(w * n for w, n in zip(weights, tokens, strict=True)) / total
    mean_magnitude = magnitude / mean_weight / total
    return [(a / mean_magnitude, w / mean_weight) for a, w in zip(balanced, weights, strict=True)]


def _balance(advantage: float, balance: float) -> float:
    if balance > 0 and advantage <= 0:
        return advantage * (1 - balance)
    if balance < 0 and advantage >= 0:
        return advantage * (1 + balance)
    return advantage


def _tokenised(conversation: Conversation, tokenizer: SequenceTokenizer) -> TokenSequence:
    for index, ids in conversation.exact.items():
        if max(ids) >= tokenizer.vocab_size:
            raise BadTrajectory(f"message {index} holds token id {max(ids)}; the vocabulary has {tokenizer.vocab_size}")
    if conversation.tokens is not None:
        if (highest := max(conversation.tokens.ids)) >= tokenizer.vocab_size:
            raise BadTrajectory(f"a prompt holds token id {highest}; the vocabulary has {tokenizer.vocab_size}")
        return conversation.tokens
    whole, owner = tokenizer.training_sequence(conversation.messages, conversation.tools, conversation.exact)
    trained = tuple(position for position, message in enumerate(owner) if message is not None)
    logprobs = tuple(value for index in sorted(conversation.exact) for value in conversation.logprobs[index])
    return TokenSequence(tuple(whole), trained, logprobs)


def _trajectory(value: Json, where: str) -> TrainingTrajectory:
    if not isinstance(value, dict):
        raise BadTrajectory(f"{where} must be an object")
    reward = value.get("reward", 0.0)
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise BadTrajectory(f"{where}.reward must be a finite number")
    histories = value.get("additional_histories") or []
    if not isinstance(histories, list):
        raise BadTrajectory(f"{where}.additional_histories must be a list")
    conversations = [_conversation(value, where)]
    conversations += [_conversation(item, f"{where}.additional_histories[{i}]") for i, item in enumerate(histories)]
    return TrainingTrajectory(tuple(conversations), float(reward))


def _conversation(value: Json, where: str) -> Conversation:
    items = value.get("messages_and_choices") if isinstance(value, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadTrajectory(f"{where}.messages_and_choices must be a list of objects")
    tools = value.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise BadTrajectory(f"{where}.tools must be a list or null")
    messages: list[Message] = []
    exact: dict[int, tuple[int, ...]] = {}
    logprobs: dict[int, tuple[float, ...]] = {}
    prompts: dict[int, tuple[int, ...]] = {}
    choices: set[int] = set()
    for index, item in enumerate(items):
        at = f"{where}.messages_and_choices[{index}]"
        if "finish_reason" not in item and "message" not in item:
            messages.append(_message(item, at))
            continue
        if not isinstance(item.get("message"), dict):
            raise BadTrajectory(f"{at}.message must be an object")
        messages.append(_message(item["message"], at))
        choices.add(index)
        if sampled := _sampled_tokens(item, at):
            exact[index], logprobs[index] = zip(*sampled, strict=True)
        if (prompt := item.get("prompt_token_ids")) is not None:
            prompts[index] = _prompt(prompt, at)
    tokens = None
    if choices and prompts.keys() == exact.keys() == choices:
        calls = [SampledCall(prompts[index], exact[index], logprobs[index]) for index in sorted(choices)]
        try:
            tokens = joined(calls)
        except NotOneSequence as error:
            raise BadTrajectory(f"{where}.messages_and_choices are no single conversation: {error}") from error
    return Conversation(tuple(messages), tools, exact, logprobs, frozenset(choices), tokens)


def _prompt(value: Json, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(token) is int and token >= 0 for token in value):
        raise BadTrajectory(f"{where}.prompt_token_ids must be a list of token ids, and not empty")
    return tuple(value)


def _message(value: Message, where: str) -> Message:
    """Return a message in OpenAI's form, converting LangChain's tool calls, which `art.langgraph` passes on."""
    if not isinstance(value.get("role"), str):
        raise BadTrajectory(f"{where} has no role")
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadTrajectory(f"{where}.tool_calls must be a list of objects")
    return {**value, "tool_calls": [_call(call, where) for call in calls]} if calls else value


def _call(call: Json, where: str) -> Json:
    if "function" not in call and "args" in call:
        function = {"name": call.get("name"), "arguments": json.dumps(call["args"])}
        call = {"id": call.get("id"), "type": "function", "function": function}
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or "arguments" not in function:
        raise BadTrajectory(f"{where}: a tool call must have a function with a name and arguments")
    return call


def _sampled_tokens(choice: Json, where: str) -> list[tuple[int, float]]:
    """Return (token id, log-probability) of each of a choice's tokens. Without logprobs the result is empty, which
    makes the choice context."""
    tokens = (choice.get("logprobs") or {}).get("content") or []
    sampled = []
    for token in tokens:
        try:
            kind, _, number = token["token"].partition(":")
            pair = int(number), float(token["logprob"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadTrajectory(f"{where}.logprobs.content must hold tokens `token_id:N` with a logprob") from None
        if kind != "token_id" or pair[0] < 0 or not pair[1] <= 1e-3 or math.isinf(pair[1]):
            raise BadTrajectory(f"{where}.logprobs.content holds {token['token']!r} with logprob {token['logprob']!r}")
        sampled.append(pair)
    return sampled

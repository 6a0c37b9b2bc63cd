"""Turns a rollout's answered calls into its trajectory: one conversation for each training sequence.

If the endpoint reports the token ids of prompts, sequences are formed by exact token prefix, and each choice keeps the
ids of its prompt. The engine then trains the sampled tokens in exactly the context that the model was shown, without
rendering it again. Other endpoints report only messages, and sequences are formed by whole messages instead.
"""

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from learnloop_service.environment.base import Json
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.call_sequences import sequences_of
from learnloop_service.training.prompt import UNDELIVERED_PARTS, undelivered
from learnloop_service.training.rollout.chat import identity, message_of, sampled_ids
from learnloop_service.training.rollout.model_calls import AnsweredCall

if TYPE_CHECKING:
    from art import Trajectory
    from art.trajectories import History
    from openai.types.chat.chat_completion import Choice

PROMPT_TOKEN_IDS = "prompt_token_ids"
"""Field of a choice with the exact token ids of its prompt, named as in vLLM."""


@dataclass(frozen=True, slots=True)
class _SampledChoice:
    """A choice with its prompt and reply, as tokens if these are known, otherwise as messages (and tools)."""

    call: AnsweredCall
    choice: "Choice"
    prompt: Sequence[Json]
    reply: Sequence[Json]


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One training sequence in ART's form: its choices are trained, its messages are context."""

    messages_and_choices: list[Any]
    tools: list[Json] | None


def record(trajectory: "Trajectory", calls: Sequence[AnsweredCall], prompt: Mapping[str, str] | None = None) -> None:
    """Put the calls into the trajectory. Of a rollout with a prompt, given by the texts of its parts, count those that
    its first call was without, or that replaced a text of no call.

    The earliest sequence becomes the trajectory's conversation, the others its additional histories. Without calls the
    trajectory keeps its opening messages.
    """
    if calls:
        missing = [set(call.missing) for call in calls if call.missing is not None]
        nowhere = set.intersection(*missing) if missing else None
        note_delivery(trajectory, prompt or {}, calls[0].messages, calls[0].tools, nowhere)
    history_type = import_art("art.trajectories").History
    for number, conversation in enumerate(conversations(calls)):
        history: Trajectory | History = trajectory
        if number:
            trajectory.additional_histories.append(history_type(messages_and_choices=[]))
            history = trajectory.additional_histories[-1]
        # Set after construction, because ART's validation would parse replies as plain messages.
        history.messages_and_choices = conversation.messages_and_choices
        history.tools = conversation.tools


def note_delivery(
    trajectory: "Trajectory",
    prompt: Mapping[str, str],
    messages: Sequence[Mapping[str, Json]],
    tools: Sequence[Json],
    nowhere: Collection[str] | None = None,
) -> None:
    """Count the parts of a rollout's prompt that its first request is without; those that replaced a text `nowhere`, if
    that is known. A prompt that does not reach the model must not look as if it did not help."""
    if prompt:
        lacking = undelivered(prompt, messages, tools) if nowhere is None else nowhere
        trajectory.metrics[UNDELIVERED_PARTS] = len(lacking)


def conversations(calls: Sequence[AnsweredCall]) -> list[TrainingSequence]:
    """Return the training sequences of a rollout, ordered by their first call."""
    sampled = _sampled_choices(calls)
    return [
        _conversation(part)
        for numbers in sequences_of(sampled)
        for part in _split_at_missing_replies([sampled[number] for number in numbers])
    ]


def _sampled_choices(calls: Sequence[AnsweredCall]) -> list[_SampledChoice]:
    exact = [_by_tokens(call, choice) for call in calls for choice in call.completion.choices]
    sampled = [choice for choice in exact if choice is not None]
    if len(sampled) == len(exact):
        return sampled
    return [_by_messages(call, choice) for call in calls for choice in call.completion.choices]


def _by_tokens(call: AnsweredCall, choice: "Choice") -> _SampledChoice | None:
    """Return the choice with its token ids, or None if those of the prompt or the reply are unknown."""
    prompt = (call.completion.model_extra or {}).get(PROMPT_TOKEN_IDS)
    reply = sampled_ids(choice)
    if prompt is None or reply is None:
        return None
    exact = choice.model_copy(update={PROMPT_TOKEN_IDS: prompt})
    (exact.model_extra or {}).pop("token_ids", None)  # the log-probabilities name the ids already
    return _SampledChoice(call, exact, prompt, reply)


def _by_messages(call: AnsweredCall, choice: "Choice") -> _SampledChoice:
    prompt = [json.dumps(list(call.tools), sort_keys=True), *map(identity, call.messages)]
    return _SampledChoice(call, choice, prompt, [identity(message_of(choice))])


def _split_at_missing_replies(sequence: list[_SampledChoice]) -> Iterator[list[_SampledChoice]]:
    """Split the sequence before each call whose messages have no assistant message in the place of the previous call's
    reply, because no message can then stand for that reply."""
    part = sequence[:1]
    for before, after in itertools.pairwise(sequence):
        index, messages = len(before.call.messages), after.call.messages
        if index < len(messages) and messages[index].get("role") == "assistant":
            part.append(after)
        else:
            yield part
            part = [after]
    if part:
        yield part


def _conversation(sequence: Sequence[_SampledChoice]) -> TrainingSequence:
    last = sequence[-1]
    items: list[Any] = [*last.call.messages, last.choice]
    for earlier in sequence[:-1]:
        items[len(earlier.call.messages)] = earlier.choice
    return TrainingSequence(items, list(last.call.tools) or None)


def messages_of(history: "Trajectory | History") -> list[dict[str, Json]]:
    """Return the whole conversation in OpenAI's form, without token-level data."""
    return [item if isinstance(item, dict) else message_of(item) for item in history.messages_and_choices]  # type: ignore[misc]


def transcript_of(trajectory: "Trajectory") -> list[dict[str, Json]]:
    """Return what a judge reads: the main conversation, and the messages of additional histories that it does not
    have."""
    return transcript([messages_of(trajectory), *map(messages_of, trajectory.additional_histories)])


def transcript(histories: Sequence[Sequence[dict[str, Json]]]) -> list[dict[str, Json]]:
    """Return the same as `transcript_of` for stored conversations."""
    joined, identities = [], set[str]()
    for number, messages in enumerate(histories):
        joined += [message for message in messages if not number or identity(message) not in identities]
        identities |= set(map(identity, messages))
    return joined

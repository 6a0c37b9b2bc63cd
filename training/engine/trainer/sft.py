"""Supervised steps on conversations. The assistant's tokens are learned; the others get less weight or none."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.text.tokens import BadConversation, ChatTokenizer
from learnloop_service.training.engine.trainer.grpo_loss import BadOptions
from learnloop_service.training.engine.trainer.grpo_step import StepProgress
from learnloop_service.training.engine.trainer.optimizer import NonFiniteGradient
from learnloop_service.training.engine.trainer.padded_batches import Batch
from learnloop_service.training.engine.trainer.policy import Policy
from learnloop_service.training.engine.trainer.trajectories import BadTrajectory, Message, NothingToTrain
from learnloop_service.training.protocol.validation_message import message_of

log = structlog.get_logger(__name__)


class SftOptions(BaseModel):
    """Options of a supervised job. Batches are taken in the order given."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    batch_size: int = Field(default=2, ge=1)
    """Number of conversations per optimizer step."""
    learning_rate: float | list[float] = 5e-5
    """Learning rate of all batches, or a list with one per batch."""
    context_weight: float = Field(default=0.0, ge=0, le=1)
    """Weight of tokens that are not the assistant's."""
    max_grad_norm: float = Field(default=1.0, gt=0)

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> "SftOptions":
        """Options from a request's `config`, where None means unset. Raises BadOptions."""
        try:
            return cls.model_validate({name: value for name, value in (config or {}).items() if value is not None})
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, fault['loc']))}: {message_of(fault)}" for fault in error.errors())
            raise BadOptions(f"bad config: {'; '.join(faults)}") from error


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation to learn from."""

    messages: tuple[Message, ...]
    tools: list[Json] | None = None
    name: str = "a conversation"
    """Name of the conversation in error messages."""


@dataclass(frozen=True, slots=True)
class SupervisedSequence:
    """Token ids, the learned positions (> 0) in them, and the weight of each position."""

    ids: tuple[int, ...]
    learnt: tuple[int, ...]
    weights: tuple[float, ...]
    name: str


def read_examples(value: Json, field: str = "training_data") -> list[Example]:
    """Parse examples from JSON: `[{"messages": [...], "tools": [...], "id": "..."}]`. Only the messages are required.

    An assistant message with `"weight": 0` is context, as in OpenAI's fine-tuning files. Raises BadTrajectory.
    """
    if not isinstance(value, list) or not value:
        raise BadTrajectory(f"{field} must be a list of conversations, and not empty")
    examples = []
    for number, item in enumerate(value):
        where = f"{field}[{number}]"
        messages = item.get("messages") if isinstance(item, dict) else None
        tools = item.get("tools") if isinstance(item, dict) else None
        if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
            raise BadTrajectory(f"{where}.messages must be a list of messages")
        if any(message.get("weight", 1) not in (0, 1) for message in messages):
            raise BadTrajectory(f"{where}.messages: the weight of a message is 0 or 1")
        if not any(map(_is_learnt, messages)):
            raise BadTrajectory(f"{where} has no assistant message to learn")
        if tools is not None and not isinstance(tools, list):
            raise BadTrajectory(f"{where}.tools must be a list or null")
        examples.append(Example(tuple(messages), tools, str(item.get("id", where))))
    return examples


def _is_learnt(message: Message) -> bool:
    return bool(message["role"] == "assistant" and message.get("weight", 1) == 1)


def supervised_sequences(
    examples: Sequence[Example], tokenizer: ChatTokenizer, context_weight: float
) -> Iterator[SupervisedSequence]:
    """Yield the examples' token sequences, in which learned messages weigh 1 and everything else `context_weight`.

    Raises BadTrajectory.
    """
    for example in examples:
        try:
            ids, owner = tokenizer.supervised_sequence(example.messages, example.tools)
        except BadConversation as error:
            raise BadTrajectory(f"{example.name}: {error}") from error
        learns = [_is_learnt(message) for message in example.messages]
        weights = [1.0 if message is not None and learns[message] else context_weight for message in owner]
        learnt = tuple(position for position, weight in enumerate(weights) if weight > 0 and position > 0)
        yield SupervisedSequence(tuple(ids), learnt, tuple(weights[position] for position in learnt), example.name)


def token_count(example: Example, tokenizer: ChatTokenizer) -> int | None:
    """Return the number of tokens of an example in training, or None if the chat template refuses it."""
    try:
        return len(tokenizer.supervised_sequence(example.messages, example.tools)[0])
    except BadConversation:
        return None


def sft_step(
    policy: Policy,
    items: Sequence[SupervisedSequence],
    options: SftOptions,
    *,
    held_out: Sequence[SupervisedSequence] = (),
    micro_batch_tokens: int | None,
) -> Generator[StepProgress, None, dict[str, float]]:
    """Train on all items with one optimizer step per batch. Yields after every micro-batch and returns metrics.

    `loss` is the mean over batches of the weighted mean cross-entropy in nats before each step. `held_out_loss` and
    `held_out_loss_before` are those of the items in `held_out`, if any, after all steps and before the first. Items
    with more tokens than the model's context are left out of their batches and counted (`num_overlong`). Raises
    BadOptions, BadTrajectory, NothingToTrain or NonFiniteGradient, after which the policy's weights must be discarded.
    """
    started = time.perf_counter()
    batches = [items[start : start + options.batch_size] for start in range(0, len(items), options.batch_size)]
    rates = _rates(options, len(batches))
    if not batches:
        raise NothingToTrain("there are no conversations")
    overlong = _overlong([*items, *held_out], policy.context)
    held_out = _fitting(held_out, policy.context)
    fitting = [_fitting(batch, policy.context) for batch in batches]
    trained = [(batch, rate) for batch, rate in zip(fitting, rates, strict=True) if batch]
    if not trained:
        longer = f"{items[0].name} has {len(items[0].ids)} tokens; the model's context is {policy.context}"
        raise BadTrajectory(f"{longer}, and no other conversation is shorter")
    items = [item for batch, _ in trained for item in batch]
    before = yield from _held_out_loss(policy, held_out, micro_batch_tokens, StepProgress(0, len(trained)))
    policy.optimizer.pursue("supervised")
    losses, norms = [], []
    for number, (batch, rate) in enumerate(trained):
        loss = yield from _accumulate(policy, batch, micro_batch_tokens, StepProgress(number, len(trained)))
        norm = policy.optimizer.step(learning_rate=rate, max_grad_norm=options.max_grad_norm)
        losses.append(loss)
        norms.append(norm)
        yield StepProgress(number + 1, len(trained), {"loss": loss, "grad_norm": norm, "learning_rate": rate})
    after = yield from _held_out_loss(policy, held_out, micro_batch_tokens, StepProgress(len(trained), len(trained)))
    return {
        **({"held_out_loss_before": before, "held_out_loss": after} if held_out else {}),
        **({"num_overlong": float(len(overlong))} if overlong else {}),
        "loss": sum(losses) / len(losses),
        "grad_norm": sum(norms) / len(norms),
        "learning_rate": trained[-1][1],
        "num_trajectories": float(len(items)),
        "num_trainable_tokens": float(sum(len(item.learnt) for item in items)),
        "num_gradient_steps": float(len(trained)),
        "seconds": time.perf_counter() - started,
    }


def _rates(options: SftOptions, batches: int) -> list[float]:
    """Return the learning rate of each batch. Raises BadOptions."""
    rates = options.learning_rate if isinstance(options.learning_rate, list) else [options.learning_rate] * batches
    if len(rates) != batches:
        raise BadOptions(f"learning_rate has {len(rates)} values for {batches} batches")
    return rates


def _overlong(items: Sequence[SupervisedSequence], context: int) -> list[str]:
    """Return the names of the items that are longer than the context, and log them."""
    names = [item.name for item in items if len(item.ids) > context]
    if names:
        log.warning("conversations longer than the context", names=names)
    return names


def _fitting(items: Sequence[SupervisedSequence], context: int) -> list[SupervisedSequence]:
    return [item for item in items if len(item.ids) <= context]


def _accumulate(
    policy: Policy, items: Sequence[SupervisedSequence], micro_batch_tokens: int | None, progress: StepProgress
) -> Generator[StepProgress, None, float]:
    """Run one batch backward and return its weighted mean cross-entropy."""
    loss = yield from _loss(policy, items, micro_batch_tokens, progress, train=True)
    yield from policy.peers.add_gradients(policy.optimizer.parameters, progress)
    return loss


def _held_out_loss(
    policy: Policy, items: Sequence[SupervisedSequence], micro_batch_tokens: int | None, progress: StepProgress
) -> Generator[StepProgress, None, float]:
    """Return the weighted mean cross-entropy of the items, or 0 if there are none."""
    if not items:
        return 0.0
    return (yield from _loss(policy, items, micro_batch_tokens, progress, train=False))


def _loss(
    policy: Policy,
    items: Sequence[SupervisedSequence],
    micro_batch_tokens: int | None,
    progress: StepProgress,
    *,
    train: bool,
) -> Generator[StepProgress, None, float]:
    """Return the weighted mean cross-entropy of the items. If `train` is set, the gradient of this trainer's share is
    accumulated."""
    total = sum(weight for item in items for weight in item.weights)
    share = [items[number] for number in policy.peers.share([item.ids for item in items])]

    def loss_of(batch: Batch, logprobs: Tensor, _: Tensor) -> tuple[Tensor, float]:
        mean = -(logprobs * _weights(batch, share)).sum() / total
        if train and not torch.isfinite(mean):
            raise NonFiniteGradient(f"the loss is {mean.item()}")
        return mean, mean.item()

    def looked_at(batch: Batch) -> float:
        with torch.no_grad():
            return loss_of(batch, *batch.logprobs(policy.model))[1]

    def passes(batches: Sequence[Batch]) -> Generator[StepProgress, None, float]:
        loss = 0.0
        for part in policy.backward(batches, loss_of) if train else policy.lanes.map(looked_at, batches):
            loss += part
            yield progress
        return loss

    ids, learnt = [item.ids for item in share], [item.learnt for item in share]
    loss = yield from policy.in_batches(ids, learnt, micro_batch_tokens, passes)
    [loss] = yield from policy.peers.totals([loss], progress)
    return loss


def _weights(batch: Batch, items: Sequence[SupervisedSequence]) -> torch.Tensor:
    return torch.tensor([w for number in batch.members for w in items[number].weights], device=batch.sequence.device)

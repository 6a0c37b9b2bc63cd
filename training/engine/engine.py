"""The engine without threads or HTTP: models, sampling and training in the calling thread.

The server drives it from its compute thread; a script can use it directly:

    engine = Engine(Registry(data_dir, {"learnloop/tiny": directory}), Sampler())
    model = engine.registry.create(project="demo", name="agent", base_model="learnloop/tiny")
    target = engine.registry.resolve("demo/agent")
    prompt = engine.tokenizer(target).prompt(messages, tools)
    [sample] = engine.sample(target, [SampleRequest(tuple(prompt), target.key, max_tokens=64, seed=1)])
    result = finish(engine.train(model.id, groups, TrainOptions(learning_rate=3e-4)))
"""

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import structlog
import torch

from learnloop_service.training.call_sequences import TokenSequence
from learnloop_service.training.engine.devices import DeviceFigures, device_figures
from learnloop_service.training.engine.fingerprint import fingerprint
from learnloop_service.training.engine.lanes import Lanes
from learnloop_service.training.engine.memory import free_bytes, is_out_of_memory, release_reserved, total_bytes
from learnloop_service.training.engine.registry.base_models import parameter_count
from learnloop_service.training.engine.registry.checkpoints import StoredCheckpoint
from learnloop_service.training.engine.registry.model_record import (
    BadModelDirectory,
    ModelRecord,
    StepTaken,
    Target,
    UnknownModel,
)
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.reproducibility import check
from learnloop_service.training.engine.sampling.requests import Done, OnToken, Sample, SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.text.tokenizers import Tokenizers
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.grpo_step import StepProgress, grpo_step
from learnloop_service.training.engine.trainer.peers import Alone, Peers, digest
from learnloop_service.training.engine.trainer.policy import Model, Policy, load_checkpoint, load_policy
from learnloop_service.training.engine.trainer.sft import Example, SftOptions, sft_step, supervised_sequences
from learnloop_service.training.engine.trainer.trajectories import (
    BadTrajectory,
    Group,
    NoSampledTokens,
    NothingToTrain,
    TrainSequence,
    counts,
    sequences,
)
from learnloop_service.training.engine.weights.flash_attention import use_newest
from learnloop_service.training.engine.weights.fp8 import check_device
from learnloop_service.training.engine.weights.weights import Updatable, Weights, snapshot
from learnloop_service.training.protocol.model_facts import MeasuredToken, Reproducibility

if TYPE_CHECKING:  # imports transformers
    from learnloop_service.training.engine.trainer.pretrained import SharedBases

log = structlog.get_logger(__name__)

T = TypeVar("T")
S = TypeVar("S", TrainSequence, TokenSequence)
Training = Generator[StepProgress, None, "TrainResult"]
"""A training job. It yields after every piece of work, so that sampling can continue in between."""


TRAINING_SHARE = 0.4
"""Share of a GPU's memory that should be free for training."""
WAITING = StepProgress(0, 0)
WRITING_S = 0.005
"""Interval at which a training that waits for its checkpoint lets other requests sample, in seconds."""


class StepConflict(Exception):
    """The model is at a different step than the caller expected. Nothing was trained."""

    def __init__(self, expected: int, step: int) -> None:
        super().__init__(f"the model is at step {step}, not {expected}")
        self.expected = expected
        self.step = step


class TrainingOutOfMemory(Exception):
    """The step did not fit into memory. The weights are unchanged."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a training. `step` is the model's step afterwards. `trained` is False if there was nothing to
    learn, which leaves the model unchanged."""

    step: int
    trained: bool
    metrics: dict[str, float]
    measured: tuple[MeasuredToken, ...] = ()
    """Tokens at which a GRPO step was measured."""
    logprobs: Sequence[Sequence[float]] = ()
    """Log-probabilities of the sampled tokens of each sequence, if these were scored instead."""


class Engine:
    """Samples and trains the models of one registry. Use it from one thread, except for `tokenizer`, which is
    thread-safe."""

    def __init__(
        self,
        registry: Registry,
        sampler: Sampler,
        *,
        device: str = "cpu",
        micro_batch_tokens: int | None = None,
        loaded_checkpoints: int = 4,
        loaded_policies: int = 2,
        threads: int = 1,
        train_threads: int = 1,
        samples: bool = True,
        fp8_training: bool = False,
    ) -> None:
        """`micro_batch_tokens` limits the tokens of one forward and backward pass (None selects what suits the device).
        `loaded_checkpoints` and `loaded_policies` limit what is kept in memory for sampling and for further training.
        `threads` is the number of torch threads for sampling, used in the reproducibility check, and `train_threads`
        that of threads for training: for micro-batches at the same time, or for each of them. Where `threads` is 1, as
        many also sample parts of a batch at the same time. Without `samples`,
        trained weights are not kept for sampling, because it is done elsewhere. With `fp8_training`, adapters of
        Llama-shaped models are trained and sampled over a base in 8 bits (JoinedLayers). Raises Fp8Unsupported."""
        self.registry = registry
        self.sampler = sampler
        self.tokenizer = Tokenizers()
        self.peers: Peers = Alone()
        """The trainers that take steps together with this engine."""
        self._device = torch.device(device)
        self._micro_batch_tokens = micro_batch_tokens
        self._max_weights, self._max_policies = loaded_checkpoints, loaded_policies
        self._threads = threads
        self._train_threads = train_threads
        self._lanes = Lanes(train_threads)
        self.torch_threads_to_train = 1
        """Number of torch threads of the training in progress. It is 1 where micro-batches are computed at the same
        time."""
        self._samples = samples
        self._fp8_training = fp8_training
        if fp8_training:
            check_device(self._device)
        self._bases: SharedBases | None = None
        if self._device.type == "cuda":
            from learnloop_service.training.engine.trainer import pretrained

            log.info("attention on the GPU", flash_attention=use_newest())
            self._bases = pretrained.SharedBases(_devices(self._device), in_fp8=fp8_training)
        self._checked: dict[tuple[bool, frozenset[torch.Size]], Reproducibility] = {}
        self._in_flight: dict[str, int] = {}  # number of requests by weights key, least recently used key first
        self._loaded_of: dict[str, str] = {}  # model ids by weights key
        self._policies: dict[str, tuple[int, Policy]] = {}  # (step, policy) by model id; least recently used first

    @property
    def devices(self) -> list[DeviceFigures]:
        """What it computes on. Can be read from any thread."""
        return device_figures(_devices(self._device))

    @property
    def training_weights(self) -> Literal["exact", "fp8"]:
        """The precision of the base under adapters of Llama-shaped models in training."""
        return "fp8" if self._fp8_training else "exact"

    # Sampling

    def submit(self, target: Target, request: SampleRequest, on_token: OnToken | None, on_done: Done) -> int:
        """Queue a request for the target's weights, loading them if necessary; see Sampler.submit.

        Raises BadModelDirectory or BadBaseModel if they cannot be loaded.
        """
        self._load(target)
        key = target.key
        self._in_flight[key] += 1

        def finished(outcome: Sample | Exception) -> None:
            if key in self._in_flight:
                self._in_flight[key] -= 1
            on_done(outcome)

        try:
            return self.sampler.submit(request, on_token, finished)
        except Exception:
            self._in_flight[key] -= 1
            raise

    def sample(self, target: Target, requests: Iterable[SampleRequest]) -> list[Sample]:
        """Sample all requests together and return the samples in order. Raises the first request's error."""
        outcomes: dict[int, Sample | Exception] = {}
        count = 0
        for count, request in enumerate(requests, start=1):
            self.submit(target, request, None, partial(outcomes.__setitem__, count))
        while len(outcomes) < count:
            self.sampler.step()
        samples = []
        for number in range(1, count + 1):
            outcome = outcomes[number]
            if isinstance(outcome, Exception):
                raise outcome
            samples.append(outcome)
        return samples

    @property
    def reproducibility(self) -> Reproducibility | None:
        """The combined reproducibility of all models loaded so far: that of the first one that is not reproducible, if
        any, or None before the first model. Can be read from any thread."""
        results = list(self._checked.values())
        return next((result for result in results if not result.reproducible), results[-1] if results else None)

    def check(self, model_id: str) -> Reproducibility:
        """Check whether the model's samples and training are bit-reproducible, loading it if necessary. Raises
        UnknownModel or BadModelDirectory."""
        record = self.registry.get(model_id)
        target = self.registry.resolve(record.full_name)
        self._load(target)
        weights = self.sampler.weights(target.key)
        assert weights is not None
        reproducibility, newest = self._check(weights), self.registry.newest(model_id)
        return replace(reproducibility, fingerprint=fingerprint(reproducibility, record.tuning, newest.manifest))

    def _check(self, weights: Weights) -> Reproducibility:
        """Run the check once for all weights of the same shapes."""
        shapes = weights.exact_attention, frozenset(matrix.shape for matrix in weights.matrices())
        if shapes not in self._checked:
            self._checked[shapes] = reproducibility = check(weights, self._threads)
            log.info(
                "reproducibility checked", reproducible=reproducibility.reproducible, reason=reproducibility.reason
            )
        return self._checked[shapes]

    @property
    def loaded(self) -> list[str]:
        """Keys of the weights that are loaded for sampling."""
        return list(self._in_flight)

    def _load(self, target: Target) -> None:
        if target.model is not None and self._loaded_of.get(target.key, target.model.id) != target.model.id:
            self._drop_weights(target.key)  # another engine has deleted that model and created one of the same name
        if target.key in self._in_flight:
            self._in_flight[target.key] = self._in_flight.pop(target.key)
            return
        self._make_room_for(target, 4)
        with self.registry.loading(target), self._recheck_on_failure(target):
            model = load_checkpoint(target.directory, target.base_directory, target.tuning, self._device, self._bases)
        self._add_weights(target, self._snapshot(model))

    @contextmanager
    def _recheck_on_failure(self, target: Target) -> Iterator[None]:
        """If loading weights fails, check whether their files were lost since they were verified. Raises
        CorruptCheckpoint."""
        try:
            if not target.directory.is_dir():  # its step was trained and could not be written
                raise BadModelDirectory(f"there is no {target.directory.name} of {target.key}")
            yield
        except (BadModelDirectory, OSError):
            if target.model is not None:
                self.registry.recheck(target.model.id, target.step)
            raise

    def _after_training(self, before: Target, after: Target, policy: Policy) -> None:
        """Use the trained weights for sampling. On a GPU they replace the previous ones in place if these are idle;
        otherwise they only take over their cache."""
        if not self._samples:
            return
        weights = self.sampler.weights(before.key)
        idle = self._in_flight.get(before.key) == 0
        if idle and isinstance(weights, Updatable):
            weights.update(policy.model)
            self.sampler.rename(before.key, after.key)
            self._in_flight[after.key] = self._in_flight.pop(before.key)
            self._loaded_of[after.key] = self._loaded_of.pop(before.key)
        else:
            weights = self._snapshot(policy.model)
            self._add_weights(after, weights, successor_of=before.key)

    def _snapshot(self, model: Model) -> Weights:
        return snapshot(model, lanes=self._lanes if self._threads == 1 else None)

    def _make_room(self, policy: Policy) -> None:
        """Free the memory of idle conversations for training if little else is free."""
        if any(free_bytes(device) < TRAINING_SHARE * total_bytes(device) for device in policy.devices):
            self.sampler.release_idle()

    def _make_room_for(self, target: Target, parameter_bytes: int) -> None:
        """Before loading weights of `parameter_bytes` per parameter, free memory held by idle objects: caches first,
        then the least recently used weights and policies."""
        directory, shared = target.base_directory, target.tuning.mode == "lora"
        if shared and (self._bases is None or self._bases.has(directory, target.tuning)):
            return
        try:
            if self._bases and shared:
                needed, devices = self._bases.weight_bytes(directory), self._bases.devices(directory)
            else:
                needed, devices = parameter_bytes * parameter_count(directory), (self._device,)
        except (UnknownModel, BadModelDirectory):
            return  # the files are lost, which loading will report
        for give_way in self._idle():
            if all(free_bytes(device) >= needed / len(devices) for device in devices):
                return
            give_way()
            gc.collect()  # modules and their adapters form reference cycles
            if self._device.type == "cuda":
                release_reserved()

    def _idle(self) -> Iterator[Callable[[], object]]:
        """Yield functions that free memory without ending any request, cheapest first."""
        yield self.sampler.release_idle
        for key in [key for key, requests in self._in_flight.items() if requests == 0]:
            yield partial(self._drop_weights, key)
        for model_id in list(self._policies):
            yield partial(self._policies.pop, model_id)

    def _add_weights(self, target: Target, weights: Weights, successor_of: str | None = None) -> None:
        idle = [key for key, requests in self._in_flight.items() if requests == 0]
        for key in idle[: max(0, len(self._in_flight) + 1 - self._max_weights)]:
            self._drop_weights(key)
        self._in_flight[target.key] = 0
        if target.model is not None:
            self._loaded_of[target.key] = target.model.id
        self._check(weights)
        self.sampler.set_weights(target.key, weights, self.tokenizer(target).decode, successor_of)

    def _drop_weights(self, key: str) -> None:
        self._in_flight.pop(key, None)
        self._loaded_of.pop(key, None)
        self.sampler.drop_weights(key)

    # Training

    def train(
        self,
        model_id: str,
        groups: Sequence[Group],
        options: TrainOptions,
        *,
        expected_step: int | None = None,
    ) -> Training:
        """Take one GRPO step on the newest checkpoint and commit it as the next one.

        Raises UnknownModel, StepConflict, BadTrajectory, NoSampledTokens, NonFiniteGradient, TrainingOutOfMemory or
        CheckpointNotWritten, each of which leaves the model unchanged.
        """

        def work(policy: Policy, tokenizer: ChatTokenizer) -> Generator[StepProgress, None, dict[str, float]]:
            items = []
            scale, least = options.scale_rewards, options.least_spread
            for item in sequences(groups, tokenizer, scale_rewards=scale, least_spread=least):
                items.append(_fitting(item, policy))
                yield StepProgress(0, 0)
            count = counts(groups)
            if count.groups_with_signal and not count.groups_trainable:
                raise NoSampledTokens(count.groups_with_signal)
            if count.warning is not None:
                log.warning("groups teach nothing", model_id=model_id, reason=count.warning)
            try:
                metrics = yield from grpo_step(policy, items, options, micro_batch_tokens=self._micro_batch_tokens)
            except NothingToTrain as nothing:
                raise NothingToTrain(str(nothing), count.metrics()) from nothing
            metrics |= count.metrics()
            yield StepProgress(1, 1, metrics)
            return metrics

        return self._training(model_id, expected_step, work)

    def train_supervised(
        self,
        model_id: str,
        examples: Sequence[Example],
        options: SftOptions,
        *,
        held_out: Sequence[Example] = (),
        expected_step: int | None = None,
    ) -> Training:
        """Take supervised steps, one per batch of examples, and commit them as one checkpoint. For `held_out` only the
        loss is measured. Raises the errors of `train`."""

        def work(policy: Policy, tokenizer: ChatTokenizer) -> Generator[StepProgress, None, dict[str, float]]:
            items = []
            for item in supervised_sequences([*examples, *held_out], tokenizer, options.context_weight):
                items.append(item)
                yield StepProgress(0, 0)
            return (
                yield from sft_step(
                    policy,
                    items[: len(examples)],
                    options,
                    held_out=items[len(examples) :],
                    micro_batch_tokens=self._micro_batch_tokens,
                )
            )

        return self._training(model_id, expected_step, work)

    def score(self, target: Target, sequences: Sequence[TokenSequence]) -> Training:
        """Compute the log-probabilities that a checkpoint gives to the sampled tokens of each sequence, as in training.

        Raises BadTrajectory if a sequence is longer than the context, and the errors of loading weights.
        """
        policy = self._policy(target)
        ids = [_fitting(sequence, policy).ids for sequence in sequences]
        sampled = [sequence.trained for sequence in sequences]
        batches = yield from policy.score(ids, sampled, self._micro_batch_tokens, WAITING)
        scores = {number: part.tolist() for _, parts in batches for number, part in parts.items()}
        return TrainResult(target.step, False, {}, logprobs=[scores[number] for number in range(len(ids))])

    def restore(self, model_id: str, step: int, *, expected_step: int | None = None) -> Training:
        """Commit the weights and the optimizer's state of an earlier checkpoint as the next one.

        Raises UnknownModel, StepConflict, CorruptCheckpoint or CheckpointNotWritten, each of which leaves the model
        unchanged.
        """
        parent = self._parent(model_id, expected_step)
        yield from self._commit(model_id, parent, partial(self.registry.restore, model_id, parent, step))
        self._policies.pop(model_id, None)
        restored = self.registry.newest(model_id)
        log.info("model restored", model=restored.manifest.model, step=restored.step, restored_step=step)
        return TrainResult(restored.step, True, dict(restored.manifest.metrics))

    def _parent(self, model_id: str, expected_step: int | None) -> StoredCheckpoint:
        """Return the newest checkpoint. Raises UnknownModel or StepConflict."""
        parent = self.registry.newest(model_id)
        if expected_step not in (None, parent.step):
            raise StepConflict(expected_step, parent.step)
        return parent

    def _training(
        self,
        model_id: str,
        expected_step: int | None,
        work: Callable[[Policy, ChatTokenizer], Generator[StepProgress, None, dict[str, float]]],
    ) -> Training:
        record = self.registry.get(model_id)
        parent = self._parent(model_id, expected_step)
        target = self.registry.resolve(f"{record.full_name}@{parent.step}")
        policy = self._policy(target)
        policy.peers = peers = self.peers
        policy.measured = ()
        committed, after = False, target.next
        try:
            metrics = yield from work(policy, self.tokenizer(target))
            yield from peers.compare(digest(policy.optimizer.parameters), WAITING)
            self._after_training(target, after, policy)
            if peers.writes:
                commit = partial(self.registry.commit, model_id, parent, metrics, policy.save)
                yield from self._commit(model_id, parent, commit, after if self._samples else None, metrics)
            yield from peers.compare(parent.step, WAITING)  # until it is written
            committed = True
        except NothingToTrain as nothing:
            return TrainResult(parent.step, False, nothing.metrics)
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise TrainingOutOfMemory("the training step does not fit into memory") from error
            raise
        finally:
            policy.peers = Alone()
            if not committed:
                # Whatever happened to these weights, the checkpoint on disk is authoritative.
                self._policies.pop(model_id, None)
                self._drop_weights(after.key)
        self._policies[model_id] = (after.step, policy)
        log.info("model trained", model=record.full_name, step=after.step)
        return TrainResult(after.step, True, metrics, policy.measured)

    def _commit(
        self,
        model_id: str,
        parent: StoredCheckpoint,
        commit: Callable[[], object],
        early: Target | None = None,
        metrics: dict[str, float] | None = None,
    ) -> Generator[StepProgress, None, None]:
        """Write the next checkpoint by calling `commit` while conversations are sampled, `early` among them if that is
        in the sampler already. Raises StepConflict and the errors of `commit`."""
        with ThreadPoolExecutor(1, "checkpoint") as writer:
            written = writer.submit(commit)
            try:
                if early is not None:
                    self._in_flight[early.key] += 1  # what cannot be loaded again must not give way
                    self.registry.unwritten = early
                    yield StepProgress(0, 0, metrics, trained=early.step)
                while not wait([written], 0 if self.sampler.busy else WRITING_S).done:
                    yield WAITING
                written.result()
            except StepTaken as conflict:
                raise StepConflict(parent.step, self.registry.newest(model_id).step) from conflict
            finally:
                self.registry.unwritten = None
                if early is not None and early.key in self._in_flight:
                    self._in_flight[early.key] -= 1

    def _policy(self, target: Target) -> Policy:
        """Return a checkpoint with gradients and room for its passes, from memory if it was the last one of its
        model."""
        assert target.model is not None
        step, policy = self._policies.pop(target.model.id, (None, None))
        if policy is None or step != target.step:
            while len(self._policies) >= self._max_policies:
                self._policies.pop(next(iter(self._policies)))
            base = partial(self.registry.base_directory, target.model.base_model)
            self._make_room_for(target, 16)
            with self.registry.loading(target), self._recheck_on_failure(target):
                policy = load_policy(target.directory, base, target.tuning, self._device, self._bases)
            policy.use_lanes(self._lanes)
        self._policies[target.model.id] = (target.step, policy)
        self.torch_threads_to_train = 1 if policy.lanes.count > 1 else self._train_threads
        self._make_room(policy)
        return policy

    # Deletion

    def delete_model(self, model_id: str) -> None:
        """Delete a model from memory and disk; its unfinished requests fail. Raises UnknownModel."""
        self.forget(self.registry.delete(model_id))

    def forget(self, record: ModelRecord) -> None:
        """Drop a model from memory. Its unfinished requests fail."""
        self._policies.pop(record.id, None)
        self.tokenizer.forget(record)
        for key in [key for key in self._in_flight if key.startswith(f"{record.full_name}@")]:
            self._drop_weights(key)

    def delete_checkpoints(self, model_id: str, steps: Sequence[int]) -> tuple[list[int], list[int]]:
        """Delete checkpoints from memory and disk like Registry.delete_checkpoints."""
        deleted, not_found = self.registry.delete_checkpoints(model_id, steps)
        self.forget_checkpoints(self.registry.get(model_id), deleted)
        return deleted, not_found

    def forget_checkpoints(self, record: ModelRecord, steps: Iterable[int]) -> None:
        """Drop these checkpoints' weights for sampling from memory. Their unfinished requests fail."""
        for step in steps:
            self._drop_weights(f"{record.full_name}@{step}")


def _devices(device: torch.device) -> tuple[torch.device, ...]:
    """Return the devices that "cuda" stands for: every GPU that the process sees, unless one is named."""
    if device.type != "cuda" or device.index is not None:
        return (device,)
    return tuple(torch.device("cuda", number) for number in range(torch.cuda.device_count()))


def finish(work: Generator[object, None, T]) -> T:
    """Run a training, or a part of one, to its end."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def _fitting(item: S, policy: Policy) -> S:
    if len(item.ids) > policy.context:
        raise BadTrajectory(f"a conversation has {len(item.ids)} tokens; the model's context is {policy.context}")
    return item

"""Training steps of the engine in one process."""

import asyncio
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from learnloop_service.training.engine import engine as engine_module
from learnloop_service.training.engine.engine import Engine, StepConflict, TrainingOutOfMemory, finish
from learnloop_service.training.engine.registry.base_models import parameter_count
from learnloop_service.training.engine.registry.checkpoints import CheckpointNotWritten
from learnloop_service.training.engine.registry.model_record import UnknownModel
from learnloop_service.training.engine.sampling.requests import Sample, SampleRequest, UnknownWeights
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.optimizer import NonFiniteGradient
from learnloop_service.training.engine.trainer.padded_batches import padded_batches
from learnloop_service.training.engine.trainer.policy import Policy, load_checkpoint
from learnloop_service.training.engine.trainer.pretrained import load_model
from learnloop_service.training.engine.trainer.sft import Example, SftOptions
from learnloop_service.training.engine.trainer.trajectories import BadTrajectory, Conversation, TrainingTrajectory
from learnloop_service.training.tuning import Tuning
from tests.conditions import until
from tests.fakes.engine import make_engine, odd_share, sampled_group

FAST = TrainOptions(learning_rate=1e-2)
LORA = Tuning("lora", rank=4, alpha=8)


def _create(engine: Engine, name: str = "agent", tuning: Tuning | None = None) -> str:
    return engine.registry.create(project="test", name=name, base_model="tiny", tuning=tuning).id


def _weights_hash(engine: Engine, model_id: str) -> str:
    """Hash of the newest checkpoint's weights and optimizer state."""
    directory = engine.registry.newest(model_id).directory
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _weights(engine: Engine, model_id: str) -> list[torch.Tensor]:
    """The weights of the newest checkpoint."""
    tensors = load_file(next(engine.registry.newest(model_id).directory.glob("*model.safetensors")))
    return [tensors[name] for name in sorted(tensors)]


def _train(engine: Engine, model_id: str, steps: int, options: TrainOptions = FAST, count: int = 8) -> dict[str, float]:
    """Take steps; the metrics of the last one."""
    name = engine.registry.get(model_id).full_name
    metrics: dict[str, float] = {}
    for _ in range(steps):
        seed = 1000 * engine.registry.newest(model_id).step
        group = sampled_group(engine, name, odd_share, count=count, first_seed=seed)
        metrics = finish(engine.train(model_id, [group], options)).metrics
    return metrics


def test_the_reward_rises(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    before = sampled_group(engine, "test/agent@0", odd_share, count=32)
    _train(engine, model, 12, count=32)
    after = sampled_group(engine, "test/agent", odd_share, count=32)
    assert sum(t.reward for t in after) / 32 > sum(t.reward for t in before) / 32 + 0.2
    # Old checkpoints can still be sampled, and are what they were.
    assert sampled_group(engine, "test/agent@0", odd_share, count=32) == before


@pytest.mark.parametrize("tuning", [Tuning(), LORA], ids=lambda tuning: str(tuning.mode))
def test_the_same_run_gives_the_same_weights_bit_by_bit(tmp_path: Path, tuning: Tuning) -> None:
    hashes = set()
    for name in ("one", "two"):
        engine = make_engine(tmp_path / name)
        model = _create(engine, tuning=tuning)
        _train(engine, model, 3, TrainOptions(learning_rate=1e-2, kl_penalty_coef=0.1))
        hashes.add(_weights_hash(engine, model))
    assert len(hashes) == 1


@pytest.mark.parametrize("tuning", [Tuning(), LORA], ids=lambda tuning: str(tuning.mode))
def test_a_restart_between_two_steps_changes_nothing(tmp_path: Path, tuning: Tuning) -> None:
    engine = make_engine(tmp_path / "whole")
    model = _create(engine, tuning=tuning)
    _train(engine, model, 3)
    whole = _weights_hash(engine, model)

    for steps in (2, 1):
        engine = make_engine(tmp_path / "restarted")
        record = engine.registry.create(
            project="test", name="agent", base_model="tiny", tuning=tuning, return_existing=True
        )
        _train(engine, record.id, steps)
    assert _weights_hash(engine, record.id) == whole


def test_first_ratios_are_one_and_figures_are_sane(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    metrics = _train(engine, model, 1)
    assert metrics["probs_corr"] > 0.9999
    assert metrics["kl_div"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clipped_share"] == 0.0
    assert metrics["num_trajectories"] == 8
    assert metrics["num_groups_trainable"] == 1
    assert metrics["grad_norm"] > 0
    assert 0 < metrics["entropy"] < 6
    manifest = engine.registry.newest(model).manifest
    assert manifest.metrics == metrics
    assert manifest.parent == "test/agent@0"


@pytest.mark.parametrize("family", ["qwen3", "gpt_neox", "mistral"])
def test_log_probabilities_of_training_are_those_of_sampling(tmp_path: Path, family: str) -> None:
    engine = make_engine(tmp_path, family=family)
    _create(engine)
    group = sampled_group(engine, "test/agent", odd_share, count=3)
    target = engine.registry.resolve("test/agent")
    tokenizer = engine.tokenizer(target)
    model = load_model(target.directory, torch.device("cpu"), torch.float32)
    conversations = [trajectory.conversations[0] for trajectory in group]
    ids, owners = zip(*(tokenizer.training_sequence(c.messages, None, c.exact) for c in conversations), strict=True)
    chosen = [[position for position, owner in enumerate(turns) if owner is not None] for turns in owners]
    for batch in padded_batches(ids, chosen, 64, torch.device("cpu")):
        logprobs, _ = batch.logprobs(model)
        sampled = torch.tensor([value for number in batch.members for value in conversations[number].logprobs[1]])
        assert torch.allclose(logprobs, sampled, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"kl_penalty_coef": 0.5}, {"precalculate_logprobs": True}], ids=str)
def test_the_step_does_not_depend_on_how_it_is_cut(tmp_path: Path, options: dict[str, Any]) -> None:
    weights = []
    for name, tokens in (("whole", 4096), ("cut", 40)):
        engine = make_engine(tmp_path / name, micro_batch_tokens=tokens)
        model = _create(engine)
        _train(engine, model, 1)
        _train(engine, model, 1, TrainOptions(learning_rate=1e-3, **options))
        target = engine.registry.resolve("test/agent")
        weights.append(load_checkpoint(target.directory, target.base_directory, target.tuning, torch.device("cpu")))
    for one, other in zip(weights[0].parameters(), weights[1].parameters(), strict=True):
        assert torch.allclose(one, other, atol=2e-4)


@pytest.mark.parametrize(("family", "torch_threads"), [("qwen3", 1), ("qwen2", 1), ("gpt_neox", 3)])
def test_batches_at_the_same_time_change_no_bit(tmp_path: Path, family: str, torch_threads: int) -> None:
    """Weights, the optimizer's state and the figures are the same whatever the options, and also in supervised steps.

    A step that is abandoned in the middle changes none of them either.
    """
    options = TrainOptions(learning_rate=1e-3, kl_penalty_coef=0.5, max_kl=1e-4, precalculate_logprobs=True)
    question = {"role": "user", "content": "Who?"}
    replies = [f"Mara, the {number}th." * (number % 3 + 1) for number in range(6)]
    examples = [Example((question, {"role": "assistant", "content": reply})) for reply in replies]
    outcomes = []
    for threads in (1, 2, 3):
        engine = make_engine(tmp_path / str(threads), family=family, micro_batch_tokens=40, train_threads=threads)
        model = _create(engine)
        metrics = [_train(engine, model, 1), _train(engine, model, 1, options)]
        abandoned = engine.train(model, [sampled_group(engine, "test/agent", odd_share, count=8)], FAST)
        while not next(abandoned).finished:
            pass
        abandoned.close()
        taught = SftOptions(batch_size=6, learning_rate=1e-3)
        metrics.append(finish(engine.train_supervised(model, examples, taught, held_out=examples[:3])).metrics)
        outcomes.append((_weights_hash(engine, model), [{**figures, "seconds": 0.0} for figures in metrics]))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert outcomes[0][1][1]["step_share"] < 1
    assert engine.torch_threads_to_train == torch_threads, "models of other shapes are trained batch after batch"


@pytest.mark.parametrize("tuning", [Tuning(), LORA], ids=lambda tuning: str(tuning.mode))
def test_of_a_step_that_goes_too_far_a_part_is_taken_back(tmp_path: Path, tuning: Tuning) -> None:
    """The second step of each of two models, which took the same first one."""
    moved = {}
    for limit in (None, 1e-3):
        engine = make_engine(tmp_path / str(limit))
        model = _create(engine, tuning=tuning)
        _train(engine, model, 1)
        before = _weights(engine, model)
        metrics = _train(engine, model, 1, TrainOptions(learning_rate=0.05, max_kl=limit), count=16)
        moved[limit] = [after - old for after, old in zip(_weights(engine, model), before, strict=True)]
    assert metrics["step_kl"] <= 1e-3
    assert 0 < metrics["step_share"] < 0.5
    for whole, shortened in zip(moved[None], moved[1e-3], strict=True):
        torch.testing.assert_close(shortened, whole * metrics["step_share"], rtol=1e-3, atol=1e-6)


def test_a_step_that_goes_too_far_for_a_whole_rollout_is_shortened_as_well(tmp_path: Path) -> None:
    """The bound of a token would have let it pass: a rollout has several."""
    metrics = []
    for limit in (None, 0.02):
        engine = make_engine(tmp_path / str(limit))
        model = _create(engine)
        _train(engine, model, 1)
        metrics.append(
            _train(engine, model, 1, TrainOptions(learning_rate=0.01, max_kl=1e3, max_rollout_kl=limit), count=16)
        )
    free, bounded = metrics
    assert free["step_share"] == 1
    assert free["rollout_kl"] > free["step_kl"]
    assert free["rollout_kl"] > 0.02 >= bounded["rollout_kl"] > 0
    assert bounded["step_share"] < 1


@pytest.mark.parametrize("tuning", [Tuning(), LORA], ids=lambda tuning: str(tuning.mode))
def test_a_step_within_the_bound_is_left_alone(tmp_path: Path, tuning: Tuning) -> None:
    hashes = set()
    for limit in (None, 1e3):
        engine = make_engine(tmp_path / str(limit))
        model = _create(engine, tuning=tuning)
        metrics = _train(engine, model, 2, TrainOptions(learning_rate=1e-3, max_kl=limit))
        hashes.add(_weights_hash(engine, model))
    assert metrics["step_share"] == 1
    assert metrics["step_kl"] > 0
    assert len(hashes) == 1


@pytest.mark.parametrize("rewards", [(0.3,) * 4, (0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1) * 2, (1e6, 1e6 + 1e-6) * 2])
def test_equal_rewards_train_nothing(tmp_path: Path, rewards: tuple[float, ...]) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    sampled = sampled_group(engine, "test/agent", odd_share, count=4)
    group = tuple(replace(trajectory, reward=reward) for trajectory, reward in zip(sampled, rewards, strict=True))
    result = finish(engine.train(model, [group], FAST))
    assert result.step == 0
    assert result.trained is False
    assert engine.registry.newest(model).step == 0


def test_another_step_than_expected_is_a_conflict(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    group = sampled_group(engine, "test/agent", odd_share)
    assert finish(engine.train(model, [group], FAST, expected_step=0)).step == 1
    with pytest.raises(StepConflict, match="at step 1, not 0"):
        finish(engine.train(model, [group], FAST, expected_step=0))
    assert engine.registry.newest(model).step == 1


def _with_logprobs(group: Sequence[TrainingTrajectory], value: float) -> list[TrainingTrajectory]:
    return [
        TrainingTrajectory(
            tuple(
                Conversation(c.messages, c.tools, c.exact, {i: (value,) * len(ids) for i, ids in c.exact.items()})
                for c in trajectory.conversations
            ),
            trajectory.reward,
        )
        for trajectory in group
    ]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loss_that_is_no_number_leaves_the_weights_alone(tmp_path: Path, threads: int) -> None:
    engine = make_engine(tmp_path, micro_batch_tokens=40, train_threads=threads)
    model = _create(engine)
    group = sampled_group(engine, "test/agent", odd_share)
    unlikely = tuple(_with_logprobs(group, -1e30))
    with pytest.raises(NonFiniteGradient):
        finish(engine.train(model, [unlikely], TrainOptions(learning_rate=1e-2, ppo=True, epsilon_high=1e38)))
    assert engine.registry.newest(model).step == 0

    undisturbed = make_engine(tmp_path / "other", micro_batch_tokens=40)
    other = _create(undisturbed)
    for some_engine, its_model in ((engine, model), (undisturbed, other)):
        finish(some_engine.train(its_model, [group], FAST))
    assert _weights_hash(engine, model) == _weights_hash(undisturbed, other)


def test_a_failed_write_leaves_the_model_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    group = sampled_group(engine, "test/agent", odd_share)

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("learnloop_service.training.engine.trainer.policy.Policy.save", full_disk)
        with pytest.raises(CheckpointNotWritten, match="No space left"):
            finish(engine.train(model, [group], FAST))
    checkpoints = engine.registry.newest(model).directory.parent
    assert [path.name for path in checkpoints.iterdir()] == ["000000"]

    assert finish(engine.train(model, [group], FAST, expected_step=0)).step == 1
    undisturbed = make_engine(tmp_path / "other")
    other = _create(undisturbed)
    finish(undisturbed.train(other, [group], FAST))
    assert _weights_hash(engine, model) == _weights_hash(undisturbed, other)


def test_running_out_of_memory_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    group = sampled_group(engine, "test/agent", odd_share)

    def exhausted(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")

    with monkeypatch.context() as patched:
        patched.setattr(engine_module, "grpo_step", exhausted)
        with pytest.raises(TrainingOutOfMemory):
            finish(engine.train(model, [group], FAST))
    assert finish(engine.train(model, [group], FAST)).step == 1


def test_what_the_model_cannot_have_said_is_refused(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    good = sampled_group(engine, "test/agent", odd_share)
    messages = good[0].conversations[0].messages
    alien = TrainingTrajectory((Conversation(messages, None, {1: (10_000,)}, {1: (-1.0,)}),), 5.0)
    with pytest.raises(BadTrajectory, match="10000"):
        finish(engine.train(model, [(*good, alien)], FAST))
    long = TrainingTrajectory((Conversation(messages, None, {1: (7,) * 600}, {1: (-1.0,) * 600}),), 5.0)
    with pytest.raises(BadTrajectory, match="context is 512"):
        finish(engine.train(model, [(*good, long)], FAST))
    with pytest.raises(UnknownModel):
        finish(engine.train("model-none", [good], FAST))


def test_only_sampled_tokens_are_trained_over_several_turns(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    messages = (
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "written by hand"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "sampled"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "sampled too"},
    )
    exact = {3: (30, 31, 32), 5: (40, 41)}
    logprobs = {3: (-1.0, -2.0, -3.0), 5: (-4.0, -5.0)}
    group = tuple(TrainingTrajectory((Conversation(messages, None, exact, logprobs),), reward) for reward in (0.0, 1.0))
    result = finish(engine.train(model, [group], FAST))
    assert result.metrics["num_trainable_tokens"] == 2 * 5


def _pong(count: int) -> list[Example]:
    return [Example(({"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}))] * count


def test_supervised_steps_teach_a_reply(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    result = finish(engine.train_supervised(model, _pong(60), SftOptions(batch_size=2, learning_rate=2e-2)))
    assert result.step == 1
    assert result.trained is True
    assert result.metrics["num_gradient_steps"] == 30
    [reply] = sampled_group(engine, "test/agent", odd_share, count=1, question="ping")
    assert reply.conversations[0].messages[-1]["content"] == "pong"


@pytest.mark.parametrize("restarts", [False, True])
def test_rollouts_do_not_train_with_the_optimizer_state_of_demonstrations(tmp_path: Path, restarts: bool) -> None:
    weights = []
    for name in ("kept", "removed"):
        engine = make_engine(tmp_path / name)
        model = _create(engine)
        finish(engine.train_supervised(model, _pong(4), SftOptions(batch_size=2, learning_rate=1e-3)))
        if name == "removed":
            (engine.registry.newest(model).directory / "optimizer.safetensors").unlink()
        if restarts or name == "removed":
            engine = make_engine(tmp_path / name)
        _train(engine, model, 2)
        weights.append(_weights(engine, model))
    assert all(map(torch.equal, *weights))


def test_an_adapter_learns_and_is_what_is_sampled(tmp_path: Path) -> None:
    """The random base's frozen embeddings are too small for sure replies, so the loss is what can be asked for."""
    engine = make_engine(tmp_path)
    model = _create(engine, tuning=LORA)
    first, second = (
        finish(engine.train_supervised(model, _pong(60), SftOptions(learning_rate=2e-2))).metrics["loss"]
        for _ in range(2)
    )
    assert second < first - 0.1
    metrics = _train(engine, model, 1)
    assert metrics["kl_div"] == pytest.approx(0.0, abs=1e-6)
    files = {path.name for path in engine.registry.newest(model).directory.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= files
    assert "model.safetensors" not in files


def test_context_weight_counts_what_the_assistant_did_not_write(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    counts = []
    for weight in (0.0, 0.1):
        options = SftOptions(learning_rate=0.0, context_weight=weight)
        result = finish(engine.train_supervised(model, _pong(1), options))
        counts.append(result.metrics["num_trainable_tokens"])
    assert 0 < counts[0] < counts[1]


def test_weights_no_longer_used_leave_the_memory(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    _train(engine, model, 5)
    for step in range(6):
        sampled_group(engine, f"test/agent@{step}", odd_share, count=1)
    assert len(engine.loaded) <= 4


def test_a_deleted_model_is_gone(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    _train(engine, model, 1)
    engine.delete_model(model)
    with pytest.raises(UnknownModel):
        engine.registry.resolve("test/agent")
    assert engine.loaded == []
    again = _create(engine)
    assert again != model
    assert engine.registry.newest(again).step == 0


def test_a_checkpoint_holds_what_is_needed_and_no_more(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    model = _create(engine)
    _train(engine, model, 3)
    directories = [path.parent for path in (tmp_path / "data").rglob("manifest.json")]
    for checkpoint in (engine.registry.checkpoint(model, step) for step in range(4)):
        checkpoint.verify()  # hashes that were made while files were written are those of the files
    whole = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert all(whole <= {file.name for file in directory.iterdir()} for directory in directories)
    # The optimizer's state is twice the weights: only the newest and the one to fall back to keep it, in the end.
    asyncio.run(until(partial(_has_optimizers, directories, {"000002", "000003"})))
    _train(engine, model, 1)
    asyncio.run(until(partial(_has_optimizers, directories, {"000003"})))


def test_a_large_optimizer_state_is_kept_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, parts = [], []
    for size in (1, 1 << 30):
        monkeypatch.setattr("learnloop_service.training.engine.trainer.policy._OPTIMIZER_PART_BYTES", size)
        engine = make_engine(tmp_path / str(size))
        model = _create(engine)
        _train(engine, model, 2)
        parts.append(len(engine.registry.newest(model).manifest.optimizer_files))
        engine = make_engine(tmp_path / str(size))
        _train(engine, model, 1)
        weights.append(_weights(engine, model))
        directories = [path.parent for path in (tmp_path / str(size)).rglob("manifest.json")]
        asyncio.run(until(partial(_has_optimizers, directories, {"000002", "000003"})))
    assert parts[0] > parts[1] == 1
    assert all(map(torch.equal, *weights))


def test_what_is_left_of_an_optimizer_state_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash can interrupt the removal of an old one."""
    monkeypatch.setattr("learnloop_service.training.engine.trainer.policy._OPTIMIZER_PART_BYTES", 1)
    weights = []
    for remaining in (0, 3):
        engine = make_engine(tmp_path / str(remaining))
        model = _create(engine)
        _train(engine, model, 1)
        for part in sorted(engine.registry.newest(model).directory.glob("optimizer*"))[remaining:]:
            part.unlink()
        engine = make_engine(tmp_path / str(remaining))
        _train(engine, model, 1)
        weights.append(_weights(engine, model))
    assert all(map(torch.equal, *weights))


def _has_optimizers(directories: Sequence[Path], steps: set[str]) -> bool:
    return {directory.name for directory in directories if any(directory.glob("optimizer*"))} == steps


def test_others_are_sampled_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is not sampled early belongs to no model before it is on disk."""
    engine = make_engine(tmp_path)
    model = _create(engine)
    group = sampled_group(engine, "test/agent", odd_share, count=8)
    writing, sampled = threading.Event(), threading.Event()
    save = Policy.save

    def slow_save(policy: Policy, directory: Path) -> None:
        writing.set()
        assert sampled.wait(60)
        save(policy, directory)

    monkeypatch.setattr(Policy, "save", slow_save)
    training = engine.train(model, [group], FAST)
    while not writing.is_set():
        next(training)
    assert len(sampled_group(engine, "test/agent", odd_share, count=2)) == 2
    assert engine.registry.newest(model).step == 0
    sampled.set()
    assert finish(training).step == engine.registry.newest(model).step == 1


@pytest.mark.parametrize("tuning", [None, LORA])
@pytest.mark.parametrize("written", [True, False])
def test_a_step_is_sampled_while_it_is_written_and_gone_if_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuning: Tuning | None, written: bool
) -> None:
    engine = make_engine(tmp_path)
    registry, model = engine.registry, _create(engine, tuning=tuning)
    group = sampled_group(engine, "test/agent", odd_share, count=8)
    may_write, save = threading.Event(), Policy.save

    def held_save(policy: Policy, directory: Path) -> None:
        assert may_write.wait(60)
        if not written:
            raise OSError(28, "No space left on device")
        save(policy, directory)

    monkeypatch.setattr(Policy, "save", held_save)
    training = engine.train(model, [group], FAST)
    while (trained := next(training)).trained is None:
        with pytest.raises(UnknownModel):
            registry.sampled("test/agent@1")
    assert trained.trained == 1
    assert trained.metrics is not None
    next(training)
    assert registry.newest(model).step == registry.sampled("test/agent").step == 0
    with pytest.raises(UnknownModel):  # for all but sampling
        registry.resolve("test/agent@1")
    early = registry.sampled("test/agent@1")
    request = SampleRequest((30, 31, 32), early.key, 6, seed=5)
    [first] = engine.sample(early, [request])
    endless: list[Sample | Exception] = []
    engine.submit(early, replace(request, max_tokens=200), None, endless.append)
    may_write.set()
    if written:
        assert finish(training).step == registry.resolve("test/agent@1").step == 1
        restarted = make_engine(tmp_path)
        [again] = restarted.sample(restarted.registry.resolve("test/agent@1"), [request])
        assert again.ids == first.ids
        assert again.logprobs == first.logprobs
        return
    with pytest.raises(CheckpointNotWritten, match="No space left"):
        finish(training)
    assert isinstance(endless[0], UnknownWeights)
    with pytest.raises(UnknownModel):
        registry.sampled("test/agent@1")
    with pytest.raises(UnknownModel):  # a request that had found it before
        engine.sample(early, [request])
    assert engine.loaded == ["test/agent@0"]


def test_what_idles_gives_way_before_weights_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that holds two sets of weights and no more: the longest unused goes before the third comes."""
    engine = make_engine(tmp_path)
    one_set = 4 * parameter_count(engine.registry.base_directory("tiny"))
    for name in ("first", "second", "third"):
        _create(engine, name)
    loaded_before: list[list[str]] = []

    def free(_: torch.device) -> int:
        return (2 - len(engine.loaded)) * one_set

    def load(*arguments: Any, **options: Any) -> Any:
        loaded_before.append(engine.loaded)
        return load_checkpoint(*arguments, **options)

    monkeypatch.setattr(engine_module, "free_bytes", free)
    monkeypatch.setattr(engine_module, "load_checkpoint", load)
    for name in ("first", "second", "first", "third", "second"):
        sampled_group(engine, f"test/{name}", odd_share, count=1)
    first, second = "test/first@0", "test/second@0"
    assert loaded_before == [[], [first], [first], ["test/third@0"]]
    assert second in engine.loaded

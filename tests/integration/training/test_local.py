"""The backend `local`: ART's real LocalBackend in its process, over a scripted service in place of Unsloth and vLLM."""

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import (
    BackendUnavailable,
    JobForgotten,
    ModelSpec,
    StepConflict,
    TrainRequest,
)
from learnloop_service.training.backends.local.backend import LocalBackend, LocalPolicy, connect, missing, model_config
from learnloop_service.training.backends.local.models import ErrorReply, LocalModels, _group
from learnloop_service.training.backends.local.torn_checkpoints import ADAPTER
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.types import Group
from tests import policies
from tests.fakes.local_child import IMPORTS, adapter
from tests.fakes.local_process import KEY, LocalProcess
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.training.killed_steps import Entries, group_of, take
from tests.unit.training.backends.torn_adapters import OFFSETS

_names = count()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalProcess]:
    with LocalProcess(tmp_path_factory.mktemp("local"), "--idle-s", "0") as process:
        yield process
        assert process.stop() == 0


@pytest.fixture
async def backend(process: LocalProcess) -> AsyncIterator[LocalBackend]:
    backend = await connect(process.base_url, KEY)
    yield backend
    await backend.close()


@pytest.fixture
def spec(base: Path) -> ModelSpec:
    return ModelSpec("mail", f"agent-{next(_names)}", str(base))


@pytest.fixture
def groups() -> list[Group]:
    return [group_of([trajectory(number, float(number)) for number in range(2)])]


def trajectory(number: int, reward: float) -> Any:
    from openai.types.chat.chat_completion import Choice

    tokens: Any = [
        {"token": f"token_id:{token}", "bytes": None, "logprob": -0.5, "top_logprobs": []} for token in (number, 6)
    ]
    message = {"role": "assistant", "content": "At noon."}
    choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": tokens}}
    items: Any = [{"role": "user", "content": "When?"}, Choice.model_validate(choice)]
    return import_art().Trajectory(messages_and_choices=items, reward=reward)


async def train(policy: LocalPolicy, expected_step: int = 0, *, reward: float = 1.0, **options: Any) -> Any:
    group = import_art().TrajectoryGroup([trajectory(1, 0.0), trajectory(2, reward)])
    return await policies.train(policy, [group], learning_rate=1e-5, expected_step=expected_step, **options)


async def test_a_policy_is_trained_sampled_and_found_again(backend: LocalBackend, spec: ModelSpec) -> None:
    policy = await backend.register(spec)
    assert await policy.step() == 0
    outcome = await train(policy, epsilon=0.2)
    assert outcome.step == 1
    assert outcome.metrics["loss/train"] == 0.5
    assert (await train(policy, 1)).step == 2
    async with open_chat(policy.endpoint(2)) as chat:
        completion = await chat.client.chat.completions.create(
            model=chat.model, messages=[{"role": "user", "content": "When?"}]
        )
    assert completion.choices[0].message.content == "At noon."
    assert completion.model == f"{spec.name}@2"  # as ART's vLLM calls it
    assert await (await backend.register(spec)).step() == 2
    assert await policy.delete_checkpoints(keep=set()) == [1]
    await backend.delete(spec)
    assert await (await backend.register(spec)).step() == 0


def test_a_group_reaches_art_as_it_was_sent() -> None:
    """With the histories that forked, which hold replies as plain messages."""
    forked, history = trajectory(1, 1.0), import_art("art.trajectories").History(messages_and_choices=[])
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    [_, reply] = trajectory(2, 0.0).messages_and_choices
    history.messages_and_choices += [{"role": "assistant", "tool_calls": [call]}, reply]
    forked.additional_histories.append(history)
    group = import_art().TrajectoryGroup([forked, trajectory(2, 0.0)])
    dumped = group.model_dump(mode="json", warnings=False)
    received = _group(json.loads(json.dumps(dumped)))
    assert received.model_dump(mode="json", warnings=False)["trajectories"] == dumped["trajectories"]
    forked_reply = received.trajectories[0].additional_histories[0].messages_and_choices[1]
    assert forked_reply.logprobs.content[0].token == "token_id:2"


async def test_another_step_than_expected_trains_nothing(
    process: LocalProcess, backend: LocalBackend, spec: ModelSpec
) -> None:
    policy = await backend.register(spec)
    await train(policy)
    before = list(process.trained)
    for wrong in (0, 2):
        with pytest.raises(StepConflict, match=f"step 1, not {wrong}"):
            await train(policy, wrong)
    assert process.trained == before


async def test_equal_rewards_leave_step_0_and_copy_a_later_one(backend: LocalBackend, spec: ModelSpec) -> None:
    """ART has nothing to copy at step 0; the outcome is what it reports."""
    policy = await backend.register(spec)
    assert (await train(policy, reward=0.0)).step == 0
    await train(policy)
    outcome = await train(policy, 1, reward=0.0)
    assert outcome.step == 2
    assert outcome.metrics["data/step_num_groups_trainable"] == 0.0


async def test_options_that_touch_files_and_unknown_ones_are_refused(backend: LocalBackend, spec: ModelSpec) -> None:
    policy = await backend.register(spec)
    for option in ("kl_ref_adapter_path", "nonsense"):
        with pytest.raises(ValueError, match=f"takes no option {option}"):
            await policy.submit(TrainRequest([], 1e-5, 0, {option: "/etc"}))


@pytest.mark.parametrize("name", ["..", "a/b", "."])
async def test_a_name_that_leaves_the_directory_is_refused(backend: LocalBackend, spec: ModelSpec, name: str) -> None:
    with pytest.raises(ValueError, match="names no model"):
        await backend.register(ModelSpec(spec.project, name, spec.base_model))


async def test_a_key_that_is_wrong(process: LocalProcess, spec: ModelSpec) -> None:
    backend = await connect(process.base_url, "wrong")
    with pytest.raises(BackendUnavailable, match="bad key"):
        await backend.register(spec)
    await backend.close()


async def test_torn_checkpoints_are_never_used(process: LocalProcess, backend: LocalBackend, spec: ModelSpec) -> None:
    """The model continues from its last good checkpoint. The other offsets are tested with the guard alone."""
    policy = await backend.register(spec)
    await train(policy)
    checkpoints = process.checkpoints(spec.project, spec.name)
    other = ModelSpec(spec.project, f"{spec.name}-b", spec.base_model)
    torn: list[bytes | None] = [adapter()[:offset] for offset in OFFSETS[1::7]]
    for number, content in enumerate([*torn, None]):
        await backend.register(other)  # whatever was loaded is not any more
        shutil.copytree(checkpoints / "0001", checkpoints / "0007")
        if content is None:
            (checkpoints / "0007" / "adapter_config.json").unlink()
        else:
            (checkpoints / "0007" / ADAPTER).write_bytes(content)
        again = await backend.register(spec)
        assert await again.step() == 1
        assert len(list(checkpoints.glob("0007*.torn"))) == number + 1
    (checkpoints / "0009").mkdir()
    await backend.register(other)
    again = await backend.register(spec)
    assert (await train(again, 1)).step == 2
    async with open_chat(again.endpoint(2)) as chat:
        completion = await chat.client.chat.completions.create(
            model=chat.model, messages=[{"role": "user", "content": "When?"}]
        )
    assert completion.choices[0].message.content == "At noon."


async def test_a_death_in_mid_checkpoint(
    process: LocalProcess, backend: LocalBackend, spec: ModelSpec, groups: list[Group]
) -> None:
    """`benchmarks.durability.train_once` has more moments."""
    policy, journal, before = await backend.register(spec), Entries(), len(process.trained)
    process.order("after half the adapter")
    with pytest.raises(BackendUnavailable):
        await take(policy, journal, groups)
    assert process.process.wait() == -9
    process.start_again()
    policy = await backend.register(spec)
    assert await policy.step() == 0
    with pytest.raises(JobForgotten):
        await policy.follow("job-0", 0)
    assert (await take(policy, journal, groups)).step == 1
    assert len(process.trained) == before + 1


class Idle:
    """A backend of ART's form that has nothing to load."""

    closed = 0

    async def register(self, model: Any) -> None:
        return None

    async def _prepare_backend_for_training(self, model: Any, config: Any) -> tuple[str, str]:
        return "http://127.0.0.1:9/v1", "key"

    def _model_inference_name(self, model: Any, step: int | None = None) -> str:
        return f"{model.name}@{step}"

    async def close(self) -> None:
        self.closed += 1


async def test_one_model_is_on_the_gpu_at_a_time(tmp_path: Path) -> None:
    import_art()
    gpu = Idle()
    models = LocalModels(gpu, tmp_path, {}, idle_s=1000.0)
    await models.register("mail", "a", "base")
    await models.register("mail", "a", "base")
    with pytest.raises(ErrorReply, match="the GPU serves mail/a now"):
        await models.register("mail", "b", "base")
    with pytest.raises(ErrorReply, match="exists with base model 'base'"):
        await models.register("mail", "a", "another")
    patient = LocalModels(gpu, tmp_path, {}, idle_s=0.0)
    for name in ("a", "b"):
        await patient.register("mail", name, "base")
    assert gpu.closed == 1
    with pytest.raises(ErrorReply, match="mail~a is not loaded"):
        await patient.steps("mail~a")


def test_what_arts_import_chain_needs_and_does(process: LocalProcess) -> None:
    """`art.local` imports without a GPU, and changes the process for good; its model config needs megatron."""
    report = json.loads((process.data_dir / IMPORTS).read_text())
    assert report["asyncio_is_patched"], "nest_asyncio"
    assert report["start_method"] == "spawn"
    if "megatron" in report["missing"]:
        assert report["model_config_wants"] in report["missing"], (
            "ART does not need megatron any more: take it out of NEEDED"
        )


def test_the_backend_itself_never_imports_it() -> None:
    script = (
        "import sys, learnloop_service.training.backends.local.backend; "
        "assert not {'art', 'torch', 'nest_asyncio', 'mp_actors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_what_is_hidden_for_a_moment_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While ART is imported without torch, a worker may ask what it can drive."""
    monkeypatch.setitem(sys.modules, "torch", None)
    reason = missing()
    assert reason is None or "torch, " not in reason


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = missing(tmp_path)
    assert reason
    assert "unsloth" in reason
    assert "the extra `gpu`" in reason
    monkeypatch.setattr("learnloop_service.training.backends.local.backend.NEEDED", ("json",))
    assert missing(tmp_path) == "it needs an NVIDIA GPU, and this machine shows none (no /dev/nvidia0)"
    (tmp_path / "nvidia0").touch()
    assert missing(tmp_path) is None


ARGUMENTS: dict[str, dict[str, Any]] = {
    "init_args": {"max_seq_length": 8192, "load_in_4bit": False},
    "engine_args": {"gpu_memory_utilization": 0.6},
    "peft_args": {"r": 16},
    "trainer_args": {"max_grad_norm": 0.2},
}


@pytest.mark.parametrize(("trainers", "inference"), [((), ()), ((0,), (1,)), ((0, 1), (2,))])
def test_the_config_is_what_arts_own_types_and_checks_take(
    trainers: tuple[int, ...], inference: tuple[int, ...]
) -> None:
    from pydantic import TypeAdapter

    dev = import_art("art.dev")
    validate = import_art("art.dev.validate")
    config = model_config(trainers, inference, ARGUMENTS)
    assert TypeAdapter(dev.InternalModelConfig).validate_python(config, strict=True, extra="forbid") == config
    validate.validate_dedicated_config(config)
    assert validate.is_dedicated_mode(config) is bool(trainers)


@pytest.mark.parametrize(
    ("trainers", "inference", "message"),
    [
        ((0,), (), "exactly one"),
        ((), (1,), "one or more"),
        ((0,), (1, 2), "exactly one"),
        ((1,), (0,), "numbered from 0"),
        ((0, 2), (1,), "numbered from 0"),
        ((0,), (0,), "for training or for sampling"),
    ],
)
def test_what_art_would_refuse_is_refused_at_once(
    trainers: tuple[int, ...], inference: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        model_config(trainers, inference, {})
    validate = import_art("art.dev.validate")
    config = {name: list(ids) for name, ids in (("trainer_gpu_ids", trainers), ("inference_gpu_ids", inference)) if ids}
    with pytest.raises(ValueError, match=r"must|not yet"):
        validate.validate_dedicated_config(config)


def test_arguments_of_no_name_of_arts() -> None:
    with pytest.raises(ValueError, match="ART has no vllm_args"):
        model_config((), (), {"vllm_args": {}})

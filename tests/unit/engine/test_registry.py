"""The registry: names, creation, forks, and what is left after a crash."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from learnloop_service.training.engine.registry.base_models import parameter_count
from learnloop_service.training.engine.registry.checkpoints import CorruptCheckpoint
from learnloop_service.training.engine.registry.model_record import (
    BadModelName,
    CheckpointInUse,
    DamagedModel,
    ModelExists,
    ModelRecord,
    UnknownModel,
)
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.tuning import Tuning
from tests.fakes.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture
def registry(tmp_path: Path, base: Path) -> Registry:
    return _registry(tmp_path, base)


def _registry(tmp_path: Path, base: Path) -> Registry:
    return Registry(tmp_path, {"learnloop/tiny": base}, allowed_roots=[base.parent])


def _create(
    registry: Registry, name: str = "agent", project: str = "mail", tuning: Tuning | None = None
) -> ModelRecord:
    return registry.create(project=project, name=name, base_model="learnloop/tiny", tuning=tuning)


def _commit(registry: Registry, record: ModelRecord, content: bytes = b"new") -> int:
    """A next checkpoint whose weights are `content`."""
    parent = registry.newest(record.id)

    def save(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(content)

    return registry.commit(record.id, parent, {"loss": 1.0}, save).step


def test_a_new_model_has_checkpoint_0_with_the_bases_files(registry: Registry, base: Path) -> None:
    record = _create(registry)
    assert record.tuning == Tuning("full")
    assert registry.get(record.id) == record
    checkpoint = registry.newest(record.id)
    assert checkpoint.step == 0
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (checkpoint.directory / name).read_bytes() == (base / name).read_bytes()


def test_a_new_adapter_has_no_weights_yet(registry: Registry) -> None:
    record = _create(registry, tuning=Tuning("lora"))
    assert not list(registry.newest(record.id).directory.glob("*.safetensors"))
    target = registry.resolve("mail/agent")
    assert target.base_directory != target.directory


def test_models_survive_a_restart(registry: Registry, tmp_path: Path, base: Path) -> None:
    record = _create(registry, tuning=Tuning("lora", 4, 8, ("q_proj",)))
    _commit(registry, record)
    again = _registry(tmp_path, base)
    assert again.get(record.id) == record
    assert [checkpoint.step for checkpoint in again.steps(record.id)] == [0, 1]


def test_an_existing_model_is_returned_only_if_asked_for(registry: Registry) -> None:
    record = _create(registry)
    same = registry.create(project="mail", name="agent", base_model="learnloop/tiny", return_existing=True)
    assert same == record
    with pytest.raises(ModelExists):
        _create(registry)
    with pytest.raises(ModelExists, match="base model 'learnloop/tiny', not 'other'"):
        registry.create(project="mail", name="agent", base_model="other", return_existing=True)


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "a@1", "a:step1", "a b", "ä", "a\0", "x" * 129, "-a"])
def test_names_that_cannot_be_directories_are_refused(registry: Registry, name: str) -> None:
    for project, model in ((name, "agent"), ("mail", name)):
        with pytest.raises(BadModelName):
            registry.create(project=project, name=model, base_model="learnloop/tiny")
    assert registry.models() == []


def test_left_out_names_are_chosen(registry: Registry) -> None:
    record = registry.create(project=None, name=None, base_model="learnloop/tiny")
    assert record.project == "default"
    assert registry.resolve(record.name).model == record


def test_a_base_models_name_is_not_for_others(registry: Registry) -> None:
    with pytest.raises(ModelExists):
        registry.create(project="learnloop", name="tiny", base_model="learnloop/tiny")


def test_inference_names(registry: Registry) -> None:
    record = _create(registry)
    _commit(registry, record)
    newest = [
        "agent",
        "mail/agent",
        "wandb-artifact:///local/mail/agent",
        "agent@1",
        "mail/agent@1",
        "mail/agent:step1",
        "wandb-artifact:///local/mail/agent:step1",
    ]
    assert {registry.resolve(name).key for name in newest} == {"mail/agent@1"}
    assert {registry.resolve(f"{name}@0").key for name in newest[:2]} == {"mail/agent@0"}
    assert registry.resolve("wandb-artifact:///local/mail/agent:step0").step == 0
    base = registry.resolve("learnloop/tiny")
    assert base.key == "learnloop/tiny"
    assert base.model is None


@pytest.mark.parametrize(
    "name",
    ["", "nobody", "mail/nobody", "other/agent", "agent@7", "agent@", "agent@-1", "wandb-artifact:///else/mail/agent"],
)
def test_unknown_inference_names(registry: Registry, name: str) -> None:
    _create(registry)
    with pytest.raises(UnknownModel):
        registry.resolve(name)


def test_a_name_in_two_projects_needs_its_project(registry: Registry) -> None:
    _create(registry, project="one")
    two = _create(registry, project="two")
    with pytest.raises(BadModelName, match="several projects"):
        registry.resolve("agent")
    assert registry.resolve("two/agent").model == two


def test_base_models_by_directory(registry: Registry, base: Path, tmp_path: Path) -> None:
    record = registry.create(project="p", name="n", base_model=str(base))
    assert registry.resolve("p/n").model == record
    outside = make_tiny_model(tmp_path / "outside")
    sneaky = f"{base.parent}/../{outside.relative_to(tmp_path)}"
    for path in (str(outside), sneaky, str(base.parent), "/etc"):
        with pytest.raises(UnknownModel):
            registry.create(project="p", name="m", base_model=path)


def test_a_symbolic_link_does_not_lead_out_of_the_allowed_directories(base: Path, tmp_path: Path) -> None:
    outside = make_tiny_model(tmp_path / "outside")
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "link").symlink_to(outside)
    registry = Registry(tmp_path / "data", {}, allowed_roots=[allowed])
    with pytest.raises(UnknownModel):
        registry.create(project="p", name="n", base_model=str(allowed / "link"))


def test_a_fork_starts_from_another_models_checkpoint(registry: Registry) -> None:
    source = _create(registry)
    _commit(registry, source, b"first")
    _commit(registry, source, b"second")
    fork = registry.create(project="mail", name="fork", base_model="mail/agent@1")
    assert fork.base_model == "learnloop/tiny"
    assert fork.origin == "mail/agent@1"
    checkpoint = registry.newest(fork.id)
    assert checkpoint.step == 0
    assert checkpoint.manifest.parent == "mail/agent@1"
    assert (checkpoint.directory / "model.safetensors").read_bytes() == b"first"
    registry.delete(source.id)
    assert registry.newest(fork.id).step == 0
    same = registry.create(project="mail", name="fork", base_model="mail/agent@1", return_existing=True)
    assert same == fork
    with pytest.raises(UnknownModel, match="no base model"):
        registry.create(project="mail", name="third", base_model="mail/nobody@1")
    with pytest.raises(BadModelName, match="a fork keeps that"):
        registry.create(project="mail", name="third", base_model="mail/fork@0", tuning=Tuning("lora"))


def test_a_torn_newest_checkpoint_is_skipped_and_kept_aside(registry: Registry, tmp_path: Path, base: Path) -> None:
    record = _create(registry)
    for content in (b"first", b"second"):
        _commit(registry, record, content)
    path = registry.newest(record.id).directory / "model.safetensors"
    path.write_bytes(b"sEcond")  # the same size: only the hash tells
    again = _registry(tmp_path, base)
    assert again.newest(record.id).step == 1
    assert [checkpoint.step for checkpoint in again.steps(record.id)] == [0, 1]
    assert (path.parent.parent / "000002.torn").is_dir()
    assert _commit(again, record) == 2


def test_an_older_torn_checkpoint_is_told_when_asked_for(registry: Registry, tmp_path: Path, base: Path) -> None:
    record = _create(registry)
    _commit(registry, record, b"first")
    _commit(registry, record, b"second")
    (registry.checkpoint(record.id, 1).directory / "model.safetensors").write_bytes(b"fIrst")
    again = _registry(tmp_path, base)
    with pytest.raises(CorruptCheckpoint):
        again.resolve("agent@1")
    with pytest.raises(UnknownModel):
        again.resolve("agent@1")
    assert again.newest(record.id).step == 2


def test_unreadable_and_unfinished_models_do_not_stop_the_engine(
    registry: Registry, tmp_path: Path, base: Path
) -> None:
    good = _create(registry)
    bad = _create(registry, name="bad")
    (bad.directory / "model.json").write_text('{"id": 1')
    unfinished = good.directory.with_name(".unfinished-new-ab")
    (unfinished / "checkpoints").mkdir(parents=True)
    (unfinished / "model.json").write_text(json.dumps({}))
    again = _registry(tmp_path, base)
    assert [record.name for record in again.models()] == ["agent"]
    assert not unfinished.exists()
    assert bad.directory.exists()


def test_a_model_whose_file_is_damaged_says_so_until_it_is_put_back(
    registry: Registry, tmp_path: Path, base: Path
) -> None:
    record = _create(registry)
    file = record.directory / "model.json"
    whole = file.read_bytes()
    for garbled in (b"\xff\x00", b"{}", b'{"id": 1, "tuning": {"target_modules": []}}'):
        file.write_bytes(garbled)
        again = _registry(tmp_path, base)
        for name in ("mail/agent", "mail/agent@0"):
            with pytest.raises(DamagedModel, match=r"mail/agent/model\.json cannot be read .* Put back a copy"):
                again.resolve(name)
        with pytest.raises(DamagedModel):
            again.create(project="mail", name="agent", base_model="learnloop/tiny", return_existing=True)
        with pytest.raises(UnknownModel):
            again.resolve("../mail")
    file.write_bytes(whole)
    assert again.resolve("mail/agent").model == record


def test_checkpoints_that_are_gone_are_lost(registry: Registry) -> None:
    record = _create(registry)
    _commit(registry, record)
    shutil.rmtree(record.directory / "checkpoints")
    for step in (1, 0):
        with pytest.raises(CorruptCheckpoint):
            registry.recheck(record.id, step)
    with pytest.raises(UnknownModel, match="no whole checkpoint left"):
        registry.resolve("mail/agent")


def test_checkpoints_are_deleted_but_not_the_newest(registry: Registry) -> None:
    record = _create(registry)
    for _ in range(3):
        _commit(registry, record)
    assert registry.delete_checkpoints(record.id, [0, 2, 9, 2]) == ([0, 2], [9])
    assert [checkpoint.step for checkpoint in registry.steps(record.id)] == [1, 3]
    with pytest.raises(CheckpointInUse):
        registry.delete_checkpoints(record.id, [1, 3])
    assert [checkpoint.step for checkpoint in registry.steps(record.id)] == [1, 3]
    assert sorted(path.name for path in (record.directory / "checkpoints").iterdir()) == ["000001", "000003"]


def test_a_deleted_model_leaves_no_files(registry: Registry, tmp_path: Path) -> None:
    record = _create(registry)
    registry.delete(record.id)
    assert registry.models() == []
    assert list((tmp_path / "models" / "mail").iterdir()) == []
    with pytest.raises(UnknownModel):
        registry.delete(record.id)


def test_parameters_are_counted_without_loading(base: Path, tmp_path: Path) -> None:
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    assert parameter_count(base) == sum(parameter.numel() for parameter in model.parameters())
    with pytest.raises(UnknownModel, match="no safetensors"):
        parameter_count(tmp_path)


@pytest.mark.parametrize("has_hub_name", [True, False])
def test_an_adapter_has_its_bases_ends_and_names_it_without_a_path(
    tmp_path: Path, base: Path, has_hub_name: bool
) -> None:
    base_copy = shutil.copytree(base, tmp_path / "base")
    if has_hub_name:
        (base_copy / "learnloop.json").write_text('{"hub_name": "Qwen/Qwen3-0.6B"}')
    registry = _registry(tmp_path / "data", base_copy)
    record = _create(registry, tuning=Tuning("lora"))
    (base_copy / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')

    def save(directory: Path) -> None:
        (directory / "adapter_config.json").write_text(json.dumps({"r": 8, "base_model_name_or_path": str(base_copy)}))

    written = registry.commit(record.id, registry.newest(record.id), {}, save)
    written.verify()
    assert json.loads((written.directory / "generation_config.json").read_text()) == {"eos_token_id": [0, 2]}
    config = json.loads((written.directory / "adapter_config.json").read_text())
    assert config == {"r": 8, "base_model_name_or_path": "Qwen/Qwen3-0.6B" if has_hub_name else "learnloop/tiny"}


@pytest.mark.parametrize("modules", [("q_proj", "lm_head"), ("model.embed_tokens",)])
def test_an_adapter_on_a_tied_embedding_is_refused(tmp_path: Path, modules: tuple[str, ...]) -> None:
    base = make_tiny_model(tmp_path / "tied", "qwen3")
    registry = _registry(tmp_path / "data", base)
    with pytest.raises(BadModelName, match="are one matrix"):
        _create(registry, tuning=Tuning("lora", target_modules=modules))
    apart = make_tiny_model(tmp_path / "apart", "llama")
    _create(_registry(tmp_path / "other", apart), tuning=Tuning("lora", target_modules=modules))


def test_a_model_keeps_its_switch_for_thinking_and_its_day(tmp_path: Path, base: Path) -> None:
    base_copy = shutil.copytree(base, tmp_path / "base")
    template = (
        "{{ strftime_now('%Y-%m-%d') }}{% if enable_thinking is defined %} thinks {{ enable_thinking }}{% endif %}"
    )
    (base_copy / "chat_template.jinja").write_text(template)
    registry = _registry(tmp_path / "data", base_copy)

    def create(name: str, thinks: bool | None, base_model: str = "learnloop/tiny") -> str:
        record = registry.create(
            project="mail", name=name, base_model=base_model, enable_thinking=thinks, return_existing=True
        )
        _commit(registry, record)
        directory = registry.newest(record.id).directory
        noted = json.loads((directory / "learnloop.json").read_text())
        (directory / "learnloop.json").write_text(json.dumps({**noted, "date": "2024-02-29"}))
        tokenizer = ChatTokenizer(directory)
        return str(tokenizer.fast.decode(tokenizer.prompt([{"role": "user", "content": "a"}], None)))

    assert create("quick", False) == "2024-02-29 thinks False"
    assert create("usual", None) == "2024-02-29"
    assert create("fork", None, "mail/quick@0") == "2024-02-29 thinks False"
    today = datetime.now(UTC).date().isoformat()
    first = registry.checkpoint(registry.resolve("mail/usual@0").model.id, 0)  # type: ignore[union-attr]
    assert json.loads((first.directory / "learnloop.json").read_text()) == {"date": today}
    with pytest.raises(ModelExists, match="exists with false as enable_thinking"):
        create("quick", True)

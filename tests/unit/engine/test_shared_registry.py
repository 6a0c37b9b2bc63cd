"""Models in an object store that engines on several machines share; every machine has its own disk."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from learnloop_service.training.engine.registry import model_store
from learnloop_service.training.engine.registry.checkpoints import (
    OPTIMIZER_FILE,
    CheckpointNotWritten,
    CorruptCheckpoint,
)
from learnloop_service.training.engine.registry.model_record import ModelExists, ModelRecord, StepTaken, UnknownModel
from learnloop_service.training.engine.registry.model_store import ModelStore
from learnloop_service.training.engine.registry.object_store import BadStore, ObjectStore, StoreUnavailable
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.registry.shared_registry import SharedRegistry, open_registry
from learnloop_service.training.engine.registry.store_url import open_store
from tests.fakes.s3_server import LOST, S3Server, s3_server

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["s3", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty store."""
    if request.param == "file":
        (tmp_path / "store").mkdir()
        return f"file://{tmp_path}/store"
    s3: S3Server = request.getfixturevalue("s3")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3, "fault", lambda method, path: None)
    return f"s3://{s3.bucket}/{tmp_path.name}"


@pytest.fixture
def objects(url: str) -> ObjectStore:
    return open_store(url)


@pytest.fixture
def machine(tmp_path: Path, url: str) -> Callable[..., Registry]:
    """Makes the registry of an engine on the machine of that name."""

    def engine(name: str, store: str | None = url) -> Registry:
        return open_registry(tmp_path / name, {"tiny": tmp_path / "base"}, (), store)

    _base(tmp_path / "base")
    return engine


BASE_WEIGHTS = b"\x02\0\0\0\0\0\0\0{}"


def _base(directory: Path) -> None:
    """The smallest directory that looks like a model."""
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "none"}')
    (directory / "tokenizer.json").write_text('{"model": {}}')
    (directory / "model.safetensors").write_bytes(BASE_WEIGHTS)


def _create(registry: Registry, name: str = "agent", *, return_existing: bool = False) -> ModelRecord:
    return registry.create(project="mail", name=name, base_model="tiny", return_existing=return_existing)


def _commit(registry: Registry, record: ModelRecord, content: bytes = b"new", parent: int | None = None) -> int:
    """A checkpoint with these weights after the newest, or after `parent`."""

    def save(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(content)
        (directory / OPTIMIZER_FILE).write_bytes(b"moments of " + content)

    before = registry.newest(record.id) if parent is None else registry.checkpoint(record.id, parent)
    return registry.commit(record.id, before, {"loss": 1.0}, save).step


def _weights(registry: Registry, name: str = "mail/agent") -> bytes:
    return (registry.resolve(name).directory / "model.safetensors").read_bytes()


def _uploads(objects: ObjectStore) -> list[str]:
    """The step and upload of every checkpoint of which the store has files."""
    return sorted({file.key.split("/")[2] for file in objects.list("files/")})


def test_a_machine_with_an_empty_disk_goes_on(machine: Callable[..., Registry]) -> None:
    one = machine("one")
    record = _create(one)
    assert _commit(one, record, b"first") == 1
    shutil.rmtree(one.get(record.id).directory)  # the machine burns
    two = machine("two")
    assert two.get(record.id).full_name == "mail/agent"
    assert [checkpoint.step for checkpoint in two.steps(record.id)] == [0, 1]
    assert _weights(two) == b"first"
    assert (two.resolve("agent").directory / OPTIMIZER_FILE).read_bytes() == b"moments of first"
    assert two.newest(record.id).manifest.metrics == {"loss": 1.0}
    assert _weights(two, "mail/agent@0") == BASE_WEIGHTS
    assert _commit(two, record, b"second") == 2


def test_what_others_did_is_heard_of(machine: Callable[..., Registry]) -> None:
    one, two = machine("one"), machine("two")
    record = _create(one)
    assert _weights(two, "agent@0")
    for number in range(1, 4):
        _commit(one, record, b"%d" % number)
    two.refresh(record.id)
    assert two.newest(record.id).step == 3
    one.delete_checkpoints(record.id, [1, 2])
    two.refresh(record.id)
    assert [checkpoint.step for checkpoint in two.steps(record.id)] == [0, 3]
    two.delete(record.id)
    one.refresh()
    assert one.models() == []
    assert not record.directory.exists()
    again = _create(two)
    assert again.id != record.id
    assert one.resolve("mail/agent").model.id == again.id  # type: ignore[union-attr]


def test_two_engines_never_commit_the_same_step(machine: Callable[..., Registry], objects: ObjectStore) -> None:
    one, two = machine("one"), machine("two")
    record = _create(one)
    two.refresh()
    two.resolve("mail/agent@0")
    assert _commit(one, record, b"ours") == 1
    with pytest.raises(StepTaken):
        _commit(two, record, b"theirs", parent=0)
    assert two.newest(record.id).step == 1
    assert _weights(two, "mail/agent@1") == b"ours"
    assert len([upload for upload in _uploads(objects) if upload.startswith("000001")]) == 1
    assert _commit(two, record, b"next") == 2


def test_an_engine_that_missed_a_deletion_does_not_commit_the_step_again(
    machine: Callable[..., Registry],
) -> None:
    one, late = machine("one"), machine("late")
    record = _create(one)
    late.refresh()
    late.resolve("mail/agent@0")
    for _ in range(3):
        _commit(one, record)
    one.delete_checkpoints(record.id, [1])
    with pytest.raises(StepTaken):
        _commit(late, record, b"late", parent=0)
    assert [checkpoint.step for checkpoint in late.steps(record.id)] == [0, 2, 3]


class _Meanwhile:
    """A store; before it creates what begins with `prefix`, something else happens, once."""

    def __init__(self, objects: ObjectStore, prefix: str, happens: Callable[[], object]) -> None:
        self._objects, self._prefix, self._happens = objects, prefix, [happens]

    def __getattr__(self, name: str) -> object:
        return getattr(self._objects, name)

    def create(self, key: str, content: bytes) -> bool:
        if key.startswith(self._prefix) and self._happens:
            self._happens.pop()()
        return self._objects.create(key, content)


def test_of_two_engines_one_creates_a_model_and_the_other_finds_it(
    machine: Callable[..., Registry], objects: ObjectStore, tmp_path: Path
) -> None:
    one = machine("one")
    slow = _Meanwhile(objects, "models/", lambda: _create(one))
    two = SharedRegistry(tmp_path / "two", {"tiny": tmp_path / "base"}, store=ModelStore(slow))  # type: ignore[arg-type]
    record = _create(two, return_existing=True)
    assert record.id == one.models()[0].id
    assert _commit(two, record) == 1
    assert {key.key.split("/")[1] for key in objects.list("files/")} == {record.id}
    with pytest.raises(ModelExists):
        _create(machine("three"))


def test_files_are_cut_in_parts(
    machine: Callable[..., Registry], objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_store, "PART_BYTES", 1000)
    one = machine("one")
    record = _create(one)
    content = bytes(range(256)) * 20 + b"the end"
    _commit(one, record, content)
    sizes = [file.bytes for file in objects.list("files/") if "/000001-" in file.key and "/model.safe" in file.key]
    assert sizes == [1000, 1000, 1000, 1000, 1000, 127]
    monkeypatch.setattr(model_store, "PART_BYTES", 7)
    assert _weights(machine("two")) == content


def test_the_optimizers_state_is_kept_with_the_newest_two(
    machine: Callable[..., Registry], objects: ObjectStore
) -> None:
    one = machine("one")
    record = _create(one)
    for _ in range(3):
        _commit(one, record)
    steps = [file.key.split("/")[2][:6] for file in objects.list("files/") if file.key.endswith(OPTIMIZER_FILE)]
    assert steps == ["000002", "000003"]
    assert _weights(machine("two"), "agent@1") == b"new"


def test_a_checkpoint_that_is_corrupt_here_is_fetched_again(machine: Callable[..., Registry]) -> None:
    one = machine("one")
    record = _create(one)
    _commit(one, record, b"right")
    (one.newest(record.id).directory / "model.safetensors").write_bytes(b"wrong")
    one.recheck(record.id, 1)
    assert _weights(one) == b"right"


def test_a_checkpoint_that_is_corrupt_in_the_store_is_set_aside(
    machine: Callable[..., Registry], objects: ObjectStore
) -> None:
    one = machine("one")
    record = _create(one)
    for content in (b"first", b"second"):
        _commit(one, record, content)
    [key] = [file.key for file in objects.list("files/") if "/000002-" in file.key and "/model.safe" in file.key]
    objects.put(key, b"secand")
    two = machine("two")
    with pytest.raises(CorruptCheckpoint):
        two.resolve("mail/agent@2")
    assert _weights(two) == b"first"
    assert _commit(two, record, b"again") == 2
    assert _weights(machine("three")) == b"again"


def test_models_of_before_there_was_a_store_are_put_there(machine: Callable[..., Registry]) -> None:
    alone = machine("one", None)
    record = _create(alone)
    _commit(alone, record, b"first")
    machine("one")
    two = machine("two")
    assert two.get(record.id).full_name == "mail/agent"
    assert _weights(two) == b"first"
    other = machine("other", None)
    _create(other)
    with pytest.raises(BadStore, match="has another model mail/agent"):
        machine("other")


def test_a_data_directory_belongs_to_one_store(
    machine: Callable[..., Registry], tmp_path: Path, objects: ObjectStore
) -> None:
    _create(machine("one"))
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(BadStore, match="came from another checkpoint store"):
        machine("one", f"file://{tmp_path}/elsewhere")
    assert (tmp_path / "one" / "models" / "mail" / "agent").is_dir()


def test_a_store_that_is_not_mounted_any_more_has_not_lost_its_models(tmp_path: Path) -> None:
    _base(tmp_path / "base")
    store = tmp_path / "store"
    store.mkdir()
    one = open_registry(tmp_path / "one", {"tiny": tmp_path / "base"}, (), f"file://{store}")
    record = _create(one)
    store.rename(tmp_path / "unmounted")
    store.mkdir()
    with pytest.raises(StoreUnavailable, match="is something else mounted"):
        one.refresh()
    assert one.get(record.id).directory.is_dir()
    store.rmdir()
    (tmp_path / "unmounted").rename(store)
    one.refresh()
    assert _weights(one) == BASE_WEIGHTS


def test_what_was_abandoned_is_swept(machine: Callable[..., Registry], objects: ObjectStore) -> None:
    one = machine("one")
    record = _create(one)
    _commit(one, record)
    objects.put(f"files/{record.id}/000001-lost/model.safetensors", b"another engine lost this step")
    objects.put(f"files/{record.id}/000002-dead/model.safetensors", b"another engine may be at it")
    objects.put("files/model-gone/000000-dead/model.safetensors", b"a model may be in the making")
    objects.put("checkpoints/model-gone/000000.json", b"{}")
    store = ModelStore(objects)
    assert store.sweep([record.id]) == 1
    assert not objects.list(f"files/{record.id}/000001-lost")
    assert objects.list(f"files/{record.id}/000002-dead")
    tomorrow = datetime.now(UTC) + timedelta(days=1, minutes=1)
    assert store.sweep([record.id], tomorrow) == 3
    assert [upload[:6] for upload in _uploads(objects)] == ["000000", "000001"]
    assert _weights(machine("two")) == b"new"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("gs://bucket", "is no checkpoint store"),
        ("s3://", "is no checkpoint store"),
        ("s3://key:secret@bucket/models", "without user"),
        ("s3://bucket/models?secret=1", "without user, query"),
        ("file://host/place", "is no checkpoint store"),
        ("file:///nowhere/at/all", "there is no directory /nowhere/at/all"),
        ("models", "is no checkpoint store"),
    ],
)
def test_urls_that_name_no_store(wrong: str, words: str) -> None:
    with pytest.raises(BadStore, match=words) as refused:
        open_store(wrong)
    assert "secret" not in str(refused.value)


# What goes wrong on the way to S3


@pytest.fixture
def s3_url(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("learnloop_service.training.engine.registry.s3_store._RETRIES", 1)
    monkeypatch.setattr("learnloop_service.training.engine.registry.s3_store._LIST_RETRIES", 1)
    monkeypatch.setattr(s3, "fault", lambda method, path: None)
    return f"s3://{s3.bucket}/{tmp_path.name}"


@pytest.fixture
def engine(s3_url: str, tmp_path: Path) -> Callable[[str], Registry]:
    _base(tmp_path / "base")
    return lambda name: open_registry(tmp_path / name, {"tiny": tmp_path / "base"}, (), s3_url)


def test_a_store_that_fails_leaves_no_part_of_a_checkpoint(s3: S3Server, engine: Callable[[str], Registry]) -> None:
    one = engine("one")
    record = _create(one)
    s3.fault = lambda method, path: 503 if method == "PUT" and path.endswith("/model.safetensors") else None
    with pytest.raises(
        CheckpointNotWritten, match="checkpoint 1 could not be written: the checkpoint store s3://"
    ) as no:
        _commit(one, record)
    assert one.newest(record.id).step == 0
    s3.fault = lambda method, path: 503 if method == "PUT" and path.endswith("/000001.json") else None
    with pytest.raises(CheckpointNotWritten):
        _commit(one, record)
    s3.fault = lambda method, path: None
    assert engine("two").newest(record.id).step == 0
    assert _commit(one, record, b"at last") == 1
    assert _weights(engine("three")) == b"at last"
    for secret in s3.environment.values():
        assert secret.startswith("http") or secret not in str(no.value)


def test_a_lost_reply_commits_once(s3: S3Server, engine: Callable[[str], Registry]) -> None:
    one = engine("one")
    record = _create(one)
    lost: list[str] = []

    def fault(method: str, path: str) -> int | None:
        if method == "PUT" and path.endswith("/000001.json") and not lost:
            lost.append(path)
            return LOST
        return None

    s3.fault = fault
    assert _commit(one, record, b"once") == 1
    assert lost
    assert _weights(engine("two")) == b"once"


def test_while_the_store_is_away_known_models_are_there(
    s3: S3Server, engine: Callable[[str], Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine("one")
    record = _create(one)
    _commit(one, record, b"known")
    monkeypatch.setattr("learnloop_service.training.engine.registry.shared_registry.FRESH_S", 0.0)
    s3.fault = lambda method, path: 503
    assert _weights(one) == b"known"
    with pytest.raises(StoreUnavailable):
        one.resolve("mail/unknown")
    with pytest.raises(StoreUnavailable):
        one.refresh(record.id)
    with pytest.raises(StoreUnavailable):
        _create(one, "another")
    assert [model.name for model in one.models()] == ["agent"]
    with pytest.raises(StoreUnavailable):
        engine("two")


def test_a_name_without_a_step_is_asked_for_now_and_then(
    s3: S3Server, engine: Callable[[str], Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = engine("one"), engine("two")
    record = _create(one)
    assert _weights(two) == BASE_WEIGHTS
    monkeypatch.setattr("learnloop_service.training.engine.registry.shared_registry.FRESH_S", 3600.0)
    _commit(one, record, b"newer")
    s3.requests.clear()
    assert _weights(two) == BASE_WEIGHTS
    assert s3.requests == []
    monkeypatch.setattr("learnloop_service.training.engine.registry.shared_registry.FRESH_S", 0.0)
    assert _weights(two) == b"newer"


_CHILD = """
import sys
from pathlib import Path
from learnloop_service.training.engine.registry.shared_registry import open_registry
registry = open_registry(Path(sys.argv[1]), {}, (), sys.argv[2])
def save(directory):
    for number in range(8):
        (directory / f"part-{number}").write_bytes(b"x" * 1000)
[record] = registry.models()
registry.resolve(record.full_name)
registry.commit(record.id, registry.newest(record.id), {}, save)
"""


@pytest.mark.parametrize("stored_parts", [0, 3, 8])
def test_an_engine_that_is_killed_between_parts_leaves_nothing(
    s3: S3Server, s3_url: str, engine: Callable[[str], Registry], tmp_path: Path, stored_parts: int
) -> None:
    one = engine("one")
    record = _create(one)
    reached, released = threading.Event(), threading.Event()
    passed: list[str] = []
    lock = threading.Lock()

    def fault(method: str, path: str) -> int | None:
        if method != "PUT" or "000001" not in path:
            return None
        with lock:
            if len(passed) < stored_parts and "part-" in path:
                passed.append(path)
                return None
        reached.set()
        released.wait(180)
        return 503

    s3.fault = fault
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(tmp_path / "killed"), s3_url], cwd=ROOT, env={**os.environ}
    )
    try:
        assert reached.wait(180)
    finally:
        child.kill()
        child.wait()
        released.set()
    s3.fault = lambda method, path: None
    for name in ("killed", "two"):
        assert engine(name).newest(record.id).step == 0
    assert _commit(one, record, b"after all") == 1
    assert len([upload for upload in _uploads(open_store(s3_url)) if upload.startswith("000001")]) == 1
    assert _weights(engine("three")) == b"after all"


def test_a_bucket_that_is_not_there_is_said(s3_url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="s3://no-such-bucket/x"):
        open_registry(tmp_path / "one", {}, (), "s3://no-such-bucket/x")


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(BadStore, match="needs the extra `s3`"):
        open_store("s3://bucket")


def test_a_store_of_somebody_else_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text(json.dumps([1]))
    with pytest.raises(BadStore, match="is not what Learnloop writes there"):
        ModelStore(open_store(f"file://{tmp_path}")).identity()
    with pytest.raises(UnknownModel):
        Registry(tmp_path / "data", {}).get("model-x")

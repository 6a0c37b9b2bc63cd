"""Models in an object store shared by engines on all machines.

    models/PROJECT/NAME.json            the record: written by the one engine that creates the model
    checkpoints/ID/STEP.json            a checkpoint's manifest: written by the one engine that commits the step
    files/ID/STEP-UPLOAD/FILE[.PART]    its files in parts of 32 MiB, under a prefix unique to the upload

The manifest is written last, and only if the step has none. A checkpoint is therefore complete or absent, and no step
is committed twice. Parts are ordinary objects, so everything that an interrupted upload leaves behind shows up in a
listing.
"""

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import structlog

from learnloop_service.training.engine.registry import checkpoints, model_files
from learnloop_service.training.engine.registry.checkpoints import (
    CorruptCheckpoint,
    Manifest,
    StoredCheckpoint,
    from_json,
    is_optimizer,
    to_json,
)
from learnloop_service.training.engine.registry.model_record import ModelRecord, StepTaken, UnknownModel
from learnloop_service.training.engine.registry.object_store import (
    BadStore,
    ObjectStore,
    StoredObject,
    StoreUnavailable,
)

log = structlog.get_logger(__name__)

PART_BYTES = 32 << 20
ABANDONED_AFTER = timedelta(days=1)
"""Age after which an uncommitted upload is considered abandoned."""
_THREADS = 4
_IDENTITY = "store.json"


class NameTaken(Exception):
    """Another engine created a model of that name first."""


@dataclass(frozen=True, slots=True)
class _StoredCheckpoint:
    """A manifest in the store and the location of its files."""

    manifest: Manifest
    upload: str
    part_bytes: int


class ModelStore:
    """All models of one store. Any number of engines can use it at the same time.

    Every method raises StoreUnavailable and can be called from any thread.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self.url = objects.url
        self._objects = objects

    def identity(self) -> str:
        """Return the store's unique identity, which differs even between stores of the same URL over time. It is kept
        in the store and created at first use."""
        self._objects.create(_IDENTITY, json.dumps({"format": 1, "id": secrets.token_hex(8)}).encode())
        return self._identity() or ""

    def check(self, identity: str) -> None:
        """Raise StoreUnavailable if this is no longer the store with that identity; its listings must not be trusted
        then."""
        if self._identity() != identity:
            raise StoreUnavailable(f"the checkpoint store {self.url} is not there: is something else mounted?")

    def _identity(self) -> str | None:
        if (content := self._objects.get(_IDENTITY)) is None:
            return None
        try:
            return str(json.loads(content)["id"])
        except (ValueError, KeyError, TypeError):
            raise BadStore(f"{self.url}/{_IDENTITY} is not what Learnloop writes there") from None

    # Models

    def models(self, project: str = "", name: str = "") -> dict[tuple[str, str], str]:
        """Return the project and name of all models, or of the one named, each with a tag that changes when the model
        does."""
        tags = {}
        for stored in self._objects.list(_record_key(project, name) if name else "models/"):
            owner, _, model = stored.key.removeprefix("models/").removesuffix(".json").partition("/")
            tags[owner, model] = stored.tag
        return tags

    def record(self, project: str, name: str, directory: Path) -> ModelRecord | None:
        """Return the model of that name. `directory` is where its files are on this machine."""
        content = self._objects.get(_record_key(project, name))
        return None if content is None else model_files.record_of(content, directory)

    def create(self, record: ModelRecord) -> None:
        """Publish the model, whose checkpoints are in the store already. Raises NameTaken."""
        key, content = _record_key(record.project, record.name), model_files.record_json(record).encode()
        if not self._created(key, content):
            raise NameTaken(record.full_name)

    def delete(self, record: ModelRecord) -> None:
        """Delete the model with its checkpoints."""
        stored = self._objects.get(_record_key(record.project, record.name))
        if stored is not None and model_files.record_of(stored, record.directory).id == record.id:
            self._objects.delete([_record_key(record.project, record.name)])
        for prefix in (f"checkpoints/{record.id}/", f"files/{record.id}/"):
            self._delete_below(prefix)

    # Checkpoints

    def steps(self, model_id: str | None = None) -> dict[str, dict[int, str]]:
        """Return the checkpoint steps of that model or of all models, each with a tag that changes when the checkpoint
        does."""
        tags: dict[str, dict[int, str]] = {}
        for owner, step, manifest in self._listed_manifests(f"checkpoints/{model_id}/" if model_id else "checkpoints/"):
            if manifest.bytes:
                tags.setdefault(owner, {})[step] = manifest.tag
        return tags

    def manifests(self, keys: Collection[tuple[str, int]]) -> dict[tuple[str, int], Manifest]:
        """Fetch the manifests of these checkpoints, by model and step. Checkpoints deleted in the meantime are left
        out."""
        with ThreadPoolExecutor(_THREADS, "checkpoint-store") as pool:
            pairs = zip(keys, pool.map(lambda key: self._checkpoint(*key), keys), strict=True)
            return {key: stored.manifest for key, stored in pairs if stored is not None}

    def commit(self, model_id: str, checkpoint: StoredCheckpoint) -> None:
        """Upload a checkpoint from this machine's disk. Raises StepTaken if its step is committed already."""
        upload = secrets.token_hex(8)
        prefix = f"{_files(model_id)}{checkpoint.step:06d}-{upload}/"
        content = {"upload": upload, "part_bytes": PART_BYTES, "manifest": json.loads(to_json(checkpoint.manifest))}
        try:
            self._upload(checkpoint, prefix)
        except BaseException:
            self._discard(prefix)
            raise
        # If this fails, the manifest may still exist or arrive later, so the files must stay.
        if not self._created(_manifest_key(model_id, checkpoint.step), json.dumps(content, indent=2).encode()):
            self._discard(prefix)
            raise StepTaken(f"step {checkpoint.step} of {checkpoint.manifest.model} was committed by another engine")
        self._tidy(model_id, checkpoint.step, upload)

    def fetch(self, model_id: str, step: int, parent: Path) -> StoredCheckpoint:
        """Download the checkpoint into its directory below `parent`, and check its files against their hashes.

        Raises UnknownModel if it was deleted, and CorruptCheckpoint after removing a corrupt one from the listing.
        """
        for last in (False, True):
            if (stored := self._checkpoint(model_id, step)) is None:
                raise UnknownModel(f"checkpoint {step} was deleted")
            try:
                return checkpoints.receive(parent, stored.manifest, partial(self._download, model_id, stored))
            except CorruptCheckpoint as error:
                log.warning("checkpoint arrived damaged", step=step, model=stored.manifest.model, error=str(error))
                if last and self._checkpoint(model_id, step) == stored:
                    self._set_aside(model_id, step)
                    raise
        raise UnknownModel(f"checkpoint {step} changes while it is fetched")

    def delete_checkpoints(self, model_id: str, steps: Iterable[int]) -> None:
        """Delete these checkpoints. An empty manifest remains of each, so that an engine that has not seen the deletion
        cannot commit the step again."""
        steps = list(steps)
        for step in steps:
            self._objects.put(_manifest_key(model_id, step), b"")
        prefixes = tuple(f"{_files(model_id)}{step:06d}-" for step in steps)
        self._objects.delete(
            [stored.key for stored in self._objects.list(_files(model_id)) if stored.key.startswith(prefixes)]
        )

    def sweep(self, model_ids: Collection[str], now: datetime | None = None) -> int:
        """Delete the leftovers of interrupted creations, uploads and deletions, and return the number of objects
        deleted. `model_ids` are the ids of all models."""
        long_ago = (now or datetime.now(UTC)) - ABANDONED_AFTER
        uploads: dict[tuple[str, int], dict[str, list[StoredObject]]] = {}
        for part in self._objects.list("files/"):
            _, owner, folder, _ = part.key.split("/", 3)
            step, _, upload = folder.partition("-")
            uploads.setdefault((owner, int(step)), {}).setdefault(upload, []).append(part)
        manifests = {(owner, step): stored for owner, step, stored in self._listed_manifests("checkpoints/")}
        garbage = [
            stored for (owner, _), stored in manifests.items() if owner not in model_ids and stored.modified < long_ago
        ]
        for (owner, number), by_upload in uploads.items():
            decided = owner in model_ids and (owner, number) in manifests
            committed = self._checkpoint(owner, number) if decided and len(by_upload) > 1 else None
            for upload, parts in by_upload.items():
                if not decided:
                    is_garbage = all(part.modified < long_ago for part in parts)
                elif len(by_upload) == 1:
                    is_garbage = not manifests[owner, number].bytes
                else:
                    is_garbage = committed is None or upload != committed.upload
                garbage += parts if is_garbage else []
        self._objects.delete([stored.key for stored in garbage])
        return len(garbage)

    def _listed_manifests(self, prefix: str) -> Iterator[tuple[str, int, StoredObject]]:
        for stored in self._objects.list(prefix):
            _, owner, file = stored.key.split("/")
            if (step := file.removesuffix(".json")).isdecimal():
                yield owner, int(step), stored

    def _checkpoint(self, model_id: str, step: int) -> _StoredCheckpoint | None:
        if not (content := self._objects.get(_manifest_key(model_id, step))):
            return None
        fields = json.loads(content)
        return _StoredCheckpoint(from_json(fields["manifest"]), fields["upload"], fields["part_bytes"])

    def _upload(self, checkpoint: StoredCheckpoint, prefix: str) -> None:
        def send(part: _Part) -> None:
            with (checkpoint.directory / part.file).open("rb") as file:
                file.seek(part.start)
                self._objects.put(f"{prefix}{part.name}", file.read(part.bytes))

        _all(send, _parts(checkpoint.manifest, PART_BYTES))

    def _download(self, model_id: str, stored: _StoredCheckpoint, directory: Path) -> None:
        prefix = f"{_files(model_id)}{stored.manifest.step:06d}-{stored.upload}/"
        for name in (*stored.manifest.files, *stored.manifest.optimizer_files):
            (directory / name).touch()

        missing = set()

        def receive(part: _Part) -> None:
            if (content := self._objects.get(f"{prefix}{part.name}")) is None:
                return missing.add(part.file)
            with (directory / part.file).open("r+b") as file:
                file.seek(part.start)
                file.write(content)

        _all(receive, _parts(stored.manifest, stored.part_bytes))
        for name in missing:  # verification decides whether it matters: old checkpoints have lost the optimizer's state
            (directory / name).unlink()

    def _created(self, key: str, content: bytes) -> bool:
        """Create the object and return whether it holds our content. An existing object can be ours if a lost reply
        made the client retry."""
        return self._objects.create(key, content) or self._objects.get(key) == content

    def _tidy(self, model_id: str, step: int, upload: str) -> None:
        """After a commit, delete other uploads of the step, and the optimizer's state of all but the newest two
        checkpoints."""
        try:
            leftovers = []
            for part in self._objects.list(_files(model_id)):
                folder, name = part.key.removeprefix(_files(model_id)).split("/")
                number = int(folder.partition("-")[0])
                lost = number == step and folder != f"{step:06d}-{upload}"
                if lost or (number < step - 1 and is_optimizer(name)):
                    leftovers.append(part.key)
            self._objects.delete(leftovers)
        except StoreUnavailable as error:
            log.warning("leftovers stay in the store until the next sweep", error=str(error))

    def _discard(self, prefix: str) -> None:
        with suppress(StoreUnavailable):  # a sweep will find it
            self._delete_below(prefix)

    def _delete_below(self, prefix: str) -> None:
        self._objects.delete([stored.key for stored in self._objects.list(prefix)])

    def _set_aside(self, model_id: str, step: int) -> None:
        """Rename the manifest of a checkpoint that is corrupt in the store, so that it is not listed any more."""
        key = _manifest_key(model_id, step)
        if content := self._objects.get(key):
            self._objects.put(f"{key.removesuffix('.json')}-{secrets.token_hex(4)}.torn", content)
            self._objects.delete([key])


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of a file and the object that holds it."""

    file: str
    name: str
    start: int
    bytes: int


def _parts(manifest: Manifest, part_bytes: int) -> Iterator[_Part]:
    for name, digest in {**manifest.files, **manifest.optimizer_files}.items():
        if digest.bytes <= part_bytes:
            yield _Part(name, name, 0, digest.bytes)
            continue
        for number, start in enumerate(range(0, digest.bytes, part_bytes)):
            yield _Part(name, f"{name}.{number:05d}", start, min(part_bytes, digest.bytes - start))


def _all(work: Callable[[_Part], None], parts: Iterable[_Part]) -> None:
    """Run `work` on all parts, several at a time. Raises the first error after all running parts have ended."""
    with ThreadPoolExecutor(_THREADS, "checkpoint-store") as pool:
        running = [pool.submit(work, part) for part in parts]
        try:
            for future in running:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _record_key(project: str, name: str) -> str:
    return f"models/{project}/{name}.json"


def _manifest_key(model_id: str, step: int) -> str:
    return f"checkpoints/{model_id}/{step:06d}.json"


def _files(model_id: str) -> str:
    return f"files/{model_id}/"

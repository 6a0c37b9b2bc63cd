"""A registry whose models are in an object store shared by engines on all machines. The data directory is a cache.

Models that are on disk but not in the store are ignored, except those created before a store was configured, which are
uploaded. Checkpoint files are fetched when needed. Cached knowledge of a model dates from its last refresh; the store
alone decides who creates a model and who commits a step.
"""

import shutil
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import structlog

from learnloop_service.training.engine.registry import checkpoints, model_files
from learnloop_service.training.engine.registry.checkpoints import (
    CheckpointNotWritten,
    CorruptCheckpoint,
    Fill,
    StoredCheckpoint,
)
from learnloop_service.training.engine.registry.model_record import (
    INFERENCE_NAME,
    ModelRecord,
    NewModel,
    StepTaken,
    Target,
    UnknownModel,
)
from learnloop_service.training.engine.registry.model_store import ModelStore, NameTaken
from learnloop_service.training.engine.registry.object_store import BadStore, StoreUnavailable
from learnloop_service.training.engine.registry.registry import ModelEntry, Registry
from learnloop_service.training.engine.registry.store_url import open_store

log = structlog.get_logger(__name__)

FRESH_S = 5.0
"""Maximum age of the cached newest checkpoint when a model is sampled without naming a step, in seconds."""
_MARK = ".stored"
"""File in a model's directory with the identity of the store that holds the model."""


def open_registry(
    data_dir: Path, bases: Mapping[str, Path], allowed_roots: Sequence[Path], store: str | None
) -> Registry:
    """Open the registry of a data directory, or of the store at that URL. Raises BadStore or StoreUnavailable."""
    if store is None:
        return Registry(data_dir, bases, allowed_roots)
    return SharedRegistry(data_dir, bases, allowed_roots, store=ModelStore(open_store(store)))


class SharedRegistry(Registry):
    """All models of one store. Unlike those of the base class, its methods can take as long as a transfer."""

    def __init__(
        self, data_dir: Path, bases: Mapping[str, Path], allowed_roots: Sequence[Path] = (), *, store: ModelStore
    ) -> None:
        """Upload the models of this directory that were never in a store, and read all others from the store.

        Raises BadStore or StoreUnavailable.
        """
        super().__init__(data_dir, bases, allowed_roots)
        self._store = store
        self._refreshing = threading.RLock()
        self._fetching = threading.Lock()
        self._refreshed: dict[str, float] = {}  # time of the last refresh, by model id
        self._model_tags: dict[tuple[str, str], str] = {}
        self._step_tags: dict[tuple[str, int], str] = {}
        self._committing: set[tuple[str, int]] = set()
        self._shared: set[str] = set()
        """Ids of the models that are in the store."""
        self._identity = store.identity()
        for entry in list(self._entries.values()):
            self._adopt(entry)
        self.refresh()
        if swept := store.sweep(list(self._entries)):
            log.info("swept what was left in the checkpoint store", objects=swept)

    def _adopt(self, entry: ModelEntry) -> None:
        """Treat a model of the data directory as a copy of the store's. One that was never in a store is uploaded."""
        mark = entry.record.directory / _MARK
        if not mark.exists():
            log.info("model goes into the checkpoint store", model=entry.record.full_name)
            try:
                self._publish(entry)
            except NameTaken:
                raise BadStore(
                    f"the checkpoint store {self._store.url} has another model {entry.record.full_name}: move "
                    f"{entry.record.directory} away, or name another store"
                ) from None
            return
        if mark.read_text() != self._identity:
            raise BadStore(
                f"the models in {self._root} came from another checkpoint store than {self._store.url}: name that one "
                "(or mount it), or give a data directory of its own to this one"
            )
        self._shared.add(entry.record.id)

    # Changes by other engines.

    def refresh(self, model_id: str | None = None) -> None:
        """Pick up other engines' changes to the model, or to all models. Raises StoreUnavailable."""
        with self._lock:
            entry = self._entries.get(model_id) if model_id else None
        self._refresh((entry.record.project, entry.record.name) if entry else None)

    def _refresh(self, only: tuple[str, str] | None) -> None:
        """Bring the cache in line with the store: all of it, or only the model of that project and name."""
        with self._refreshing:
            cached = {key: entry for key, entry in self._shared_entries().items() if only in (None, key)}
            before = {entry.record.id: set(entry.checkpoints) for entry in cached.values()}
            self._refresh_models(self._store.models(*only or ()), cached)
            entries = {key: entry for key, entry in self._shared_entries().items() if only in (None, key)}
            model_id = entries[only].record.id if only in entries else None
            steps = self._store.steps(model_id) if entries else {}
            for entry in entries.values():
                self._refresh_steps(entry, before.get(entry.record.id, set()), steps.get(entry.record.id, {}))
                self._refreshed[entry.record.id] = time.monotonic()

    def _shared_entries(self) -> dict[tuple[str, str], ModelEntry]:
        with self._lock:
            return {
                (entry.record.project, entry.record.name): entry
                for model_id, entry in self._entries.items()
                if model_id in self._shared
            }

    def _refresh_models(
        self, listed: Mapping[tuple[str, str], str], cached: Mapping[tuple[str, str], ModelEntry]
    ) -> None:
        if gone := [entry for key, entry in cached.items() if key not in listed]:
            self._store.check(self._identity)
        for entry in gone:
            self._forget(entry)
        for key, tag in listed.items():
            if key in cached and self._model_tags.get(key) == tag:
                continue
            if key not in cached and self._named(*key):
                continue  # we are about to create a model of that name and get the error then
            record = self._store.record(*key, self._root / "/".join(key))
            if record is None:  # deleted in the meantime
                continue
            if key not in cached or cached[key].record.id != record.id:
                if key in cached:
                    self._forget(cached[key])
                model_files.write_record(record)
                self._share(ModelEntry(record, {}))
            self._model_tags[key] = tag

    def _refresh_steps(self, entry: ModelEntry, before: Collection[int], tags: Mapping[int, str]) -> None:
        """Record the checkpoints that the store lists with `tags`. Forget the others, unless they were added after
        `before`, when the store was asked."""
        model_id = entry.record.id
        changed = [
            (model_id, step)
            for step, tag in tags.items()
            if self._step_tags.get((model_id, step)) != tag and (model_id, step) not in self._committing
        ]
        manifests = self._store.manifests(changed)
        stale = []
        with self._lock:
            for step in set(before) - set(tags):
                if (gone := entry.checkpoints.pop(step, None)) is not None:
                    stale.append(gone.directory)
            for (_, step), manifest in manifests.items():
                path = entry.record.directory / model_files.CHECKPOINTS / f"{step:06d}"
                if step not in entry.checkpoints or entry.checkpoints[step].manifest != manifest:
                    if step in entry.checkpoints:
                        stale.append(path)
                    entry.checkpoints[step] = StoredCheckpoint(path, manifest)
                    entry.verified.discard(step)
                self._step_tags[model_id, step] = tags[step]
        for directory in stale:
            checkpoints.remove(directory)

    def _share(self, entry: ModelEntry) -> None:
        """Mark the model as the store's, which makes the local one a copy."""
        (entry.record.directory / _MARK).write_text(self._identity)
        with self._lock:
            self._entries[entry.record.id] = entry
            self._shared.add(entry.record.id)

    def _forget(self, entry: ModelEntry) -> None:
        with self._lock:
            self._entries.pop(entry.record.id, None)
            self._shared.discard(entry.record.id)
            self._model_tags.pop((entry.record.project, entry.record.name), None)
        with suppress(FileNotFoundError):
            shutil.rmtree(model_files.mark_deleted(entry.record), ignore_errors=True)

    # Changes by this engine.

    def _create(self, new: NewModel, project: str, name: str) -> ModelRecord:
        """Create a model. If several engines create one of the same name concurrently, one succeeds and the others find
        its model.

        Raises StoreUnavailable too.
        """
        create = partial(super()._create, new, project, name)
        self.refresh()
        if new.base_model not in self._bases and INFERENCE_NAME.fullmatch(new.base_model):
            with suppress(UnknownModel):  # `create` reports it
                self.resolve(new.base_model)  # fetches the files to copy
        record = create()
        if record.id in self._shared:
            return record
        try:
            self._publish(self._entry(record.id))
        except NameTaken:
            self._store.delete(record)
            super().delete(record.id)
            self.refresh()
            return create()
        except BaseException:
            super().delete(record.id)
            raise
        return record

    def _publish(self, entry: ModelEntry) -> None:
        """Upload the model to the store. Raises NameTaken or StoreUnavailable."""
        for step in sorted(entry.checkpoints):
            with suppress(StepTaken):  # committed by ourselves before an interruption
                self._store.commit(entry.record.id, entry.checkpoints[step])
        self._store.create(entry.record)
        self._share(entry)

    def delete(self, model_id: str) -> ModelRecord:
        """Delete the model here and in the store, like Registry.delete. Raises StoreUnavailable too."""
        self._store.delete(self.get(model_id))
        self._shared.discard(model_id)
        return super().delete(model_id)

    def commit(
        self, model_id: str, parent: StoredCheckpoint, metrics: Mapping[str, float], save: Fill
    ) -> StoredCheckpoint:
        """Commit like Registry.commit, and return once the store has the checkpoint. Raises StepTaken if another engine
        committed that step."""
        with self._committed(model_id, parent.step + 1):
            return super().commit(model_id, parent, metrics, save)

    def add(self, model_id: str, written: StoredCheckpoint) -> None:
        """Add like Registry.add, and return once the store has the checkpoint. Raises StepTaken like `commit`."""
        with self._committed(model_id, written.step):
            super().add(model_id, written)

    @contextmanager
    def _committed(self, model_id: str, step: int) -> Iterator[None]:
        """Mark that step in the store as possibly ours while the context is open."""
        self._committing.add((model_id, step))
        try:
            yield
        except StepTaken:
            self._committing.discard((model_id, step))
            self.refresh(model_id)
            raise
        finally:
            self._committing.discard((model_id, step))

    def _keep(self, record: ModelRecord, checkpoint: StoredCheckpoint) -> None:
        try:
            self._store.commit(record.id, checkpoint)
        except StoreUnavailable as error:
            raise CheckpointNotWritten(f"checkpoint {checkpoint.step} could not be written: {error}") from error

    def delete_checkpoints(self, model_id: str, steps: Iterable[int]) -> tuple[list[int], list[int]]:
        """Delete checkpoints here and in the store, like Registry.delete_checkpoints. Raises StoreUnavailable too."""
        deleted, not_found = super().delete_checkpoints(model_id, steps)
        self._store.delete_checkpoints(model_id, deleted)
        return deleted, not_found

    # Files on this machine's disk.

    def checkpoint(self, model_id: str, step: int) -> StoredCheckpoint:
        """Return a checkpoint like Registry.checkpoint, fetching it if needed. Raises StoreUnavailable too."""
        if step not in self._entry(model_id).checkpoints:
            self.refresh(model_id)
        checkpoint = super().checkpoint(model_id, step)
        if not checkpoint.directory.is_dir():
            self._fetch(model_id, step)
        return checkpoint

    def resolve(self, name: str) -> Target:
        """Resolve a name like Registry.resolve. Without a step, the checkpoint can be one that was the newest `FRESH_S`
        seconds ago.

        Raises StoreUnavailable too.
        """
        if name not in self._bases:
            self._freshen(name)
        while True:
            target = super().resolve(name)
            if target.model is None or target.directory.is_dir():
                return target
            try:
                self._fetch(target.model.id, target.step)
            except CorruptCheckpoint:  # the previous checkpoint is the newest now
                if (match := INFERENCE_NAME.fullmatch(name)) and match["step"]:
                    raise

    def _freshen(self, name: str) -> None:
        if (match := INFERENCE_NAME.fullmatch(name)) is None:
            return
        project, model, step = match.group("project", "name", "step")
        with self._lock:
            cached = [
                entry
                for entry in self._entries.values()
                if entry.record.name == model and project in (None, entry.record.project)
            ]
            if step is not None and any(int(step) in entry.checkpoints for entry in cached):
                return
        with self._refreshing:
            now = time.monotonic()
            if (
                step is None
                and cached
                and all(now - self._refreshed.get(e.record.id, -FRESH_S) < FRESH_S for e in cached)
            ):
                return
            try:
                self._refresh(None if project is None else (project, model))
            except StoreUnavailable as error:
                if step is not None or not cached:
                    raise
                log.warning("the newest checkpoint is not certain", model=name, error=str(error))
                self._refreshed |= {entry.record.id: time.monotonic() for entry in cached}

    def _fetch(self, model_id: str, step: int) -> None:
        entry = self._entry(model_id)
        parent = entry.record.directory / model_files.CHECKPOINTS
        with self._fetching:
            if (parent / f"{step:06d}").is_dir():
                return
            try:
                fetched = self._store.fetch(model_id, step, parent)
            except (CorruptCheckpoint, UnknownModel):
                with self._lock:
                    entry.checkpoints.pop(step, None)
                raise
            with self._lock:
                entry.checkpoints[step] = fetched
                entry.verified.add(step)
        log.info("checkpoint fetched", model=entry.record.full_name, step=step)

    def _verified(self, entry: ModelEntry, step: int) -> StoredCheckpoint:
        """Return the verified checkpoint. A missing one is trusted to be intact in the store, and a corrupt local copy
        is fetched again."""
        checkpoint = entry.checkpoints[step]
        if entry.record.id not in self._shared:
            return super()._verified(entry, step)
        if not checkpoint.directory.is_dir():
            return checkpoint
        try:
            return super()._verified(entry, step)
        except CorruptCheckpoint:
            entry.checkpoints[step] = checkpoint
            return checkpoint

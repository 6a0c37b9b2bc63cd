"""A registry whose models are in an object store, which engines on all machines share; the data directory is a cache.

What is on disk but not in the store does not count, with one exception: a model of before there was a store is put
there. Files of checkpoints are fetched when they are needed. What is known of a model was true when it was last
refreshed; the store alone decides who makes a model, and who commits a step.
"""

import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import structlog

from training.engine.registry import checkpoints, model_files
from training.engine.registry.checkpoints import Checkpoint, CheckpointNotWritten, CorruptCheckpoint
from training.engine.registry.model_record import INFERENCE_NAME, ModelRecord, StepTaken, Target, UnknownModel
from training.engine.registry.model_store import ModelStore, NameTaken
from training.engine.registry.object_store import BadStore, StoreUnavailable
from training.engine.registry.registry import Entry, Registry
from training.engine.registry.store_url import open_store
from training.engine.registry.tuning import Tuning

log = structlog.get_logger(__name__)

FRESH_S = 5.0
"""So old may be what is known of a model's newest checkpoint when one samples from it without naming a step."""
_MARK = ".stored"
"""In a model's directory: the identity of the store that holds the model."""


def open_registry(
    data_dir: Path, bases: Mapping[str, Path], allowed_roots: Sequence[Path], store: str | None
) -> Registry:
    """The registry of a data directory, or of the store of that URL. Raises BadStore, StoreUnavailable."""
    if store is None:
        return Registry(data_dir, bases, allowed_roots)
    return SharedRegistry(data_dir, bases, allowed_roots, store=ModelStore(open_store(store)))


class SharedRegistry(Registry):
    """All models of one store. Unlike the others, its methods may take as long as a transfer."""

    def __init__(
        self, data_dir: Path, bases: Mapping[str, Path], allowed_roots: Sequence[Path] = (), *, store: ModelStore
    ) -> None:
        """Puts models of this directory into the store that never were there, and hears of all others.

        Raises BadStore, StoreUnavailable.
        """
        super().__init__(data_dir, bases, allowed_roots)
        self._store = store
        self._refreshing = threading.RLock()
        self._fetching = threading.Lock()
        self._refreshed: dict[str, float] = {}  # when, by model id
        self._model_tags: dict[tuple[str, str], str] = {}
        self._step_tags: dict[tuple[str, int], str] = {}
        self._committing: set[tuple[str, int]] = set()
        self._shared: set[str] = set()
        """Models that are in the store."""
        self._identity = store.identity()
        for entry in list(self._entries.values()):
            self._adopt(entry)
        self.refresh()
        if left := store.sweep(list(self._entries)):
            log.info("swept what was left in the checkpoint store", objects=left)

    def _adopt(self, entry: Entry) -> None:
        """Take a model of the data directory as a copy of the store's; one that never was in a store is put there."""
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

    # What other engines did

    def refresh(self, model_id: str | None = None) -> None:
        """Hear of what other engines did to the model, or to all. Raises StoreUnavailable."""
        with self._lock:
            entry = self._entries.get(model_id) if model_id else None
        self._refresh((entry.record.project, entry.record.name) if entry else None)

    def _refresh(self, only: tuple[str, str] | None) -> None:
        """Be as the store is: all of it, or the model of that project and name."""
        with self._refreshing:
            known = {place: entry for place, entry in self._shared_entries().items() if only in (None, place)}
            before = {entry.record.id: set(entry.checkpoints) for entry in known.values()}
            self._refresh_models(self._store.models(*only or ()), known)
            entries = {place: entry for place, entry in self._shared_entries().items() if only in (None, place)}
            model_id = entries[only].record.id if only in entries else None
            steps = self._store.steps(model_id) if entries else {}
            for entry in entries.values():
                self._refresh_steps(entry, before.get(entry.record.id, set()), steps.get(entry.record.id, {}))
                self._refreshed[entry.record.id] = time.monotonic()

    def _shared_entries(self) -> dict[tuple[str, str], Entry]:
        with self._lock:
            return {
                (entry.record.project, entry.record.name): entry
                for model_id, entry in self._entries.items()
                if model_id in self._shared
            }

    def _refresh_models(self, listed: Mapping[tuple[str, str], str], known: Mapping[tuple[str, str], Entry]) -> None:
        if gone := [entry for place, entry in known.items() if place not in listed]:
            self._store.check(self._identity)
        for entry in gone:
            self._forget(entry)
        for place, tag in listed.items():
            if place in known and self._model_tags.get(place) == tag:
                continue
            if place not in known and self._named(*place):
                continue  # we are about to create one of that name, and shall be told
            record = self._store.record(*place, self._root / "/".join(place))
            if record is None:  # deleted meanwhile
                continue
            if place not in known or known[place].record.id != record.id:
                if place in known:
                    self._forget(known[place])
                model_files.write_record(record)
                self._share(Entry(record, {}))
            self._model_tags[place] = tag

    def _refresh_steps(self, entry: Entry, before: Collection[int], tags: Mapping[int, str]) -> None:
        """Know the checkpoints that the store has, whose tags these are; of those `before` it had been asked, forget
        the others."""
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
                place = entry.record.directory / model_files.CHECKPOINTS / f"{step:06d}"
                if step not in entry.checkpoints or entry.checkpoints[step].manifest != manifest:
                    if step in entry.checkpoints:
                        stale.append(place)
                    entry.checkpoints[step] = Checkpoint(place, manifest)
                    entry.verified.discard(step)
                self._step_tags[model_id, step] = tags[step]
        for directory in stale:
            checkpoints.remove(directory)

    def _share(self, entry: Entry) -> None:
        """From now on the model is the store's, and what is here is a copy."""
        (entry.record.directory / _MARK).write_text(self._identity)
        with self._lock:
            self._entries[entry.record.id] = entry
            self._shared.add(entry.record.id)

    def _forget(self, entry: Entry) -> None:
        with self._lock:
            self._entries.pop(entry.record.id, None)
            self._shared.discard(entry.record.id)
            self._model_tags.pop((entry.record.project, entry.record.name), None)
        with suppress(FileNotFoundError):
            shutil.rmtree(model_files.mark_deleted(entry.record), ignore_errors=True)

    # What this engine does

    def _create(
        self, project: str, name: str, base_model: str, entity: str, return_existing: bool, tuning: Tuning | None
    ) -> ModelRecord:
        """Of all engines that create a model of one name at the same time, one does, and the others find it there.

        Raises StoreUnavailable too.
        """
        create = partial(super()._create, project, name, base_model, entity, return_existing, tuning)
        self.refresh()
        if base_model not in self._bases and INFERENCE_NAME.fullmatch(base_model):
            with suppress(UnknownModel):  # `create` says so
                self.resolve(base_model)  # fetches what is to be copied
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

    def _publish(self, entry: Entry) -> None:
        """Put the model into the store. Raises NameTaken, StoreUnavailable."""
        for step in sorted(entry.checkpoints):
            with suppress(StepTaken):  # by ourselves, before we were cut short
                self._store.commit(entry.record.id, entry.checkpoints[step])
        self._store.create(entry.record)
        self._share(entry)

    def delete(self, model_id: str) -> ModelRecord:
        """As Registry.delete, everywhere. Raises StoreUnavailable too."""
        self._store.delete(self.get(model_id))
        self._shared.discard(model_id)
        return super().delete(model_id)

    def commit(
        self, model_id: str, parent: Checkpoint, metrics: Mapping[str, float], save: Callable[[Path], None]
    ) -> Checkpoint:
        """As Registry.commit; when it returns the store has the checkpoint. Raises StepTaken if it has one of that step
        from another engine."""
        with self._committed(model_id, parent.step + 1):
            return super().commit(model_id, parent, metrics, save)

    def add(self, model_id: str, written: Checkpoint) -> None:
        """As Registry.add; when it returns the store has the checkpoint. Raises StepTaken as `commit` does."""
        with self._committed(model_id, written.step):
            super().add(model_id, written)

    @contextmanager
    def _committed(self, model_id: str, step: int) -> Iterator[None]:
        """For as long as it is open, that step in the store may be ours."""
        self._committing.add((model_id, step))
        try:
            yield
        except StepTaken:
            self._committing.discard((model_id, step))
            self.refresh(model_id)
            raise
        finally:
            self._committing.discard((model_id, step))

    def _keep(self, record: ModelRecord, checkpoint: Checkpoint) -> None:
        try:
            self._store.commit(record.id, checkpoint)
        except StoreUnavailable as error:
            raise CheckpointNotWritten(f"checkpoint {checkpoint.step} could not be written: {error}") from error

    def delete_checkpoints(self, model_id: str, steps: Iterable[int]) -> tuple[list[int], list[int]]:
        """As Registry.delete_checkpoints, everywhere. Raises StoreUnavailable too."""
        deleted, not_found = super().delete_checkpoints(model_id, steps)
        self._store.delete_checkpoints(model_id, deleted)
        return deleted, not_found

    # What is on this machine's disk

    def checkpoint(self, model_id: str, step: int) -> Checkpoint:
        """As Registry.checkpoint. Raises StoreUnavailable too."""
        if step not in self._entry(model_id).checkpoints:
            self.refresh(model_id)
        found = super().checkpoint(model_id, step)
        if not found.directory.is_dir():
            self._fetch(model_id, step)
        return found

    def resolve(self, name: str) -> Target:
        """As Registry.resolve. Without a step, the newest checkpoint may be one that was the newest `FRESH_S` ago.

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
            except CorruptCheckpoint:  # the one before is the newest now
                if (match := INFERENCE_NAME.fullmatch(name)) and match["step"]:
                    raise

    def _freshen(self, name: str) -> None:
        if (match := INFERENCE_NAME.fullmatch(name)) is None:
            return
        project, model, step = match.group("project", "name", "step")
        with self._lock:
            known = [
                entry
                for entry in self._entries.values()
                if entry.record.name == model and project in (None, entry.record.project)
            ]
            if step is not None and any(int(step) in entry.checkpoints for entry in known):
                return
        with self._refreshing:
            now = time.monotonic()
            if (
                step is None
                and known
                and all(now - self._refreshed.get(e.record.id, -FRESH_S) < FRESH_S for e in known)
            ):
                return
            try:
                self._refresh(None if project is None else (project, model))
            except StoreUnavailable as error:
                if step is not None or not known:
                    raise
                log.warning("the newest checkpoint is not certain", model=name, error=str(error))
                self._refreshed |= {entry.record.id: time.monotonic() for entry in known}

    def _fetch(self, model_id: str, step: int) -> None:
        entry = self._entry(model_id)
        place = entry.record.directory / model_files.CHECKPOINTS
        with self._fetching:
            if (place / f"{step:06d}").is_dir():
                return
            try:
                fetched = self._store.fetch(model_id, step, place)
            except (CorruptCheckpoint, UnknownModel):
                with self._lock:
                    entry.checkpoints.pop(step, None)
                raise
            with self._lock:
                entry.checkpoints[step] = fetched
                entry.verified.add(step)
        log.info("checkpoint fetched", model=entry.record.full_name, step=step)

    def _verified(self, entry: Entry, step: int) -> Checkpoint:
        """A checkpoint that is not here is as good as the store's; one that is here and corrupt is fetched again."""
        known = entry.checkpoints[step]
        if entry.record.id not in self._shared:
            return super()._verified(entry, step)
        if not known.directory.is_dir():
            return known
        try:
            return super()._verified(entry, step)
        except CorruptCheckpoint:
            entry.checkpoints[step] = known
            return known

"""The registry of models: base models by name, trainable models with their checkpoints, and the resolution of names.

Reading and creating are safe from any thread. Deleting belongs to one thread, and so does committing to any one model.
Files are written without holding the lock that readers take. In a `SharedRegistry` the models are in an object store.
"""

import json
import secrets
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog

from learnloop_service.training.bases.files import TIED, tied_modules
from learnloop_service.training.collapse import RESTORED
from learnloop_service.training.engine.registry import checkpoints, model_files
from learnloop_service.training.engine.registry.base_models import Bases, parameter_count
from learnloop_service.training.engine.registry.checkpoints import CorruptCheckpoint, Fill, Manifest, StoredCheckpoint
from learnloop_service.training.engine.registry.model_record import (
    INFERENCE_NAME,
    NAME,
    BadModelName,
    CheckpointInUse,
    ModelExists,
    ModelRecord,
    NewModel,
    Target,
    UnknownModel,
)
from learnloop_service.training.protocol.tool_formats.chosen import template_options
from learnloop_service.training.tuning import Tuning, usual_tuning

log = structlog.get_logger(__name__)

DEFAULT_ENTITY = "local"
DEFAULT_PROJECT = "default"


class ModelEntry:
    """A model and its checkpoints by step. `verified` has the steps whose files matched their hashes in this
    process."""

    def __init__(self, record: ModelRecord, by_step: dict[int, StoredCheckpoint]) -> None:
        self.record = record
        self.checkpoints = by_step
        self.verified: set[int] = set()
        self.without_optimizer: set[int] = set()
        """Steps whose optimizer state was removed by this process."""


class Registry:
    """All models of one data directory."""

    def __init__(
        self,
        data_dir: Path,
        bases: Mapping[str, Path],
        allowed_roots: Sequence[Path] = (),
        *,
        follows: bool = False,
    ) -> None:
        """`bases` are model directories by name. Absolute directories below `allowed_roots` are base models too.

        A registry that `follows` belongs to a worker process that does not own the data directory: it never scans or
        tidies the directory, and knows only the models passed to `learn`.
        """
        self._root = data_dir / "models"
        self._bases = Bases(data_dir, bases, allowed_roots)
        self._lock = threading.RLock()
        self._creating = threading.RLock()
        self._follows = follows
        self._entries: dict[str, ModelEntry] = {}
        self.unwritten: Target | None = None
        """A step that can be sampled although its checkpoint is still being written."""
        if not follows:
            self._root.mkdir(parents=True, exist_ok=True)
            self._entries |= {
                record.id: ModelEntry(record, by_step) for record, by_step in model_files.load(self._root)
            }

    # Base models

    @property
    def base_models(self) -> list[str]:
        """Names of the base models, except those that are known to be unusable."""
        return self._bases.offered

    @property
    def bases(self) -> Bases:
        """The base models."""
        return self._bases

    def loading(self, target: Target) -> AbstractContextManager[None]:
        """Mark the base model of a target as being loaded; see Bases.loading."""
        return self._bases.loading(target.model.base_model if target.model else target.key)

    def base_directory(self, name: str) -> Path:
        """Return the directory with a base model's files. Raises UnknownModel."""
        return self._bases.directory(name)

    # Trainable models

    def create(
        self,
        *,
        project: str | None,
        name: str | None,
        base_model: str,
        entity: str | None = None,
        return_existing: bool = False,
        tuning: Tuning | None = None,
        enable_thinking: bool | None = None,
    ) -> ModelRecord:
        """Create a model with checkpoint 0, from a base model or from another model's checkpoint (`project/name@step`).

        Without `tuning`, small base models are trained in full and large ones by LoRA; a fork inherits its source's
        tuning. `enable_thinking` is the switch of that name in its chat template, for good. Raises BadModelName,
        UnknownModel, BadBaseModel, ModelExists or CheckpointNotWritten.
        """
        project, name = project or DEFAULT_PROJECT, name or f"model-{secrets.token_hex(4)}"
        for part in (project, name, entity or DEFAULT_ENTITY):
            if not NAME.fullmatch(part):
                raise BadModelName(f"{part!r} is no name: letters, digits and ._- after a first letter or digit")
        new = NewModel(project, name, base_model, entity, return_existing, tuning, enable_thinking)
        with self._creating:
            return self._create(new, project, name)

    def _create(self, new: NewModel, project: str, name: str) -> ModelRecord:
        with self._lock:
            self._put_back(project, name)
            if existing := self._named(project, name):
                registered = self._existing(existing.record, new.base_model, new.return_existing, new.tuning)
                switch = template_options(self.newest(registered.id).directory).enable_thinking
                if new.enable_thinking not in (None, switch):
                    how = "without" if switch is None else f"with {json.dumps(switch)} as"
                    raise ModelExists(
                        f"{registered.full_name} exists {how} enable_thinking; leave it out, or take a new name"
                    )
                return registered
            if f"{project}/{name}" in self._bases:
                raise ModelExists(f"{project}/{name} is a base model's name")
            source = self._source(new.base_model, new.tuning)
        record = ModelRecord(
            f"model-{secrets.token_hex(8)}",
            new.entity or DEFAULT_ENTITY,
            project,
            name,
            source.model.base_model if source.model else new.base_model,
            source.key,
            source.tuning,
            datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            self._root / project / name,
        )
        entry = ModelEntry(record, model_files.make(record, source, new.enable_thinking))
        with self._lock:
            self._entries[record.id] = entry
        log.info("model created", model=record.full_name, origin=record.origin, tuning=record.tuning.mode)
        return record

    def refresh(self, model_id: str | None = None) -> None:
        """Pick up other engines' changes to the model, or to all models, if models are shared. This can take long."""

    def get(self, model_id: str) -> ModelRecord:
        """Return the model with that id. Raises UnknownModel."""
        return self._entry(model_id).record

    def models(self) -> list[ModelRecord]:
        """Return all trainable models, ordered by name."""
        with self._lock:
            return sorted((entry.record for entry in self._entries.values()), key=lambda record: record.full_name)

    def delete(self, model_id: str) -> ModelRecord:
        """Delete a model with all its checkpoints. Raises UnknownModel."""
        with self._lock:
            record = self._entry(model_id).record
            del self._entries[model_id]
            tombstone = model_files.mark_deleted(record)
        shutil.rmtree(tombstone, ignore_errors=True)
        log.info("model deleted", model=record.full_name)
        return record

    @property
    def root(self) -> Path:
        """Directory of the models."""
        return self._root

    # Checkpoints

    def steps(self, model_id: str) -> list[StoredCheckpoint]:
        """Return the model's checkpoints, oldest first, with the newest one verified. Raises UnknownModel."""
        with self._lock:
            self.newest(model_id)
            by_step = self._entry(model_id).checkpoints
            return [by_step[step] for step in sorted(by_step)]

    def newest(self, model_id: str) -> StoredCheckpoint:
        """Return the newest intact checkpoint and set newer corrupt ones aside. Raises UnknownModel if none is left."""
        with self._lock:
            entry = self._entry(model_id)
            while entry.checkpoints:
                try:
                    return self._verified(entry, max(entry.checkpoints))
                except CorruptCheckpoint:
                    continue
            raise UnknownModel(f"{entry.record.full_name} has no whole checkpoint left")

    def checkpoint(self, model_id: str, step: int) -> StoredCheckpoint:
        """Return a checkpoint whose files match their hashes. Raises UnknownModel or CorruptCheckpoint."""
        with self._lock:
            return self._checkpoint(self._entry(model_id), step)

    def recheck(self, model_id: str, step: int) -> None:
        """Compare a checkpoint with its hashes even if it was verified before. A corrupt one is set aside.

        Raises UnknownModel or CorruptCheckpoint. A following registry leaves the check to the owner of the data
        directory.
        """
        if self._follows:
            return
        with self._lock:
            self._entry(model_id).verified.discard(step)
        self.checkpoint(model_id, step)

    def commit(
        self, model_id: str, parent: StoredCheckpoint, metrics: Mapping[str, float], save: Fill
    ) -> StoredCheckpoint:
        """Write the checkpoint after `parent` with the weights that `save(directory)` writes.

        Raises UnknownModel if the model was deleted in the meantime, and CheckpointNotWritten if the disk refuses.
        """
        entry = self._entry(model_id)
        record = entry.record

        def fill(directory: Path) -> Mapping[str, str] | None:
            model_files.copy_tokenizer(parent.directory, directory)
            hashed = save(directory)
            if record.tuning.mode == "lora":
                model_files.name_base(directory, self.base_directory(record.base_model), record.base_model)
            return hashed

        named = (record.full_name, record.base_model, f"{record.full_name}@{parent.step}")
        manifest = Manifest(parent.step + 1, *named, metrics=dict(metrics))
        written = checkpoints.write(
            record.directory / model_files.CHECKPOINTS, manifest, fill, partial(self._keep, record)
        )
        self._add(model_id, written)
        return written

    def restore(self, model_id: str, parent: StoredCheckpoint, step: int) -> StoredCheckpoint:
        """Write the checkpoint after `parent` with the files of an earlier step. The optimizer's state is among them if
        that step is `parent` or the one before: older ones lose theirs, sooner or later.

        Raises the errors of `checkpoint` and `commit`.
        """
        source = self.checkpoint(model_id, step)
        names = [*source.manifest.files, *(source.manifest.optimizer_files if step >= parent.step - 1 else ())]

        def save(directory: Path) -> None:
            for name in names:
                shutil.copyfile(source.directory / name, directory / name)

        return self.commit(model_id, parent, {RESTORED: float(step)}, save)

    def add(self, model_id: str, written: StoredCheckpoint) -> None:
        """Register a model's next checkpoint, which a following process has written. Raises UnknownModel and the errors
        of `commit`; the checkpoint is removed in that case."""
        try:
            self._keep(self.get(model_id), written)
        except Exception:
            checkpoints.remove(written.directory)
            raise
        self._add(model_id, written)

    def _add(self, model_id: str, written: StoredCheckpoint) -> None:
        with self._lock:
            entry = self._entry(model_id)
            entry.checkpoints[written.step] = written
            entry.verified.add(written.step)
            # the step was written anew after all later checkpoints were lost
            entry.without_optimizer.discard(written.step)
            # The optimizer's state is twice the size of the weights. The parent keeps its state in case this checkpoint
            # is corrupted.
            old = {step for step in entry.checkpoints if step < written.step - 1} - entry.without_optimizer
            entry.without_optimizer |= old
            gone = [entry.checkpoints[step] for step in old]
            files = [checkpoint.directory / name for checkpoint in gone for name in checkpoint.manifest.optimizer_files]
        if files:  # in the background, because deleting a large file takes a while
            threading.Thread(target=_remove, args=(files,), name="old optimizers", daemon=True).start()

    def look(self, model_id: str) -> StoredCheckpoint:
        """Register the checkpoints that a following process wrote before it ended, remove its unfinished files, and
        return the newest checkpoint. Raises UnknownModel and the errors of `add`."""
        with self._lock:
            entry = self._entry(model_id)
            by_step, _ = checkpoints.scan(entry.record.directory / model_files.CHECKPOINTS)
            written = by_step.get(max(entry.checkpoints, default=-1) + 1)
        if written is not None:
            written.verify()
            self.add(model_id, written)
        return self.newest(model_id)

    def learn(self, record: ModelRecord, newest: StoredCheckpoint) -> None:
        """Add this model and its newest checkpoint to a registry that follows."""
        with self._lock:
            # Drop a model that had the same name and was deleted in the meantime.
            others = {id: other for id, other in self._entries.items() if other.record.full_name != record.full_name}
            entry = ModelEntry(record, {newest.step: newest})
            entry.verified.add(newest.step)
            self._entries = {**others, record.id: entry}

    def _keep(self, record: ModelRecord, checkpoint: StoredCheckpoint) -> None:
        """Hook that gets a new checkpoint when it is complete on disk but not yet in its place. If it raises, the
        checkpoint is discarded."""

    def delete_checkpoints(self, model_id: str, steps: Iterable[int]) -> tuple[list[int], list[int]]:
        """Delete these checkpoints and return (deleted, not found). Raises UnknownModel, and CheckpointInUse for the
        newest."""
        with self._lock:
            entry = self._entry(model_id)
            requested = list(dict.fromkeys(steps))
            if (newest := self.newest(model_id).step) in requested:
                raise CheckpointInUse(f"checkpoint {newest} is the newest of {entry.record.full_name}")
            deleted = [step for step in requested if step in entry.checkpoints]
            for step in deleted:
                directory = entry.checkpoints.pop(step).directory
                checkpoints.remove(directory)
            return deleted, [step for step in requested if step not in deleted]

    # Names

    def sampled(self, name: str) -> Target:
        """Resolve a name like `resolve`, or `PROJECT/NAME@STEP` of the `unwritten` step."""
        early = self.unwritten
        return early if early is not None and early.key == name else self.resolve(name)

    def resolve(self, name: str) -> Target:
        """Resolve the `model` of an inference request: a base model's name, `NAME` or `PROJECT/NAME`, both optionally
        with `@STEP`, or `wandb-artifact:///ENTITY/PROJECT/NAME[:stepN]`. Without a step, the newest checkpoint is used.

        Raises UnknownModel, BadModelName (two projects have the name), BadBaseModel or CorruptCheckpoint.
        """
        if name in self._bases:
            directory = self._bases.checked(name)
            return Target(name, directory, directory, Tuning())
        with self._lock:
            entry, step = self._parsed(name)
            record = entry.record
            checkpoint = self.newest(record.id) if step is None else self._checkpoint(entry, step)
            return Target(
                f"{record.full_name}@{checkpoint.step}",
                checkpoint.directory,
                self.base_directory(record.base_model) if record.tuning.mode == "lora" else checkpoint.directory,
                record.tuning,
                record,
                checkpoint.step,
            )

    def _parsed(self, name: str) -> tuple[ModelEntry, int | None]:
        match = INFERENCE_NAME.fullmatch(name)
        if match is None:
            raise UnknownModel(f"no model {name!r}")
        entity, project, model, step = match.group("entity", "project", "name", "step")
        if project is not None:
            self._put_back(project, model)
        named = [
            entry
            for entry in self._entries.values()
            if entry.record.name == model
            and project in (None, entry.record.project)
            and entity in (None, entry.record.entity)
        ]
        if not named:
            raise UnknownModel(f"no model {name!r}")
        if len(named) > 1:
            raise BadModelName(f"several projects have a model {model!r}: say PROJECT/{model}")
        return named[0], None if step is None else int(step)

    def _entry(self, model_id: str) -> ModelEntry:
        with self._lock:
            if model_id not in self._entries:
                raise UnknownModel(f"no model with id {model_id!r}")
            return self._entries[model_id]

    def _named(self, project: str, name: str) -> ModelEntry | None:
        matches = (e for e in self._entries.values() if (e.record.project, e.record.name) == (project, name))
        return next(matches, None)

    def _put_back(self, project: str, name: str) -> None:
        """Retry reading a model that was skipped because its file was damaged. Raises DamagedModel if it still is."""
        if not (NAME.fullmatch(project) and NAME.fullmatch(name)):
            return
        directory = self._root / project / name
        if self._named(project, name) is None and directory.is_dir():
            record, by_step = model_files.read(directory)
            self._entries[record.id] = ModelEntry(record, by_step)

    def _existing(
        self, record: ModelRecord, base_model: str, return_existing: bool, tuning: Tuning | None
    ) -> ModelRecord:
        if not return_existing:
            raise ModelExists(f"{record.full_name} exists")
        if base_model not in (record.base_model, record.origin):
            raise ModelExists(f"{record.full_name} exists with base model {record.origin!r}, not {base_model!r}")
        if tuning is not None and not tuning.equals(record.tuning):
            raise ModelExists(f"{record.full_name} exists and is trained {record.tuning}, not {tuning}")
        return record

    def _source(self, base_model: str, tuning: Tuning | None) -> Target:
        """Return the weights that a new model starts from, with the tuning that it will have."""
        try:
            directory = self._bases.checked(base_model)
        except UnknownModel:
            if not INFERENCE_NAME.fullmatch(base_model):
                raise
            try:
                source = self.resolve(base_model)
            except UnknownModel as error:
                raise UnknownModel(f"{error}, and no base model of that name") from None
            if tuning is not None and not tuning.equals(source.tuning):
                raise BadModelName(f"{source.key} is trained {source.tuning}; a fork keeps that") from None
            return source
        if tuning is not None and (tied := tied_modules(directory, tuning.target_modules)):
            raise BadModelName(TIED.format(base=base_model, names=", ".join(tied)))
        return Target(base_model, directory, directory, tuning or usual_tuning(parameter_count(directory)))

    def _checkpoint(self, entry: ModelEntry, step: int) -> StoredCheckpoint:
        if step not in entry.checkpoints:
            raise UnknownModel(f"{entry.record.full_name} has no checkpoint {step}")
        return self._verified(entry, step)

    def _verified(self, entry: ModelEntry, step: int) -> StoredCheckpoint:
        checkpoint = entry.checkpoints[step]
        if step not in entry.verified:
            try:
                checkpoint.verify()
            except CorruptCheckpoint as error:
                del entry.checkpoints[step]
                torn = checkpoints.set_aside(checkpoint.directory)
                log.warning(
                    "corrupt checkpoint set aside", model=entry.record.full_name, path=torn.name, error=str(error)
                )
                raise
            entry.verified.add(step)
        return checkpoint


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):  # the next process tries again
            file.unlink(missing_ok=True)

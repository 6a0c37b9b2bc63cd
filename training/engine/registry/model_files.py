"""Models on disk: `<root>/<project>/<name>/` holds `model.json` and `checkpoints/`, and is complete or absent."""

import json
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from learnloop_service.training.engine.registry import checkpoints
from learnloop_service.training.engine.registry.checkpoints import (
    MANIFEST_FILE,
    Manifest,
    StoredCheckpoint,
    is_optimizer,
)
from learnloop_service.training.engine.registry.model_record import DamagedModel, ModelRecord, Target
from learnloop_service.training.protocol.tool_formats.chosen import FILE as CHOSEN_FORMAT
from learnloop_service.training.protocol.tool_formats.chosen import hub_name, settle_template
from learnloop_service.training.tuning import Tuning

log = structlog.get_logger(__name__)

CHECKPOINTS = "checkpoints"
_MODEL_FILE = "model.json"
_GENERATION = "generation_config.json"
"""File that names the tokens that end a reply."""
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    _GENERATION,
    CHOSEN_FORMAT,
)
_MODEL_FILES = (*_TOKENIZER_FILES, "config.json", "model.safetensors.index.json")


def make(record: ModelRecord, source: Target, enable_thinking: bool | None = None) -> dict[int, StoredCheckpoint]:
    """Write the model's directory with checkpoint 0, completely or not at all. Raises CheckpointNotWritten."""

    def fill(directory: Path) -> None:
        _copy(source.directory, directory, names)
        settle_template(directory, enable_thinking=enable_thinking)

    unfinished = record.directory.with_name(f".unfinished-{record.name}-{secrets.token_hex(4)}")
    names: tuple[str, ...] = _TOKENIZER_FILES
    if source.model is not None:
        file_names = (path.name for path in source.directory.iterdir())
        names = tuple(name for name in file_names if name != MANIFEST_FILE and not is_optimizer(name))
    elif record.tuning.mode == "full":
        names = (*_MODEL_FILES, *(path.name for path in source.directory.glob("*.safetensors")))
    manifest = Manifest(0, record.full_name, record.base_model, source.key if source.model else None)
    try:
        checkpoints.write(unfinished / CHECKPOINTS, manifest, fill)
        (unfinished / _MODEL_FILE).write_text(record_json(record))
        unfinished.rename(record.directory)
    except OSError as error:
        raise checkpoints.CheckpointNotWritten(f"{record.full_name}: {error.strerror}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return checkpoints.scan(record.directory / CHECKPOINTS)[0]


def load(root: Path) -> Iterator[tuple[ModelRecord, dict[int, StoredCheckpoint]]]:
    """Yield all models below `root` with their checkpoints. Models whose file is damaged are logged and skipped, and
    leftovers of a killed process are removed."""
    for path in sorted(root.glob(f"*/*/{_MODEL_FILE}")):
        if path.parent.name.startswith("."):
            shutil.rmtree(path.parent, ignore_errors=True)  # an interrupted creation or deletion
            continue
        try:
            yield read(path.parent)
        except DamagedModel as error:
            log.error("model left out", error=str(error))


def read(directory: Path) -> tuple[ModelRecord, dict[int, StoredCheckpoint]]:
    """Read one model with its checkpoints. Raises DamagedModel."""
    record = _read(directory / _MODEL_FILE)
    by_step, corrupt = checkpoints.scan(directory / CHECKPOINTS)
    for torn in corrupt:
        log.warning("corrupt checkpoint set aside", model=record.full_name, path=torn.name)
    return record, by_step


def mark_deleted(record: ModelRecord) -> Path:
    """Rename a model's directory so that it is immediately invisible. Return the new path, which the caller removes."""
    return record.directory.rename(record.directory.with_name(f".deleted-{record.name}-{secrets.token_hex(4)}"))


def write_record(record: ModelRecord) -> None:
    """Write the record of a model whose checkpoints are stored elsewhere into the model's directory."""
    record.directory.mkdir(parents=True, exist_ok=True)
    unfinished = record.directory / f".unfinished-{_MODEL_FILE}"
    unfinished.write_text(record_json(record))
    unfinished.rename(record.directory / _MODEL_FILE)


def record_json(record: ModelRecord) -> str:
    """Return the content of a model's record file."""
    return json.dumps({key: value for key, value in asdict(record).items() if key != "directory"}, indent=2)


def record_of(text: str | bytes, directory: Path) -> ModelRecord:
    """Parse a model from the text of its record file. Raises ValueError, KeyError, TypeError or AttributeError."""
    fields: dict[str, Any] = json.loads(text)
    targets = tuple(fields["tuning"].pop("target_modules"))
    tuning = Tuning(**fields.pop("tuning"), target_modules=targets)
    return ModelRecord(**fields, tuning=tuning, directory=directory)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files, which training does not change."""
    _copy(source, target, _TOKENIZER_FILES)


def name_base(adapter: Path, base: Path, name: str) -> None:
    """Make an adapter's files name its base as the hub does, or by `name`, and not by a path of this machine; and put
    the stop tokens of the base beside it."""
    _copy(base, adapter, (_GENERATION,))
    config = adapter / "adapter_config.json"
    if not config.is_file():
        return
    named = {**json.loads(config.read_text()), "base_model_name_or_path": hub_name(base) or name}
    config.write_text(json.dumps(named, indent=2, sort_keys=True) + "\n")


def _read(path: Path) -> ModelRecord:
    try:
        return record_of(path.read_bytes(), path.parent)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedModel(
            f"the file {path} cannot be read ({type(error).__name__}: {error}). Put back a copy of it; or move the "
            f"directory {path.parent} away, which gives up the model"
        ) from error


def _copy(source: Path, target: Path, names: Iterable[str]) -> None:
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)

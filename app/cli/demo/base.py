"""Finds the base model that `learnloop demo --base-model` names, and adds it to the demo's data directory."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from learnloop_service.app.cli.base_reports import print_verdict
from learnloop_service.app.cli.bases import add_base
from learnloop_service.app.cli.terminal import Failure, failing_on, progress
from learnloop_service.app.datasets.hub import HUB_ID
from learnloop_service.training.bases.files import added_base_models, fingerprint

if TYPE_CHECKING:
    from learnloop_service.app.settings import Settings

_OTHER = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class FoundBase:
    """A base model on this machine or on the hub, before it is added."""

    name: str
    """Its name in the demo's data directory."""
    source: Path | None
    """The directory or GGUF file with its weights. None if it is still on the hub."""
    hub_id: str | None = None
    is_added: bool = False


def find_base(named: str, data_dir: Path, usual: Path) -> FoundBase:
    """Return the base model of that path, added name or hub id, looking for names in `data_dir` and then in `usual`.

    The name of one that is added from files depends on their place and state, so that changed files are not taken for
    those that were added before. Raises Failure.
    """
    if (path := Path(named)).exists():
        return _from_files(path, data_dir)
    if (directory := added_base_models(data_dir).get(named)) is not None:
        return FoundBase(named, directory, is_added=True)
    if (directory := added_base_models(usual).get(named)) is not None:
        return _from_files(directory, data_dir)
    if HUB_ID.fullmatch(named):
        name = _slug(named.replace("/", "-"))
        directory = added_base_models(data_dir).get(name)
        return FoundBase(name, directory, named, is_added=directory is not None)
    raise Failure(
        f"there is no base model {named!r}: give a directory in Hugging Face layout, a GGUF file, the name of a model "
        "that `learnloop bases list` shows, or NAMESPACE/NAME on the Hugging Face hub"
    )


def add_found(base: FoundBase, settings: "Settings") -> None:
    """Add the base model to the data directory, from the hub if it is there, unless it was added before.

    Raises Failure.
    """
    if base.is_added:
        return
    progress.print(f"Adding the base model as {base.name}", soft_wrap=True)
    source = base.source or _downloaded(base.hub_id or base.name, settings)
    _, verdict = add_base(base.name, source, settings.data_dir)
    print_verdict(base.name, verdict, progress)


def _downloaded(hub_id: str, settings: "Settings") -> Path:
    from learnloop_service.app.datasets.hub import MODEL, HubError, download

    token = settings.hf_token.get_secret_value() if settings.hf_token else None
    with failing_on(HubError):
        return download(hub_id, str(settings.hf_endpoint).rstrip("/"), token, settings.data_dir / "hub", MODEL)


def _from_files(path: Path, data_dir: Path) -> FoundBase:
    try:
        files = fingerprint(path) if path.is_dir() else ((path.name, path.stat().st_size, path.stat().st_mtime_ns),)
    except OSError as error:
        raise Failure(f"cannot read the base model {path}: {error.strerror}") from error
    state = hashlib.sha256(repr((str(path.resolve()), files)).encode()).hexdigest()[:6]
    name = f"{_slug(path.resolve().name.removesuffix('.gguf'))[:50]}-{state}"
    return FoundBase(name, path, is_added=name in added_base_models(data_dir))


def _slug(text: str) -> str:
    return _OTHER.sub("-", text.lower()).strip("._-")[:64] or "base"

"""Pushes a checkpoint in a child process with a time limit and a separate folder."""

import asyncio
import fcntl
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import structlog

from learnloop_service.app.errors import BadGateway, Conflict, ServiceError, Unavailable
from learnloop_service.app.processes.child import last_words, run_in
from learnloop_service.app.settings import Settings
from learnloop_service.app.tracing.redaction import Redactor, secrets_of
from learnloop_service.environment.json_type import Json

AT_ONCE = 2
"""Maximum number of concurrent pushes per data directory. Each one needs disk space for a whole checkpoint."""
_RETRY_AFTER_S = 30

log = structlog.get_logger(__name__)


class PushFailed(BadGateway):
    """The destination did not accept the checkpoint. The message contains its reply."""

    title = "Not pushed"


_KINDS: dict[int, type[ServiceError]] = {409: Conflict, 502: PushFailed, 503: Unavailable}


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint, PROJECT/NAME@STEP, and the URL from which the engine serves it as a tar file."""

    checkpoint: str
    url: str
    key: str


@dataclass(frozen=True, slots=True)
class PushDestination:
    """Where to: the kind of place and, as JSON, what `DestinationKind.target` returned."""

    to: str
    target: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Pushed:
    """Where the checkpoint was uploaded. `revision` is the commit on a hub, `bytes` the total size of the files."""

    url: str
    revision: str | None
    files: int
    bytes: int


async def push(settings: Settings, source: Source, destination: PushDestination) -> Pushed:
    """Push a checkpoint. Raises PushFailed, Conflict if the checkpoint is incomplete, or Unavailable if too many pushes
    are in progress, the engine is not available or the disk is full."""
    async with _locked_folder(settings.data_dir / "pushes") as folder:
        await _run(folder, _job(source, destination), settings.push_timeout_s)
        result = _result(folder)
    if "error" in result:
        # A server's message can repeat secrets that it was sent.
        why = Redactor(secrets_of(settings)).clean_text(result["error"])
        log.warning("checkpoint not pushed", checkpoint=source.checkpoint, error=why)
        raise _KINDS[result["status"]](f"{source.checkpoint} was not pushed: {why}")
    return Pushed(**result)


def _job(source: Source, destination: PushDestination) -> str:
    return json.dumps({**asdict(destination), **asdict(source)})


async def _run(folder: Path, job: str, timeout_s: float) -> None:
    argv = (sys.executable, "-m", f"{__package__}.child", str(folder))
    try:
        await run_in(folder, argv, timeout_s, _environment(job))
    except TimeoutError:
        raise PushFailed(f"the push took longer than {timeout_s:g} s and was stopped") from None


def _environment(job: str) -> dict[str, str]:
    """Return our environment without the variables that the libraries would use in place of the given settings."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HF_"))}
    # Without Xet a push is a single commit. With it the library makes several, and readers could see half of a model.
    quiet = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return {**ours, **quiet, "LEARNLOOP_PUSH": job}


def _result(folder: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        why = last_words(folder) or "it said nothing"
        return {"status": 503, "error": f"the process that pushes ended early: {why}"}
    return result


@asynccontextmanager
async def _locked_folder(parent: Path) -> AsyncIterator[Path]:
    """Yield an empty, locked folder. Files that a killed service left in it are removed. Raises Unavailable."""
    lock = _lock(parent)
    folder = Path(lock.name).with_suffix("")
    with lock:
        try:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            yield folder
        except OSError as error:
            raise Unavailable(f"A checkpoint cannot be written to {parent}: {error.strerror}") from error
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _lock(parent: Path) -> TextIO:
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(AT_ONCE):
        file = (parent / f"{number}.lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
        else:
            return file
    raise Unavailable(f"{AT_ONCE} other checkpoints are being pushed; retry later.", retry_after_s=_RETRY_AFTER_S)

"""What is known of base models that others made: the result of their check, and loads during which the engine ended.

`<data directory>/base-checks/` has a file `KEY.json` for each base model that was checked, and a file
`KEY.loading-...` for each load in progress, which its process holds locked. One that is not locked was left behind by a
process that ended while it loaded the model. The key changes with the files, so replaced files get another chance.
"""

import fcntl
import hashlib
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from learnloop_service.training.bases.files import fingerprint
from learnloop_service.training.bases.report import BaseReport, read, written

LOST_LOADS = 2
"""Number of loads in a row that ended with their process, after which a base model is set aside."""


@dataclass(frozen=True, slots=True)
class BaseVerdict:
    """The result of a check."""

    fault: str | None
    """Why the base model cannot be used, or None if it can."""
    report: BaseReport | None = None
    """What its examination found, or None if it was not examined."""


class BaseVerdicts:
    """The verdicts of one data directory. Can be used from any thread and by several processes."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "base-checks"
        self._known: dict[str, BaseVerdict] = {}

    def find(self, directory: Path) -> BaseVerdict | None:
        """Return the verdict on a base model's files, or None if they were not checked."""
        key = _key(directory)
        if key not in self._known:
            with suppress(OSError, ValueError, KeyError, TypeError):
                stored = json.loads((self._folder / f"{key}.json").read_text())
                self._known[key] = BaseVerdict(stored["fault"], read(stored.get("report")))
        return self._known.get(key)

    def keep(self, directory: Path, verdict: BaseVerdict) -> None:
        """Keep a verdict. If it cannot be written, the next process checks again."""
        key = _key(directory)
        self._known[key] = verdict
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished = self._folder / f".{key}-{secrets.token_hex(4)}"
            report = written(verdict.report) if verdict.report else None
            unfinished.write_text(json.dumps({"base_model": str(directory), "fault": verdict.fault, "report": report}))
            unfinished.rename(self._folder / f"{key}.json")

    def fault(self, directory: Path) -> str | None:
        """Return why the base model is refused, as far as it is known."""
        if len(self._lost_loads(_key(directory))) >= LOST_LOADS:
            return (
                f"it is set aside, because the engine ended {LOST_LOADS} times in a row while it loaded it. Add it "
                "again to try it once more, with enough memory"
            )
        return verdict.fault if (verdict := self.find(directory)) else None

    @contextmanager
    def loading(self, directory: Path) -> Iterator[None]:
        """Mark the base model as being loaded. A load that ends, whether it failed or not, clears earlier marks."""
        key = _key(directory)
        mark = self._folder / f"{key}.loading-{secrets.token_hex(4)}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = mark.open("w")
        except OSError:  # the disk is full
            yield
            return
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                for finished in (mark, *self._lost_loads(key)):
                    finished.unlink(missing_ok=True)

    def _lost_loads(self, key: str) -> list[Path]:
        return [mark for mark in self._folder.glob(f"{key}.loading-*") if not _is_locked(mark)]


def _is_locked(mark: Path) -> bool:
    try:
        with mark.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it was removed in the meantime
        return True
    return False


def _key(directory: Path) -> str:
    try:
        files = fingerprint(directory)
    except OSError:
        files = ()
    return hashlib.sha256(json.dumps([str(directory.resolve()), files]).encode()).hexdigest()[:32]

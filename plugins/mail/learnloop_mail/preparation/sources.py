"""Sources of emails: their fingerprints, and reading the emails in them."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from learnloop_mail.preparation import enron, table_files
from learnloop_mail.reading.importer import ImportReport, MailSourceError, read_mail
from learnloop_service.app.datasets.store import DatasetStore
from learnloop_service.environment.email_search.inbox import Email

_BLOCK = 1 << 20
_SHOWN = ("read", "broken", "attachments_skipped", "html_only", "truncated", "undated", "damaged", "unidentified")


def fingerprint(source: Path, store: DatasetStore) -> str:
    """Return the hash of all files under the path. They are only read again if a size or a modification time changed.

    Raises MailSourceError if the path cannot be read.
    """
    try:
        files = sorted(_files(source))
        looks = [(name, status.st_size, status.st_mtime_ns, status.st_ino) for name, status in files]
        key = sha256(json.dumps([str(source.resolve()), looks]).encode()).hexdigest()
        if (stored := store.build(key)) is not None:
            return str(stored["content"])
        content = sha256()
        for name, _ in files:
            path = source / name if name else source
            with path.open("rb") as file:
                content.update(f"{name}\0{path.stat().st_size}\0".encode("utf-8", "surrogateescape"))
                while block := file.read(_BLOCK):
                    content.update(block)
    except OSError as error:
        raise MailSourceError(f"cannot read {error.filename or source}: {error.strerror}") from error
    store.keep_build(key, {"content": content.hexdigest()})
    return content.hexdigest()


def _files(source: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each regular file with its path relative to the source, which is empty if the source is a file."""
    if not source.is_dir():
        yield "", source.stat()
        return
    for folder, _, names in os.walk(source, followlinks=True):
        for name in names:
            path = Path(folder) / name
            if path.is_file():
                yield str(path.relative_to(source)), path.stat()


@dataclass(slots=True)
class Reading:
    """Reads the emails of several sources, and counts what was found."""

    sources: Sequence[Path]
    mail: ImportReport = field(default_factory=ImportReport)
    rows: enron.RowCounts = field(default_factory=enron.RowCounts)

    def emails(self) -> Iterator[Email]:
        """Yield the emails. Raises MailSourceError or DatasetError."""
        tables = [path for path in self.sources if table_files.is_dataset(path)]
        files = [file for path in tables for split in table_files.splits(path).values() for file in split]
        mail = [path for path in self.sources if path not in tables]
        readers: list[Iterator[Email]] = []
        if files:
            readers.append(enron.emails(table_files.rows(files, enron.EMAIL_COLUMNS), self.rows))
        if mail:
            readers.append(read_mail(mail, self.mail))
        return chain.from_iterable(readers)

    def expected(self) -> int | None:
        """Return the number of emails if it is known in advance."""
        if not all(map(table_files.is_dataset, self.sources)):
            return None
        counts = [table_files.count_rows(files) for path in self.sources for files in table_files.splits(path).values()]
        return None if None in counts else sum(count for count in counts if count is not None)

    def counts(self) -> dict[str, Any]:
        """Return the counts that are not zero."""
        mail = asdict(self.mail) | {"broken": len(self.mail.broken)}
        mail["read"] += self.rows.read
        mail["undated"] += self.rows.undated
        mail["unidentified"] = self.rows.unidentified
        return {key: mail[key] for key in _SHOWN if mail[key]}

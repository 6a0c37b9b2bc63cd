"""Where emails come from: what a source contains, and the emails in it."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from app.datasets.store import DatasetStore
from environment.email_search import enron, table_files
from environment.email_search.importer import ImportReport, MailSourceError, read_mail
from environment.email_search.inbox import Email

_BLOCK = 1 << 20
_SHOWN = ("read", "broken", "attachments_skipped", "html_only", "truncated", "undated", "unidentified")


def fingerprint(source: Path, store: DatasetStore) -> str:
    """The hash of all bytes below the path. Files whose times and sizes did not change are not read again.

    Raises MailSourceError if it cannot be read.
    """
    try:
        files = sorted(_files(source))
        looks = [(name, status.st_size, status.st_mtime_ns, status.st_ino) for name, status in files]
        key = sha256(json.dumps([str(source.resolve()), looks]).encode()).hexdigest()
        if (known := store.build(key)) is not None:
            return str(known["content"])
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
    """Each regular file by its path below the source; empty for the source itself."""
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
    """The emails of some sources, and what was found in them."""

    sources: Sequence[Path]
    mail: ImportReport = field(default_factory=ImportReport)
    rows: enron.RowCounts = field(default_factory=enron.RowCounts)

    def emails(self) -> Iterator[Email]:
        """One after the other. Raises MailSourceError or DatasetError."""
        tables = [path for path in self.sources if table_files.is_dataset(path)]
        files = [each for path in tables for split in table_files.splits(path).values() for each in split]
        mail = [path for path in self.sources if path not in tables]
        found: list[Iterator[Email]] = []
        if files:
            found.append(enron.emails(table_files.rows(files, enron.EMAIL_COLUMNS), self.rows))
        if mail:
            found.append(read_mail(mail, self.mail))
        return chain.from_iterable(found)

    def expected(self) -> int | None:
        """How many emails there are, where that is known before."""
        if not all(map(table_files.is_dataset, self.sources)):
            return None
        counts = [table_files.count_rows(each) for path in self.sources for each in table_files.splits(path).values()]
        return None if None in counts else sum(count for count in counts if count is not None)

    def counts(self) -> dict[str, Any]:
        """What was found, without what there was none of."""
        mail = asdict(self.mail) | {"broken": len(self.mail.broken)}
        mail["read"] += self.rows.read
        mail["undated"] += self.rows.undated
        mail["unidentified"] = self.rows.unidentified
        return {key: mail[key] for key in _SHOWN if mail[key]}

"""Imports uploaded mail into an inbox, in a separate process with limits on time and memory."""

import asyncio
import json
import resource
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from learnloop_mail.preparation import enron, table_files
from learnloop_mail.preparation.inbox_files import InboxFile, write_inbox_file
from learnloop_mail.preparation.table_files import DatasetError
from learnloop_mail.reading.importer import ImportReport, MailSourceError, read_mail
from learnloop_service.app.datasets.store import DatasetStore
from learnloop_service.app.processes.child import run_in
from learnloop_service.environment.email_search.inbox import InboxError

PROCESSOR_S = 120
"""Limit on CPU time. A mailbox of 64 MB takes a third of it."""
TIMEOUT_S = 300.0
_MEMORY_BYTES = 2 << 30
_FILE_BYTES = 2 << 30
_ARGUMENTS = ("-m", "learnloop_mail.service.upload")
_GZIP = b"\x1f\x8b"


class BadUpload(ValueError):
    """The body contains no mail that can be imported; the message says why."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A finished inbox file, and counts of the imported mail."""

    path: Path
    inbox: InboxFile
    counts: dict[str, int]


@asynccontextmanager
async def imported(body: bytes, store: DatasetStore) -> AsyncIterator[Uploaded]:
    """Import the mail of the body into an inbox file, which the caller moves away to keep it. Raises BadUpload.

    Mail is an mbox, a single email, or JSON Lines with the columns of ART-E's emails.
    """
    if not body.strip():
        raise BadUpload("the body is empty; expected an mbox file, an email, or JSON Lines")
    if body.startswith(_GZIP):
        raise BadUpload("the body is compressed; unpack it first")
    folder = store.scratch()
    folder.mkdir()
    try:
        mail = folder / ("mail.jsonl" if body.lstrip()[:1] == b"{" else "mail")
        await asyncio.to_thread(mail.write_bytes, body)
        with suppress(TimeoutError):  # `_result` reports the missing result
            await run_in(folder, (sys.executable, *_ARGUMENTS, str(folder)), TIMEOUT_S)
        yield _result(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _result(folder: Path) -> Uploaded:
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        raise BadUpload(
            f"the mail takes more than {PROCESSOR_S} s or {_MEMORY_BYTES >> 30} GiB of memory to import; "
            "split it, or prepare it with: learnloop data prepare"
        ) from None
    if "error" in result:
        raise BadUpload(result["error"])
    return Uploaded(folder / "inbox.sqlite", InboxFile(**result["inbox"]), result["counts"])


def main() -> None:
    """Import the mail in the folder `sys.argv[1]`, and write the inbox and `result.json` there."""
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    folder = Path(sys.argv[1])
    try:
        result = _write_inbox(folder)
    except (DatasetError, InboxError, MailSourceError) as error:
        result = {"error": str(error).replace(f"{folder}/", "")}
    (folder / "result.json").write_text(json.dumps(result))


def _write_inbox(folder: Path) -> dict[str, Any]:
    lines, mail, path = folder / "mail.jsonl", folder / "mail", folder / "inbox.sqlite"
    if lines.is_file():
        rows = enron.RowCounts()
        inbox = write_inbox_file(path, enron.emails(table_files.rows([lines], enron.EMAIL_COLUMNS), rows))
        if not inbox.emails:
            raise DatasetError("no line is an email with a message_id")
        read, unreadable, truncated, undated = rows.read - rows.unidentified, rows.unidentified, 0, rows.undated
    else:
        report = ImportReport()
        inbox = write_inbox_file(path, read_mail([mail], report))
        read, unreadable, truncated, undated = report.read, len(report.broken), report.truncated, report.undated
    counts = {"duplicates": read - inbox.emails, "unreadable": unreadable, "truncated": truncated, "undated": undated}
    return {"inbox": asdict(inbox), "counts": counts}


if __name__ == "__main__":
    main()

"""Import of real mailing lists. Runs only where they are: they are other people's mail, so not in this repository.

    mkdir archives && cd archives
    apt-get source --download-only notmuch=0.37-1        # Debian 12; needs a deb-src line
    tar xf notmuch_0.37.orig.tar.xz
    pip download --no-deps --no-binary :all: --ignore-requires-python bigbang-py==0.6.1
    tar xf bigbang_py-0.6.1.tar.gz
    LEARNLOOP_MAIL_ARCHIVES=$PWD pytest -s plugins/mail/tests/test_mail_archives.py

The expected counts were taken with Python's `mailbox` and `email`, not with the importer.
"""

import gzip
import mailbox
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from learnloop_mail.reading.importer import import_mail
from learnloop_service.environment.email_search.inbox import Inbox

ARCHIVES = Path(os.environ.get("LEARNLOOP_MAIL_ARCHIVES", "no-archives"))
NOTMUCH = ARCHIVES / "notmuch-0.37" / "test" / "corpora"
BIGBANG = ARCHIVES / "bigbang_py-0.6.1" / "tests" / "data"

pytestmark = pytest.mark.skipif(not ARCHIVES.is_dir(), reason="LEARNLOOP_MAIL_ARCHIVES names no folder of archives")


@pytest.mark.parametrize(
    ("source", "read", "imported", "broken", "keywords", "subject"),
    [
        (BIGBANG / "2001-November.txt", 164, 82, 0, ["heigenvalues"], "[Numpy-discussion] Heigenvalues is broken"),
        (
            BIGBANG / "3GPP_mbox",
            108,
            104,
            1,
            ["S4-210133"],
            "'Rev1 of S4-210133 (IVAS-1) is available in the draft folder'",
        ),
        (
            NOTMUCH / "lkml",
            210,
            176,
            0,
            ["ioapic_irq_destination_types"],
            "[PATCH 1/6] x86: move ioapic_irq_destination_types",
        ),
    ],
    ids=["numpy-discussion", "3gpp", "lkml"],
)
def test_a_list_archive(
    tmp_path: Path, source: Path, read: int, imported: int, broken: int, keywords: list[str], subject: str
) -> None:
    report = import_mail([source], tmp_path / "inbox.sqlite")
    assert (report.read, report.imported, len(report.broken)) == (read, imported, broken)
    inbox = Inbox(tmp_path / "inbox.sqlite")
    assert subject in {hit.subject for hit in inbox.search(keywords)}
    inbox.close()


def test_maildir_and_gzipped_mbox_give_the_same_inbox(tmp_path: Path) -> None:
    """notmuch's 316 test mails, broken, encrypted, signed and nested ones among them, written as one mbox."""
    mbox = mailbox.mbox(tmp_path / "all.mbox")
    for path in sorted(NOTMUCH.rglob("*")):
        if path.is_file() and path.name != "README":
            mbox.add(path.read_bytes())
    mbox.close()
    (tmp_path / "all.mbox.gz").write_bytes(gzip.compress((tmp_path / "all.mbox").read_bytes()))
    rows = {}
    for source in (NOTMUCH, tmp_path / "all.mbox.gz"):
        inbox = tmp_path / f"{source.name}.sqlite"
        report = import_mail([source], inbox)
        assert (report.read, report.imported, report.attachments_skipped, report.html_only) == (316, 273, 54, 1)
        with closing(sqlite3.connect(inbox)) as connection:
            rows[source] = connection.execute("SELECT id, sender, sent_at, subject, body FROM email").fetchall()
    assert len(rows[NOTMUCH]) == 273
    assert set(rows[NOTMUCH]) == set(rows[tmp_path / "all.mbox.gz"])

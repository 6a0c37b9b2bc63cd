"""Import of mailboxes: what is found where, what is left out, what is reported."""

import gzip
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from learnloop_mail.reading import mail_files, mail_ids
from learnloop_mail.reading.importer import ImportReport, MailSourceError, import_mail
from learnloop_mail.reading.mail_files import BrokenMail, RawMail, raw_mails
from learnloop_mail.reading.mail_ids import MailIds
from learnloop_service.environment.email_search.inbox import Email, Inbox, InboxError, write_inbox


def mail(number: int, body: str = "hello", *fields: str) -> bytes:
    lines = (
        "From: Ann <ann@a.example>",
        "To: bo@b.example",
        f"Subject: mail {number}",
        f"Message-ID: <{number}@a.example>",
        "Date: Thu, 01 Nov 2001 11:19:12 +0000",
        *fields,
    )
    return ("\n".join(lines) + f"\n\n{body}\n").encode()


def mbox(*mails: bytes) -> bytes:
    return b"".join(b"From ann@a.example Thu Nov  1 11:19:12 2001\n" + data + b"\n" for data in mails)


def subjects(mails: Sequence[RawMail | BrokenMail]) -> list[str]:
    lines = [item.data.decode() if isinstance(item, RawMail) else item.reason for item in mails]
    return [next((line for line in text.split("\n") if line.startswith("Subject")), text) for text in lines]


def do_import(path: Path, *sources: Path) -> tuple[ImportReport, Inbox]:
    report = import_mail(sources or [path / "in"], path / "inbox.sqlite")
    return report, Inbox(path / "inbox.sqlite")


def test_an_mbox_is_imported_and_found(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(mbox(mail(1, "the budget is 40 euros"), mail(2)))
    report, inbox = do_import(tmp_path)
    assert (report.read, report.imported, report.duplicates, report.broken) == (2, 2, 0, [])
    [hit] = inbox.search(["budget", "euro"], sender="ann", recipient="bo@b", sent_after=None)
    email = inbox.read(hit.id)
    assert email is not None
    assert (email.subject, email.body, email.to) == ("mail 1", "the budget is 40 euros", ("bo@b.example",))
    inbox.close()


def test_every_kind_of_source_gives_the_same_mails(tmp_path: Path) -> None:
    mails = [mail(1), mail(2, ">From quoted"), mail(3)]
    escaped = [data.replace(b"\n>From", b"\n>>From") for data in mails]
    sources = {name: tmp_path / name for name in ("mbox", "packed", "maildir", "folder", "single")}
    sources["mbox"].write_bytes(mbox(*escaped))
    sources["packed"].write_bytes(gzip.compress(mbox(*escaped)))
    for folder in ("cur", "new", "tmp", ".Sent/cur", ".Sent/new"):
        (sources["maildir"] / folder).mkdir(parents=True)
    (sources["maildir"] / "tmp" / "unfinished").write_bytes(mail(9))
    (sources["maildir"] / "cur" / "1:2,S").write_bytes(mails[0])
    (sources["maildir"] / "new" / "2").write_bytes(mails[1])
    (sources["maildir"] / ".Sent" / "cur" / "3").write_bytes(mails[2])
    (sources["folder"] / "deep" / "er").mkdir(parents=True)
    (sources["folder"] / "1.eml").write_bytes(mails[0])
    (sources["folder"] / "deep" / "er" / "2.eml").write_bytes(mails[1])
    (sources["folder"] / "deep" / "3.mbox").write_bytes(mbox(escaped[2]))
    sources["single"].write_bytes(mails[0])

    imported = {}
    for name, source in sources.items():
        report = import_mail([source], tmp_path / f"{name}.sqlite")
        assert (report.imported, report.broken) == (1 if name == "single" else 3, [])
        inbox = Inbox(tmp_path / f"{name}.sqlite")
        imported[name] = {(email.id, email.body) for hit in inbox.search([]) if (email := inbox.read(hit.id))}
        inbox.close()
    assert imported["mbox"] == imported["packed"] == imported["maildir"] == imported["folder"]
    assert imported["single"] < imported["mbox"]
    assert ">From quoted" in {body for _, body in imported["mbox"]}


def test_mbox_splits_only_at_separators(tmp_path: Path) -> None:
    body = "first\n\nFrom here on it is text.\nFrom ann@a.example Thu Nov  1 11:19:12 2001\n>From escaped"
    path = tmp_path / "in"
    path.write_bytes(b"\n\n" + mbox(mail(1, body), mail(2)).replace(b"\n", b"\r\n"))
    raw = list(raw_mails(path))
    assert subjects(raw) == ["Subject: mail 1\r", "Subject: mail 2\r"]
    first, second = raw
    assert isinstance(first, RawMail)
    assert isinstance(second, RawMail)
    assert b"\r\nFrom here on" in first.data
    assert b"\r\nFrom escaped" in first.data
    assert path.read_bytes()[second.offset :].startswith(b"From ann@a.example")
    assert (first.number, second.number, first.envelope) == (1, 2, "ann@a.example Thu Nov  1 11:19:12 2001")


@pytest.mark.parametrize(
    "separator",
    [
        b"From - Tue Mar  4 10:00:00 2025",
        b"From ann at a.example  Tue Mar  4 10:00:00 2025",
        b"From 1234@xxx Wed Nov 25 15:35:51 +0000 2015",
        b'From "Ann Lee" Tue, 04 Mar 2025 10:00:00 +0100',
        b"From ???@??? Tue Mar 04 10:00:00 2025 remote from x",
    ],
)
@pytest.mark.parametrize("gap", [b"", b"\n", b"\r\n", b" \n"])
def test_a_stamped_separator_needs_no_blank_line(tmp_path: Path, separator: bytes, gap: bytes) -> None:
    mails = [separator + b"\nX-Mozilla-Status: 0001\n" + mail(number) for number in range(4)]
    (tmp_path / "in").write_bytes(gap.join(mails))
    assert subjects(list(raw_mails(tmp_path / "in"))) == [f"Subject: mail {number}" for number in range(4)]


@pytest.mark.parametrize(
    "separator",
    [
        b"From -",
        b"From ann@a.example",
        b"From ann@a.example 2025-03-04 10:00:00",
        b"From ann Di M\xe4r 4 10:00:00 2025",
    ],
)
def test_a_separator_without_a_stamp_stands_between_a_blank_line_and_a_header(tmp_path: Path, separator: bytes) -> None:
    (tmp_path / "in").write_bytes(b"\n".join(separator + b"\n" + mail(number) for number in range(3)))
    assert len(list(raw_mails(tmp_path / "in"))) == 3


@pytest.mark.parametrize(
    "line",
    [
        "From 10:00 on 5 May 2025 the office is closed.",
        "From Monday, 5 May 2025, 10:00 to 6 May 2025, 12:00",
        "From Tue Mar 4 10:00:00 2025 on, the door is open.",
        "From the 2025 plan: at 9:30 we begin.",
        "From ann@a.example",
        "From Ann",
        "From 10:00 on 5 May 2025 we meet:\nTo: the office",
        "From the archive of 2024, 10:30\nSubject: old",
        "From Ann\nSubject: old",
    ],
)
def test_a_paragraph_is_no_separator(tmp_path: Path, line: str) -> None:
    body = f"Dear all,\n\n{line}\n\nThe key is with Dora.\n\n{line}\nNote: the second floor."
    (tmp_path / "in").write_bytes(mbox(mail(1, body), mail(2)))
    report, inbox = do_import(tmp_path)
    assert (report.imported, report.broken) == (2, [])
    [hit] = inbox.search(["Dora"])
    email = inbox.read(hit.id)
    assert email is not None
    assert email.body == body
    inbox.close()


def test_separators_at_the_end_of_a_block_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = mbox(*(mail(number, "\n\nFrom 10:00 on 5 May 2025.\n") for number in range(5)))
    for size in range(60, 400):
        monkeypatch.setattr(mail_files, "_BLOCK", size)
        (tmp_path / "in").write_bytes(data)
        assert len(list(raw_mails(tmp_path / "in"))) == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04\x14\x00From: a@a.example\nTo: b@b.example\n\nx", "a ZIP archive: unpack it"),
        (b"1234      \nFrom: a@a.example\nSubject: x\n\nhello\n<?xml", "an Apple Mail message (.emlx): export"),
        (b"PAR1\x15\x04", "a table or JSON: learnloop data prepare reads"),
        (b'{"message_id": "<1>", "from": "a@a.example"}\n', "a table or JSON"),
        (b"message_id,subject,from\n<1>,x,a@a.example\n", "a table or JSON"),
        (b"From\tTo\tSubject\na@a.example\tb@b.example\tx\n", "a table or JSON"),
        (b"x" * 257 + b"ustar\x0000", "an archive"),
        (b"!BDN\x00", "an Outlook data file (.pst)"),
    ],
)
def test_files_of_other_formats_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(content)
    with pytest.raises(MailSourceError) as refused:
        import_mail([tmp_path / "in"], tmp_path / "inbox.sqlite")
    assert message in str(refused.value)
    (tmp_path / "in" / "b.eml").write_bytes(mail(1))
    (tmp_path / "in" / "c.CSV").write_bytes(b'"Subject: (all)", "From"\n')
    report, inbox = do_import(tmp_path)
    inbox.close()
    assert (report.imported, [broken.number for broken in report.broken]) == (1, [None, None])
    assert report.broken[1].reason.startswith("a table or JSON")


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_the_mail(tmp_path: Path, mark: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.eml").write_bytes(mail(1, "Grüße").decode().encode(mark))
    (tmp_path / "in" / "b.mbox").write_bytes(b"\xef\xbb\xbf" + mbox(mail(2), mail(3)))
    report, inbox = do_import(tmp_path)
    assert (report.imported, report.broken, len(inbox.search(["Grüße"]))) == (3, [], 1)
    _, _, last = raw_mails(tmp_path / "in")
    assert isinstance(last, RawMail)
    assert (tmp_path / "in" / "b.mbox").read_bytes()[last.offset :].startswith(b"From ann@")
    inbox.close()


def test_damaged_mails_are_counted(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(mbox(mail(1), mail(2, "Жизнь").replace("Ж".encode(), b"\xd0")))
    report, inbox = do_import(tmp_path)
    assert (report.imported, report.damaged) == (2, 1)
    assert len(inbox.search(["hello"])) == 1
    inbox.close()


def test_the_first_separator_may_be_any(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"From -\n" + mail(1))
    assert subjects(list(raw_mails(tmp_path / "in"))) == ["Subject: mail 1"]


def test_a_git_patch_in_a_mail_is_text_and_a_patch_series_is_mails(tmp_path: Path) -> None:
    magic = b"From " + b"0" * 40 + b" Mon Sep 17 00:00:00 2001\n"
    (tmp_path / "list").write_bytes(mbox(mail(1) + b"\n" + magic + mail(2), mail(3)))
    (tmp_path / "series").write_bytes(magic + mail(1) + b"\n" + magic + mail(2))
    assert subjects(list(raw_mails(tmp_path / "list"))) == ["Subject: mail 1", "Subject: mail 3"]
    assert subjects(list(raw_mails(tmp_path / "series"))) == ["Subject: mail 1", "Subject: mail 2"]


def test_a_line_longer_than_the_memory_for_one_mail_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_files, "MAX_MAIL_BYTES", 100_000)
    (tmp_path / "in").write_bytes(mbox(mail(1, "x" * 500_000), mail(2)))
    report, inbox = do_import(tmp_path)
    assert (report.imported, report.truncated) == (2, 1)
    [hit] = inbox.search(["mail", "2"])
    assert hit.subject == "mail 2"
    inbox.close()


def test_duplicates_are_dropped_within_and_across_imports(tmp_path: Path) -> None:
    without_id = b"From: ann@a.example\nSubject: no id\n\nsame\n"
    (tmp_path / "in").write_bytes(mbox(mail(1), mail(1, "other body"), without_id, b"X-Copy: 2\n" + without_id))
    report, inbox = do_import(tmp_path)
    assert (report.read, report.imported, report.duplicates) == (4, 2, 2)
    assert inbox.search(["hello"])
    inbox.close()
    (tmp_path / "more").write_bytes(mbox(mail(1), mail(2), without_id))
    report, inbox = do_import(tmp_path, tmp_path / "more")
    assert (report.read, report.imported, report.duplicates) == (3, 1, 2)
    assert inbox.stats().emails == 3
    inbox.close()
    report, inbox = do_import(tmp_path, tmp_path / "more")
    assert (report.read, report.imported, report.duplicates) == (3, 0, 3)
    inbox.close()


def test_counts_are_of_imported_mails(tmp_path: Path) -> None:
    odd = b"From: a@a.example\nMessage-ID: <1>\nContent-Type: text/html\n\n<p>x</p>"
    attached = mail(
        2, "--b\n\nsee\n--b\nContent-Type: image/png\n\nx\n--b--", "Content-Type: multipart/mixed; boundary=b"
    )
    for name, data in (("1", odd), ("2", odd), ("3", attached), ("4", mail(3, "y" * 300_000))):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    report, inbox = do_import(tmp_path)
    assert (report.read, report.imported, report.duplicates) == (4, 3, 1)
    assert (report.html_only, report.undated, report.attachments_skipped, report.truncated) == (1, 1, 1, 1)
    inbox.close()


def test_an_envelope_of_any_bytes_breaks_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"From caf\xe9 Thu Nov  1 11:19:12 2001\nSubject: x\n\nbody\n")
    report, inbox = do_import(tmp_path)
    assert (report.imported, report.broken, report.undated) == (1, [], 0)
    assert [hit.sender for hit in inbox.search(["x"])] == ["café"]
    inbox.close()


def test_broken_mails_are_reported_with_their_place(tmp_path: Path) -> None:
    good, bad = mail(1), b"\x00\xff no header\n"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.mbox").write_bytes(mbox(good, bad, mail(2)))
    (tmp_path / "in" / "b.eml").write_bytes(b"")
    nested = b"".join(b"Content-Type: multipart/mixed; boundary=%d\n\n--%d\n" % (n, n) for n in range(5_000))
    (tmp_path / "in" / "c.eml").write_bytes(b"From: a@a.example\n" + nested)
    report, inbox = do_import(tmp_path)
    assert (report.read, report.imported) == (2, 2)
    first, second, third = report.broken
    assert (first.file, first.number, first.offset, first.reason) == (
        str(tmp_path / "in" / "a.mbox"),
        2,
        len(mbox(good)),
        "no header field of a mail",
    )
    assert (second.file, second.number, second.reason) == (str(tmp_path / "in" / "b.eml"), None, "empty file")
    assert third.reason == "parts nested more than 50 deep"
    inbox.close()


def test_links_pipes_and_unreadable_files_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "good.eml").write_bytes(mail(1))
    (folder / "loop").symlink_to(folder)
    (folder / "self").symlink_to(folder / "self")
    (folder / "gone").symlink_to(folder / "nothing")
    os.mkfifo(folder / "pipe")
    report, inbox = do_import(tmp_path)
    assert report.imported == 1
    assert {(Path(broken.file).name, broken.reason.partition(":")[0]) for broken in report.broken} == {
        ("loop", "folder already read"),
        ("self", "Too many levels of symbolic links"),
        ("gone", "No such file or directory"),
        ("pipe", "neither a file nor a folder"),
    }
    inbox.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_files_without_permission_are_reported(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.eml").write_bytes(mail(1))
    (tmp_path / "in" / "secret.eml").write_bytes(mail(2))
    (tmp_path / "in" / "secret.eml").chmod(0)
    report, inbox = do_import(tmp_path)
    assert report.imported == 1
    assert [broken.reason for broken in report.broken] == ["Permission denied"]
    inbox.close()


@pytest.mark.parametrize("damage", [slice(0, -20), slice(0, 200)])
def test_a_damaged_gzip_file_keeps_what_came_before(tmp_path: Path, damage: slice) -> None:
    (tmp_path / "in").mkdir()
    packed = gzip.compress(mbox(*(mail(n, os.urandom(20_000).hex()) for n in range(20))))
    (tmp_path / "in" / "a.mbox.gz").write_bytes(packed[damage])
    (tmp_path / "in" / "b.eml").write_bytes(mail(99))
    report, inbox = do_import(tmp_path)
    assert [broken.reason.partition(":")[0] for broken in report.broken] == ["damaged gzip file"]
    assert report.imported == (20 if damage.stop == -20 else 1)
    inbox.close()


def test_sources_without_mail_leave_no_inbox(tmp_path: Path) -> None:
    target = tmp_path / "inbox.sqlite"
    with pytest.raises(MailSourceError, match=r"cannot read .*nowhere: No such file"):
        import_mail([tmp_path / "nowhere"], target)
    (tmp_path / "notes.txt").write_text("no mail")
    with pytest.raises(MailSourceError, match=r"no mail in .*notes.txt: no header field"):
        import_mail([tmp_path / "notes.txt"], target)
    assert not target.exists()


def test_a_file_that_is_no_inbox_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(mbox(mail(1)))
    (tmp_path / "inbox.sqlite").write_bytes(b"something else entirely, not SQLite" * 100)
    before = (tmp_path / "inbox.sqlite").read_bytes()
    with pytest.raises(InboxError, match="cannot read inbox"):
        import_mail([tmp_path / "in"], tmp_path / "inbox.sqlite")
    assert (tmp_path / "inbox.sqlite").read_bytes() == before


def test_file_names_of_any_bytes_are_reported(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / os.fsdecode(b"caf\xe9")).touch()
    [broken] = list(raw_mails(tmp_path / "in"))
    assert broken.file.endswith("caf\ufffd")


def test_ids_are_stable_short_words_and_survive_collisions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MailIds().claim("<1@a.example>") == MailIds().claim("<1@a.example>")
    monkeypatch.setattr(mail_ids, "_SYLLABLES", 1)
    ids = MailIds()
    claimed = [ids.claim(f"<{n}>") for n in range(60)]
    assert len(set(claimed)) == 60
    assert {len(id) for id in claimed if id} == {2}
    assert [ids.claim(f"<{n}>") for n in range(60)] == [None] * 60


def test_an_id_that_another_mail_of_the_inbox_has_is_not_given_again(tmp_path: Path) -> None:
    id = MailIds().claim("<1@a.example>")
    assert id is not None
    write_inbox(tmp_path / "inbox.sqlite", [Email(id, "<other>", "x@x.example", (), None, "other", "")])
    (tmp_path / "in").write_bytes(mbox(mail(1)))
    report, inbox = do_import(tmp_path)
    assert report.imported == 1
    assert inbox.stats().emails == 2
    inbox.close()

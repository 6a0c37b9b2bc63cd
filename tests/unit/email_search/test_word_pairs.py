"""Search in Chinese, Japanese, Korean and Thai; and that everything else is indexed as before."""

import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.service import search_languages
from learnloop_service.app.datasets.store import index_inboxes_anew
from learnloop_service.environment.email_search import inbox as inbox_module
from learnloop_service.environment.email_search.inbox import Email, Inbox, write_inbox
from learnloop_service.environment.email_search.synthetic import make_world
from learnloop_service.environment.email_search.word_pairs import in_a_row, indexed, with_all


def mail(number: int, subject: str, body: str) -> Email:
    return Email(f"id{number}", f"<{number}>", "ken@x.example", (), None, subject, body)


MAILS = [
    mail(0, "会議の場所", "来週の会議は三階の会議室で行います。"),
    mail(1, "关于合同", "合同已经签署\uff0c请在星期五之前寄回。𠮷野家"),
    mail(2, "Besprechung", "Der issue化 Test ist im dritten Stock."),
    mail(3, "회의 안내", "회의실에서 만나요. 각"),
    mail(4, "นัดประชุม", "พบกันที่ห้องประชุมชั้นสามนะ"),
    mail(5, "ﾃｽﾄ", "折り返し電\n話ください。か\u3099"),
]


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        (["会議室"], ["id0"]),
        (["議"], ["id0"]),
        (["所"], ["id0"]),
        (["場所", "三階"], ["id0"]),
        (["三階の会議室で行います"], ["id0"]),
        (["会室"], []),
        (["合同"], ["id1"]),
        (["星期五 合同"], ["id1"]),
        (["合同\uff0c星期五"], ["id1"]),
        (["𠮷"], ["id1"]),
        (["issue化"], ["id2"]),
        (["issue"], ["id2"]),
        (["化", "stock"], ["id2"]),
        (["회의"], ["id3"]),
        (["만나"], ["id3"]),
        (["각"], ["id3"]),
        (["ประชุม"], ["id4"]),
        (["ที่"], ["id4"]),
        (["สาม"], ["id4"]),
        (["า"], ["id4"]),
        (["テスト"], ["id5"]),
        (["電話"], ["id5"]),
        (["が"], ["id5"]),
    ],
)
def test_any_part_of_a_run_is_found(keywords: list[str], expected: list[str]) -> None:
    with closing(Inbox.in_memory(MAILS)) as inbox:
        assert [hit.id for hit in inbox.search(keywords)] == expected


@pytest.mark.parametrize("text", ["会議の場所", "合同 A3", "A3 合同", "회의", "会"])
def test_whether_a_subject_is_the_only_one(text: str) -> None:
    with closing(Inbox.in_memory([mail(0, text, "")])) as inbox:
        assert inbox.is_only_one(text)
    with closing(Inbox.in_memory([mail(0, text, ""), mail(1, f"緊急{text}です", "")])) as inbox:
        assert not inbox.is_only_one(text)


_letters = st.text(st.sampled_from("会議室ですカナ한국어합ไทยดีที่\uff41b 1\n。"), min_size=1, max_size=30)


@given(st.lists(_letters, min_size=1, max_size=5), st.data())
def test_every_part_of_every_mail_is_found(bodies: list[str], data: st.DataObject) -> None:
    body = data.draw(st.sampled_from(bodies))
    start = data.draw(st.integers(0, len(body) - 1))
    part = "".join(char for char in body[start : start + data.draw(st.integers(1, 4))] if not char.isascii())
    mails = [mail(number, "", mail_body) for number, mail_body in enumerate(bodies)]
    with closing(Inbox.in_memory(mails)) as inbox:
        hits = {hit.id for hit in inbox.search([part])}
    if part and part in body and not {"\uff41", "。"} & set(part):
        assert f"id{bodies.index(body)}" in hits


def test_four_languages_are_found() -> None:
    """The figures: `python -m benchmarks.service.search_languages`."""
    shares = search_languages.recalls()
    assert set(shares) == {"Chinese", "Japanese", "Korean", "Thai"}
    assert all(share >= 0.95 for by_form in shares.values() for share in by_form.values())


def index_of(path: Path) -> list[list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as connection:
        return [connection.execute(f"SELECT * FROM email_fts_{part}").fetchall() for part in ("data", "idx", "docsize")]


def as_an_earlier_release_wrote(path: Path, emails: Sequence[Email]) -> None:
    """Write the file, and index the texts as they are."""
    with patch.object(inbox_module, "indexed", str):
        write_inbox(path, emails)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA application_id = 0")


def test_the_index_of_other_text_is_byte_for_byte_the_same(tmp_path: Path) -> None:
    emails = [*make_world("train", 0, 3).emails, mail(0, "Ärger, naïve", "Жизнь, हिन्दी, عربي, e\u0301 x_y 4.5 ½")]
    write_inbox(tmp_path / "new.sqlite", emails)
    as_an_earlier_release_wrote(tmp_path / "old.sqlite", emails)
    assert index_of(tmp_path / "new.sqlite") == index_of(tmp_path / "old.sqlite")
    Inbox(tmp_path / "old.sqlite").close()
    assert index_of(tmp_path / "new.sqlite") == index_of(tmp_path / "old.sqlite")


@given(st.text(st.characters(max_codepoint=0x0DFF)))
def test_other_text_is_indexed_and_asked_for_as_it_is(text: str) -> None:
    assert indexed(text) == text
    assert with_all(["budget of x_y", "don't"]) == '"budget" AND "of" AND "x" AND "y" AND "don" AND "t"'
    assert in_a_row("the budget") == '"the budget"'
    assert with_all(["_"]) == ""
    assert in_a_row("!") == ""


@pytest.mark.parametrize("mode", [0o600, 0o444])
def test_an_inbox_of_an_earlier_release_is_indexed_anew_once(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "inboxes" / "mine.sqlite"
    as_an_earlier_release_wrote(path, MAILS)
    path.chmod(mode)
    with closing(sqlite3.connect(path)) as old:
        assert old.execute("""SELECT 1 FROM email_fts WHERE email_fts MATCH '"会議室"'""").fetchall() == []
    with closing(Inbox(path)) as inbox:
        assert [hit.id for hit in inbox.search(["会議室"])] == ["id0"]
        assert [hit.id for hit in inbox.search(["stock"])] == ["id2"]
    after = index_of(path)
    assert path.stat().st_mode & 0o777 == mode
    assert [file.name for file in path.parent.iterdir()] == ["mine.sqlite"]
    Inbox(path).close()
    assert index_of(path) == after


def test_many_can_open_an_inbox_of_an_earlier_release(tmp_path: Path) -> None:
    as_an_earlier_release_wrote(tmp_path / "old.sqlite", MAILS)

    def search(_: int) -> list[str]:
        with closing(Inbox(tmp_path / "old.sqlite")) as inbox:
            return [hit.id for hit in inbox.search(["会議室"])]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(search, range(8))) == [["id0"]] * 8


def test_the_service_and_an_import_index_anew(tmp_path: Path) -> None:
    paths = [tmp_path / "inboxes" / "a.sqlite", tmp_path / "datasets" / "inboxes" / "b.sqlite"]
    for path in paths:
        as_an_earlier_release_wrote(path, MAILS)
    (tmp_path / "inboxes" / "broken.sqlite").write_bytes(b"no database")
    before = [index_of(path) for path in paths]
    index_inboxes_anew(tmp_path)
    assert all(index_of(path) != index for path, index in zip(paths, before, strict=True))
    as_an_earlier_release_wrote(tmp_path / "c.sqlite", MAILS)
    write_inbox(tmp_path / "c.sqlite", [mail(9, "会議", "")])
    with closing(Inbox(tmp_path / "c.sqlite")) as inbox:
        assert {hit.id for hit in inbox.search(["会議"])} == {"id0", "id9"}


def test_a_file_that_cannot_be_written_is_searched_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    as_an_earlier_release_wrote(tmp_path / "old.sqlite", MAILS)

    def refused(_: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(inbox_module, "_index_pairs", refused)
    with closing(Inbox(tmp_path / "old.sqlite")) as inbox:
        assert [hit.id for hit in inbox.search(["stock"])] == ["id2"]
    assert "cannot be indexed anew" in caplog.text

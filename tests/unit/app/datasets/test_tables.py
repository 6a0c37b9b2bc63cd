"""Tables as people have them: what is written is read back, and what cannot be read has a number and a reason."""

import csv
import io
import json
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import openpyxl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from learnloop_service.app.datasets import tables
from learnloop_service.app.datasets.tables import BadTable, read_table

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r")).filter(lambda text: text.strip())
_ROWS = st.lists(st.tuples(_TEXT, _TEXT, _TEXT | st.just("")), max_size=8)
_CELL = st.text(st.characters(codec="latin-1", min_codepoint=32)) | st.integers(-(2**53), 2**53)
_HEADER = ("question", "answer", "facts")


def written(rows: Any, separator: str = ",", quoting: Any = csv.QUOTE_ALL, end: str = "\r\n") -> str:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=separator, quoting=quoting, lineterminator=end)
    writer.writerows([_HEADER, *rows])
    return file.getvalue()


@given(
    _ROWS, st.sampled_from(",;\t|"), st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.sampled_from(["\n", "\r\n"]), st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)  # fmt: skip
@example([('a "quoted" word', "x\\", "line\nfeed")], ";", csv.QUOTE_MINIMAL, "\n", "utf-8")
def test_what_a_program_writes_is_read_back(rows: Any, separator: str, quoting: Any, end: str, encoding: str) -> None:
    read = read_table(written(rows, separator, quoting, end).encode(encoding))
    assert read.columns == list(_HEADER)
    assert [tuple(cells) for cells in read.rows.values()] == rows
    assert list(read.rows) == list(range(2, len(rows) + 2))
    assert read.faults == []


@given(_ROWS, st.booleans())
def test_json_is_read_back(rows: Any, as_lines: bool) -> None:
    objects = [dict(zip(_HEADER, row, strict=True)) for row in rows]
    text = "\n".join(map(json.dumps, objects)) if as_lines else json.dumps({"version": 1, "rows": objects})
    if rows:
        assert [tuple(cells) for cells in read_table(text.encode()).rows.values()] == rows


@given(
    st.lists(
        st.tuples(*[st.text(st.characters(codec="latin-1", min_codepoint=32)) | st.integers(-(2**53), 2**53)] * 2),
        max_size=5,
    )
)
def test_a_workbook_is_read_back(rows: list[tuple[str | int, str | int]]) -> None:
    book = openpyxl.Workbook()
    for number, row in enumerate([("question", "answer"), *rows], start=1):
        for column, value in enumerate(row, start=1):
            cell = book.active.cell(number, column, value)
            cell.data_type = "n" if isinstance(value, int) else "s"
    file = io.BytesIO()
    book.save(file)
    texts = {number: tuple(map(str, row)) for number, row in enumerate(rows, start=2)}
    expected = {number: row for number, row in texts.items() if "".join(row).strip()}
    assert {number: tuple(row) for number, row in read_table(file.getvalue()).rows.items()} == expected


@given(st.binary() | st.text().map(str.encode) | st.binary().map(lambda rest: b"PK\x03\x04" + rest))
def test_any_file_is_a_table_or_has_a_reason(content: bytes) -> None:
    try:
        read = read_table(content)
    except BadTable:
        return
    assert all(len(cells) == len(read.columns) for cells in read.rows.values())


PROSE = {
    "cp1252": ("Wie lange dauert die Rückgabe für Kunden außerhalb der Öffnungszeiten?", "14 Tage, höchstens 20 €"),
    "cp932": ("返品はいつまでできますか。営業時間も教えてください。", "お届けから三十日以内です"),
    "gb18030": ("退货期限是多少天。请告诉我营业时间和地址。", "自收到商品之日起三十天"),
    "cp1251": ("Сколько дней можно вернуть товар после покупки?", "Тридцать дней после получения"),
}  # fmt: skip


@pytest.mark.parametrize("encoding", PROSE)
def test_an_old_encoding_is_recognised(encoding: str) -> None:
    rows = [(question, answer, str(number)) for number, (question, answer) in enumerate([PROSE[encoding]] * 5)]
    content = written(rows, ";").encode(encoding)
    assert [tuple(cells) for cells in read_table(content).rows.values()] == rows
    assert [tuple(cells) for cells in read_table(content, encoding=encoding).rows.values()] == rows


def test_bad_rows_are_named_and_the_others_stay() -> None:
    text = 'question,answer,answer,\n\na,b\nc,d,e,f,g\n,,,\nh,"i" j,k\nl,"m\nn",o\np,"q\nr,s,t,\n'
    read = read_table(text.encode())
    assert read.columns == ["question", "answer", "answer (3)"]
    assert {number: list(cells) for number, cells in read.rows.items()} == {
        3: ["a", "b", ""], 7: ["l", "m\nn", "o"], 9: ["r", "s", "t"]
    }  # fmt: skip
    assert [number for number, _ in read.faults] == [4, 6, 8]
    assert [why.split(" (")[0] for _, why in read.faults] == [
        "it has 5 cells, and the first row 3", "its quotes do not fit", "a quote is opened and not closed"
    ]  # fmt: skip
    lines = b'{"q": 1, "a": [2]}\n{\n\xff\n[3]\n{"a": "\\u0000"}\n{"b": true}'
    read = read_table(lines)
    assert {n: list(cells) for n, cells in read.rows.items()} == {1: ["1", "[2]", ""], 6: ["", "", "true"]}
    assert [number for number, _ in read.faults] == [2, 3, 4, 5]


def test_without_a_header_columns_have_numbers() -> None:
    read = read_table(b"sep=;\na;b\nc;d\n", header=False)
    assert read.columns == ["column 1", "column 2"]
    assert list(read.rows) == [2, 3]


def bomb(size: int) -> bytes:
    file = io.BytesIO()
    with ZipFile(file, "w", ZIP_DEFLATED) as package:
        package.writestr("xl/workbook.xml", b" " * size)
    return file.getvalue()


ENTITIES = b'<!DOCTYPE a [<!ENTITY b "' + b"c" * 1000 + b'">]><a>' + b"&b;" * 1000 + b"</a>"


def hostile(name: str) -> bytes:
    book, file, out = openpyxl.Workbook(), io.BytesIO(), io.BytesIO()
    book.active.append(["a", "b"])
    book.save(file)
    with ZipFile(file) as package, ZipFile(out, "w", ZIP_DEFLATED) as changed:
        for part in package.namelist():
            changed.writestr(part, ENTITIES if part == name else package.read(part))
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b" \n", "the file is empty"),
        (b"\x1f\x8b\x08", "the file is compressed"),
        (b"%PDF-1.7", "the file is a PDF"),
        (bomb((128 << 20) + 1), "at most 128 MB unpacked"),
        (bomb(10), "not a valid XLSX file"),
        (hostile("xl/worksheets/sheet1.xml"), "not a valid XLSX file"),
        (hostile("xl/workbook.xml"), "not a valid XLSX file"),
        (b"PK\x03\x04", "not a valid XLSX file"),
        (b",".join([b"a"] * 201), "more than 200,000 rows or 200 columns"),
    ],
)
def test_what_is_no_table_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(BadTable, match=why):
        read_table(content)


def test_too_many_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_ROWS", 3)
    assert len(read_table(b"a,b\n" + b"c,d\n" * 3).rows) == 3
    with pytest.raises(BadTable, match="split it"):
        read_table(b"a,b\n" + b"c,d\n" * 4)
    with pytest.raises(BadTable, match="cannot be read as utf-9"):
        read_table(b"\xff", encoding="utf-9")

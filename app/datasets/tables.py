"""Reads tables in the usual formats: CSV, TSV, XLSX, JSON and JSON Lines, in any usual encoding.

A row keeps the number that a spreadsheet shows, so that what is wrong with it can be found in the file.
"""

import csv
import io
import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from itertools import islice
from zipfile import ZipFile

from learnloop_service.app.db.json_text import flaw
from learnloop_service.environment.installation import needs_extra
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol import strict_json

MAX_ROWS, _MAX_COLUMNS, _MAX_UNCLOSED = 200_000, 200, 100
_MAX_UNPACKED = 128 << 20
"""Maximum size of a workbook's parts when they are unpacked, in bytes."""
_SAMPLE = 1 << 17
_ENCODINGS = ["cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp932", "gb18030", "big5", "cp949"]
_WRAPPERS = ("data", "rows", "items", "records", "examples", "questions", "results")
"""Keys of an object that holds the rows as a list."""
_UTF16 = (BOM_UTF16_LE, BOM_UTF16_BE)
_OTHER_FILES = {b"\xd0\xcf\x11\xe0": "an old Excel file", b"%PDF": "a PDF", b"\x1f\x8b": "compressed"}

Records = Iterator[tuple[int, Sequence[str] | str]]
"""Rows by their numbers: the cells, or what is wrong."""


class BadTable(ValueError):
    """The file cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns, and its rows by their numbers in the file, from 1, each with a cell for every column."""

    columns: Sequence[str]
    rows: Mapping[int, Sequence[str]]
    faults: Sequence[tuple[int, str]]
    """Numbers of rows that were left out, each with what is wrong."""
    form: str
    """How it was read, such as `CSV, cp1252, separated by ;`."""


def json_rows(content: bytes) -> Iterator[tuple[int, Json, str | None]] | None:
    """Yield the items of a JSON list, or the lines of a JSON Lines file, as `json_lines`. Return None if the file does
    not begin as JSON. Raises BadTable."""
    content = json_text(content)
    return json_lines(content) if re.match(rb"\s*(\{|\[\s*[\[{\]])", content) else None


def json_text(content: bytes) -> bytes:
    """Return the content in UTF-8 without a mark, as far as it is a text that is not empty. Raises BadTable."""
    if (wrong := next((what for magic, what in _OTHER_FILES.items() if content.startswith(magic)), None)) is not None:
        raise BadTable(f"the file is {wrong}; expected CSV, TSV, XLSX, JSON or JSON Lines")
    if content.startswith(_UTF16):
        content = content.decode("utf-16", "replace").encode()
    content = content.removeprefix(BOM_UTF8)
    if not content.strip():
        raise BadTable("the file is empty")
    return content


def json_lines(content: bytes) -> Iterator[tuple[int, Json, str | None]]:
    """Yield the items or lines: the number from 1, the value, and what is wrong with it."""
    try:
        whole = strict_json.loads(content)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and (lists := [whole[key] for key in _WRAPPERS if _are_rows(whole.get(key))]):
        whole = lists[0]
    if _are_rows(whole):
        yield from ((number, row, flaw(row)) for number, row in enumerate(whole, start=1))
        return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            try:
                value = strict_json.loads(line)
                yield number, value, flaw(value)
            except ValueError as error:
                yield number, None, f"it is not {'UTF-8' if isinstance(error, UnicodeDecodeError) else 'JSON'}"


def _are_rows(value: Json) -> bool:
    """Whether a value is a list of rows, and not of the messages of one conversation."""
    is_list = isinstance(value, list) and all(isinstance(row, dict | list) for row in value)
    return is_list and not any("role" in row or "from" in row for row in value)


def read_table(content: bytes, *, header: bool = True, encoding: str | None = None) -> Table:
    """Read a file as a table. Raises BadTable."""
    if (values := json_rows(content)) is not None:
        return _table(_object_records(values), "JSON", header=True)
    if content.startswith(b"PK\x03\x04"):
        return _table(_workbook_records(content), "XLSX", header)
    encoding = encoding or _encoding(content)
    try:
        text = content.decode(encoding).removeprefix("\ufeff")
    except (UnicodeDecodeError, LookupError) as error:
        raise BadTable(f"the file cannot be read as {encoding} ({error}); save it as UTF-8") from error
    named = re.match(r'"?sep=(.)"?(?=[\r\n])', text)  # Excel's first line
    separator = named[1] if named else max(",;\t|", key=lambda candidate: _agreement(text[:_SAMPLE], candidate))
    records = _csv_records(text[named.end() :] if named else text, separator)
    return _table(records, f"CSV, {encoding}, separated by {separator.replace(chr(9), 'tabs')}", header)


def _encoding(content: bytes) -> str:
    if content.startswith(_UTF16):
        return "utf-16"
    try:
        content.decode("utf-8")
        return "utf-8"
    except UnicodeDecodeError as error:
        try:
            from charset_normalizer import from_bytes
        except ImportError:
            raise BadTable(f"it is not in UTF-8, and telling what it is needs {needs_extra('tables')}") from None
        near = content[max(0, error.start - _SAMPLE // 2) :][:_SAMPLE]
        best = from_bytes(near, cp_isolation=_ENCODINGS).best()
        # Where both give the same text, the more frequent one, because the rest of the file can differ.
        return "cp1252" if best is None or near.decode("cp1252", "replace") == str(best) else best.encoding


def _agreement(text: str, separator: str) -> tuple[float, int]:
    """Return the share of the rows that have as many cells as the first one, and how many those are."""
    rows = (cells for _, cells in islice(_csv_records(text, separator), 200) if cells)
    widths = [0 if isinstance(cells, str) else len(cells) for cells in rows]
    return (widths.count(widths[0]) / len(widths), widths[0]) if widths and widths[0] > 1 else (0.0, 0)


def _csv_records(text: str, separator: str) -> Records:
    """Yield the rows. After a quote that is never closed, reading continues with the next line."""
    # Some programs escape quotes by a backslash instead of doubling them.
    escape = "\\" if re.search(r'\\"\w', text) and '""' not in text else None
    lines, start, number = [*io.StringIO(text, newline="")], 0, 0
    for _ in range(_MAX_UNCLOSED):
        reader = csv.reader(islice(lines, start, None), delimiter=separator, strict=True, escapechar=escape)
        wrong = ""
        while "not closed" not in wrong:
            number, before = number + 1, reader.line_num
            try:
                yield number, next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                is_open = "unexpected end" in str(error) or "field larger" in str(error)
                wrong = "a quote is opened and not closed" if is_open else f"its quotes do not fit ({error})"
                yield number, wrong
        start += before + 1


def _object_records(values: Iterator[tuple[int, Json, str | None]]) -> Records:
    """Yield the names of the fields, and then the rows."""
    columns, records = dict[str, int](), list[tuple[int, Sequence[str] | str]]()
    for number, value, wrong in values:
        if wrong is not None or not isinstance(value, dict):
            records.append((number, wrong or "it is not an object"))
        elif len(columns) <= _MAX_COLUMNS:
            cells = {columns.setdefault(name, len(columns)): _text(field) for name, field in value.items()}
            records.append((number, [cells.get(column, "") for column in range(len(columns))]))
    yield 0, list(columns)
    yield from records


def _text(value: Json) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _workbook_records(content: bytes) -> Records:
    """Yield the rows of the first worksheet. Raises BadTable."""
    try:
        import openpyxl
    except ImportError:
        raise BadTable(f"XLSX files need {needs_extra('tables')}; or save it as CSV in UTF-8") from None
    try:
        with ZipFile(io.BytesIO(content)) as package:
            size = sum(part.file_size for part in package.infolist())
        if size > _MAX_UNPACKED or not openpyxl.DEFUSEDXML:
            raise BadTable(f"a workbook has at most {_MAX_UNPACKED >> 20} MB unpacked, and needs defusedxml installed")
        sheet = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True).worksheets[0]
        sheet.reset_dimensions()
        rows = sheet.iter_rows(max_row=MAX_ROWS + 2, max_col=_MAX_COLUMNS, values_only=True)
        yield from ((number, [_cell_text(cell) for cell in row]) for number, row in enumerate(rows, start=1))
    except BadTable:
        raise
    except Exception as error:  # openpyxl raises anything for a damaged file
        raise BadTable(f"it is not a valid XLSX file ({type(error).__name__}); save it again, or as CSV") from error


def _cell_text(cell: object) -> str:
    if isinstance(cell, datetime) and cell.time() == time():
        return cell.date().isoformat()
    return "" if cell is None else str(cell).lower() if isinstance(cell, bool) else str(cell)


def _table(records: Records, form: str, header: bool) -> Table:
    """Make a table of the records. Blank rows are dropped, short ones filled; longer ones than the first are faults."""
    rows, faults, names = dict[int, list[str]](), list[tuple[int, str]](), list[str]()
    for number, record in records:
        cells = list(record) if not isinstance(record, str) else []
        while cells and not cells[-1].strip() and len(cells) > len(names):
            cells.pop()
        wrong = record if isinstance(record, str) else flaw(cells)
        if wrong is not None or (names and len(cells) > len(names)):
            faults.append((number, wrong or f"it has {len(cells)} cells, and the first row {len(names)}"))
        elif any(map(str.strip, cells)):
            is_first = not names
            names = names or [
                (heading.strip() if header else "") or f"column {n}" for n, heading in enumerate(cells, 1)
            ]
            if not (header and is_first):
                rows[number] = [*cells, *[""] * (len(names) - len(cells))]
            if len(rows) > MAX_ROWS or len(names) > _MAX_COLUMNS:
                raise BadTable(f"the file has more than {MAX_ROWS:,} rows or {_MAX_COLUMNS} columns; split it")
    columns = [f"{name} ({n})" if name in names[: n - 1] else name for n, name in enumerate(names, 1)]
    return Table(columns, rows, faults, form)

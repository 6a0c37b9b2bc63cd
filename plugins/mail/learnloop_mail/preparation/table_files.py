"""Reads rows of a dataset on disk: a folder saved by `datasets`, Parquet, Arrow or JSON Lines files, or a folder of
these.

Rows are read in batches, so a dataset of any size needs the memory of one batch.
"""

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from learnloop_service.environment.first_line import first_line
from learnloop_service.environment.json_type import Json

_BATCH = 500
_SUFFIXES = (".parquet", ".arrow", ".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_SPLIT = re.compile(r"(?:^|[/_.-])(train|validation|valid|dev|val|test)(?=$|[/_.-])")
"""Matches the split in a file's path, as on the hub: `data/train-00000-of-00001.parquet`, `test/a.jsonl`."""
_SAME_SPLIT = {"valid": "validation", "dev": "validation", "val": "validation"}
MAX_LINE_CHARACTERS = 32_000_000


class DatasetError(Exception):
    """The files are not a dataset of this kind, or one of them is damaged; the message names it."""


def is_dataset(path: Path) -> bool:
    """Whether the path is a file or folder of a dataset rather than of mail."""
    try:
        return bool(splits(path))
    except DatasetError:
        return False


def splits(path: Path) -> dict[str, list[Path]]:
    """Return the files of each split, in order. A dataset that names no split has only `train`. Raises DatasetError."""
    if path.is_file():
        by_split = {"train": [path]} if path.name.endswith(_SUFFIXES) else {}
    elif (path / "dataset_dict.json").is_file():
        names = _listed(path / "dataset_dict.json", "splits")
        by_split = {str(name): _saved(path / str(name)) for name in names}
    elif (path / "state.json").is_file():
        by_split = {"train": _saved(path)}
    else:
        by_split = _by_name(path)
    if not by_split:
        raise DatasetError(f"no dataset in {path}: expected what `datasets` saves, or {', '.join(_SUFFIXES)} files")
    return by_split


def _saved(folder: Path) -> list[Path]:
    """Return the files of one split, as listed by `save_to_disk`."""
    files = [folder / str(entry.get("filename")) for entry in _listed(folder / "state.json", "_data_files")]
    if missing := [file for file in files if not file.is_file()]:
        raise DatasetError(f"{missing[0]} is missing, which {folder / 'state.json'} lists")
    return files


def _listed(file: Path, key: str) -> list[Any]:
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"cannot read {file}: it must list {key!r}") from error
    if not isinstance(listed, list):
        raise DatasetError(f"cannot read {file}: {key!r} must be a list")
    return listed


def _by_name(folder: Path) -> dict[str, list[Path]]:
    """Group files by the split in their names or folders, as on the hub."""
    by_split: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*")):
        relative = str(file.relative_to(folder))
        if file.name.endswith(_SUFFIXES) and not relative.startswith("."):
            named = _SPLIT.search(relative)
            split = _SAME_SPLIT.get(named[1], named[1]) if named else "train"
            by_split.setdefault(split, []).append(file)
    return by_split


def count_rows(files: Sequence[Path]) -> int | None:
    """Return the number of rows; None if it is unknown without reading them."""
    if not all(file.suffix == ".parquet" for file in files):
        return None
    from pyarrow import ArrowException  # type: ignore[import-untyped]
    from pyarrow.parquet import read_metadata  # type: ignore[import-untyped]

    try:
        return sum(int(read_metadata(file).num_rows) for file in files)
    except (ArrowException, OSError):
        return None  # Reading the rows reports the error.


def rows(files: Sequence[Path], columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Mapping[str, Json]]:
    """Yield the rows of all files in order. Raises DatasetError if a file is damaged or lacks one of `columns`."""
    for file in files:
        read = _read_lines if ".jsonl" in file.name or ".ndjson" in file.name else _read_columns
        yield from read(file, columns, optional)


def _read_columns(file: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[Mapping[str, Json]]:
    from pyarrow import ArrowException, Table

    try:
        for batch in _batches(file):
            present = batch.schema.names
            if missing := [name for name in columns if name not in present]:
                raise DatasetError(
                    f"{file} has no column {', '.join(missing)}; it has: {', '.join(present) or 'none at all'}"
                )
            selected = [name for name in (*columns, *optional) if name in present]
            yield from Table.from_batches([batch]).select(selected).to_pylist()
    except (ArrowException, OSError, OverflowError) as error:
        raise DatasetError(f"cannot read {file}: {first_line(error)}") from error


def _batches(file: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    if file.suffix == ".parquet":
        with ParquetFile(file) as parquet:
            yield from parquet.iter_batches(_BATCH)
        return
    with pa.memory_map(str(file)) as source:
        try:
            batches: Iterator[Any] = iter(pa.ipc.open_stream(source))
        except pa.ArrowInvalid:  # `datasets` writes the stream format; this is the file format.
            whole = pa.ipc.open_file(source)
            batches = (whole.get_batch(number) for number in range(whole.num_record_batches))
        for batch in batches:
            yield from (batch.slice(start, _BATCH) for start in range(0, batch.num_rows, _BATCH))


def _read_lines(file: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[Mapping[str, Json]]:
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
            number = 0
            while line := lines.readline(MAX_LINE_CHARACTERS + 1):
                number += 1
                if len(line) > MAX_LINE_CHARACTERS:
                    raise DatasetError(f"{file} line {number} is longer than {MAX_LINE_CHARACTERS:,} bytes")
                if line.strip():
                    yield _row(file, number, line, columns, optional)
    except (OSError, EOFError) as error:
        raise DatasetError(f"cannot read {file}: {error}") from error


def _row(file: Path, number: int, line: bytes, columns: Sequence[str], optional: Sequence[str]) -> Mapping[str, Json]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{file} line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DatasetError(f"{file} line {number} is not an object")
    if missing := [name for name in columns if name not in row]:
        raise DatasetError(f"{file} line {number} has no {', '.join(missing)}")
    return {name: row[name] for name in (*columns, *optional) if name in row}

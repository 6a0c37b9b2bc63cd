"""Writes trajectories to a Parquet file, piece by piece.

The columns are the fields of the JSON Lines format. Lists and objects become JSON text.
"""

import io
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement
from sqlalchemy.dialects.postgresql import JSONB

from learnloop_service.app.db.json_text import StorableText, dumps
from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.schemas.trajectories import TrajectoryOut

if TYPE_CHECKING:  # importing pyarrow is slow
    import pyarrow as pa  # type: ignore[import-untyped]


def _kind(column: ColumnElement[Any]) -> type:
    """Return the Python type of a column's values; `dict` for all JSON."""
    kind = column.type
    if isinstance(kind, JSONB):
        return dict
    return str if isinstance(kind, StorableText) else kind.python_type


_COLUMNS = {name: _kind(Trajectory.__table__.c[name]) for name in TrajectoryOut.model_fields}


class TrajectoryTable:
    """A Parquet file in progress. The file is the concatenated results of `write` and `close`."""

    def __init__(self) -> None:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        self._schema = _schema()
        self._sink = _Sink()
        self._writer = pq.ParquetWriter(self._sink, self._schema)

    def write(self, rows: Sequence[Trajectory]) -> bytes:
        """Add the rows as one row group, and return the next part of the file."""
        import pyarrow as pa

        columns = {name: [_value(getattr(row, name), kind) for row in rows] for name, kind in _COLUMNS.items()}
        self._writer.write_table(pa.table(columns, schema=self._schema))
        return self._sink.drain()

    def close(self) -> bytes:
        """Return the last part of the file."""
        self._writer.close()
        return self._sink.drain()


def _schema() -> "pa.Schema":
    import pyarrow as pa

    types = {
        str: pa.string(),
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        datetime: pa.timestamp("us", tz="UTC"),
        dict: pa.string(),
    }
    return pa.schema([pa.field(name, types[kind]) for name, kind in _COLUMNS.items()])


def _value(value: Any, kind: type) -> Any:
    return dumps(value) if kind is dict else value


class _Sink(io.RawIOBase):
    """Buffers what is written until it is drained."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        return len(self._written[-1])

    def drain(self) -> bytes:
        """Return everything written since the last call."""
        written, self._written = self._written, []
        return b"".join(written)

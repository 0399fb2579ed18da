"""Where two record batches differ first: whole columns are compared, and only where they differ single rows.

It needs pyarrow. Not here: which batches are compared (`streams/maintain/history/verify.py`).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class RowDifference(NamedTuple):
    """The first row that differs, its column, and what both have there, as people read it."""

    row: int
    column: str
    a: str
    b: str


def first_difference(a: pa.RecordBatch, b: pa.RecordBatch, columns: Sequence[str]) -> RowDifference | None:
    """Compare these columns of batches with the same number of rows; None if they are equal."""
    found: RowDifference | None = None
    for name in columns:
        left, right = _plain(a.column(name)), _plain(b.column(name))
        # A row is the first only if no other column differs above it.
        count = found.row if found is not None else a.num_rows
        if count and not _equal(left, right, 0, count):
            row = _first(left, right, count)
            found = RowDifference(row, name, _shown_at(a.column(name), row), _shown_at(b.column(name), row))
    return found


def shown(value: Any) -> str:
    """Return a value as one reads it: text, or base64 for bytes that are no text; long ones are cut."""
    if isinstance(value, bytes):
        try:
            text = repr(value.decode())
        except UnicodeDecodeError:
            text = f"base64:{base64.b64encode(value[:200]).decode()}"
    else:
        text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _shown_at(column: Any, row: int) -> str:
    try:
        return shown(column[row].as_py())
    except (OverflowError, ValueError):  # an event time that is no date
        return f"{column[row].value} us"


def _plain(column: Any) -> Any:
    """Return headers with an empty list instead of null: whether a batch has the column at all tells nothing."""
    if not pa.types.is_list(column.type) or not column.null_count:
        return column
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, column.flatten()).cast(column.type)


def _equal(left: Any, right: Any, start: int, count: int) -> bool:
    return bool(left.slice(start, count).equals(right.slice(start, count)))


def _first(left: Any, right: Any, count: int) -> int:
    low = 0
    while count > 1:
        half = count // 2
        if _equal(left, right, low, half):
            low, count = low + half, count - half
        else:
            count = half
    return low

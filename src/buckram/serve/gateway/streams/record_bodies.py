"""Records in bodies and answers: one value, lines, values with their lengths, JSON lines, and Arrow record batches.

Not here: the JSON of one record (`serve/json_views/records.py`, `serve/json_views/records.py`), Arrow
(`arrow_bodies.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from buckram.core.streams.records.batch import Batch
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.json_views.records import JsonLines, PlainLines, Rows, record_line

BYTES, LINES = "application/octet-stream", "text/plain"
VALUES = "application/vnd.buckram.values"
NDJSON, ARROW = "application/x-ndjson", "application/vnd.apache.arrow.stream"
TAKEN = {
    NDJSON: "a JSON object a line: value or value_base64; perhaps key or key_base64, headers, timestamp_us, txid",
    BYTES: "one record: the body is its value",
    LINES: "a record a line: the line is its value",
    VALUES: "records without keys: before each value its length in four bytes, the highest first; ff ff ff ff is null",
    ARROW: "an Arrow IPC stream, not compressed, with the columns value and optionally key, headers, timestamp",
}
GIVEN = {
    NDJSON: "a JSON object a line, with offset, timestamp_us, append_time_us, key_base64, value_base64, and more",
    LINES: "a value a line",
    VALUES: "values alone: before each its length in four bytes, the highest first; ff ff ff ff is null",
    ARROW: "an Arrow IPC stream with offset, value, key, headers, timestamp, append_time, txid",
}
_LENGTH = struct.Struct(">I")
_NULL, _NULL_SIZE = b"\xff\xff\xff\xff", 0xFFFF_FFFF


def rows_of(media: str, raw: bytes, most_record_bytes: int) -> Rows:
    """Return the records of a body. Raises HttpProblem for an invalid one, naming the line or record; nothing is
    written then.

    `most_record_bytes`: maximum size of a record of the stream.
    """
    if media == BYTES:
        return Rows([raw])
    if media == VALUES:
        return Rows(values_of(raw))
    if media == ARROW:
        from buckram.serve.gateway.streams.arrow_bodies import rows_of_arrow

        return rows_of_arrow(raw)
    lines = raw.split(b"\n")
    if not lines[-1]:
        lines.pop()
    form = JsonLines() if media == NDJSON else PlainLines(None)
    rows, bad = form.parse(lines, 1, most_record_bytes)
    if bad is not None:
        raise bad_request(f"line {bad.line} of the body {bad.why}; nothing of the body was written")
    return rows


def values_of(raw: bytes) -> list[bytes | None]:
    """Values that have their lengths before them. Raises HttpProblem for a body that ends within one."""
    if (step := _step(raw)) is not None:
        return [raw[at : at + step - 4] for at in range(4, len(raw), step)]
    found: list[bytes | None] = []
    at, end, length_at = 0, len(raw), _LENGTH.unpack_from
    while at < end:
        if at + 4 > end:
            raise bad_request(f"the body ends within the length of record {len(found)}; nothing of it was written")
        (size,) = length_at(raw, at)
        if size == _NULL_SIZE:
            found.append(None)
            at += 4
            continue
        stop = at + 4 + size
        if stop > end:
            raise bad_request(
                f"record {len(found)} should have {stop - at - 4} bytes, the body has {end - at - 4} left; nothing of "
                "the body was written"
            )
        found.append(raw[at + 4 : stop])
        at = stop
    return found


def _step(raw: bytes) -> int | None:
    """Return the distance from each length to the next if all values have the same size, as they often do; None if
    not.
    """
    if len(raw) < 4 or raw.startswith(_NULL):
        return None
    step = 4 + _LENGTH.unpack_from(raw)[0]
    count, rest = divmod(len(raw), step)
    same = not rest and all(raw[place::step] == raw[place : place + 1] * count for place in range(4))
    return step if same else None


def chosen_form(accepted: str) -> str:
    """Return the media type of an answer, by the Accept header of a request; JSON lines by default."""
    for one in accepted.split(","):
        media = one.partition(";")[0].strip().lower()
        if media in GIVEN:
            return media
    return NDJSON


def rendered(media: str, batches: Sequence[Batch]) -> bytes:
    """Records as an answer."""
    if media == ARROW:
        from buckram.serve.gateway.streams.arrow_bodies import rendered_arrow

        return rendered_arrow(batches)
    if media == NDJSON:
        return "".join([record_line(one) for batch in batches for one in batch.records()]).encode()
    form: Callable[[bytes | None], bytes] = _line if media == LINES else framed
    return b"".join([form(value) for batch in batches for value in batch.values()])


def framed(value: bytes | None) -> bytes:
    """A value with its length before it."""
    return _NULL if value is None else _LENGTH.pack(len(value)) + value


def _line(value: bytes | None) -> bytes:
    return (value or b"") + b"\n"

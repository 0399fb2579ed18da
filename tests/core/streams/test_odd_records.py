"""Whatever somebody writes into a record of a stream's metadata, who reads it gets values or MalformedRecord."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from buckram.core.db.backups import Backup, BackupRecord, decode_kept, encode_kept
from buckram.core.streams.external.exports import Export, decode_export, encode_export
from buckram.core.streams.json_values import is_int64
from buckram.core.streams.metadata.head import (
    Fork,
    Head,
    Mirror,
    Page,
    Segment,
    SnapshotRow,
    Summary,
    Transaction,
    WriterInfo,
    decode_head,
    decode_page,
    encode_head,
    encode_page,
)
from buckram.core.streams.records.positions import PositionMark
from buckram.core.streams.replication_links import MirrorProgress, parse_progress
from buckram.errors import MalformedRecord
from buckram.streams.read import cursors
from buckram.streams.write.lease import Holder

ROW = Segment(0, 5, 0, 1, Summary(3, 2, 1, 1, 1, 1, 1, 1, 1))
HEAD = Head(
    "u", 1, writer=WriterInfo("w", "n", 1), policy={"roll_s": 5.0}, properties={"a": "b"}, tail=(ROW,), table=ROW,
    transactions={"a": Transaction(1, 2, 3, 4, "q", "p", ("o",), "t", 1, 1, "h")}, garbage=(7,),
    snapshots=(SnapshotRow(1, 2, 3, 4, "d", 5),), fork=Fork("a/b", "u", 1, True), mirror=Mirror("mirror", "c", "u", 1),
    mark=PositionMark(1, 1, "d", 1, "r"),
)  # fmt: skip
_BACKUP = Backup("uid", "place", "file", 1, 2, "digest", 3)
RECORDS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "head": (lambda data: encode_head(decode_head("k", data)), encode_head(HEAD)),
    "page": (lambda data: encode_page(decode_page("k", data)), encode_page(Page(0, (ROW,)))),
    "export": (lambda data: encode_export(decode_export("k", data, 0)), encode_export(Export("/x", 1, (2,)))),
    "backup": (lambda data: encode_kept(decode_kept("k", data)), encode_kept(BackupRecord(_BACKUP, "why", 4))),
    "progress": (
        lambda data: parse_progress("k", data),
        json.dumps(MirrorProgress(1, 2, 3, "why", 4)._asdict()).encode(),
    ),
    "cursor": (lambda data: cursors._decode("k", data), b'{"offset": 1, "changed": 2}'),
    "lease": (lambda data: Holder.decode(data).encode(), Holder("n", "o", 1).encode()),
}
ODD: list[Any] = [None, True, -1, 2**63, 10**400, 1.5, float("nan"), float("inf"), "", "x", "\ud800", [], {}, [[]]]


def variants(value: Any) -> list[Any]:
    """The value with one part of it replaced, whichever it is."""
    found = list(ODD)
    match value:
        case dict():
            for name, part in value.items():
                found += [value | {name: other} for other in variants(part)]
                found.append({key: one for key, one in value.items() if key != name})
        case list():
            for at, part in enumerate(value):
                found += [[*value[:at], other, *value[at + 1 :]] for other in variants(part)]
                found.append(value[:at] + value[at + 1 :])
            found.append([*value, 1])
    return found


@pytest.mark.parametrize("what", RECORDS)
def test_a_record_is_read_and_can_be_written_again_or_is_malformed(what: str) -> None:
    read, good = RECORDS[what]
    assert read(good)
    texts = [json.dumps(one).encode() for one in variants(json.loads(good))]
    odd = [b"", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, good[:-1], good.decode().encode("utf-16"), b"\xed\xa0\x80"]
    refused = 0
    for text in [*texts, *odd]:
        try:
            read(text)
        except MalformedRecord:
            refused += 1
    assert refused > len(texts) // 3 or what == "lease"


def test_numbers_have_64_bits() -> None:
    assert [value for value in (0, -(2**63), 2**63 - 1, 2**63, -(2**63) - 1, True, 1.0, "1") if is_int64(value)] == [
        0,
        -(2**63),
        2**63 - 1,
    ]

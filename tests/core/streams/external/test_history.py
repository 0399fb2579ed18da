"""The pure part of history: manifests that are whole, names of files, locations, and what a policy wants offloaded."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from buckram.core.streams.external.history import (
    Manifest,
    Part,
    copy_of,
    decode_manifest,
    digest_of,
    due_segments,
    encode_manifest,
    manifest_file,
    may_offload,
    offloaded_row,
    part_file,
)
from buckram.core.streams.metadata.head import (
    HISTORY,
    Head,
    Offloaded,
    Page,
    Segment,
    Summary,
    decode_page,
    encode_page,
)
from buckram.core.streams.records.record_format import NO_TXID, Columns, encode
from buckram.errors import MalformedRecord

SECOND = 1_000_000


def row(number: int, *, size: int = 100, last_append: int = 0) -> Segment:
    summary = Summary(10, 4, size, 0, last_append, 0, 0, NO_TXID, -1)
    return Segment(number, 100 + number, 10 * number, 0, summary)


def manifest() -> Manifest:
    parts, first = [], 0
    for number in range(2):
        entry = encode(Columns([b"x"] * 5), first=5 * number, append_time=1)[0]
        parts.append(Part(part_file(0, 9, number), 7, digest_of(b""), first, 2 + number, 5, entry[:64].hex()))
        first += 2 + number
    return Manifest("shop/s", "uid", 9, 100, "aa", 0, Summary(10, 4, 100, 0, 0, 0, 0, NO_TXID, -1), tuple(parts))


def test_a_manifest_that_lacks_entries_without_records_is_refused() -> None:
    """Its last entry is one of the producers' table, say: the records alone do not show that it is missing."""
    whole = manifest()
    lacking = replace(whole, summary=whole.summary._replace(last_entry=whole.summary.last_entry + 1))
    with pytest.raises(MalformedRecord, match="its parts have 5 entries and 10 records"):
        decode_manifest("f", encode_manifest(lacking))


def test_a_manifest_comes_back() -> None:
    assert decode_manifest("f", encode_manifest(manifest())) == manifest()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"parts": []},
        {"summary": {}},
        {"base": "0"},
        {"copy": None},
        {"parts": [{"file": "../x"}]},
    ],
)
def test_a_manifest_that_is_none_is_refused(change: dict[str, object]) -> None:
    raw = json.loads(encode_manifest(manifest())) | change
    with pytest.raises(MalformedRecord, match="f: "):
        decode_manifest("f", json.dumps(raw).encode())


def test_parts_that_are_not_the_whole_segment_are_refused() -> None:
    whole = manifest()
    for parts in (whole.parts[:1], whole.parts[1:], whole.parts[::-1], (*whole.parts, whole.parts[1])):
        with pytest.raises(MalformedRecord, match="f: "):
            decode_manifest("f", encode_manifest(replace(whole, parts=parts)))


def test_names_of_files_have_the_id() -> None:
    for name in (part_file(5, 9, 1), manifest_file(5, 9), f".{part_file(5, 9, 1)}.unfinished"):
        assert copy_of(name) == 9
    for name in ("README.txt", "a-b.parquet", "x.json", "_SUCCESS", ""):
        assert copy_of(name) is None


def test_rows_of_history_come_back_from_pages() -> None:
    old = row(1)
    new = offloaded_row(old, 7, Offloaded("s3://lake/shop/s/uid", "ab"))
    assert (new.kind, new.ledger, new.base, new.summary) == (HISTORY, 7, old.base, old.summary)
    page = Page(0, (row(0), new))
    assert decode_page("k", encode_page(page)) == page


@pytest.mark.parametrize("fields", [["s3://x"], ["s3://x", 7], []])
def test_a_row_of_history_without_its_place_is_refused(fields: list[object]) -> None:
    raw = json.loads(encode_page(Page(0, (offloaded_row(row(0), 7, Offloaded("x", "y")),))))
    raw["segments"][0][-2:] = fields
    with pytest.raises(MalformedRecord, match="k: "):
        decode_page("k", json.dumps(raw).encode())


def test_what_a_policy_wants() -> None:
    rows = [row(number, last_append=number * SECOND) for number in range(4)]
    rows.append(replace(row(4), summary=None))
    head = Head("uid", 0)

    def due(now: int | None, after_s: float | None, keep_bytes: int | None, head: Head = head) -> list[int]:
        return [r.number for r in due_segments(head, rows, now=now, after_s=after_s, keep_bytes=keep_bytes)]

    assert due(10 * SECOND, None, None) == []
    assert due(10 * SECOND, 8.0, None) == [0, 1, 2]
    assert due(None, 8.0, None) == []
    assert due(10 * SECOND, None, 200) == [0, 1]
    assert due(10 * SECOND, None, 201) == [0]
    assert due(None, 9.0, 201) == [0]
    assert due(10 * SECOND, 9.0, 300) == [0, 1]
    assert due(99 * SECOND, 0.0, None, replace(head, producers=1)) == [0, 2, 3]
    assert due(99 * SECOND, 0.0, None, replace(head, earliest=15)) == [1, 2, 3]


def test_history_is_not_offloaded_again() -> None:
    assert may_offload(Head("uid", 0), row(0))
    assert not may_offload(Head("uid", 0), offloaded_row(row(0), 7, Offloaded("x", "y")))

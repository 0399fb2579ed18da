"""Group: one transaction of the table engine as a record of the log: the ranges of pages that it changed.

A group names the leadership that made it (the offset of the record by which it opened its session) and its place in the
order of all groups. It is applied only as the next one in that order, so that a group computed on an older state of the
database is void on every replica.

A group that is larger than a record of the log is cut into parts: consecutive records, which are joined again. A part
is part of the state of a replica until the last one has come; parts of a leader that was lost are dropped when anything
else follows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from buckram.core.db.digest import Ranges
from buckram.core.streams.records.codecs import NONE, ZSTD, Codec
from buckram.errors import MalformedBatch, UnknownCommand

FORMAT = 1

GROUP, PART, CHANGED = 1, 2, 3
"""Kinds of records: a group; a part of one; a group with the changes of rows before it."""

_HEAD = struct.Struct(">BBQQIQBI")

_COUNTS = struct.Struct(">II")

_TOKEN = struct.Struct(">HI")

_PAGE = struct.Struct(">IH")

_RANGE = struct.Struct(">HH")

_LEAST_COMPRESSED = 100

_LARGEST = 2**31


class Receipt(NamedTuple):
    """Token of a caller, and the counts of its statements, which a repetition under the token returns."""

    token: str
    counts: str


class PageChange(NamedTuple):
    """Ranges that changed in one page. A page that did not exist is changed from zeros."""

    number: int
    ranges: Ranges


class Group(NamedTuple):
    """A transaction. `size` and `digest` are those of the database after it."""

    leadership: int
    sequence: int
    size: int
    digest: int
    receipts: Sequence[Receipt]
    pages: Sequence[PageChange]


def encode_group(group: Group, zstd: Codec) -> bytes:
    parts: list[bytes] = [_COUNTS.pack(len(group.receipts), len(group.pages))]
    for receipt in group.receipts:
        token, counts = receipt.token.encode(), receipt.counts.encode()
        parts += (_TOKEN.pack(len(token), len(counts)), token, counts)
    for page in group.pages:
        parts.append(_PAGE.pack(page.number, len(page.ranges)))
        for start, data in page.ranges:
            parts += (_RANGE.pack(start, len(data)), data)
    body = b"".join(parts)
    codec, size = NONE, len(body)
    if size >= _LEAST_COMPRESSED and len(packed := zstd.compress(body)) < size:
        codec, body = ZSTD, packed
    head = _HEAD.pack(FORMAT, GROUP, group.leadership, group.sequence, group.size, group.digest, codec, size)
    return head + body


def kind_of(payload: bytes) -> int:
    """Return the kind of a record: GROUP, PART or CHANGED. Raises UnknownCommand for any other."""
    if len(payload) < 2 or payload[0] != FORMAT or payload[1] not in (GROUP, PART, CHANGED):
        raise UnknownCommand(
            f"a record of a database that begins with {payload[:2].hex() or 'nothing'}; this version of buckram knows "
            f"format {FORMAT}: update it"
        )
    return payload[1]


def decode_group(payload: bytes, zstd: Codec) -> Group:
    """Parse a group. Raises UnknownCommand for what `encode_group` did not make."""
    try:
        _, kind, leadership, sequence, size, digest, codec, length = _HEAD.unpack_from(payload)
        if kind != GROUP or not 0 < length < _LARGEST:
            raise UnknownCommand(f"a record of kind {kind} and {length} bytes is no group of a database")
        if codec not in (NONE, ZSTD):
            raise UnknownCommand(f"compression {codec} is unknown to this version of buckram: update it")
        rest = payload[_HEAD.size :]
        body = rest if codec == NONE else zstd.decompress(rest, length)
        receipts, pages = _decode_body(body)
    except (struct.error, ValueError, MalformedBatch) as error:
        raise UnknownCommand(f"a group of a database is malformed: {error}") from error
    return Group(leadership, sequence, size, digest, receipts, pages)


def _decode_body(body: bytes) -> tuple[list[Receipt], list[PageChange]]:
    receipt_count, page_count = _COUNTS.unpack_from(body)
    at = _COUNTS.size
    receipts: list[Receipt] = []
    for _ in range(receipt_count):
        token_size, counts_size = _TOKEN.unpack_from(body, at)
        middle = at + _TOKEN.size + token_size
        receipts.append(Receipt(body[at + _TOKEN.size : middle].decode(), body[middle : middle + counts_size].decode()))
        at = middle + counts_size
    pages: list[PageChange] = []
    for _ in range(page_count):
        number, range_count = _PAGE.unpack_from(body, at)
        at += _PAGE.size
        ranges: Ranges = []
        for _ in range(range_count):
            start, size = _RANGE.unpack_from(body, at)
            at += _RANGE.size
            ranges.append((start, body[at : at + size]))
            at += size
        pages.append(PageChange(number, ranges))
    if at != len(body):
        raise ValueError(f"it has {len(body)} bytes and ends at {at}")
    return receipts, pages


# -- parts of a large group -----------------------------------------------------------------------------------

_PART = struct.Struct(">BBQQII")


def cut(payload: bytes, leadership: int, sequence: int, limit: int) -> Iterator[bytes]:
    """Yield the group as it is, if it fits into a record of `limit` bytes, or its parts."""
    if len(payload) <= limit:
        yield payload
        return
    room = limit - _PART.size
    count = -(-len(payload) // room)
    for index in range(count):
        head = _PART.pack(FORMAT, PART, leadership, sequence, index, count)
        yield head + payload[index * room : (index + 1) * room]


class Joiner:
    """Joins parts in the order of the log. `held` has the parts of a group that is not complete."""

    def __init__(self, held: list[bytes] | None = None) -> None:
        self.held: list[bytes] = held or []

    def drop(self) -> None:
        """Drop the parts of an incomplete group: another record follows, so the rest never will."""
        self.held = []

    def joined(self, payload: bytes) -> bytes | None:
        """Take the next part; returns the group with its last one. A part that does not fit is dropped with all before.

        Raises UnknownCommand for what `cut` did not make.
        """
        if len(payload) < _PART.size:
            raise UnknownCommand(f"a part of a group has {len(payload)} bytes and is cut")
        _, _, leadership, sequence, index, count = _PART.unpack_from(payload)
        if index == 0:
            self.held = []
        elif len(self.held) != index or _PART.unpack_from(self.held[0])[2:4] != (leadership, sequence):
            self.held = []
            return None
        self.held.append(payload)
        if index + 1 < count:
            return None
        whole = b"".join(part[_PART.size :] for part in self.held)
        self.held = []
        return whole

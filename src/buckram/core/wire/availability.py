"""The reply to "which entries of this ledger do you hold?" as bytes.

A 64-byte header (i32 version 0, i32 groups, zeros) is followed by one record per group: i64 first start, i64 last
start, i32 size, i32 period. Like Apache's bookies, this code writes one group per run of consecutive ids and no
periods, but it reads periods.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from buckram.errors import CorruptStore
from buckram.types import EntryId

_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_MAX_SIZE = 2**31 - 1


class BadAvailability(CorruptStore):
    """A list of entries that cannot be decoded, and therefore is no evidence of what the bookie holds."""


@dataclass(frozen=True, slots=True)
class EntryGroup:
    """Entries first + k * period + j for 0 <= j < size, for starts up to `last_start`; one run when period is 0."""

    first_start: EntryId
    last_start: EntryId
    size: int
    period: int

    @property
    def sequences(self) -> int:
        return 1 if self.period == 0 else (self.last_start - self.first_start) // self.period + 1


def encode_runs(runs: Iterable[tuple[EntryId, int]]) -> bytes:
    """Encode runs (first, count), ascending and disjoint, count >= 1. Neighbouring runs are merged."""
    merged: list[tuple[EntryId, int]] = []
    for first, count in runs:
        if merged and merged[-1][0] + merged[-1][1] == first and merged[-1][1] + count <= _MAX_SIZE:
            merged[-1] = (merged[-1][0], merged[-1][1] + count)
        else:
            merged.append((first, count))
    return _HEADER.pack(0, len(merged)) + b"".join([_GROUP.pack(first, first, count, 0) for first, count in merged])


class EntryList:
    """A decoded list of entries. `in` and `runs()` cost nothing per entry."""

    def __init__(self, groups: tuple[EntryGroup, ...]) -> None:
        self.groups = groups

    @classmethod
    def decode(cls, data: bytes) -> EntryList:
        """Decode a list. Raises BadAvailability if it is short, of a newer version, or its groups are not ascending."""
        if len(data) < _HEADER.size:
            raise BadAvailability(f"a list of entries of {len(data)} bytes, at least {_HEADER.size} are needed")
        version, count = _HEADER.unpack_from(data)
        if version > 0 or version < 0:
            raise BadAvailability(f"a list of entries of version {version}, only 0 is known; upgrade Buckram")
        if count < 0 or len(data) < _HEADER.size + count * _GROUP.size:
            raise BadAvailability(f"a list of entries says {count} groups but has {len(data)} bytes")
        groups = tuple(EntryGroup(*_GROUP.unpack_from(data, _HEADER.size + i * _GROUP.size)) for i in range(count))
        for i, group in enumerate(groups):
            bad = group.size < 1 or group.period < 0 or group.last_start < group.first_start or group.first_start < 0
            bad = bad or (group.period == 0 and group.last_start != group.first_start)
            if bad or (i > 0 and group.first_start <= groups[i - 1].first_start):
                raise BadAvailability(f"group {i} of a list of entries is not legal: {group}")
        return cls(groups)

    def __contains__(self, entry_id: EntryId) -> bool:
        low, high = 0, len(self.groups)
        while low < high:  # The greatest group that starts at or before the entry decides alone, as in Apache.
            middle = (low + high) // 2
            if self.groups[middle].first_start <= entry_id:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return False
        group = self.groups[low - 1]
        distance = entry_id - group.first_start
        if group.period == 0:
            return distance < group.size
        return entry_id < group.last_start + group.size and distance % group.period < group.size

    def covers(self, ranges: Iterable[tuple[EntryId, EntryId]]) -> bool:
        """Return whether all of these ranges (first, last), ascending, are in the list."""
        return covers(self.runs(), ranges)

    def runs(self) -> Iterator[tuple[EntryId, int]]:
        """Return (first, count) in the order of the groups."""
        for group in self.groups:
            for k in range(group.sequences):
                yield group.first_start + k * group.period, group.size


def covers(runs: Iterator[tuple[EntryId, int]], ranges: Iterable[tuple[EntryId, EntryId]]) -> bool:
    """Return whether runs (first, count) have all of some ranges (first, last); both ascend."""
    start = end = -1  # a stretch without a gap, `end` not in it
    for low, high in ranges:
        while end <= high:
            first, count = next(runs, (-1, 0))
            if count == 0:
                return False
            start, end = (start, first + count) if first == end else (first, first + count)
        if low < start:
            return False
    return True

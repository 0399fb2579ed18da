"""Bytes that a bookie could free and keeps for now, by the reason. Pure.

Not here: the account that a bookie makes of its collection (`bookie/garbage/collection_account.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from buckram.core.cluster.bookie_report import Collected, Keeps
from buckram.core.health.facts import BookieFacts, Facts, Noted

WAITING_SHARE = 0.2
"""Share of the used bytes of a bookie's device above which waiting bytes are a finding."""
WAITING_BYTES = 1_000_000_000
"""Waiting bytes below which there is no finding, however small the device is."""
_WHAT = {
    Keeps.RECORDED: "recorded as deleted",
    Keeps.SECOND_LOOK: "absent without a record, kept until a second look",
    Keeps.BRAKE: "absent without a record, more than go unasked",
    Keeps.UNKNOWN_IDS: "with ids that the metadata store never gave",
    Keeps.MOVED: "copies that metadata places on others",
}
"""Words for waiting ledgers, by the reason why they are kept. Dead bytes in files are no ledgers: compaction frees
them."""


@dataclass(frozen=True, slots=True)
class WaitingBytes:
    """Bytes of ledgers that wait to be removed, by the reason; the largest first."""

    by_kind: tuple[tuple[Keeps, int], ...] = ()

    @property
    def total(self) -> int:
        return sum(size for _, size in self.by_kind)

    def __str__(self) -> str:
        return ", ".join(f"{size} bytes {_WHAT[kind]}" for kind, size in self.by_kind)


def waiting_bytes(found: Collected | None) -> WaitingBytes:
    """Return the bytes that wait after a bookie's newest collection, by the reason; empty if there was none."""
    sums: dict[Keeps, int] = {}
    for one in found.kept if found is not None else ():
        if one.kind in _WHAT and one.bytes:
            kind = Keeps(one.kind)
            sums[kind] = sums.get(kind, 0) + one.bytes
    return WaitingBytes(tuple(sorted(sums.items(), key=lambda row: (-row[1], row[0]))))


def of_collection(facts: Facts) -> Iterator[Noted]:
    for one in facts.bookies:
        waits = waiting_bytes(one.report.collection if one.report is not None else None)
        if waits.total >= WAITING_BYTES and waits.total > WAITING_SHARE * _used(one, waits.total):
            yield Noted("waiting-bytes", one.id, f"{waits.total} bytes wait: {waits}", bookie=one.id)


def _used(one: BookieFacts, at_least: int) -> int:
    """Return the used bytes of a bookie's device, at least as many as wait; just those if it does not report them."""
    if one.total_bytes is None or one.free_bytes is None:
        return at_least
    return max(at_least, one.total_bytes - one.free_bytes)


__all__ = ["WAITING_BYTES", "WAITING_SHARE", "WaitingBytes", "of_collection", "waiting_bytes"]

"""Sizing: the number of bookies that a load needs for its bytes, its rate and its copies, with some of them lost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from buckram.core.ledgers.quorum import Quorum
from buckram.errors import InvalidArgument

DAY_S = 86_400.0
MOST_BOOKIES = 100_000


@dataclass(frozen=True, slots=True)
class Load:
    """Load that the cluster has to take.

    `bytes_per_s` and `retention_s`: written payload, and how long it is kept. `lost`: how many bookies (or racks, if
    `racks` is not 0) may fail without an interruption. `bookie_bytes_per_s`: what one bookie takes; `fill`: how full a
    disk may get; `copy_bytes_per_s`: what one bookie copies while it makes lost copies again.
    """

    bytes_per_s: float
    retention_s: float
    quorum: Quorum
    bookie_bytes: int
    bookie_bytes_per_s: float
    lost: int = 1
    racks: int = 0
    fill: float = 0.8
    copy_bytes_per_s: float = 32.0 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "retention_s", "bookie_bytes", "bookie_bytes_per_s", "copy_bytes_per_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name.replace('_', ' ')} = {getattr(self, name)!r}: must be above 0")
        if not 0 < self.fill <= 1:
            raise InvalidArgument(f"fill = {self.fill!r}: needs a part of the disk, above 0 and at most 1")
        if self.lost < 0 or self.racks < 0 or (self.racks and self.lost >= self.racks):
            raise InvalidArgument(f"lost = {self.lost} of {self.racks or 'any'} racks: one at least has to stay")


@dataclass(frozen=True, slots=True)
class Need:
    """One requirement on the number of bookies, and that number, including those that may be lost."""

    what: str
    bookies: int
    why: str


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer. `problems` are what no number of bookies helps against."""

    bookies: int
    needs: tuple[Need, ...]
    stored_bytes: float
    """All copies, at the end of the retention."""
    full: float
    """The part of the disks that these take, with no bookie lost."""
    full_after_loss: float
    repair_s: float
    """Seconds to replace the copies of one lost bookie."""
    problems: tuple[str, ...]
    assumed: tuple[str, ...]


def sizing(load: Load) -> Sizing:
    """Return the number of bookies for a load. Raises InvalidArgument if more are needed than there can be."""
    quorum = load.quorum
    stored = load.bytes_per_s * load.retention_s * quorum.write_quorum
    for_space = math.ceil(stored / (load.fill * load.bookie_bytes))
    for_rate = math.ceil(load.bytes_per_s * quorum.write_quorum / load.bookie_bytes_per_s)
    needs = (
        Need("space", _with_lost(for_space, load), f"{stored / 1e9:,.1f} GB of copies, disks {load.fill:.0%} full"),
        Need("rate", _with_lost(for_rate, load), f"{load.bytes_per_s * quorum.write_quorum / 1e6:,.1f} MB/s of copies"),
        Need("ensemble", _with_lost(quorum.ensemble_size, load), f"E = {quorum.ensemble_size} bookies for each ledger"),
    )
    bookies = max(one.bookies for one in needs)
    if bookies > MOST_BOOKIES:
        raise InvalidArgument(f"{bookies} bookies would be needed, the limit is {MOST_BOOKIES}: take larger ones")
    left = _left(bookies, load)
    held = stored / bookies
    return Sizing(
        bookies,
        needs,
        stored,
        stored / (bookies * load.bookie_bytes),
        stored / (left * load.bookie_bytes),
        held / (max(1, bookies - 1) * load.copy_bytes_per_s),
        _problems(load),
        _assumed(load),
    )


def _with_lost(needed: int, load: Load) -> int:
    """Return the number of bookies of which `needed` remain after the loss."""
    if not load.racks:
        return needed + load.lost
    needed = max(needed, load.racks - load.lost)
    whole = math.ceil(needed / (load.racks - load.lost)) * load.racks
    return next(count for count in range(needed, whole + 1) if _left(count, load) >= needed)


def _left(bookies: int, load: Load) -> int:
    """Bookies that stay when the largest racks are lost; they are spread as evenly as can be."""
    if not load.racks:
        return bookies - load.lost
    each, more = divmod(bookies, load.racks)
    return bookies - each * load.lost - min(more, load.lost)


def _problems(load: Load) -> tuple[str, ...]:
    found = []
    quorum, unit = load.quorum, "racks" if load.racks else "bookies"
    if load.lost >= quorum.ack_quorum:
        found.append(
            f"entries can be lost with {load.lost} {unit}: they are acknowledged by {quorum.ack_quorum} "
            f"bookies; Qa must be at least {load.lost + 1}"
        )
    return tuple(found)


def _assumed(load: Load) -> tuple[str, ...]:
    spread = load.lost + 1
    racks = (
        f"racks have as equal numbers of bookies as can be, and entries are acknowledged from {spread} racks: "
        f"placement `rack:{spread}:{spread}`"
    )
    return (
        "copies are spread evenly over all bookies",
        f"one bookie takes {load.bookie_bytes_per_s / 1e6:,.0f} MB/s; `buckram bench write` measures it",
        f"deleted data are freed at once; up to {1 - load.fill:.0%} of a disk is for data that are not collected yet",
        f"each bookie copies {load.copy_bytes_per_s / 1e6:,.0f} MB/s while lost copies are made again, "
        "by a replicator for each",
        racks if load.racks else "bookies are lost one by one, not by racks",
    )

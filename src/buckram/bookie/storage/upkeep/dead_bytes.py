"""Counts the bytes of a store that nobody needs: in which log files they lie, and those of given ledgers. Reads only.

Not here: freeing them (`bookie/storage/upkeep/compaction.py`); which ledgers are dead (`bookie/garbage/collector.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from buckram.bookie.storage.read_results import unless_harmless
from buckram.bookie.storage.segments.segments import Segment
from buckram.bookie.storage.slices import Slices
from buckram.bookie.storage.store_state import StoreState
from buckram.core.storage.segment_format import CorruptBytes
from buckram.types import LedgerId

K = TypeVar("K")
_AT_ONCE = 400
"""Entries of directories that are looked at in one slice of work."""


class DeadBytes(NamedTuple):
    """Bytes of log files that hold no live data (headers and padding count), by the kind of file that they lie in."""

    mostly_alive: int
    mostly_dead: int
    not_sealed: int


def is_mostly_dead(segment: Segment, threshold: float) -> bool:
    """Return whether a sealed file is worth rewriting: less than `threshold` of it is live data."""
    assert segment.footer is not None
    return segment.footer.trailer.data_bytes - segment.dead_bytes < threshold * segment.log_end


async def dead_bytes(state: StoreState) -> DeadBytes:
    """Count what no ledger needs any more."""
    slices = Slices(_AT_ONCE)
    alive = dead = not_sealed = 0
    for segment in list(state.segments):
        index, footer = segment.index, segment.footer
        if footer is not None:
            rest = max(0, segment.log_end - (footer.trailer.data_bytes - segment.dead_bytes))
            if is_mostly_dead(segment, state.config.compaction_threshold):
                dead += rest
            else:
                alive += rest
        elif index is not None:
            live, ended = 0, segment.log_end
            for one in list(index.ledgers.values()):
                live += one.bytes
                await slices.step()
            not_sealed += max(0, ended - live)
    return DeadBytes(alive, dead, not_sealed)


async def bytes_by(state: StoreState, kinds: Mapping[LedgerId, K], damaged: Callable[[Segment], None]) -> dict[K, int]:
    """Sum up the live bytes of the ledgers in `kinds`, by kind. A damaged index of a file goes to `damaged`."""
    found: dict[K, int] = {}
    for segment in list(state.segments) if kinds else ():
        segment.readers += 1  # its file is not used again meanwhile, though compaction may be done with it
        try:
            await _add_up(state, segment, kinds, found)
        except (CorruptBytes, OSError) as error:
            unless_harmless(error, f"the index of log file {segment.name}")
            if segment in state.segments:
                damaged(segment)
        finally:
            segment.readers -= 1
    return found


async def _add_up(state: StoreState, segment: Segment, kinds: Mapping[LedgerId, K], found: dict[K, int]) -> None:
    slices = Slices(_AT_ONCE)
    held: Iterable[tuple[LedgerId, int, int]]
    if segment.index is not None:
        held = [(one.record.ledger_id, one.epoch, one.bytes) for one in segment.index.ledgers.values()]
    elif segment.footer is not None:
        held = ((entry.ledger, entry.epoch, entry.bytes) for entry in segment.footer.directory())
    else:
        return
    for ledger, epoch, size in held:
        kind = kinds.get(ledger)
        record = None if kind is None else state.table.find(ledger)
        if kind is not None and record is not None and record.epoch == epoch:
            found[kind] = found.get(kind, 0) + size
        await slices.step()

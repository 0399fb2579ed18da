"""Reading what transactions did to rows from the log of a database, without a replica of it.

The log is folded as every replica folds it, so that the same groups are ignored here as anywhere else; only the pages
are left out. Not here: how changes come into the log (`state/db/table_engine/row_images.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, cast

from buckram.core.db.changes import Change, as_changes, decode_changes
from buckram.core.db.group import Group
from buckram.core.machine.fold import Fold, LogEntry
from buckram.core.streams.records.codecs import Codec
from buckram.errors import ChangesGone, ChangesNotKept, InvalidArgument, NoSuchLedger, OffsetTruncated, ReadFailed
from buckram.state.db.commits.database_log import check_database, has_changes
from buckram.state.db.commits.state_machine import DatabaseState
from buckram.state.machine.snapshots import LogHandle, load_newest
from buckram.streams.read.locate import end_of_acknowledged, known_end
from buckram.types import Offset

if TYPE_CHECKING:
    from buckram.client.ledger_client import LedgerClient
    from buckram.core.streams.metadata.head import Head
    from buckram.core.streams.names import StreamName
    from buckram.state.db.table_engine.engine import Engine
    from buckram.streams.namespace import StreamNamespace

_WAIT_S = 2.0


class _NoEngine:
    """Stand-in for the table engine of a replica: it keeps no pages."""

    def check(self) -> None:
        """Do nothing: without files no failure is possible."""

    def restore(self, pages: Callable[[], Iterator[bytes]] | None, sequence: int, digest: int) -> None:
        """Ignore the pages of a snapshot."""


class ChangeState(DatabaseState):
    """The state of a database without its pages. `found`: the changes of the record that was applied last."""

    def __init__(self, database: str) -> None:
        super().__init__(database)
        self.engine = cast("Engine", _NoEngine())
        self.found: list[Change] = []
        self._zstd = Codec()

    @property
    def pages_digest(self) -> str:
        """Return the digest of all pages after the groups so far, as recorded in the log."""
        return f"{self._digest:016x}"

    def apply_entry(self, entry: LogEntry) -> bytes:
        self.changes = b""
        result = super().apply_entry(entry)
        if self.changes:
            noted = decode_changes(self.changes, self._zstd)
            self.found = list(as_changes(noted, entry.offset, self.sequence, entry.time_us / 1e6))
        return result

    def _hand_over(self, offset: int, group: Group) -> None:
        """Drop the pages of a group."""


async def read_changes(
    client: LedgerClient, ns: StreamNamespace, name: StreamName, first: int | None, follow: bool
) -> AsyncIterator[Change]:
    """Yield the changes of transactions from offset `first` on; None: from the oldest that is kept.

    Without `follow` it ends after all that were committed before this call. Raises ChangesNotKept, ChangesGone,
    NotDatabase, InvalidArgument.
    """
    if first is not None and (type(first) is not int or first < 0):
        raise InvalidArgument(f"offset {first!r}: an offset is an int from 0 on")
    head = await check_database(ns, name)
    if not has_changes(head):
        raise ChangesNotKept(str(name))
    least = oldest(head)
    begin = least if first is None else first
    sure, end = await ends(client, ns, name, head)
    if begin < least:
        raise ChangesGone(str(name), begin, least)
    if begin > end:
        raise InvalidArgument(f"database {name}: offset {begin} is beyond the end of its log, which is {end}")
    fold, state = await change_fold(client, ns, name, head, begin)
    try:
        async for offset in folded(ns, name, fold, sure, None if follow else end):
            found, state.found = state.found, []
            if offset >= begin:
                for change in found:
                    yield change
    except OffsetTruncated as error:
        raise ChangesGone(str(name), fold.applied, error.earliest) from None


async def change_fold(
    client: LedgerClient, ns: StreamNamespace, name: StreamName, head: Head, at_most: Offset
) -> tuple[Fold, ChangeState]:
    """Return a fold of the log and its state, from the newest good snapshot at or below this offset; for `folded`."""
    state = ChangeState(str(name))
    fold = Fold(str(name), state)
    loaded, _ = await load_newest(LogHandle(client, ns.store, name, head.uid), head, state.fault, at_most)
    if loaded is not None:
        fold.restore(loaded.header, loaded.sessions, loaded.chunks)
    return fold, state


async def ends(client: LedgerClient, ns: StreamNamespace, name: StreamName, head: Head) -> tuple[Offset, Offset]:
    """Return the offset up to which records can be read now, and the one up to which they are acknowledged.

    Readers learn of the second a little later.
    """
    sure = await known_end(client, name, head)
    try:
        return sure, max(sure, await end_of_acknowledged(client, ns.store, name))
    except (NoSuchLedger, ReadFailed):
        return sure, sure  # The leader has changed at this moment.


async def folded(
    ns: StreamNamespace, name: StreamName, fold: Fold, sure: Offset, stop: Offset | None
) -> AsyncIterator[Offset]:
    """Fold the log up to `stop` (None: for ever), and yield the offset of each record once it is applied.

    Records beyond `sure` are awaited for a moment only: a leader that died may have left some that were never
    acknowledged.
    """
    if stop is not None and fold.applied >= stop:
        return
    async with ns.read(name.stream, start=fold.applied, stop=stop, follow=True) as reader:
        while True:
            try:
                async with asyncio.timeout(None if stop is None or fold.applied < sure else _WAIT_S):
                    batch = await reader.next_batch()
            except TimeoutError:
                return
            if batch is None:
                return
            for at, value in enumerate(batch.values(), batch.first_offset):
                fold.apply(at, value)
                yield at


def oldest(head: Head) -> int:
    """Return the first offset whose changes can be read: there must be a state before it."""
    if head.earliest == 0 or not head.snapshots:
        return head.earliest
    return max(head.earliest, head.snapshots[0].offset)

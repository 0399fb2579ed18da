"""LocalScan: reads many entries from the log files of a bookie that runs on the executor's machine as the same user.

The bookie is asked only where the entries are, and the executor reads its log files (`runtime/disk/neighbours.py`), so
no entry passes through the bookie and a socket. The files may be deleted or reused at any time, so an entry with a
wrong digest does not mean that the bookie's copy is bad. After any failure the scan ends early and `stream_scan.py`
continues there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from buckram.core.entries.entry import Digest
from buckram.core.wire.introduction import Peer
from buckram.core.wire.located import MAX_EXTENT_BYTES, Extent, Located, bodies_of
from buckram.core.wire.messages import ask_for_places
from buckram.core.wire.v2 import LOCATED, encode_request
from buckram.runtime.disk.neighbours import NeighbourDirectory, Neighbours
from buckram.seams import FileRange
from buckram.spark.source.replica_scan import (
    ANSWER,
    MAX_FRAME_BYTES,
    OK,
    ScanFailed,
    keep_connection,
    name_ledger,
    receive,
    take_connection,
)
from buckram.types import EntryId, LedgerId

_remote: set[tuple[int, Peer]] = set()
"""Bookies whose files this process cannot read; they are not asked again."""
_neighbours = Neighbours()
"""Shared by all scans of this process: it caches what was read, so that a second query may find it in memory."""


class _Ended(Exception):
    """The scan cannot continue from local files."""


class LocalScan:
    """A scan of the entries from `first` to `last` of a ledger, from one bookie's files. Iterate it once."""

    def __init__(self, peer: Peer, ledger: LedgerId, digest: Digest, first: EntryId, last: EntryId) -> None:
        self._peer, self._ledger, self._digest = peer, ledger, digest
        self._next, self._last = first, last
        self._directory: NeighbourDirectory | None = None

    def entries(self) -> Iterator[tuple[EntryId, list[bytes]]]:
        """Yield (first entry, payloads) in order, each payload verified. It may end before `last`, without an error."""
        # Ledgers without a digest are not read here, because a reused file would go unnoticed.
        while self._digest.size and self._next <= self._last and (os.getpid(), self._peer) not in _remote:
            before = self._next
            try:
                located = self._ask()
                for extent in located.extents:
                    yield from self._extent(self._files(located), extent)
            except PermissionError:
                _remote.add((os.getpid(), self._peer))
                return
            except (OSError, struct.error, ScanFailed, _Ended):
                return
            if self._next == before:
                return

    # -- asking where the entries are

    def _ask(self) -> Located:
        link = take_connection(self._peer)
        try:
            request = ask_for_places(self._ledger, self._next, self._last, self._digest.key)
            name_ledger(link, self._ledger, self._digest.birth)
            link.sendall(encode_request(request, 1))
            size, header, code, *ids = ANSWER.unpack(receive(link, self._peer, ANSWER.size))
            rest = size - (ANSWER.size - 4)
            if code != OK or ids != [self._ledger, self._next, 1] or not 0 < rest <= MAX_FRAME_BYTES:
                raise _Ended
            body = receive(link, self._peer, rest)
            keep_connection(self._peer, link)
        except BaseException:
            link.close()
            raise
        # A bookie answers with an entry if it has none of them in a file, or is too old for this request.
        located = Located.parse(body) if header & LOCATED else None
        if located is None:
            raise _Ended
        return located

    def _files(self, located: Located) -> NeighbourDirectory:
        if self._directory is None:
            self._directory = _neighbours.open(located.directory, located.identity)
            if self._directory is None:
                _remote.add((os.getpid(), self._peer))
                raise _Ended
        return self._directory

    # -- reading

    def _extent(self, files: NeighbourDirectory, extent: Extent) -> Iterator[tuple[EntryId, list[bytes]]]:
        if extent.first != self._next or not 0 < extent.entries <= self._last - self._next + 1:
            raise _Ended
        if extent.length > MAX_EXTENT_BYTES:
            raise _Ended
        pieces = files.read_now([FileRange(*extent[:3])])
        bodies = bodies_of(extent, *pieces[0])
        payloads = [] if bodies is None else self._digest.open_payloads(self._ledger, self._next, bodies)
        files.give_back(pieces)
        self._next += len(payloads)
        if payloads:
            yield self._next - len(payloads), payloads
        if len(payloads) < extent.entries:
            raise _Ended

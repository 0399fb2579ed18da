"""The fastest way of executors to read many entries: where a bookie of the same machine and user says that they are.

The bookie is asked for places only, and the log's files are read (disk/neighbours): no entry goes through the
bookie and a socket. The files may be compacted away, even written anew meanwhile, so what fails its digest says nothing
of what the bookie holds. Whenever something is not as it should be, the scan ends early; stream_scan.py goes on there.
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
from buckram.disk.neighbours import NeighbourDirectory, Neighbours
from buckram.seams import FileRange
from buckram.spark.stream_scan import (
    ANSWER,
    MAX_FRAME_BYTES,
    OK,
    ScanFailed,
    give_back,
    name,
    receive,
    take,
)
from buckram.types import EntryId, LedgerId

_elsewhere: set[tuple[int, Peer]] = set()
"""Bookies whose files this process does not find, so that they are asked once."""
_neighbours = Neighbours()
"""One for all scans of this process: it remembers what it read, so that a second query may find it in memory."""


class _Ended(Exception):
    """The scan cannot go on here."""


class LocalScan:
    """Entries first..last of a ledger from one bookie; iterate once."""

    def __init__(self, peer: Peer, ledger: LedgerId, digest: Digest, first: EntryId, last: EntryId) -> None:
        self._peer, self._ledger, self._digest = peer, ledger, digest
        self._next, self._last = first, last
        self._directory: NeighbourDirectory | None = None

    def entries(self) -> Iterator[tuple[EntryId, list[bytes]]]:
        """(first entry, payloads) in order, each verified; ends before `last` where that is all there is to have."""
        # Without a digest nobody would notice that a file was written anew.
        while self._digest.size and self._next <= self._last and (os.getpid(), self._peer) not in _elsewhere:
            before = self._next
            try:
                located = self._ask()
                for extent in located.extents:
                    yield from self._extent(self._files(located), extent)
            except PermissionError:
                _elsewhere.add((os.getpid(), self._peer))
                return
            except (OSError, struct.error, ScanFailed, _Ended):
                return
            if self._next == before:
                return

    # -- where they are

    def _ask(self) -> Located:
        link = take(self._peer)
        try:
            request = ask_for_places(self._ledger, self._next, self._last, self._digest.key)
            name(link, self._ledger, self._digest.birth)
            link.sendall(encode_request(request, 1))
            size, header, code, *ids = ANSWER.unpack(receive(link, self._peer, ANSWER.size))
            rest = size - (ANSWER.size - 4)
            if code != OK or ids != [self._ledger, self._next, 1] or not 0 < rest <= MAX_FRAME_BYTES:
                raise _Ended
            body = receive(link, self._peer, rest)
            give_back(self._peer, link)
        except BaseException:
            link.close()
            raise
        # An older bookie answers with an entry, as one does that has none of them in a file.
        located = Located.parse(body) if header & LOCATED else None
        if located is None:
            raise _Ended
        return located

    def _files(self, located: Located) -> NeighbourDirectory:
        if self._directory is None:
            self._directory = _neighbours.open(located.directory, located.identity)
            if self._directory is None:
                _elsewhere.add((os.getpid(), self._peer))
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

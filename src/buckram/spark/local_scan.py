"""The fastest way of executors to read many entries: where a bookie of the same machine and user says that they are.

The bookie is asked for places only, and the log's files are read through the page cache: no entry goes through the
bookie and a socket. The files may be compacted away, even written anew meanwhile, so what fails its digest says nothing
of what the bookie holds. Whenever something is not as it should be, the scan ends early; stream_scan.py goes on there.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator, Sequence

from buckram.core.entry import Digest
from buckram.core.located import Extent, Located
from buckram.core.messages import BatchRead
from buckram.core.packed import FRAME_HEAD, PackedBodies
from buckram.core.wire_v2 import LOCATED, encode_request
from buckram.disk.local import identity_of
from buckram.spark.stream_scan import (
    ANSWER,
    LARGE_BYTES,
    MAX_FRAME_BYTES,
    OK,
    ScanFailed,
    give_back,
    is_good,
    receive,
    take,
)
from buckram.types import BookieAddress, EntryId, LedgerId

_SIZE = struct.Struct(">i")
_AHEAD = 4
"""Extents that the kernel is told of before they are read."""
_MAX_EXTENT = 16 * 1024 * 1024
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_elsewhere: set[tuple[int, BookieAddress]] = set()
"""Bookies whose files this process does not find, so that they are asked once."""


class _Ended(Exception):
    """The scan cannot go on here."""


class LocalScan:
    """Entries first..last of a ledger from one bookie; iterate once, then close()."""

    def __init__(
        self, address: BookieAddress, ledger: LedgerId, digest: Digest, first: EntryId, last: EntryId
    ) -> None:
        self._address, self._ledger, self._digest = address, ledger, digest
        self._next, self._last = first, last
        self._files: dict[str, int] = {}

    def entries(self) -> Iterator[tuple[EntryId, list[bytes]]]:
        """(first entry, payloads) in order, each verified; ends before `last` where that is all there is to have."""
        # Without a digest nobody would notice that a file was written anew.
        while self._digest.size and self._next <= self._last and (os.getpid(), self._address) not in _elsewhere:
            before = self._next
            try:
                located = self._ask()
                for at, extent in enumerate(located.extents):
                    self._announce(located, at)
                    yield from self._extent(located.directory, extent)
            except (OSError, struct.error, ScanFailed, _Ended):
                return
            if self._next == before:
                return

    def close(self) -> None:
        """Nothing stays open."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    # -- where they are

    def _ask(self) -> Located:
        link = take(self._address)
        try:
            count = min(self._last - self._next + 1, 2**31 - 1)
            request = BatchRead(
                self._ledger, self._next, count, 1, master_key=self._digest.key, framed=True, located=True
            )
            link.sendall(encode_request(request, 1))
            size, header, code, *ids = ANSWER.unpack(receive(link, self._address, ANSWER.size))
            rest = size - (ANSWER.size - 4)
            if code != OK or ids != [self._ledger, self._next, 1] or not 0 < rest <= MAX_FRAME_BYTES:
                raise _Ended
            body = receive(link, self._address, rest)
            give_back(self._address, link)
        except BaseException:
            link.close()
            raise
        # An older bookie answers with an entry, as one does that has none of them in a file.
        located = Located.parse(body) if header & LOCATED else None
        if located is None:
            raise _Ended
        if not self._is_here(located):
            _elsewhere.add((os.getpid(), self._address))
            raise _Ended
        return located

    def _is_here(self, located: Located) -> bool:
        try:
            return located.identity != "" and identity_of(located.directory) == located.identity
        except OSError:
            return False

    def _announce(self, located: Located, at: int) -> None:
        begin = at + _AHEAD - 1 if at else 0
        for extent in located.extents[begin : at + _AHEAD]:
            os.posix_fadvise(
                self._file(located.directory, extent.name), extent.offset, extent.length, os.POSIX_FADV_WILLNEED
            )

    def _file(self, directory: str, name: str) -> int:
        found = self._files.get(name)
        if found is None:
            if os.sep in name:
                raise _Ended
            try:
                found = os.open(os.path.join(directory, name), _FLAGS)
            except PermissionError:
                _elsewhere.add((os.getpid(), self._address))
                raise
            self._files[name] = found
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise _Ended
        return found

    # -- reading

    def _extent(self, directory: str, extent: Extent) -> Iterator[tuple[EntryId, list[bytes]]]:
        if extent.first != self._next or not 0 < extent.entries <= self._last - self._next + 1:
            raise _Ended
        file = self._file(directory, extent.name)
        if extent.length >= LARGE_BYTES * (extent.entries + extent.skip):
            return self._one_by_one(file, extent)
        return self._at_once(file, extent)

    def _one_by_one(self, file: int, extent: Extent) -> Iterator[tuple[EntryId, list[bytes]]]:
        """Each payload is received in its place."""
        overhead, at, end = self._digest.overhead, extent.offset, extent.offset + extent.length
        for left in range(extent.skip + extent.entries, 0, -1):
            head = os.pread(file, FRAME_HEAD + overhead, at)
            stored = _SIZE.unpack_from(head)[0] + 4 - FRAME_HEAD
            if len(head) < FRAME_HEAD + overhead or stored < overhead or at + FRAME_HEAD + stored > end:
                raise _Ended
            if left <= extent.entries:
                payload = os.pread(file, stored - overhead, at + FRAME_HEAD + overhead)
                if not is_good(self._digest, self._ledger, self._next, head[FRAME_HEAD:], payload):
                    raise _Ended
                self._next += 1
                yield self._next - 1, [payload]
            at += FRAME_HEAD + stored

    def _at_once(self, file: int, extent: Extent) -> Iterator[tuple[EntryId, list[bytes]]]:
        if extent.length > _MAX_EXTENT:
            raise _Ended
        bodies = PackedBodies.parse_frames(os.pread(file, extent.length, extent.offset), 0)
        if bodies is None:
            raise _Ended
        wanted: Sequence[bytes] = bodies[extent.skip : extent.skip + extent.entries]
        payloads = self._digest.open_payloads(self._ledger, self._next, wanted)
        self._next += len(payloads)
        if payloads:
            yield self._next - len(payloads), payloads
        if len(payloads) < extent.entries:
            raise _Ended

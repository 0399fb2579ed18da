"""Scans read many entries from one replica at a fifth of the client's CPU time, over a socket or from local files.

An executor does one thing at a time, so it needs no event loop, and each payload is received in one piece that is not
copied until Arrow sends it on. `Scan` asks a bookie over a blocking socket. Only good replies are accepted: anything
else is ScanFailed, and the caller (`partition_reader.py`) goes on with the client, which handles failures. A bookie
proves its identity before it is asked for entries, so that another bookie at the same address is not believed.

`LocalScan` reads the log files of a bookie that runs on the executor's machine as the same user
(`runtime/disk/neighbours.py`): the bookie is asked only where the entries are, and no entry passes through it and a
socket. The files may be deleted or reused at any time, so an entry with a wrong digest does not mean that the bookie's
copy is bad. After any failure this scan ends early and the caller continues there.
"""

from __future__ import annotations

import os
import socket
import struct
import weakref
from collections import deque
from collections.abc import Iterator

from buckram.core.entries.entry import ENTRY_HEADER, ENTRY_HEADER_BYTES, Digest
from buckram.core.entries.packed import FRAME_HEAD, PackedBodies
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.introduction import NAMES_LEDGERS, Expected, Peer, refusal
from buckram.core.wire.located import MAX_EXTENT_BYTES, FileExtent, Located, bodies_of
from buckram.core.wire.messages import BadPacket, BatchRead, BookieInfoReply, GetBookieInfo, ask_for_places
from buckram.core.wire.v2 import FRAMED, LOCATED, encode_request
from buckram.runtime.disk.neighbours import NeighbourDirectory, Neighbours
from buckram.seams import FileRange
from buckram.types import EntryId, LedgerId

ANSWER = struct.Struct(">IIiqqq")
"""The reply to a v2 batch read: length, packet header, code, ledger, entry and request id; the entries follow."""
_SIZE = struct.Struct(">i")
REQUEST_BYTES = 1024 * 1024
AHEAD = 3
LARGE_BYTES = 16 * 1024
"""Entries of at least this size are received one by one, smaller ones with their whole frame."""
MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_INTRODUCTION_BYTES = 64 * 1024
TIMEOUT_S = 5.0
OK = 0


class ScanFailed(Exception):
    """The scan did not get all entries in good state. It does not mean that the bookie lacks them."""


class Scan:
    """A scan of the entries from `first` to `last` of a ledger, from one bookie, which stores all of them.

    Iterate it once, then call close().
    """

    def __init__(
        self, peer: Peer, ledger: LedgerId, digest: Digest, first: EntryId, last: EntryId, entry_bytes: int
    ) -> None:
        self._peer, self._ledger, self._digest = peer, ledger, digest
        self._next, self._last, self._to_ask = first, last, first
        self._large = entry_bytes >= LARGE_BYTES
        self._step = max(1, REQUEST_BYTES // max(1, entry_bytes))
        self._asked: deque[tuple[int, EntryId, int]] = deque()
        self._requests = 0
        self._link: socket.socket | None = None

    def entries(self) -> Iterator[tuple[EntryId, list[bytes]]]:
        """Yield (first entry, payloads) in order, each payload verified. Raises ScanFailed."""
        try:
            self._link = take_connection(self._peer)
            name_ledger(self._link, self._ledger, self._digest.birth)
            while self._next <= self._last:
                self._ask()
                yield from self._answer()
            keep_connection(self._peer, self._link)
            self._link = None
        except (OSError, struct.error) as error:
            raise ScanFailed(f"bookie at {self._peer}: {error}") from None

    def close(self) -> None:
        """Close the connection if requests are outstanding; their replies go with it."""
        if self._link is not None:
            self._link.close()
            self._link = None

    # -- requests and answers -----------------------------------------------------------------------------

    def _ask(self) -> None:
        assert self._link is not None
        while len(self._asked) < AHEAD and self._to_ask <= self._last:
            count = min(self._step, self._last - self._to_ask + 1)
            self._requests += 1
            # The size has room for larger entries, since a short reply makes the replies behind it useless.
            size, key = 4 * REQUEST_BYTES, self._digest.key
            request = BatchRead(self._ledger, self._to_ask, count, size, master_key=key, framed=True)
            self._link.sendall(encode_request(request, self._requests))
            self._asked.append((self._requests, self._to_ask, count))
            self._to_ask += count

    def _answer(self) -> Iterator[tuple[EntryId, list[bytes]]]:
        request, first, count = self._asked.popleft()
        size, header, code, ledger, entry, echoed = ANSWER.unpack(self._receive(ANSWER.size))
        rest = size - (ANSWER.size - 4)
        if code != OK or (ledger, entry, echoed) != (self._ledger, first, request) or not 0 < rest <= MAX_FRAME_BYTES:
            raise ScanFailed(f"bookie at {self._peer}: code {code} for entry {first} of ledger {self._ledger}")
        framed = bool(header & FRAMED)
        if self._large:
            gap = FRAME_HEAD if framed else 4
            while rest > 0:
                before = self._receive(min(gap, rest))
                if len(before) < gap:
                    raise ScanFailed(f"bookie at {self._peer}: entry {self._next} is cut off")
                stored = _SIZE.unpack_from(before)[0] + 4 - gap
                rest -= gap + stored
                if stored < self._digest.overhead or rest < 0:
                    raise ScanFailed(f"bookie at {self._peer}: entry {self._next} has no good size")
                payload = self._one(stored)
                self._next += 1
                yield self._next - 1, [payload]
        else:
            yield from self._many(self._receive(rest), framed=framed)
        if not first < self._next <= first + count:
            raise ScanFailed(f"bookie at {self._peer}: {self._next - first} entries came, {count} were wanted")
        if self._next < first + count:
            self._start_over()

    def _one(self, stored: int) -> bytes:
        head = self._receive(self._digest.overhead)
        payload = self._receive(stored - self._digest.overhead)
        if not is_good(self._digest, self._ledger, self._next, head, payload):
            raise ScanFailed(f"bookie at {self._peer}: a bad copy of entry {self._next} of ledger {self._ledger}")
        return payload

    def _many(self, packet: bytes, *, framed: bool) -> Iterator[tuple[EntryId, list[bytes]]]:
        bodies = PackedBodies.parse_frames(packet, 0) if framed else PackedBodies.parse(packet, 0)
        payloads = self._digest.open_payloads(self._ledger, self._next, bodies) if bodies is not None else []
        if bodies is None or len(payloads) != len(bodies):
            raise ScanFailed(f"bookie at {self._peer}: a bad copy in ledger {self._ledger} from {self._next} on")
        self._next += len(payloads)
        yield self._next - len(payloads), payloads

    def _start_over(self) -> None:
        """Receive and drop all outstanding replies after a short one, then ask again from there in smaller steps."""
        while self._asked:
            self._asked.popleft()
            size = _SIZE.unpack(self._receive(4))[0]
            if not 0 < size <= MAX_FRAME_BYTES:
                raise ScanFailed(f"bookie at {self._peer}: a frame of {size} bytes")
            self._receive(size)
        self._to_ask, self._step = self._next, max(1, self._step // 2)

    def _receive(self, count: int) -> bytes:
        assert self._link is not None
        return receive(self._link, self._peer, count)


def is_good(digest: Digest, ledger: LedgerId, entry: EntryId, head: bytes, payload: bytes) -> bool:
    """Verify that `head` (header and digest) and `payload` are this entry, without joining them."""
    found, number, _, _ = ENTRY_HEADER.unpack_from(head)
    header, expected = head[:ENTRY_HEADER_BYTES], head[ENTRY_HEADER_BYTES:]
    return (found, number) == (ledger, entry) and digest.compute(header, payload) == expected


def receive(link: socket.socket, peer: Peer, count: int) -> bytes:
    """Receive exactly `count` bytes, usually with one call. Raises ScanFailed if the bookie hangs up, or OSError."""
    if not count:
        return b""
    data = link.recv(count, socket.MSG_WAITALL)
    if len(data) == count:
        return data
    parts = [data]
    missing = count - len(data)
    while missing:
        if not parts[-1]:
            raise ScanFailed(f"bookie at {peer} hung up")
        parts.append(link.recv(missing, socket.MSG_WAITALL))
        missing -= len(parts[-1])
    return b"".join(parts)


# -- connections: an idle one is kept for the next slice --------------------------------------------------

_idle: dict[tuple[int, Peer], socket.socket] = {}
_naming: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""Connections to bookies that accept a message with the birth of the ledger that is meant."""


def take_connection(peer: Peer) -> socket.socket:
    """Return an idle or a new connection to the expected bookie. Raises OSError or ScanFailed."""
    kept = _idle.pop((os.getpid(), peer), None)
    if kept is not None:
        # If it is readable although nothing was asked, the bookie has hung up.
        if not _readable(kept):
            return kept
        kept.close()
    link = socket.create_connection((peer.address.host, peer.address.port), TIMEOUT_S)
    try:
        link.settimeout(None)
        # The kernel keeps the time-out, because MSG_WAITALL does not wait on a socket with a time-out of Python's.
        limit = struct.pack("@ll", int(TIMEOUT_S), int(TIMEOUT_S % 1 * 1_000_000))
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if peer.expected is not None:
            _introduce(link, peer, peer.expected)
    except BaseException:
        link.close()
        raise
    return link


def _introduce(link: socket.socket, peer: Peer, expected: Expected) -> None:
    link.sendall(wire_v3.encode_request(GetBookieInfo(0, expected.introduction), 0))
    size = _SIZE.unpack(receive(link, peer, 4))[0]
    if not 0 < size <= MAX_INTRODUCTION_BYTES:
        raise ScanFailed(f"bookie at {peer}: a frame of {size} bytes")
    try:
        reply, _, _ = wire_v3.decode_reply(receive(link, peer, size))
    except BadPacket as error:
        raise ScanFailed(f"bookie at {peer}: {error}") from None
    found = reply.identity if isinstance(reply, BookieInfoReply) else None
    if found is not None and found.features & NAMES_LEDGERS:
        _naming.add(link)
    why = refusal(expected, found)
    if why:
        raise ScanFailed(f"bookie {expected.introduction.bookie_id} is not to be found at {peer}: {why}")


def name_ledger(link: socket.socket, ledger: LedgerId, birth: bytes) -> None:
    """Send the birth of the ledger that later requests mean, if the bookie accepts that message."""
    if birth and link in _naming:
        link.sendall(wire_v2.name_ledger(ledger, birth))


def keep_connection(peer: Peer, link: socket.socket) -> None:
    """Keep a connection for the next scan; it must not have outstanding requests."""
    _idle[os.getpid(), peer] = link


def _readable(link: socket.socket) -> bool:
    try:
        link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


# -- local files ------------------------------------------------------------------------------------------

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

    def _extent(self, files: NeighbourDirectory, extent: FileExtent) -> Iterator[tuple[EntryId, list[bytes]]]:
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

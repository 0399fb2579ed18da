"""A scripted peer on real TCP for the tests of connections: the bookie's end of the protocol with entries in a dict."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from buckram.core.entries.entry import Digest, entry_ids, master_key
from buckram.core.wire.adds import AddRun, frame_adds, walk_frames
from buckram.core.wire.introduction import Identity
from buckram.core.wire.messages import (
    BatchRead,
    BatchReadReply,
    BookieInfoReply,
    Force,
    ForceReply,
    GetBookieInfo,
    Read,
    ReadLac,
    ReadLacReply,
    ReadReply,
)
from buckram.core.wire.server_protocol import (
    Close,
    Incoming,
    Ready,
    ServerProtocol,
    encode_add_replies,
    encode_error,
    encode_reply,
)
from buckram.errors import BuckramError, Code
from buckram.runtime.net.tcp import TcpListener, TcpNetwork
from buckram.types import BookieAddress, DigestType, Slot

KEY = master_key(b"")
DIGEST = Digest(DigestType.CRC32C, b"")


@dataclass
class Peer:
    """`hold`: replies are kept until `release`. `code`: the reply to adds. `identity`: who the peer claims to be."""

    port: int = 0
    hold: bool = False
    code: Code = Code.OK
    entries: dict[tuple[int, int], bytes] = field(default_factory=dict)
    seen: list[tuple[int, object]] = field(default_factory=list)
    transports: list[asyncio.Transport] = field(default_factory=list)
    held: list[tuple[asyncio.Transport, bytes]] = field(default_factory=list)
    listener: TcpListener | None = None
    lost: int = 0
    identity: Identity | None = None

    async def start(self) -> Peer:
        self.listener = await TcpNetwork().listen("127.0.0.1", self.port, lambda: _Session(self))
        self.port = self.listener.port
        return self

    @property
    def address(self) -> BookieAddress:
        return BookieAddress("127.0.0.1", self.port)

    def answer(self, transport: asyncio.Transport, data: bytes) -> None:
        if self.hold:
            self.held.append((transport, data))
        else:
            transport.write(data)

    def release(self) -> None:
        self.hold = False
        held, self.held = self.held, []
        for transport, data in held:
            transport.write(data)

    def hang_up(self) -> None:
        for transport in self.transports:
            transport.abort()

    async def stop(self) -> None:
        if self.listener is not None:
            await self.listener.close()
        self.hang_up()


class _Session(asyncio.Protocol):
    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._server = ServerProtocol(5 << 20)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._peer.transports.append(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer.transports.remove(self._transport)
        self._peer.lost += 1

    def data_received(self, data: bytes) -> None:
        peer = self._peer
        for item in self._server.feed(data):
            if isinstance(item, AddRun):
                peer.seen.append((item.context.protocol, (item.ledger_id, item.first, item.count, item.flags)))
                for _, _, stored in walk_frames(item.chunk, item.start, item.end):
                    peer.entries[entry_ids(stored)[:2]] = stored
                peer.answer(self._transport, encode_add_replies(item, peer.code))
            elif isinstance(item, Incoming):
                peer.seen.append((item.context.protocol, item.request))
                peer.answer(self._transport, self._reply(item))
            elif isinstance(item, Ready):
                peer.answer(self._transport, item.data)
            elif isinstance(item, Close):
                self._transport.abort()

    def _reply(self, item: Incoming) -> bytes:
        request, peer, entries = item.request, self._peer, self._peer.entries
        if isinstance(request, Read):
            body = entries.get((request.ledger_id, request.entry_id))
            code = Code.OK if body is not None else Code.NO_ENTRY
            return encode_reply(item.context, ReadReply(code, request.ledger_id, request.entry_id, body))
        if isinstance(request, BatchRead):
            rows = [entries[request.ledger_id, request.entry_id + i] for i in range(request.max_count)]
            return encode_reply(item.context, BatchReadReply(Code.OK, request.ledger_id, request.entry_id, rows))
        if isinstance(request, ReadLac):
            return encode_reply(item.context, ReadLacReply(Code.OK, request.ledger_id, DIGEST.seal_lac(1, 3)))
        if isinstance(request, GetBookieInfo) and request.introduction is not None and peer.identity is not None:
            return encode_reply(item.context, BookieInfoReply(Code.OK, identity=peer.identity))
        if isinstance(request, Force):
            return encode_reply(item.context, ForceReply(Code.OK, request.ledger_id))
        return encode_error(item.context, Code.BAD_REQUEST)


class Sink:
    """Records the outcomes of each entry in `said`; `heard` is set at each of them."""

    name: tuple[int, bytes] | None = None

    def __init__(self) -> None:
        self.said: dict[tuple[int, int], list[str]] = {}
        self.errors: list[BuckramError] = []
        self.heard = asyncio.Event()

    def acked(self, slot: Slot, bookie_id: str, first: int, last: int) -> None:
        self._note(slot, first, last, "ok")

    def add_failed(self, slot: Slot, bookie_id: str, first: int, last: int, error: BuckramError) -> None:
        self.errors.append(error)
        self._note(slot, first, last, type(error).__name__)

    def _note(self, slot: Slot, first: int, last: int, word: str) -> None:
        for entry in range(first, last + 1):
            self.said.setdefault((slot, entry), []).append(word)
        self.heard.set()

    async def count(self, number: int) -> None:
        """Wait until so many entries have an outcome."""
        async with asyncio.timeout(10):
            while len(self.said) < number:
                self.heard.clear()
                await self.heard.wait()


def framed(ledger: int, first: int, count: int, flags: int = 0, size: int = 20) -> tuple[bytes, bytes]:
    """The frames of adds, and the replies to expect for them."""
    return frame_adds(DIGEST, KEY, ledger, first, first - 1, 0, [bytes(size)] * count, flags)[:2]

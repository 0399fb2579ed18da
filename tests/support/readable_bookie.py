"""Scripted bookies that also answer reads, fences, LACs and long polls, and that can lie, forget or hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.support.scripted_bookie import NET, ScriptedBookie, ScriptedCluster
from tests.support.serving import serving

from buckram.cluster import Client
from buckram.config import ClientConfig, NetConfig
from buckram.core.entries.entry import Digest, entry_ids
from buckram.core.wire.adds import AddRun, walk_frames
from buckram.core.wire.messages import (
    BatchRead,
    BatchReadReply,
    Read,
    ReadLac,
    ReadLacReply,
    ReadReply,
    Reply,
    ReplyContext,
    WriteLac,
    WriteLacReply,
)
from buckram.core.wire.server_protocol import (
    Close,
    Incoming,
    Ready,
    ServerProtocol,
    encode_add_replies,
    encode_reply,
)
from buckram.errors import Code, MetadataUnavailable
from buckram.seams import MetadataStore
from buckram.types import DigestType

DIGEST = Digest(DigestType.CRC32C, b"")


class ReadableBookie(ScriptedBookie):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.fenced: dict[int, bytes] = {}
        self.known_lac: dict[int, int] = {}
        self.packets: dict[int, bytes] = {}
        self.requests: list[object] = []
        self.bad: set[int] = set()
        """Entries that the bookie returns with flipped bytes."""
        self.hang: Callable[[object], bool] = lambda request: False
        """Decides which requests get no answer."""
        self.refuse: Callable[[object], Code | None] = lambda request: None
        self.delay_s: Callable[[object], float] = lambda request: 0.0
        """The seconds that the answer to a request takes."""
        self.batches = True
        self.claimed_lac: int | None = None
        """The unproven LAC that the bookie sends with its answers."""
        self._polls: list[tuple[Read, Callable[[], None]]] = []

    async def start(self) -> None:
        self._listener = await self.runtime.network.listen("127.0.0.1", self.port, lambda: _Connection(self))
        self.port = self._listener.port
        await self.register()

    def add(self, run: AddRun, transport: asyncio.Transport) -> None:
        if run.ledger_id in self.fenced and not run.recovery:
            transport.write(encode_add_replies(run, Code.FENCED))
            return
        super().add(run, transport)
        for _, _, stored in walk_frames(run.chunk, run.start, run.end):
            ledger, _, lac = entry_ids(stored)
            self.raise_lac(ledger, lac)

    def raise_lac(self, ledger: int, lac: int) -> None:
        self.known_lac[ledger] = max(lac, self.known_lac.get(ledger, -1))
        for poll in list(self._polls):
            request, send = poll
            if request.ledger_id == ledger and self.known_lac[ledger] > (request.previous_lac or 0) - 0:
                self._polls.remove(poll)
                send()

    def stored(self, ledger: int, entry: int) -> bytes | None:
        held = self.entries.get(ledger, {})
        if entry == -1:
            entry = max(held, default=-1)
        body = held.get(entry)
        if body is not None and entry in self.bad:
            body = body[:-1] + bytes([body[-1] ^ 1])
        return body

    def serve(self, item: Incoming, transport: asyncio.Transport) -> None:
        request, context = item
        self.requests.append(request)
        if self.hang(request):
            return
        code = self.refuse(request)
        if isinstance(request, BatchRead) and not self.batches:
            transport.abort()
        elif isinstance(request, Read) and request.previous_lac is not None and code is None:
            self._poll(request, context, transport)
        else:
            reply = self._reply(request, code)
            data = encode_reply(context, reply) if reply else self.answer(item)
            if delay_s := self.delay_s(request):
                asyncio.get_running_loop().call_later(delay_s, transport.write, data)
            else:
                transport.write(data)

    def _reply(self, request: object, code: Code | None) -> Reply | None:
        if isinstance(request, Read):
            if request.fence and code is None:
                self.fenced[request.ledger_id] = request.master_key or b""
            body = self.stored(request.ledger_id, request.entry_id)
            code = code or (Code.OK if body is not None else Code.NO_ENTRY)
            lac = self.claimed_lac if self.claimed_lac is not None else self.known_lac.get(request.ledger_id)
            body = body if code is Code.OK else None
            return ReadReply(code, request.ledger_id, request.entry_id, body, None if request.fence else lac)
        if isinstance(request, BatchRead):
            bodies: list[bytes] = []
            while (body := self.stored(request.ledger_id, request.entry_id + len(bodies))) is not None:
                if bodies and sum(map(len, bodies)) + len(body) > request.max_bytes:
                    break
                bodies.append(body)
                if len(bodies) == request.max_count:
                    break
            code = code or (Code.OK if bodies else Code.NO_ENTRY)
            return BatchReadReply(code, request.ledger_id, request.entry_id, bodies if code is Code.OK else ())
        if isinstance(request, ReadLac):
            packet, last = self.packets.get(request.ledger_id), self.stored(request.ledger_id, -1)
            code = code or (Code.OK if packet or last else Code.NO_ENTRY)
            return ReadLacReply(code, request.ledger_id, packet, last)
        if isinstance(request, WriteLac):
            self.lacs.append(request.lac)
            self.packets[request.ledger_id] = request.body
            self.raise_lac(request.ledger_id, request.lac)
            return WriteLacReply(Code.OK, request.ledger_id)
        return None

    def _poll(self, request: Read, context: ReplyContext, transport: asyncio.Transport) -> None:
        def send() -> None:
            if not transport.is_closing():
                timer.cancel()
                plain = Read(request.ledger_id, request.entry_id)
                reply = self._reply(plain, None)
                assert reply is not None
                transport.write(encode_reply(context, reply))

        def expire() -> None:
            if poll in self._polls:
                self._polls.remove(poll)
                send()

        poll = (request, send)
        timer = asyncio.get_running_loop().call_later((request.timeout_ms or 0) / 1000, expire)
        assert request.previous_lac is not None
        lac = self.claimed_lac if self.claimed_lac is not None else self.known_lac.get(request.ledger_id, -1)
        if lac > request.previous_lac or request.ledger_id in self.fenced:
            send()
        else:
            self._polls.append(poll)


class _Connection(asyncio.Protocol):
    def __init__(self, bookie: ReadableBookie) -> None:
        self._bookie = bookie
        self._protocol = ServerProtocol(5 * 1024 * 1024)
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._bookie._transports.append(self._transport)

    def data_received(self, data: bytes) -> None:
        for item in self._protocol.feed(data):
            if isinstance(item, AddRun):
                self._bookie.add(item, self._transport)
            elif isinstance(item, Incoming):
                if not self._bookie.silent:
                    self._bookie.serve(item, self._transport)
            elif isinstance(item, Ready):
                self._transport.write(item.data)
            elif isinstance(item, Close):
                self._transport.abort()


class ReadableCluster(ScriptedCluster):
    async def add(self, name: str) -> ReadableBookie:
        bookie = ReadableBookie(name, self.runtime, self.tree)
        self.bookies[name] = bookie
        await bookie.start()
        return bookie

    def __getitem__(self, name: str) -> ReadableBookie:
        bookie = self.bookies[name]
        assert isinstance(bookie, ReadableBookie)
        return bookie

    @property
    def all(self) -> list[ReadableBookie]:
        return [self[name] for name in self.bookies]


class Switch:
    """A MetadataStore that can be made unreachable."""

    def __init__(self, inner: MetadataStore) -> None:
        self.inner, self.away = inner, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def read_ledger(self, ledger_id: int, watch: Any = None) -> Any:
        if self.away:
            raise MetadataUnavailable("away")
        return await self.inner.read_ledger(ledger_id, watch)


def readable(
    bookies: int = 3,
    *,
    config: ClientConfig | None = None,
    net: NetConfig = NET,
    wrap: Callable[[MetadataStore], MetadataStore] = lambda store: store,
) -> AbstractAsyncContextManager[tuple[ReadableCluster, Client]]:
    """A cluster of bookies b0, b1, ... and a client of it. At the end no task may be left."""
    return serving(ReadableCluster(), bookies, config, net, wrap)

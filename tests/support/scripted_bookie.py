"""A bookie on loopback that does what a test tells it to: refuse, stay silent, answer late or in another order.

It speaks through the real protocol code; what it keeps it keeps in dicts. For faults that a real bookie would show only
by accident; behaviour of real bookies is tested with real ones.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.support.serving import serving

from buckram.cluster import Client
from buckram.config import ClientConfig, NetConfig
from buckram.core.entries.entry import entry_ids
from buckram.core.wire.adds import AddRun, walk_frames
from buckram.core.wire.availability import encode_runs
from buckram.core.wire.messages import (
    BookieInfoReply,
    Force,
    ForceReply,
    GetBookieInfo,
    ListEntries,
    ListEntriesReply,
    WriteLac,
    WriteLacReply,
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
from buckram.errors import Code
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.production import production_runtime
from buckram.seams import Listener, MetadataStore, Runtime
from buckram.types import BookieAddress, BookieInfo

NET = NetConfig(request_timeout_s=1.0, connect_timeout_s=1.0, sweep_interval_s=0.05)


class ScriptedBookie:
    def __init__(self, name: str, runtime: Runtime, tree: MemoryTree) -> None:
        self.name, self.runtime, self.tree = name, runtime, tree
        self.entries: dict[int, dict[int, bytes]] = {}
        self.deferred: set[int] = set()
        self.lacs: list[int] = []
        self.forces = 0
        self.add_code: Callable[[int], Code] = lambda entry: Code.OK
        """The code that answers an add, by entry id. An entry whose code is not OK is not stored."""
        self.force_code = Code.OK
        self.held: list[Callable[[], None]] | None = None
        """If this is a list, the answers to adds are kept in it until the test calls them."""
        self.silent = False
        self.incarnation = "1"
        self._listener: Listener | None = None
        self._store: TreeStore | None = None
        self._transports: list[asyncio.Transport] = []
        self.port = 0

    async def start(self) -> None:
        self._listener = await self.runtime.network.listen("127.0.0.1", self.port, lambda: _Connection(self))
        self.port = self._listener.port
        await self.register()

    async def register(self, *, readonly: bool = False) -> None:
        if self._store is None:
            self._store = TreeStore(MemoryKeys(self.tree), "memory:test", self.runtime.rng)
        address = BookieAddress("127.0.0.1", self.port)
        info = BookieInfo(self.name, address, {"buckram.incarnation": self.incarnation})
        await self._store.register(info, readonly=readonly)

    async def unregister(self) -> None:
        if self._store is not None:
            await self._store.close()
            self._store = None

    async def kill(self, *, registered: bool = False) -> None:
        """Cut every connection and stop listening. The stored entries stay."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        self.reset()
        if not registered:
            await self.unregister()

    def reset(self) -> None:
        for transport in self._transports:
            transport.abort()
        self._transports.clear()

    def ids(self, ledger: int) -> list[int]:
        return sorted(self.entries.get(ledger, {}))

    def release(self, *order: int) -> None:
        """Send the kept answers: those at the given indexes of `held`, or all of them."""
        held, self.held = self.held or [], None
        for i in order or range(len(held)):
            held[i]()

    def add(self, run: AddRun, transport: asyncio.Transport) -> None:
        replies = b""
        for entry, (_, _, stored) in enumerate(walk_frames(run.chunk, run.start, run.end), run.first):
            code = self.add_code(entry)
            if code is Code.OK:
                assert entry_ids(stored)[:2] == (run.ledger_id, entry)
                self.entries.setdefault(run.ledger_id, {})[entry] = stored
                if run.deferred_sync:
                    self.deferred.add(entry)
            one = copy.copy(run)
            one.first, one.count = entry, 1
            if run.context.txns:
                one.context = run.context._replace(txns=(run.context.txns[entry - run.first],))
            replies += encode_add_replies(one, code)
        if self.held is not None:
            self.held.append(lambda: transport.write(replies))
        elif not self.silent:
            transport.write(replies)

    def answer(self, item: Incoming) -> bytes:
        request, context = item
        if isinstance(request, WriteLac):
            self.lacs.append(request.lac)
            return encode_reply(context, WriteLacReply(Code.OK, request.ledger_id))
        if isinstance(request, Force):
            self.forces += 1
            return encode_reply(context, ForceReply(self.force_code, request.ledger_id))
        if isinstance(request, GetBookieInfo):
            return encode_reply(context, BookieInfoReply(Code.OK, 1, 1))
        if isinstance(request, ListEntries):
            held = encode_runs([(entry, 1) for entry in self.ids(request.ledger_id)])
            return encode_reply(context, ListEntriesReply(Code.OK, request.ledger_id, held))
        return encode_error(context, Code.BAD_REQUEST)


class _Connection(asyncio.Protocol):
    def __init__(self, bookie: ScriptedBookie) -> None:
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
                    self._transport.write(self._bookie.answer(item))
            elif isinstance(item, Ready):
                self._transport.write(item.data)
            elif isinstance(item, Close):
                self._transport.abort()


class ScriptedCluster:
    def __init__(self, seed: int = 1) -> None:
        self.runtime = production_runtime(seed)
        self.tree = MemoryTree()
        self.bookies: dict[str, ScriptedBookie] = {}
        self.store: MetadataStore = TreeStore(MemoryKeys(self.tree), "memory:test", self.runtime.rng)

    async def add(self, name: str) -> ScriptedBookie:
        bookie = self.bookies[name] = ScriptedBookie(name, self.runtime, self.tree)
        await bookie.start()
        return bookie

    def __getitem__(self, name: str) -> ScriptedBookie:
        return self.bookies[name]

    def holders(self, ledger: int, entry: int) -> list[str]:
        return [name for name, bookie in self.bookies.items() if entry in bookie.entries.get(ledger, {})]


def scripted(
    bookies: int = 3,
    *,
    config: ClientConfig | None = None,
    net: NetConfig = NET,
    wrap: Callable[[MetadataStore], MetadataStore] = lambda store: store,
) -> AbstractAsyncContextManager[tuple[ScriptedCluster, Client]]:
    """A cluster of bookies b0, b1, ... and a client of it. At the end no task may be left."""
    return serving(ScriptedCluster(), bookies, config, net, wrap)

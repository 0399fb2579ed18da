"""The bookie's server: wires the listener, its connections and the parts that answer requests.

Not here: limits (`bookie/service/connections/memory_budget.py`), answers (`adds.py`, `reads.py`, `dispatch.py`), bytes
of a connection (`session.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from buckram.bookie.service.connections.long_poll import LongPolls
from buckram.bookie.service.connections.memory_budget import Budget
from buckram.bookie.service.connections.session import Pulse, Session, request_of
from buckram.bookie.service.dispatch import Dispatcher, ServedBookie
from buckram.bookie.service.entries.adds import AddPath
from buckram.bookie.service.entries.admission import Admission
from buckram.bookie.service.entries.pulls import OpenSource, PullPath
from buckram.bookie.service.entries.reads import ReadPath
from buckram.bookie.service.entries.traced_adds import TracedAdds
from buckram.bookie.service.metadata.metadata_service import MetadataService
from buckram.bookie.service.rate_limiter import RateLimiter
from buckram.bookie.service.security.audit_events import AuditSink, NotedEntries, note_unknown
from buckram.bookie.service.security.connection_gate import ConnectionGate
from buckram.bookie.service.security.entry_access import EntryAccess
from buckram.bookie.service.security.ledger_owners import Owners
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.store import Store
from buckram.bookie.trust.store_trust import UNSEEN, Trust
from buckram.codes import Code
from buckram.config import BookieConfig, NetConfig
from buckram.core.wire.server_protocol import (
    BeginTls,
    Close,
    Incoming,
    Item,
    KeyPacket,
    LoginBegun,
    LoginWaits,
    Named,
    Ready,
    ServerProtocol,
    StrangersKeyPacket,
    Traced,
    encode_error,
)
from buckram.metadata.service.error_codec import stranger_refused
from buckram.runtime.disk.descriptors import OPERATORS, Shares
from buckram.seams import Listener, MetadataStore, Runtime
from buckram.types import NO_BIRTH, LedgerId

log = logging.getLogger("buckram.bookie")


class BadFrames:
    """Logs connections that were closed for misbehaviour: at most one line a second, with a count of the others."""

    def __init__(self) -> None:
        self.total = 0
        self._unreported = 0
        self._next_line = float("-inf")

    def report(self, peer: str, why: str, now: float) -> None:
        """Count one connection, and log it unless a line was logged within the last second."""
        self.total += 1
        self._unreported += 1
        if now >= self._next_line:
            more = f" ({self._unreported - 1} more since the last such line)" if self._unreported > 1 else ""
            log.warning("closed the connection of %s: %s%s", peer, why, more)
            self._next_line, self._unreported = now + 1.0, 0


class Service:
    """The parts of the service that exist only while the store is open."""

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        metadata: MetadataStore,
        config: BookieConfig,
        net: NetConfig,
        budget: Budget,
        bookie: ServedBookie,
        trust: Trust = UNSEEN,
        keys: MetadataService | None = None,
        open_source: OpenSource | None = None,
    ) -> None:
        self.store, self.metadata = store, metadata
        self.keys = keys
        """Serves the metadata store to clients; None: it is not served."""
        self.polls = LongPolls(runtime.clock, config.max_long_polls)
        self.admission = Admission(store, metadata, config, runtime.rng, self.polls, trust)
        parts = store, self.polls, budget, runtime.stats, self.admission
        self.traced = None if runtime.traces is None else TracedAdds(runtime.traces, *parts)
        """Adds with traces: as `adds`, but some of them are followed."""
        self.adds = self.traced or AddPath(*parts)
        self.reads = ReadPath(
            store,
            self.polls,
            budget,
            self.admission,
            config.max_batch_read_bytes,
            net.max_frame_bytes,
            runtime.stats,
        )
        store.on_backpressure_end(budget.resume_reads)
        self.pulls = PullPath(store, open_source, net.max_frame_bytes, runtime.stats)
        self.dispatch = Dispatcher(
            store,
            self.reads,
            self.polls,
            budget,
            self.admission,
            net.max_frame_bytes,
            bookie,
            self.pulls,
        )

    def birth_here(self, ledger_id: LedgerId) -> bytes:
        """Return the birth of the ledger whose data is stored under an id; b"" if it is not known, or there is none."""
        record = self.store.ledger(ledger_id)
        return b"" if record is None or record.birth == NO_BIRTH else record.birth

    def ledger_deleted(self, ledger_id: LedgerId) -> None:
        """Wake the long polls of a ledger that was deleted."""
        self.polls.state_changed(ledger_id)

    async def close(self) -> None:
        if self.keys is not None:
            await self.keys.close()
        await self.pulls.close()
        await self.admission.close()
        self.polls.close()


class BookieServer:
    """Listens from `listen` on and serves from `serve` on; connections that arrive in between are closed at once.

    `on_gap` is called when the process stood still for so long that its id may have been given away meanwhile.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        net: NetConfig,
        shares: Shares | None = None,
        door: ConnectionGate | None = None,
        on_gap: Callable[[], None] = lambda: None,
    ) -> None:
        self.pulse = Pulse(on_gap)
        self._in_doubt = False
        self._door = door
        """Security that connections have to pass first; None without any."""
        self._runtime, self._config, self._net = runtime, config, net
        self._most, self._why_no_more = config.max_connections, f"max_connections = {config.max_connections} are open"
        if shares is not None and shares.connections < self._most:
            self._most = shares.connections
            self._why_no_more = (
                f"{self._most} connections are open, the limit of {shares.limit} open files leaves room for no more: "
                "raise it (ulimit -n, or LimitNOFILE= of the service)"
            )
        if door is not None:
            door.unknown.bound(self._most)
        self.budget = Budget(config.connection_buffer_bytes, config.total_buffer_bytes)
        self.bad_frames = BadFrames()
        self.sessions: dict[Session, None] = {}
        self._listener: Listener | None = None
        self._service: Service | None = None
        self._entries: EntryAccess | None = None
        self.limiter: RateLimiter | None = None
        """Holds requests of namespaces back; there from `judge` on."""
        self.events: AuditSink | None = None
        """Takes events for the audit trail; None: there is none."""
        self._idle: asyncio.Event = asyncio.Event()
        stats = runtime.stats
        self._connections = stats.gauge("buckram_bookie_connections", "open connections")
        self._closed_bad = stats.counter("buckram_bookie_bad_connections_total", "connections closed for misbehaving")
        self._too_many = stats.counter(
            "buckram_bookie_refused_connections_total",
            "connections refused because the limit of open connections was reached",
        )
        self._held = stats.gauge("buckram_bookie_buffered_bytes", "requests and unsent answers in memory")
        self._polls = stats.gauge("buckram_bookie_long_polls", "long polls that wait")

    @property
    def most_connections(self) -> int:
        """Return the maximum number of connections that may be open at the same time."""
        return self._most

    async def listen(self) -> int:
        """Bind the configured address and return the port. Raises OSError if it is in use."""
        self._listener = await self._runtime.network.listen(
            self._config.host, self._config.port, self._new_session if self._door is None else self._new_guarded
        )
        return self._listener.port

    def serve(self, service: Service) -> None:
        """Answer requests with `service` from now on."""
        self._service = service

    def judge(self, service: Service) -> None:
        """Have requests about entries judged by grants and quotas of the ledgers' namespaces. Call it before
        `serve`."""
        guard = self._door.guard if self._door is not None and self._door.authorises else None
        owners = Owners(service.metadata)
        limiter = self.limiter = RateLimiter(
            owners, service.store, service.adds.add, service.adds.take, self.item_received
        )
        entries = self._entries = EntryAccess(owners, guard, limiter.add, limiter.item, service.birth_here)
        entries.plain = limiter
        service.reads.served.on_served = self.limiter.served
        if self.events is not None:
            noted = NotedEntries(self.events, owners.namespace_of)
            service.reads.fencing.on_fenced = noted.fenced
            for part in (service.adds, service.dispatch, service.reads.fencing, entries, limiter):
                part.on_refused = noted.refused
            if service.keys is not None:
                service.keys.events = self.events
        if self._door is not None and guard is not None:
            self._door.entries = entries

    def look_at_namespaces(self, wanted: bool) -> None:
        """Set whether requests are attributed to namespaces, which quotas and competing tenants need."""
        limiter, entries, service = self.limiter, self._entries, self._service
        if limiter is None or entries is None or service is None or wanted == limiter.active:
            return
        limiter.active = wanted
        service.reads.most_bytes = limiter.most_read_bytes if wanted else None
        # Off again, connections that are looked at stay so until they end: something of theirs may wait.
        for session in self.sessions if wanted else ():
            if session.handle_item == self.item_received:
                entries.guard(session)

    async def stop_accepting(self) -> None:
        """Close the listener; connections stay open."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()

    def refresh_gauges(self) -> None:
        """Compute the gauges that are needed only when metrics are read."""
        self._connections.set(len(self.sessions))
        self._held.set(self.budget.total)
        self._polls.set(self._service.polls.count if self._service is not None else 0)

    def quiesce(self) -> None:
        """Read no further request; those that were read are still answered."""
        for session in list(self.sessions):
            if session.open and not session.reads_paused:
                session.pause_reads()

    async def close(self) -> None:
        """Close every connection and wait until they are gone, for two seconds at most."""
        await self.stop_accepting()
        self._service = None
        if self._entries is not None:
            await self._entries.close()
        if self.limiter is not None:
            self.limiter.close()
        for session in list(self.sessions):
            session.close()
        try:
            async with asyncio.timeout(2.0):
                while self.sessions:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            for session in list(self.sessions):
                session.kill()
        self.budget.close()

    def abort(self) -> None:
        """Drop every connection at once, for good: the store failed, or the bookie is out."""
        self._service = None
        self._drop()

    def doubt(self) -> None:
        """Drop every connection at once and take no other until `go_on`: it is in doubt whether the bookie is a member
        still."""
        self._in_doubt = True
        self._drop()

    def go_on(self) -> None:
        self._in_doubt = False
        self.pulse.beat()

    def _drop(self) -> None:
        for session in list(self.sessions):
            session.kill()

    def _new_session(self) -> Session:
        protocol = ServerProtocol(self._net.max_frame_bytes)
        return Session(protocol, self.budget, self, self.pulse)

    def _new_guarded(self) -> asyncio.Protocol:
        """Return the protocol of a connection that begins at the door."""
        assert self._door is not None
        protocol, hallway = self._door.protocol(self._net.max_frame_bytes)
        session = Session(protocol, self.budget, self, self.pulse)
        return self._door.before(session, hallway)

    def tls_begun(self, session: Session, data: bytes) -> None:
        if self._door is not None:
            self._door.begin_tls(session, data)

    def session_opened(self, session: Session) -> bool:
        if self._service is None or self._in_doubt:
            return False
        # Clients of this machine may open a few more, so that operators reach a bookie that is full.
        if len(self.sessions) >= self._most + (OPERATORS if session.local else 0) and not (
            self._door is not None and self._door.unknown.make_room()
        ):
            return self._refused(session, self._why_no_more)
        session.add_run, session.take_adds = self._service.adds.add, self._service.adds.take_adds
        session.on_writable = self._service.reads.pump_soon
        if self.limiter is not None and self.limiter.active and self._entries is not None:
            self._entries.guard(session)
        if self._door is not None and (why := self._door.admit(session)):  # which may be a login, and set others
            return self._refused(session, why)
        self.sessions[session] = None
        return True

    def _refused(self, session: Session, why: str) -> bool:
        self._too_many.inc()
        self.bad_frames.report(session.peer, why, asyncio.get_running_loop().time())
        return False

    def session_closed(self, session: Session) -> None:
        self.sessions.pop(session, None)
        if self._door is not None:
            self._door.unknown.forget(session)
        if self._service is not None:
            for waiter in session.waiters:
                self._service.polls.cancel(waiter)
            if self._service.keys is not None:
                self._service.keys.ended(session)
            self._service.pulls.forget(session)
            if self._service.traced is not None:
                self._service.traced.forget(session)
        session.waiters.clear()
        if not self.sessions:
            self._idle.set()

    def peer_misbehaved(self, session: Session, why: str) -> None:
        self._closed_bad.inc()
        if session.heard and not session.protocol.authenticated:
            self._unknown_refused(session, why)
        self.bad_frames.report(session.peer, why, asyncio.get_running_loop().time())

    def item_received(self, session: Session, item: Item) -> None:
        service = self._service
        if service is None:
            return
        if isinstance(item, Incoming):
            try:
                service.dispatch.request(session, item.context, item.request)
            except StoreError as error:
                about = request_of(session, item.context)
                log.warning(
                    "a request was answered with an error, because its data could not be read: %s", error, extra=about
                )
                session.send(encode_error(item.context, Code.IO_ERROR))
        elif isinstance(item, Named):
            session.births.name(item.ledger_id, item.birth)
        elif isinstance(item, Traced):
            if service.traced is not None:
                service.traced.expect(session, item)
        elif isinstance(item, KeyPacket):
            if service.keys is not None:
                service.keys.received(session, item.packet)
            else:
                session.refuse("this bookie does not serve its metadata")
        elif isinstance(item, StrangersKeyPacket):
            session.send(stranger_refused(item.packet, item.needs_tls))
        elif isinstance(item, BeginTls):
            session.begin_tls(item.data)
        elif isinstance(item, LoginBegun):
            if self._door is not None:
                self._door.begun(session)
        elif isinstance(item, LoginWaits):
            if self._door is not None:
                self._door.waits(session, item.payload)
        elif isinstance(item, Ready):
            if item.refused:
                self._unknown_refused(session, item.refused)
            session.send(item.data)
        elif isinstance(item, Close):
            self.peer_misbehaved(session, item.reason)
            session.close()

    def _unknown_refused(self, session: Session, why: str) -> None:
        if self.events is not None:
            note_unknown(self.events, session, why)

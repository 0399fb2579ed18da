"""Wires one bookie (listener, cookie, store, service, registration, collection), and starts and stops it in order.

It runs on any Runtime, including the simulator's.
Not here: the production parts and the end of a bookie process (`bookie/run.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar

from buckram.addresses import check_announced, check_reachable, parse_address
from buckram.bookie import registration
from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.bookie.accounting.creation_quotas import QuotasOfCreations
from buckram.bookie.accounting.namespace_usage import Accounting
from buckram.bookie.garbage.collector import Collector
from buckram.bookie.garbage.gc_limits import DeletionLimits
from buckram.bookie.integrity.limbo_end import LimboEnd
from buckram.bookie.integrity.scrub import Scrub
from buckram.bookie.integrity.slow_disk_watch import DiskWatch
from buckram.bookie.integrity.underreplication_marks import UnderreplicationMarks
from buckram.bookie.operator_requests import CollectRequests, OperatorRequests
from buckram.bookie.registration import Handover, Registration, check_others, place_properties
from buckram.bookie.report import report_of
from buckram.bookie.service.connections.session import Session
from buckram.bookie.service.metadata.metadata_service import MetadataService, OpenStore
from buckram.bookie.service.security.bookie_security import BookieSecurity
from buckram.bookie.service.security.connection_gate import ConnectionGate
from buckram.bookie.service.server import BookieServer, Service
from buckram.bookie.storage.log.log_position import NO_CLAIM, WitnessedPosition
from buckram.bookie.storage.store import Store
from buckram.bookie.trust import cookie
from buckram.bookie.trust.copy_sources import Sources
from buckram.bookie.trust.timekeeper import Timekeeper
from buckram.bookie.trust.witness import NO_CONTACT, Contact, Witness, looked
from buckram.bookie.trust.witness_memory import DeletionMemory, FileWrite
from buckram.config import BookieConfig, NetConfig, StoreConfig
from buckram.core.backoff import REGISTRATION
from buckram.core.cluster import bookie_report as file_systems
from buckram.core.ledgers.service_info import ADMISSION_PROPERTY, SESSION_PROPERTY
from buckram.core.security.acl import ACL_PROPERTY, ACL_VERSION, LOGIN_PROPERTY
from buckram.core.security.principal import Principal
from buckram.core.security.tokens import TokenRefused
from buckram.core.wire.introduction import (
    IDENTITY,
    IDENTITY_PROPERTY,
    INCARNATION_PROPERTY,
    LACS,
    METADATA,
    NAMES_LEDGERS,
    PULLS,
    SUSPECT,
    TRACES,
    Identity,
    Introduction,
)
from buckram.core.wire.messages import Trouble
from buckram.errors import MetadataUnavailable, WrongCookie
from buckram.runtime.disk.descriptors import Shares
from buckram.runtime.process.retry import Attempt, retry
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import Disk, MetadataStore, Runtime, Space
from buckram.types import BookieAddress, BookieId, BookieInfo

log = logging.getLogger("buckram.bookie")
T = TypeVar("T")


class Bookie:
    """A storage server. `start` once, `stop` once; `failed` resolves to the error if the store fails, or to WrongCookie
    if the bookie is a member no more: it was replaced or taken out.

    Then the service stops by itself: it closes connections and listener, and removes the registration.
    The disk and the metadata store belong to the caller and stay open. `open_store` opens further sessions with the
    store, through which the bookie serves it to clients; None: it does not. `door`: what connections pass first.
    `events` takes what the audit trail is to tell.
    `mixed_logins`: it may register beside bookies that ask for logins where this one does not, or the other way round.
    """

    def __init__(
        self,
        runtime: Runtime,
        disk: Disk,
        metadata_store: MetadataStore,
        bookie_config: BookieConfig,
        store_config: StoreConfig,
        net_config: NetConfig,
        *,
        properties: Mapping[str, str] | None = None,
        shares: Shares | None = None,
        open_store: OpenStore | None = None,
        door: ConnectionGate | None = None,
        events: AuditLog | None = None,
        mixed_logins: bool = False,
    ) -> None:
        self._open_store, self._events, self._door, self._mixed_logins = open_store, events, door, mixed_logins
        self._guard: BookieSecurity | None = None
        self._runtime, self._disk, self._metadata = runtime, disk, metadata_store
        self._config, self._store_config, self._net = bookie_config, store_config, net_config
        self._properties, self.deletions = dict(properties or {}), DeletionMemory(disk, self)
        self._scope = TaskScope("bookie", on_error=self._task_failed)
        self._server = BookieServer(runtime, bookie_config, net_config, shares, door, self._stood_still)
        self.service: Service | None = None
        self._registration: Registration | None = None
        self.store: Store | None = None
        self.collector: Collector | None = None
        self.info: BookieInfo | None = None
        self.witness: Witness | None = None
        self.wishes: OperatorRequests | None = None
        self.scrub: Scrub | None = None
        self.limbo_end: LimboEnd | None = None
        self.disk_watch: DiskWatch | None = None
        self.accounting: Accounting | None = None
        self.time = Timekeeper(runtime.clock, metadata_store, bookie_config.believe_clock_after_s, runtime.stats)
        self._address: BookieAddress | None = None
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._stopped, self._cluster = False, ""

    @property
    def server(self) -> BookieServer:
        return self._server

    @property
    def state(self) -> str:
        """Return the state: starting, writable, readonly, unregistered (clients do not find the bookie) or failed."""
        if self.failed.done():
            return "failed"
        if self._registration is None or self.store is None:
            return "starting"
        if not self._registration.registered:
            return "unregistered"
        return "readonly" if self._shown_readonly(self.store) else "writable"

    async def start(self) -> BookieInfo:
        """Bind, check the cookie, open the store, serve, register. After an error everything is closed again.

        Raises ConfigError, OSError (port or directory in use), WrongCookie, CorruptStore, MetadataError.
        """
        try:
            return await self._start()
        except BaseException:
            await self._close(graceful=False)
            raise

    async def _start(self) -> BookieInfo:
        self._disk.lock()
        await self._begin_guard()
        port = await self._server.listen()
        address = self._advertised(port)
        claimed, witness, store = await self._open(address)
        properties = self._registered(store)
        self.info = BookieInfo(claimed.bookie_id, address, properties)
        await self._check_logins(self.info)
        store.on_failed(self._store_failed)
        self._cluster = claimed.cluster
        await self._retried(lambda: self.time.prepare(claimed.bookie_id))
        self.service = self._make_service(store, witness, claimed.bookie_id)
        self._server.judge(self.service)
        self._server.serve(self.service)
        handover = Handover(self._disk, self._metadata)
        await handover.end_previous()
        self._registration = Registration(
            self._metadata, self.info, self._runtime.rng, handover=handover, trust=witness
        )
        self.wishes = OperatorRequests(self._metadata, claimed.bookie_id, self._wishes_changed)
        await self._retried(self.wishes.prepare)
        self.trust_changed()
        await self._registration.start(readonly=self._shown_readonly(store))
        if store.failed is not None:
            raise store.failed  # it served for a moment, and answered only what was durable
        if witness.out:
            raise WrongCookie(witness.out)
        store.on_space_change(self._space_changed)
        self._space_changed()
        self._scope.spawn(witness.run(), "witness")
        self._scope.spawn(self._server.pulse.run(), "pulse")
        self._scope.spawn(self.time.run(), "time")
        witness.wake()
        stats, name = self._runtime.stats, claimed.bookie_id
        brake = DeletionLimits(self._metadata, name, witness, stats)
        self.collector = Collector(
            store, self._metadata, name, self._config, self.service.ledger_deleted, brake, stats, self.deletions
        )
        self._scope.spawn(self.collector.run(), "collection")
        self._scope.spawn(self.collector.follow(), "recorded deletions")
        requests = CollectRequests(self._metadata, claimed.bookie_id, self.collector)
        self.wishes.on_collect = requests.ask
        self._scope.spawn(requests.run(), "collection on request")
        self._scope.spawn(self.wishes.run(), "wishes")
        self._watch_disk(store, witness, claimed.bookie_id)
        self._count_usage(store, claimed.bookie_id)
        log.info("bookie %s serves at %s", claimed.bookie_id, address)
        return self.info

    def _make_service(self, store: Store, witness: Witness, bookie_id: BookieId) -> Service:
        if self._events is not None:
            self._events.bookie = bookie_id
            self._server.events = self._events
        return Service(
            self._runtime,
            store,
            self._metadata,
            self._config,
            self._net,
            self._server.budget,
            self,
            witness,
            None
            if self._open_store is None
            else MetadataService(self._open_store, self._net.max_frame_bytes, self._guard),
            None if self._runtime.files is None else Sources(self._runtime.files, self._metadata),
        )

    def _registered(self, store: Store) -> dict[str, str]:
        """Return the properties of the registration. Raises ConfigError for a malformed location or host."""
        properties = self._properties | _told_of(store)
        if self._config.admission != "known":
            properties[ADMISSION_PROPERTY] = self._config.admission
        properties |= place_properties(self._config.location, self._config.host_id)
        if self._door is not None and self._door.logins:
            properties[LOGIN_PROPERTY] = " ".join(sorted(self._door.logins))
            properties[ACL_PROPERTY] = str(ACL_VERSION)
        return properties

    async def _check_logins(self, info: BookieInfo) -> None:
        if not self._mixed_logins:
            known = await self._retried(self._metadata.bookies)
            check_others(info.bookie_id, info.properties, [one for _, one in known.everybody()])

    async def _begin_guard(self) -> None:
        """Read keys, revocations and grants before the first connection is accepted."""
        if self._door is not None and self._door.logins:
            guard = BookieSecurity(
                self._metadata,
                self.time,
                authorises=self._door.authorises,
                tokens="token" in self._door.logins,
                issuer=self._door.issuer,
            )
            await self._retried(guard.start)
            self._guard = self._door.guard = guard

    def _watch_disk(self, store: Store, witness: Witness, bookie_id: BookieId) -> None:
        """Begin to check files, to look for the end of limbo, and to watch how fast the disk is."""
        self.scrub = Scrub(store, self._disk, self._metadata, bookie_id, self._store_config, self._runtime)
        self._scope.spawn(self.scrub.run(), "scrub")
        self._scope.spawn(self.scrub.follow(), "bad records")
        marks = UnderreplicationMarks(self._metadata, bookie_id, self._runtime.clock)
        self.limbo_end = LimboEnd(store, self._metadata, bookie_id, witness, marks, self._runtime.rng)
        self._scope.spawn(self.limbo_end.run(), "limbo")
        self.disk_watch = DiskWatch(
            store,
            self._disk,
            self._metadata,
            bookie_id,
            self._store_config.slow_sync_ms,
            self._runtime.stats,
        )
        self._scope.spawn(self.disk_watch.run(), "disk")

    def _count_usage(self, store: Store, bookie_id: BookieId) -> None:
        """Begin to follow the quotas of namespaces."""
        assert self._server.limiter is not None
        self.accounting = Accounting(
            store,
            self._metadata,
            bookie_id,
            self._server.limiter,
            self._server.look_at_namespaces,
            always=self._guard is not None and self._guard.authorises,
        )
        self._scope.spawn(self.accounting.run(), "accounting")
        if self.service is not None and self.service.keys is not None:
            self.service.keys.creations = QuotasOfCreations(self._metadata, self.accounting)

    async def _open(self, address: BookieAddress) -> tuple[cookie.ClaimedDirectory, Witness, Store]:
        """Open the store, once the cookie and the witness key say that the directory is this bookie's."""
        self._address = address
        claimed = await self._retried(lambda: self._claim(address))
        runtime = self._runtime
        witness = self.witness = Witness(self._disk, self._metadata, claimed, self, runtime.rng, runtime.stats)
        known = await self._retried(lambda: witness.prepare(first_start=claimed.first_start))
        store = self.store = Store.open(self._disk, self._store_config, runtime.stats, runtime.rng, known)
        cookie.finish(self._disk, claimed)
        return claimed, witness, store

    async def stop(self) -> None:
        """Stop accepting, finish pending adds, unregister, close. Idempotent; leaves no task."""
        await self._close(graceful=True)

    @property
    def stopping(self) -> bool:
        """Return whether the bookie was told to stop."""
        return self._stopped

    def principal_of(self, token: bytes) -> Principal:
        """Return the principal of a token. Raises TokenRefused, also before the bookie knows any keys."""
        if self._guard is None:
            raise TokenRefused("this bookie knows no tokens now")
        return self._guard.verify(token).principal

    def page_refused(self, principal: Principal, path: str, why: str) -> None:
        """Note for the audit trail that a page over HTTP was refused."""
        if self._events is not None:
            self._events.refuse_page(principal, path, why)

    def file_names(self) -> list[str]:
        """Return the names in the data directory. Raises OSError."""
        return self._disk.names()

    def disk_space(self) -> Space:
        """Return the space of the data directory's device. Raises OSError."""
        return self._disk.space()

    def figures(self) -> dict[str, int]:
        """Return figures of the disk and of the check of its files, by name."""
        watching = [one for one in (self.disk_watch, self.scrub) if one is not None]
        found = {name: value for one in watching for name, value in one.figures().items()}
        with suppress(OSError):
            found[file_systems.FILE_SYSTEM_FIGURE] = file_systems.file_system_number(self._disk.identity())
        return found

    def troubles(self) -> list[Trouble]:
        """Return what is wrong with this bookie now."""
        watching = [one for one in (self.limbo_end, self.scrub, self.disk_watch) if one is not None]
        return [trouble for one in watching for trouble in one.troubles()]

    def report(self) -> bytes:
        """Return the report about this bookie for operators, encoded (`core/cluster/bookie_report.py`)."""
        doubt = self.time.moment().why
        return report_of(self, self._runtime.clock, self._store_config, self._door, self._guard, doubt).encode()

    def used_up(self, session: Session) -> dict[str, int]:
        """Return use and limit of quotas that are used up, of namespaces that the connection's principal may use."""
        guard = self._guard
        if self.accounting is None:
            return {}
        return self.accounting.used_up(lambda name: guard is None or guard.may_know(session, name))

    def identity(self) -> Identity:
        """Return the identity for clients that introduce themselves. Call it once the bookie serves."""
        assert self.info is not None
        assert self.store is not None
        wall_us, time_features = self.time.told()
        features = time_features | NAMES_LEDGERS | LACS | (METADATA if self._open_store is not None else 0)
        features |= TRACES if self._runtime.traces is not None else 0
        features |= PULLS if self._runtime.files is not None else 0
        return Identity(
            self._cluster,
            self.info.bookie_id,
            self.store.incarnation,
            wall_us=wall_us,
            highest_ledger=self.store.highest_ledger,
            epoch=self.witness.epoch if self.witness else 0,
            features=features | (SUSPECT if self.witness and self.witness.suspect else 0),
        )

    def client_introduced(self, introduction: Introduction, principal: Principal) -> None:
        """Learn which metadata epoch a client has seen. Where grants count, only administrators are believed: a high
        number makes a bookie refuse writes."""
        believed = self._guard is None or not self._guard.authorises or principal.admin
        if self.witness is not None and believed:
            self.witness.observe_epoch(introduction.epoch)

    async def _retried(self, attempt: Attempt[T]) -> T:
        """Retry while the metadata store is unavailable, for `registration.WITHIN_S` at most."""
        return await retry(
            attempt, MetadataUnavailable, REGISTRATION, within_s=registration.WITHIN_S, rng=self._runtime.rng
        )

    async def _claim(self, address: BookieAddress) -> cookie.ClaimedDirectory:
        return await cookie.claim(
            self._disk,
            self._metadata,
            self._config.bookie_id,
            str(address),
            rng=self._runtime.rng,
            clock=self._runtime.clock,
        )

    def _advertised(self, port: int) -> BookieAddress:
        if self._config.advertise:
            address = parse_address(self._config.advertise, "advertise")
            check_reachable(address.host, f"advertise = {self._config.advertise!r}")
            return BookieAddress(address.host, address.port or port)
        host = self._config.host
        return BookieAddress(check_announced(host, f"host = {host!r}", "set advertise = HOST:PORT"), port)

    async def _close(self, *, graceful: bool) -> None:
        if self._stopped:
            return
        self._stopped = True
        store = self.store
        await self._server.stop_accepting()
        if graceful and store is not None and store.failed is None:
            self._server.quiesce()
            await self._finish_commits(store)
        await self._scope.close()
        if graceful and self.witness is not None and store is not None and store.failed is None:
            try:
                await self.witness.end()
            except OSError as error:
                self._store_failed(error)
        if self._registration is not None:
            await self._registration.close(unregister=True)
        if self.service is not None:
            await self.service.close()
        await self._server.close()
        if self._guard is not None:
            await self._guard.close()
        if store is not None:
            await store.close()

    async def _finish_commits(self, store: Store) -> None:
        done = asyncio.Event()
        # After one turn of the loop the adds of this turn wait in the store; then wait until all is durable.
        await asyncio.sleep(0)
        store.after_durable(lambda error: done.set())
        try:
            async with asyncio.timeout(10.0):
                await done.wait()
        except TimeoutError:
            log.warning("the last commit did not finish within 10 s; stopping without it")
        await asyncio.sleep(0)

    def log_claim(self) -> WitnessedPosition:
        """Return how far the log is durable; before the store is open, a claim about no incarnation."""
        store = self.store
        return NO_CLAIM if store is None else WitnessedPosition(store.incarnation, store.starts, store.position)

    def contact(self) -> Contact:
        """Return where the bookie can be asked, and the highest ledger id that it knows."""
        return NO_CONTACT if self.store is None else Contact(str(self._address), self.store.highest_ledger)

    def write_in_reserve(self, write: FileWrite) -> None:
        """Run `write`; on a full disk it uses the room that the store keeps for small files. Blocking, OSError."""
        if self.store is None:
            write()
        else:
            self.store.in_reserve(write)

    def trust_changed(self) -> None:
        """Stop or resume what needs the metadata store: registration, and adds, which may need admission."""
        if self.witness is None or self.store is None:
            return
        suspect = bool(self.witness.suspect)
        self.store.suspended = suspect
        if self._registration is not None:
            self._registration.set_withdrawn(suspect or (self.wishes is not None and self.wishes.out))
        self._space_changed()

    def put_out(self, why: str) -> None:
        """Serve nothing more, on any connection: the id belongs to another incarnation, or to none."""
        if self.store is None or self.failed.done():
            return  # the start reports it
        log.error("the bookie stops: %s", why)
        self._fail(WrongCookie(why))

    def _stood_still(self) -> None:
        log.warning("the process stood still: nothing is served until the metadata store confirms whose its id is")
        self._server.doubt()
        self._scope.spawn(self._confirm_member(), "confirmation")

    async def _confirm_member(self) -> None:
        assert self.witness is not None
        await looked(self.witness, self._runtime.rng)
        if not self.witness.out:
            self._server.go_on()

    def _wishes_changed(self) -> None:
        if self.wishes is not None and self.store is not None:
            self.store.asked_readonly = self.wishes.readonly
            self.trust_changed()

    def _space_changed(self) -> None:
        if self._registration is not None and self.store is not None:
            self._registration.set_readonly(self._shown_readonly(self.store))

    def _shown_readonly(self, store: Store) -> bool:
        """Return whether the bookie is registered as read-only. In a maintenance it takes entries of its ledgers, but
        no new ensemble shall find it."""
        return not store.is_writable or (self.wishes is not None and self.wishes.resting)

    def _store_failed(self, error: BaseException) -> None:
        if self.failed.done():
            return
        log.error("the store failed, the bookie stops: %s", error)
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Serve nothing more from this moment on."""
        self.failed.set_result(error)
        self._server.abort()
        if not self._stopped:
            self._scope.spawn(self._withdraw(), "withdrawal")

    async def _withdraw(self) -> None:
        """Remove listener and registration, so that clients use other bookies; `stop` closes the rest."""
        await self._server.stop_accepting()
        if self._registration is not None:
            await self._registration.close(unregister=True)

    def _task_failed(self, error: BaseException) -> None:
        if not self.failed.done():
            self._store_failed(error)


def _told_of(store: Store) -> dict[str, str]:
    """Return the properties of every registration: the incarnation, the session (incarnation and number of the start),
    and that the bookie answers introductions."""
    session = f"{store.incarnation}.{store.starts}"
    return {INCARNATION_PROPERTY: store.incarnation, SESSION_PROPERTY: session, IDENTITY_PROPERTY: IDENTITY}

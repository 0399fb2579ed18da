"""LedgerClient: one connection to a cluster, with ledgers and nothing above them. The rooms above take this class.

Not here: `connect()` and `Client`, which programs use (`cli/cluster/commands.py`); what the handles do
(`client/write/writer.py`, `client/read/reader.py`, `client/maintain`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from buckram.client.cluster.bookies import BookieWatcher
from buckram.client.cluster.clocks import Clocks
from buckram.client.cluster.identities import Identities
from buckram.client.cluster.slow_bookies import SlowMembers
from buckram.client.cluster.store_history import StoreHistory, guarded
from buckram.client.shared import unclosed_warnings as leftover
from buckram.client.shared.arguments import custom_metadata_bytes, digest_type, password_bytes
from buckram.client.shared.encryption import EncryptionKeys
from buckram.client.shared.handles import NotBlocking, Opening
from buckram.client.shared.lagging_replicas import LaggingLedgers
from buckram.client.shared.services import Services
from buckram.config import ClientConfig, EncryptionConfig, NetConfig, TelemetryConfig, TlsConfig, load
from buckram.core.ledgers.metadata import birth_of, created
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.policy import PLACEMENT_KEY, PlacementPolicy
from buckram.core.streams.names import owner_of
from buckram.errors import (
    ForkedClient,
    HandleClosed,
    InvalidArgument,
    WrongEventLoop,
)
from buckram.metadata.default import default_uri
from buckram.metadata.records.recorded_time import read_times
from buckram.metadata.uri import open_store
from buckram.runtime.disk.neighbours import Neighbours
from buckram.runtime.net.introductions import Introductions
from buckram.runtime.net.pool import BookiePool
from buckram.runtime.net.security.logins import secured_by
from buckram.runtime.net.security.secure_network import tls_of_environment
from buckram.runtime.process.process_setup import FORKS
from buckram.runtime.process.stats import PrometheusStats
from buckram.runtime.production import production_runtime
from buckram.seams import MetadataStore, Runtime
from buckram.types import BIRTH_SIZE, MAX_LEDGER_ID, DigestType, LedgerId, LedgerMetadata

if TYPE_CHECKING:
    from buckram.client.maintain.repair_report import RepairProgress, RepairReport
    from buckram.client.read.reader import Reader
    from buckram.client.write.engine import LedgerAppender
    from buckram.client.write.writer import Writer
    from buckram.runtime.telemetry.telemetry import Telemetry

C = TypeVar("C", bound="LedgerClient")


def connecting(
    make: type[C],
    metadata: str | MetadataStore | None,
    *,
    config: ClientConfig | None = None,
    net: NetConfig | None = None,
    tls: TlsConfig | None = None,
    token: str = "",
    encryption: EncryptionConfig | None = None,
    telemetry: TelemetryConfig | None = None,
    runtime: Runtime | None = None,
) -> Opening[C]:
    """Connect a client of the class `make`. `connect()` in `cli/cluster/commands.py` says what the arguments mean."""

    async def start() -> C:
        settings, network = config or client_config(), net or _net_config()
        world = runtime or replace(production_runtime(), files=Neighbours())
        sending = _telemetry(telemetry or load("telemetry", environment=os.environ)[0], world)
        if sending is not None:
            world = replace(world, traces=sending.traces, stats=sending.stats)
        try:
            return await opened(world, settings, network, sending)
        except BaseException:
            if sending is not None:
                await sending.close()
            raise

    async def opened(world: Runtime, settings: ClientConfig, network: NetConfig, sending: Telemetry | None) -> C:
        owned = None
        store = metadata if metadata is not None else default_uri(os.environ, Path.cwd())
        uri = store if isinstance(store, str) else ""
        world = secured_world(world, uri, tls, token)
        if isinstance(store, str):
            store = owned = await open_store(store, world)
        keys = EncryptionKeys(encryption or load("encryption", environment=os.environ)[0])
        client = make(world, store, settings, network, owned=owned, uri=uri, encryption=keys, telemetry=sending)
        try:
            await client.services.identities.start()
            await client.services.bookies.start()
        except BaseException:
            await client.close()
            raise
        if sending is not None:
            sending.start()
        return client

    return Opening(start, "connect()")


def secured_world(world: Runtime, uri: str, tls: TlsConfig | None = None, token: str = "") -> Runtime:
    """Return the world for connections to this metadata: with the TLS and the token that apply there. Raises
    ConfigError."""
    secured = tls
    if uri.lower().startswith("buckram+tls:"):  # Bookies are spoken to through TLS as well, and no token goes in clear.
        secured = replace(tls or tls_of_environment(os.environ), mode="required")
    return replace(world, network=secured_by(os.environ, world.network, tls=secured, token=token))


def _telemetry(config: TelemetryConfig, world: Runtime) -> Telemetry | None:
    """Return the sender of traces and metrics of a client; None without an endpoint. Raises ConfigError without the
    extra."""
    if not config.endpoint:
        return None
    from buckram.runtime.telemetry.telemetry import Telemetry

    return Telemetry(config, "buckram-client", stats=world.stats if isinstance(world.stats, PrometheusStats) else None)


def client_config() -> ClientConfig:
    """Return the settings of a client that was given none: defaults and what the environment changes. ConfigError."""
    found: ClientConfig = load("client", environment=os.environ)[0]
    return found


def _net_config() -> NetConfig:
    found: NetConfig = load("net", environment=os.environ)[0]
    return found


class LedgerClient(NotBlocking):
    """One connection to a cluster, shared by all its handles; programs get a `Client` from connect().

    Belongs to one event loop and one process. `async with` or close(). Errors of every call: InvalidArgument,
    ForkedClient (in a child process), WrongEventLoop (in another asyncio.run), HandleClosed (after close()),
    MetadataUnavailable, StoreReplaced, WrongCluster, MalformedRecord (the metadata store holds what does not parse).
    InvariantViolation is a bug: please report it.
    """

    def __init__(
        self,
        runtime: Runtime,
        store: MetadataStore,
        config: ClientConfig,
        net: NetConfig,
        *,
        owned: MetadataStore | None = None,
        uri: str = "",
        encryption: EncryptionKeys | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry
        bookies = BookieWatcher(runtime, store, config)
        past = StoreHistory(store)
        identities = Identities(store, bookies, past)
        clocks = Clocks(runtime, bookies, identities, partial(read_times, store), config.believe_clock_after_s)
        identities.clocks = clocks
        introductions = Introductions(identities)
        pool = BookiePool(
            runtime, net, bookies.resolve, wire_protocol=config.wire_protocol, introductions=introductions
        )
        clocks.pool = pool
        bookies.on_change(lambda change: pool.review())
        self.services = Services(
            runtime,
            config,
            net,
            guarded(store, past),
            bookies,
            identities,
            pool,
            self._guard,
            clocks,
            LaggingLedgers(bookies),
            SlowMembers(runtime, store, bookies, config),
            encryption=encryption or EncryptionKeys(),
            check_loop=self._check_loop,
        )
        pool.on_lac = self.services.lacs.answered
        bookies.on_change(self.services.forget_changed)
        self._owned = owned
        self.uri = uri
        """The URI of the cluster's metadata; empty if the caller passed an open store."""
        self._process, self._forks = os.getpid(), FORKS.count
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = asyncio._get_running_loop()
        self._handles = self.services.handles

    def __repr__(self) -> str:
        store = self.uri or getattr(self.services.store, "uri", "a store of the caller")
        return f"<{type(self).__name__} {store} {'closed' if self._closed else 'open'}>"

    # -- writing ------------------------------------------------------------------------------------------

    def create(
        self,
        *,
        ensemble: int | str | Sequence[int] = (3, 3, 2),
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: str | DigestType = DigestType.CRC32C,
        password: bytes | str = b"",
        custom_metadata: Mapping[str, bytes | str] | None = None,
        ledger_id: LedgerId | None = None,
        explicit_ids: bool = False,
        deferred_sync: bool = False,
        degraded: bool = True,
        placement: str | None = None,
        encrypt: bool = False,
    ) -> Opening[Writer]:
        """Create a ledger and return its writer: `await client.create()` or `async with client.create() as writer`.

        `ensemble` is E, "E/Qw/Qa" or (E, Qw, Qa); `write_quorum` and `ack_quorum` override parts of it. `digest` is
        crc32c, crc32, mac or dummy. Without `ledger_id` the metadata store chooses an id. With `degraded`, up to
        Qw - Qa known bookies that are away may be members as long as every write set has Qa live ones: entries get
        fewer copies until they return, and `writer.degraded` says so (never with deferred sync). With `deferred_sync`
        entries are acknowledged before they are synced and are durable after `writer.force()`. `placement` replaces
        the client's setting for this ledger; the record keeps it, so that ensemble changes, recovery and repair follow
        it. Entries are encrypted where there is a key for the ledger's namespace; `encrypt`: refuse to write without
        one (ConfigError). Errors: NotEnoughBookies, LedgerExists (the id is taken), LedgerIdUsed (a ledger of this id
        was deleted), LedgerIdRefused (where grants are, the cluster gives ids), LedgerIdsExhausted, QuotaExceeded (the
        namespace has as many ledgers as it may), ReplicationRefused (the side of its namespace in another cluster was
        promoted).
        """
        # What only some commands do is imported when they do it: a command is to start quickly.
        from buckram.client.write.create import check_side, choose_members, register
        from buckram.client.write.engine import LedgerAppender
        from buckram.client.write.writer import Writer

        quorum = Quorum.parse(ensemble)
        if write_quorum is not None or ack_quorum is not None:
            width = write_quorum if write_quorum is not None else quorum.write_quorum
            quorum = Quorum(
                quorum.ensemble_size, width, ack_quorum if ack_quorum is not None else min(quorum.ack_quorum, width)
            )
        kind = digest_type(digest)
        secret = password_bytes(password)
        custom = custom_metadata_bytes(custom_metadata)
        policy = None if placement is None else PlacementPolicy.parse(placement)
        if policy is not None:
            custom = {**custom, PLACEMENT_KEY: str(policy).encode()}
        if ledger_id is not None and (type(ledger_id) is not int or not 0 <= ledger_id <= MAX_LEDGER_ID):
            raise InvalidArgument(f"ledger id {ledger_id!r}: needs an int from 0 to 2**63-1")

        async def start() -> Writer:
            self._guard()
            services = self.services
            # Under deferred sync no change brings a member back, and a force waits for all of them.
            found = await choose_members(services, quorum, policy=policy, degraded=degraded and not deferred_sync)
            sealing = await services.encryption.sealing(custom, required=encrypt)
            record = created(
                quorum.ensemble_size,
                quorum.write_quorum,
                quorum.ack_quorum,
                found.members,
                digest_type=kind,
                password=secret,
                custom_metadata={**custom, **sealing.mark},
                creation_time_ms=services.clocks.now() // 1000,
                creator_token=services.runtime.rng.randrange(1, 2**63 - 1),
                birth=services.runtime.rng.getrandbits(8 * BIRTH_SIZE).to_bytes(BIRTH_SIZE, "big"),
            )
            chosen, current = await register(services, ledger_id, record)
            await check_side(services, chosen, current)
            self._guard()
            key = object()

            def closed(engine: LedgerAppender) -> None:
                leftover.deregister_unclosed(key)
                self._forget(engine)

            engine = LedgerAppender(
                services,
                chosen,
                current,
                password=secret,
                explicit_ids=explicit_ids,
                deferred_sync=deferred_sync,
                absent=found.absent,
                cipher=sealing.cipher(birth_of(current.metadata)),
                on_closed=closed,
            )
            self._handles[id(engine)] = engine.abandon
            if self.uri and owner_of(custom) is None:  # the writer of a stream ends the ledgers of its segments
                seal = partial(_close_left, self.uri, chosen, birth_of(current.metadata), secret)
                later = f"who recovers it (`buckram ledger recover {chosen}`)"
                leftover.register_unclosed(key, engine, seal, what=f"ledger {chosen}", later=later)
            return Writer(engine)

        return Opening(start, "client.create()")

    # -- reading, ending, repairing -----------------------------------------------------------------------------------

    def open(
        self, ledger_id: LedgerId, *, password: bytes | str = b"", digest: str | DigestType | None = None
    ) -> Opening[Reader]:
        """Open a ledger for reading as it is, without fencing or writing: `await client.open(id)` or `async with`.

        The metadata name the digest; pass `digest` only for old records that do not. Errors: NoSuchLedger,
        Unauthorized, LoginRequired (the bookies ask for a login, and there is no token), EncryptionKeyMissing,
        ReadFailed (too few bookies of an open ledger answer).
        """
        from buckram.client.read.open import open_ledger

        secret, kind = password_bytes(password), None if digest is None else digest_type(digest)
        return Opening(
            lambda: self._reader(
                open_ledger(self.services, ledger_id, password=secret, digest=kind, on_closed=self._forget)
            ),
            "client.open()",
        )

    def recover(
        self, ledger_id: LedgerId, *, password: bytes | str = b"", digest: str | DigestType | None = None
    ) -> Opening[Reader]:
        """Fence the ledger's writer, close the ledger and return a reader of it. A closed ledger is just opened.

        Errors: NoSuchLedger, Unauthorized and EncryptionKeyMissing (nothing was fenced or written), RecoveryFailed (too
        few bookies, try later).
        """
        from buckram.client.maintain.recover import recover_ledger

        secret, kind = password_bytes(password), None if digest is None else digest_type(digest)
        return Opening(
            lambda: self._reader(
                recover_ledger(self.services, ledger_id, password=secret, digest=kind, on_closed=self._forget)
            ),
            "client.recover()",
        )

    async def _reader(self, opening: Coroutine[Any, Any, Reader]) -> Reader:
        reader = await opening
        if self._closed:
            await reader.close()
            self._guard()
        self._handles[id(reader)] = reader.close
        return reader

    async def delete(
        self,
        ledger_id: LedgerId,
        *,
        password: bytes | str = b"",
        digest: str | DigestType | None = None,
        force: bool = False,
    ) -> bool:
        """Delete a ledger; one that is not closed is recovered first. With `force` it is deleted even if that fails.

        Returns False if it could not be recovered: then its writer may go on until its bookies collect the ledger.
        Errors: NoSuchLedger, Unauthorized, RecoveryFailed (not with `force`), LedgerOfStream (the ledger belongs to a
        stream: truncate or delete the stream instead).
        """
        from buckram.client.maintain.delete import delete_ledger

        kind = None if digest is None else digest_type(digest)
        return await delete_ledger(
            self.services, ledger_id, password=password_bytes(password), digest=kind, force=force
        )

    def list(self) -> AsyncIterator[LedgerId]:
        """Iterate over all ledger ids, ascending: `async for ledger_id in client.list()`."""
        from buckram.client.read.open import list_ledgers

        return list_ledgers(self.services)

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Read a ledger's metadata from the metadata store. NoSuchLedger if there is none."""
        from buckram.client.read.open import check_ledger_id

        self._guard()
        return (await self.services.store.read_ledger(check_ledger_id(ledger_id))).metadata

    async def repair(
        self,
        ledger_id: LedgerId,
        *,
        password: bytes | str = b"",
        digest: str | DigestType | None = None,
        progress: RepairProgress | None = None,
        move: bool = False,
    ) -> RepairReport:
        """Copy missing or bad entries from good replicas and return a report of what was done.

        Where a bookie is gone, another takes its place. With `move`, members that break the ledger's placement are
        replaced, too. The report also lists what could not be repaired. Errors: NoSuchLedger, Unauthorized,
        MetadataUnavailable.
        """
        from buckram.client.maintain.repair import repair_ledger

        kind = None if digest is None else digest_type(digest)
        return await repair_ledger(
            self.services, ledger_id, password=password_bytes(password), digest=kind, progress=progress, move=move
        )

    # -- the end ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close all handles and connections, and the metadata store if this client opened it.

        Writers that are still open do not seal their ledgers. Bookies that lag behind first receive what sealed ledgers
        still have for them; one that hangs is given up after `request_timeout_s`.
        """
        if not self._closed:
            self._check_loop()
        self._closed = True
        # Each step may be repeated: a close that was cancelled is finished by the next.
        for stop in list(self._handles.values()):
            await stop()
        loop = asyncio.get_running_loop()
        until = loop.time() + self.services.net.request_timeout_s
        for copies in list(self.services.pending_copies):
            await copies.wait(max(0.0, until - loop.time()))
        self.services.clocks.close()
        await self.services.lagging.close()
        await self.services.slow.close()
        await self.services.identities.close()
        await self.services.bookies.close()
        await self.services.pool.close()
        if self._owned is not None:
            await self._owned.close()
        if self._telemetry is not None:
            await self._telemetry.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _forget(self, handle: object) -> None:
        self.services.forget(handle)

    def _guard(self) -> None:
        if FORKS.count != self._forks:
            raise ForkedClient(
                f"this client was connected in process {self._process}, this is its child {os.getpid()}: "
                "a fork shares sockets, so connect again here"
            )
        if self._closed:
            raise HandleClosed("the client is closed; connect again")
        if asyncio._get_running_loop() is not self._loop:
            self._check_loop()

    def _check_loop(self) -> None:
        """Raise WrongEventLoop in another loop than the one of `connect`, whose connections do not work in this one."""
        loop: asyncio.AbstractEventLoop | None = self._loop
        running: asyncio.AbstractEventLoop | None = asyncio._get_running_loop()
        if loop is not None and loop is not running and (running is not None or loop.is_closed()):
            raise WrongEventLoop(ended=loop.is_closed())


async def _close_left(uri: str, ledger_id: LedgerId, birth: bytes, password: bytes) -> None:
    """End the ledger of a writer whose loop ended before it was closed, with what its bookies hold."""
    async with connecting(LedgerClient, uri) as client:
        metadata = await client.metadata(ledger_id)
        if not metadata.closed and birth_of(metadata) == birth:
            await (await client.recover(ledger_id, password=password)).close()

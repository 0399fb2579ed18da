"""What one may do at a bookie is decided by its effect: each operation of its protocols and of its metadata service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import combinations
from pathlib import Path

import pytest
from tests.bookie.service.security.test_entry_access import AUTH, client_of, grant, prepared
from tests.support.bookie_kit import KEY, Wire, stored
from tests.support.secure_kit import Guarded, guarded

from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.bookie.service.metadata.ledger_requests import OF_IDS, OF_NOBODY
from buckram.core.entries.entry import Digest
from buckram.core.ledgers.metadata import created
from buckram.core.security.key_access import KeyUse
from buckram.core.security.namespace_rules import LEDGER_NAMESPACE
from buckram.core.security.required_permissions import FENCING, OF_KEYS, OF_OPERATIONS, Effect, KeyContents, lacking
from buckram.core.tenants.audit_trail import REFUSED, AuditEvent
from buckram.core.wire import bookkeeper_pb2 as pb
from buckram.core.wire import messages as wire_context
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.messages import (
    Add,
    Auth,
    BatchRead,
    Force,
    GetBookieInfo,
    ListEntries,
    Read,
    ReadLac,
    Request,
    StartTls,
    WriteLac,
)
from buckram.errors import BuckramError, Code
from buckram.metadata.service import packets
from buckram.metadata.service.packets import KeyRequest, Refusal, RequestKind
from buckram.runtime.net.security.logins import TOKEN_PLUGIN
from buckram.runtime.process.stats import NullStats
from buckram.runtime.production import production_runtime
from buckram.types import Create, Delete, DigestType, SetValue

SUBSETS = [set(some) for size in range(5) for some in combinations(("read", "append", "delete", "create"), size)]
NOT_OF_V3 = {"RANGE_READ_ENTRY", "RANGE_ADD_ENTRY"}
"""Operations of the enumeration of v3 that nobody implements: they are BAD_REQUEST to whomever."""
DIGEST = Digest(DigestType.CRC32C, b"secret")


@pytest.fixture(autouse=True)
def no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through them the tests' user would be an administrator."""
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")


# -- each operation has a row ------------------------------------------------------------------------------------------


def test_each_operation_of_both_protocols_has_an_effect() -> None:
    numbers = {name: value for name, value in vars(wire_context).items() if name.startswith("OP_")}
    assert set(OF_OPERATIONS) == set(numbers.values()), "what does it do to which ledger? Give it a row in effects.py"
    assert set(wire_v2._OPERATION.values()) | set(wire_v3._OPERATION_OF.values()) <= set(OF_OPERATIONS)
    for name, number in pb.OperationType.items():
        assert number in OF_OPERATIONS or name in NOT_OF_V3, name


def test_each_request_about_metadata_has_a_use() -> None:
    """Those of OF_IDS use the root of all ledgers, those of OF_NOBODY nothing, and the others the key they name."""
    by_key = {
        RequestKind.GET,
        RequestKind.CHILDREN,
        RequestKind.VALUES,
        RequestKind.CHANGE,
        RequestKind.LEDGER_CREATE,
        RequestKind.REMOVED,
    }
    of_session = {RequestKind.HELLO, RequestKind.PING, RequestKind.SYNC, RequestKind.CLOSE, RequestKind.INSTANCE_ID}
    assert set(packets._REQUESTS) == {*OF_IDS, *OF_NOBODY, *by_key, *of_session}
    assert set(OF_KEYS) == set(KeyContents)


# -- entries -----------------------------------------------------------------------------------------------------------


async def logged_in(running: Guarded, protocol: int, token: str) -> Wire:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", running.port), protocol)
    reply = await wire.call(Auth(TOKEN_PLUGIN, token.encode()))
    assert reply.code is Code.OK
    return wire


def asked(protocol: int, ledger: int, birth: bytes) -> Mapping[str, tuple[Request, Effect]]:
    """What is tried with a ledger, and which effect it has."""
    both: dict[str, tuple[Request, Effect]] = {
        "read": (Read(ledger, 0), Effect.READ),
        "read the last": (Read(ledger, -1), Effect.READ),
        "fence": (Read(ledger, -1, True, KEY), FENCING),
        "add": (Add(ledger, 1, KEY, stored(ledger, 1)), Effect.ADD),
        "add again": (Add(ledger, 0, KEY, stored(ledger, 0)), Effect.ADD),
        "add for recovery": (Add(ledger, 1, KEY, stored(ledger, 1), recovery=True), Effect.ADD),
        "add urgently": (Add(ledger, 1, KEY, stored(ledger, 1), high_priority=True), Effect.ADD),
    }
    if protocol == 2:
        return both | {
            "batch": (BatchRead(ledger, 0, 5, 1000), Effect.READ),
            "batch that fences": (BatchRead(ledger, 0, 5, 1000, True, KEY), FENCING),
            "places": (BatchRead(ledger, 0, 5, 1, master_key=KEY, framed=True, located=True), Effect.READ),
        }
    return both | {
        "long poll": (Read(ledger, -1, previous_lac=-1, timeout_ms=1), Effect.READ),
        "long poll that fences": (Read(ledger, -1, True, KEY, previous_lac=-1, timeout_ms=1), FENCING),
        "explicit LAC": (WriteLac(ledger, 0, KEY, DIGEST.seal_lac(ledger, 0)), Effect.ADD),
        "LAC": (ReadLac(ledger), Effect.READ),
        "sync": (Force(ledger), Effect.ADD),
        "list": (ListEntries(ledger), Effect.LIST),
        "space": (GetBookieInfo(), Effect.LIST),
        "tls": (StartTls(), Effect.LIST),
    }


OF_NO_LEDGER = {"space", "tls"}


@pytest.mark.parametrize("protocol", [2, 3])
async def test_entries(tmp_path: Path, protocol: int) -> None:
    """Each operation with each set of permissions, on a ledger of its own; what is refused changes nothing."""
    log = AuditLog(production_runtime().clock, NullStats())
    log._refusals._first = 10_000
    async with guarded(tmp_path, auth=AUTH, events=log) as running:
        root = await logged_in(running, 2, await running.token("root", "admin"))
        for granted in SUBSETS:
            await grant(running, "token:ann", "shop", granted)
            wire = await logged_in(running, protocol, await running.token("ann"))
            for what in asked(protocol, 0, b""):
                ledger = await new_ledger(running, root)
                log.written(log.batch(10_000))
                request, effect = asked(protocol, ledger, b"")[what]
                reply = await wire.call(request)
                allowed = what in OF_NO_LEDGER or not lacking(effect, granted)
                assert (reply.code is Code.UNAUTHORIZED) == (not allowed), f"{what} with {sorted(granted)}: {reply}"
                assert [one.what for one in refused(log)] == ([] if allowed else [f"ledger {ledger}"]), what
                if not allowed:
                    kept = await root.call(Read(ledger, -1))
                    assert (kept.code, kept.body) == (Code.OK, stored(ledger, 0)), what
                    assert (await root.call(Add(ledger, 1, KEY, stored(ledger, 1)))).code is Code.OK, what
            await wire.close()
        await root.close()


def refused(log: AuditLog) -> list[AuditEvent]:
    return [event for event in log.batch(10_000) if event.result == REFUSED]


async def new_ledger(running: Guarded, root: Wire) -> int:
    """A ledger of namespace `shop` with one entry."""
    ledger = await running.store.allocate_ledger_id()
    assert running.bookie.info is not None
    metadata = created(
        1,
        1,
        1,
        (running.bookie.info.bookie_id,),
        password=b"secret",
        custom_metadata={LEDGER_NAMESPACE: b"shop"},
        birth=ledger.to_bytes(16),
        creator_token=1,
    )
    await running.store.create_ledger(ledger, metadata)
    assert (await root.call(Add(ledger, 0, KEY, stored(ledger, 0)))).code is Code.OK
    return ledger


# -- the metadata service ----------------------------------------------------------------------------------------------


REFUSED_STATUS = 10
"""Of AccessRefused (`metadata/service/error_codec.py`)."""


class Keys:
    """A metadata session by packets."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self._next = wire, 1

    async def ask(self, request: KeyRequest) -> bool:
        """Whether it is allowed: carried out, or not for the state of things."""
        self._next += 1
        self._wire.writer.write(packets.encode_request(self._next, request))
        _, reply = packets.decode_reply(await self._wire.frame())
        return not (isinstance(reply, Refusal) and reply.status == REFUSED_STATUS)


@asynccontextmanager
async def metadata_session(running: Guarded, token: str) -> AsyncIterator[Keys]:
    wire = await logged_in(running, 2, token)
    keys = Keys(wire)
    assert await keys.ask(KeyRequest(RequestKind.HELLO, number=10_000))
    yield keys
    await wire.close()


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[tuple[Guarded, Mapping[KeyContents, str]]]:
    """A bookie with stream shop/orders, and a key of each kind."""
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        async with client_of(running, "root", "admin") as admin:
            (segment,) = [one async for one in admin.namespace("shop").segments("orders")]
            uid = (await admin.namespace("shop").info("orders")).uid
        own, record = running.store.own, await running.store.ledgers.key(segment.ledger)
        data = f"{own}/streams/data/{uid}"
        await running.store.keys.create(f"{record}/{uid}", b"shop/orders")
        yield (
            running,
            {
                KeyContents.LEDGER: record,
                KeyContents.NAMESPACE: f"{own}/streams/namespaces/shop",
                KeyContents.QUOTA: f"{own}/tenants/quotas/shop",
                KeyContents.STREAMS: f"{own}/streams/heads/shop",
                KeyContents.HEAD: f"{own}/streams/heads/shop/orders",
                KeyContents.SHARE: f"{record}/{uid}",  # behind the head, which says whose uid it is
                KeyContents.DATA: f"{data}/replicas/1",
                KeyContents.DATA_ROOT: data,
                KeyContents.CURSOR: f"{data}/cursors/c",
            },
        )


def of_key(kept: KeyContents, use: KeyUse, key: str, value: bytes) -> KeyRequest:
    """A request that makes this use of a key, and that is not carried out for the state of things where it can be."""
    old = 99
    match use:
        case KeyUse.READ:
            return KeyRequest(RequestKind.GET, key)
        case KeyUse.LIST:
            return KeyRequest(RequestKind.CHILDREN, key, limit=10)
        case KeyUse.CREATE:
            return KeyRequest(RequestKind.CHANGE, ops=(Create(key, value, kept is KeyContents.DATA),))
        case KeyUse.SET:
            return KeyRequest(RequestKind.CHANGE, ops=(SetValue(key, value, old),))
    return KeyRequest(RequestKind.CHANGE, ops=(Delete(key, old),))


@pytest.mark.parametrize("granted", SUBSETS, ids=lambda some: "+".join(sorted(some)) or "nothing")
async def test_keys(shop: tuple[Guarded, Mapping[KeyContents, str]], granted: set[str]) -> None:
    running, places = shop
    assert set(places) == set(KeyContents)
    await grant(running, "token:ann", "shop", granted)
    kinds = (KeyContents.LEDGER, KeyContents.HEAD, KeyContents.NAMESPACE, KeyContents.SHARE)
    values = {kept: (await running.store.keys.get(places[kept])).value for kept in kinds}
    async with metadata_session(running, await running.token("ann")) as keys:
        await keys.ask(KeyRequest(RequestKind.GET, places[KeyContents.HEAD]))
        for kept, key in places.items():
            for use in KeyUse:
                if (kept, use) == (KeyContents.LEDGER, KeyUse.CREATE):
                    request = KeyRequest(RequestKind.LEDGER_CREATE, number=4711, value=values[kept])
                elif (kept, use) == (KeyContents.SHARE, KeyUse.CREATE):
                    continue  # takes what the holder and the ledger's own stream take: tests/core/security
                elif (kept, use) == (KeyContents.DATA_ROOT, KeyUse.DELETE):
                    continue  # stays as long as the stream, whoever asks: tests/security/test_gate_uids.py
                else:
                    request = of_key(kept, use, key, values.get(kept, b"{}"))
                effect = OF_KEYS[kept].get(use)
                wanted = effect is not None and not lacking(effect, granted)
                assert await keys.ask(request) == wanted, f"{use.value} {kept.name} with {sorted(granted)}"


@pytest.mark.parametrize("granted", SUBSETS, ids=lambda some: "+".join(sorted(some)) or "nothing")
async def test_ids(shop: tuple[Guarded, Mapping[KeyContents, str]], granted: set[str]) -> None:
    """Whoever was granted anything may have an id for a new ledger; what there is, and which ids, is for operators."""
    running, places = shop
    await grant(running, "token:ann", "shop", granted)
    async with metadata_session(running, await running.token("ann")) as keys:
        for kind, use in OF_IDS.items():
            allowed = bool(granted) and use in (KeyUse.CREATE, KeyUse.READ)
            assert await keys.ask(KeyRequest(kind, number=0, limit=10)) == allowed, kind
        for kind in (*OF_NOBODY, RequestKind.PING, RequestKind.SYNC, RequestKind.INSTANCE_ID):
            assert await keys.ask(KeyRequest(kind, number=7)), kind
        assert await keys.ask(KeyRequest(RequestKind.VALUES, places[KeyContents.STREAMS], limit=10)) == (
            "read" in granted
        )
        assert await keys.ask(KeyRequest(RequestKind.REMOVED, places[KeyContents.LEDGER])) == ("delete" in granted)
        assert await keys.ask(KeyRequest(RequestKind.CLOSE))


OF_LOGS = [{"append"}, {"read", "append"}, {"read", "delete"}, {"read", "append", "delete"}]


@pytest.mark.parametrize("granted", OF_LOGS, ids=lambda some: "+".join(sorted(some)))
async def test_objects_by_their_log(tmp_path: Path, granted: set[str]) -> None:
    """Whoever writes the log of all names himself can replace and remove each of them, so adding takes as much."""
    async with guarded(tmp_path, auth=AUTH) as running:
        async with client_of(running, "root", "admin") as admin:
            await admin.namespaces.create("shop", ensemble="1/1/1")
            async with admin.objects("shop") as objects:
                await objects.put("there", b"old")
            log = admin.namespace("shop")
            (segment,) = [one async for one in log.segments("buckram.objects")]
        await grant(running, "token:ann", "shop", granted)
        wire = await logged_in(running, 2, await running.token("ann"))
        fence = await wire.call(Read(segment.ledger, -1, True, KEY))
        may_write = not lacking(Effect.REPLACE, granted)
        assert may_write or fence.code is Code.UNAUTHORIZED
        assert ((await wire.call(Read(segment.ledger, 0))).code is Code.OK) == ("read" in granted)
        await wire.close()
        async with client_of(running, "ann") as ann:
            for asked in (lambda one: one.put("new", b"x"), lambda one: one.delete("there")):
                allowed = may_write and "read" in granted
                try:
                    async with asyncio.timeout(30 if allowed else 1), ann.objects("shop") as objects:
                        await asked(objects)
                    assert allowed
                except (BuckramError, TimeoutError):
                    assert not allowed
        async with client_of(running, "root", "admin") as admin, admin.objects("shop") as objects:
            names = [one.name for one in await objects.list()]
            assert names == (["new"] if may_write and "read" in granted else ["there"])

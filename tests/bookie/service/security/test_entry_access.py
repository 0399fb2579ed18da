"""Authorisation on a bookie: each operation with all it needs, and without each part of that; tenants side by side."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.bookie_kit import CONFIG, memory_metadata
from tests.support.polling import until
from tests.support.secure_kit import Guarded, guarded

from buckram import connect
from buckram.bookie.service.connections.memory_budget import Budget
from buckram.bookie.service.connections.session import Session
from buckram.bookie.service.security.entry_access import READ, ConnectionAccess, EntryAccess, bits
from buckram.bookie.service.security.ledger_owners import Owner, Owners
from buckram.bookie.service.server import BookieServer
from buckram.cluster import Client
from buckram.config import AuthConfig, ClientConfig, NetConfig
from buckram.core.ledgers.metadata import created
from buckram.core.ledgers.metadata_codec import serialise
from buckram.core.security.acl import PERMISSIONS, Acl
from buckram.core.security.principal import Principal
from buckram.core.streams.metadata.head import Head, encode_head
from buckram.core.wire.adds import AddRun
from buckram.core.wire.messages import (
    OP_BATCH_READ,
    OP_FORCE,
    OP_LIST_ENTRIES,
    OP_READ,
    OP_READ_LAC,
    OP_WRITE_LAC,
    BatchRead,
    Force,
    ListEntries,
    Read,
    ReadLac,
    ReplyContext,
    WriteLac,
)
from buckram.core.wire.server_protocol import Incoming, Item, ServerProtocol
from buckram.errors import AccessRefused, BuckramError, Code
from buckram.runtime.production import production_runtime
from buckram.types import Create, SetValue

AUTH = AuthConfig(logins="token", authorisation="on")
NET = NetConfig()
QUIET = ClientConfig(local_read_bytes=0, idle_lac_ms=0)


@pytest.fixture(autouse=True)
def no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through them the tests' user would be an administrator."""
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")


@asynccontextmanager
async def client_of(running: Guarded, subject: str, *roles: str) -> AsyncIterator[Client]:
    token = await running.token(subject, *roles)
    async with connect(running.service, token=token, config=QUIET) as client:
        yield client


async def grant(running: Guarded, who: str, namespace: str, permissions: set[str]) -> None:
    """Exactly these permissions, in force when it returns."""

    def exactly(acl: object) -> object:
        return acl.revoking(who, namespace, PERMISSIONS).granting(who, namespace, permissions)  # type: ignore[attr-defined]

    await running.security.change_acl(exactly)
    guard = running.bookie._guard
    assert guard is not None
    wanted = await running.security.acl()
    await until(lambda: guard.state.acl == wanted)


async def prepared(running: Guarded) -> None:
    """Namespaces `shop` and `other` with a stream of three records, and a ledger of `shop`."""
    async with client_of(running, "root", "admin") as admin:
        for name in ("shop", "other"):
            await admin.namespaces.create(name, ensemble="1/1/1")
            async with admin.namespace(name).writer("orders") as writer:
                for number in range(3):
                    await writer.append(b"%d" % number)


async def append(client: Client, namespace: str) -> None:
    async with client.namespace(namespace).writer("orders") as writer:
        await writer.append(b"more")


async def read(client: Client, namespace: str) -> None:
    assert (await client.namespace(namespace).get("orders", 1)).value == b"1"


async def create_stream(client: Client, namespace: str) -> None:
    await client.namespace(namespace).create("another")


async def delete_stream(client: Client, namespace: str) -> None:
    await client.namespace(namespace).delete("orders")


async def change_policy(client: Client, namespace: str) -> None:
    await client.namespaces.set(namespace, retention_s=60)


NEEDS: dict[Callable[[Client, str], Awaitable[None]], set[str]] = {
    read: {"read"},
    append: {"read", "append"},
    create_stream: {"read", "create"},
    delete_stream: {"read", "append", "delete"},
    change_policy: {"admin"},
}
ON_STREAM = {
    read: ("orders", {"read"}),
    append: ("orders", {"read", "append"}),
    create_stream: ("another", {"read", "create"}),
    delete_stream: ("orders", {"read", "append", "delete"}),
}
"""What the operation needs where only a stream was granted."""


@pytest.mark.parametrize("operation", list(NEEDS), ids=lambda operation: operation.__name__)
async def test_an_operation_needs_its_permissions_and_no_other(
    tmp_path: Path, operation: Callable[[Client, str], Awaitable[None]]
) -> None:
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        for missing in sorted(NEEDS[operation]):
            given = set(PERMISSIONS) - {missing} - {"admin"}
            await grant(running, "token:alice", "shop", given)
            async with client_of(running, "alice") as client:
                with pytest.raises(BuckramError) as error:
                    async with asyncio.timeout(20):
                        await operation(client, "shop")
                assert "may not" in f"{error.value}{error.value.__cause__}" or missing != "append", error.value
        await grant(running, "token:alice", "shop", NEEDS[operation])
        async with client_of(running, "alice") as client:
            with pytest.raises(AccessRefused):
                await operation(client, "other")
            await operation(client, "shop")


@pytest.mark.parametrize("operation", list(ON_STREAM), ids=lambda operation: operation.__name__)
async def test_a_grant_on_a_stream_is_enough_for_it_and_for_no_other(
    tmp_path: Path, operation: Callable[[Client, str], Awaitable[None]]
) -> None:
    stream, needed = ON_STREAM[operation]
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        for missing in sorted(needed):
            await grant(running, "token:alice", f"shop/{stream}", set(PERMISSIONS) - {missing, "admin"})
            async with client_of(running, "alice") as client:
                with pytest.raises(BuckramError):
                    async with asyncio.timeout(20):
                        await operation(client, "shop")
        await grant(running, "token:alice", f"shop/{stream}", needed)
        async with client_of(running, "alice") as client:
            with pytest.raises(AccessRefused):
                await operation(client, "other")
            with pytest.raises(BuckramError):
                await change_policy(client, "shop")
            await operation(client, "shop")


async def test_who_may_use_one_stream_sees_and_reads_no_other(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        bookie = running.bookie.info
        assert bookie is not None
        async with client_of(running, "root", "admin") as admin:
            async with admin.namespace("shop").writer("bills") as writer:
                await writer.append(b"secret")
            (row,) = [row async for row in admin.namespace("shop").segments("bills")]
        await grant(running, "token:alice", "shop/orders", {"read", "append", "create", "delete"})
        async with client_of(running, "alice") as alice:
            shop = alice.namespace("shop")
            assert await shop.list() == ["orders"]
            await read(alice, "shop")
            with pytest.raises(AccessRefused):
                await shop.get("bills", 0)
            for request in (Read(row.ledger, 0), Read(row.ledger, -1, True, KEY), ReadLac(row.ledger)):
                reply = await alice.services.pool.call(bookie.bookie_id, request)
                assert reply.code is Code.UNAUTHORIZED, request
            with pytest.raises(AccessRefused):
                await alice.services.store.read_ledger(row.ledger)
            head = await running.store.keys.get(f"{running.store.own}/streams/heads/shop/bills")
            with pytest.raises(AccessRefused):
                await alice.services.store.keys.set(
                    f"{running.store.own}/streams/heads/shop/orders", head.value, head.version
                )


async def test_a_new_grant_counts_on_open_connections_and_so_does_its_end(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        async with client_of(running, "alice") as client:
            with pytest.raises(AccessRefused):
                await read(client, "shop")
            await grant(running, "token:alice", "shop", {"read"})
            await read(client, "shop")
            await grant(running, "token:alice", "shop", {"create"})
            with pytest.raises(BuckramError):
                await read(client, "shop")


async def test_requests_about_entries_are_judged_by_the_ledgers_namespace(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        async with client_of(running, "root", "admin") as admin:
            custom = {"buckram.namespace": b"shop"}
            async with admin.create(ensemble=1, custom_metadata=custom) as writer:
                await writer.append_many([b"secret"] * 10)
            ledger = writer.ledger_id
        await grant(running, "token:alice", "shop", {"read"})
        await grant(running, "token:mallory", "other", {"read", "append", "create", "delete"})
        bookie = running.bookie.info
        assert bookie is not None
        key = b"k" * 20
        async with (
            client_of(running, "alice") as alice,
            client_of(running, "mallory") as mallory,
        ):
            reads = [Read(ledger, 3), BatchRead(ledger, 0, 5, 1000), ReadLac(ledger), ListEntries(ledger)]
            writes = [
                Read(ledger, -1, True, key), BatchRead(ledger, 0, 5, 1000, True, key), Force(ledger),
                WriteLac(ledger, 3, key, ledger.to_bytes(8) + (3).to_bytes(8) + b"d" * 4),
            ]  # fmt: skip
            for request in (*reads, *writes):
                call = mallory.services.pool.call(bookie.bookie_id, request)
                assert (await call).code is Code.UNAUTHORIZED, request
            for request in reads:
                assert (await alice.services.pool.call(bookie.bookie_id, request)).code is Code.OK, request
            for request in writes:
                assert (await alice.services.pool.call(bookie.bookie_id, request)).code is Code.UNAUTHORIZED, request
            with pytest.raises(AccessRefused):
                await mallory.open(ledger)
            async with alice.open(ledger) as reader:
                assert await reader.read_payloads(0, 9) == [b"secret"] * 10
            for refused in (alice.delete(ledger), mallory.delete(ledger)):
                with pytest.raises(BuckramError):
                    await refused


async def test_places_in_files_are_for_administrators() -> None:
    class Readers:
        version = 0

        def rights(self, session: Session, namespace: str) -> int:
            return READ

    handled: list[Item] = []
    access = EntryAccess(
        Owners(await memory_metadata()), Readers(), lambda *_: None, lambda _, item: handled.append(item), lambda _: b""
    )
    access.owners.note(7, Owner("shop", 1, b"b" * 16, access.now()))
    session = Session(
        ServerProtocol(1 << 20), Budget(1 << 20, 1 << 20), BookieServer(production_runtime(), CONFIG, NET)
    )
    session.principal = Principal("token:alice")
    request = BatchRead(7, 0, 5, 1000, False, b"k" * 20, framed=True, located=True)
    ConnectionAccess(access, session).item(session, Incoming(request, ReplyContext(2, 2, OP_BATCH_READ, 7, 0)))
    (item,) = handled
    assert isinstance(item, Incoming)
    assert item.request == replace(request, located=False)


async def test_nobody_moves_a_ledger_or_a_stream_into_a_namespace_of_theirs(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        everything = {"read", "append", "create", "delete"}
        await grant(running, "token:mallory", "other", everything)
        await grant(running, "token:mallory", "shop", {"read"})
        async with client_of(running, "mallory") as mallory:
            with pytest.raises(AccessRefused):
                await mallory.create(ensemble=1, custom_metadata={"buckram.namespace": b"shop"})
            with pytest.raises(AccessRefused):
                await mallory.create(
                    ensemble=1, custom_metadata={"buckram.stream": b"shop/x", "buckram.stream.uid": b"u"}
                )
            keys, own = mallory.services.store.keys, running.store.own
            head = await keys.get(f"{own}/streams/heads/shop/orders")
            mine = await keys.get(f"{own}/streams/heads/other/orders")
            for op in (
                Create(f"{own}/streams/heads/other/stolen", head.value),
                SetValue(f"{own}/streams/heads/other/orders", head.value, mine.version),
            ):
                with pytest.raises(AccessRefused, match="uid of another stream"):
                    await keys.multi([op])
            for key in (f"{own}/security/acl", f"{own}/security/keys/x", f"{own}/convicted/b", "/anything"):
                with pytest.raises(AccessRefused):
                    await keys.create(key, b"")
            for key in (f"{own}/security/signing", f"{own}/security/tokens"):
                with pytest.raises(AccessRefused):
                    await keys.children(key)


async def test_a_creation_that_was_refused_makes_nothing_ones_own(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        await grant(running, "token:mallory", "other", {"read", "append", "create", "delete"})
        async with client_of(running, "root", "admin") as admin, client_of(running, "mallory") as mallory:
            victim = await admin.create(ensemble=1, custom_metadata={"buckram.namespace": b"shop"})
            await victim.append(b"secret")
            own = await mallory.create(ensemble=1, custom_metadata={"buckram.namespace": b"other"})
            keys, ledgers = mallory.services.store.keys, running.store.ledgers
            key = await ledgers.key(victim.ledger_id)
            mine = (await keys.get(await ledgers.key(own.ledger_id))).value
            with pytest.raises(AccessRefused):
                await keys.create(key, mine)
            with pytest.raises(AccessRefused):
                await keys.delete(key, 0)
            with pytest.raises(AccessRefused):
                await keys.set(key, mine, 0)
            with pytest.raises(AccessRefused):
                await keys.get(key)
            await victim.append(b"more")
            await victim.close()
            await own.close()


async def test_lists_with_values_show_what_may_be_read_and_secrets_are_nobodys(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        await grant(running, "token:mallory", "other", {"read"})
        own = running.store.own
        async with client_of(running, "root", "admin") as admin, client_of(running, "mallory") as mallory:
            found = await mallory.services.store.keys.children_with_values(f"{own}/streams/namespaces")
            assert [name for name, _ in found] == ["other"]
            for who in (admin, mallory):
                with pytest.raises(AccessRefused):
                    await who.services.store.keys.get(f"{own}/security/signing")
                with pytest.raises(AccessRefused):
                    await who.services.store.keys.children(f"{own}/security")


async def test_a_writer_that_is_new_to_a_bookie_keeps_its_order_while_its_ledger_is_looked_up(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        await grant(running, "token:alice", "default", {"read", "append"})
        async with client_of(running, "alice") as client:
            async with client.create(ensemble=1) as writer:
                await asyncio.gather(*(writer.append(b"%d" % number) for number in range(3000)))
            async with client.open(writer.ledger_id) as reader:
                assert await reader.read_payloads(0, 2999) == [b"%d" % number for number in range(3000)]
        assert all(session.requests_held == 0 for session in running.bookie.server.sessions)


async def test_a_token_is_never_sent_in_clear_where_the_uri_says_tls() -> None:
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(4096))
        writer.close()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BuckramError):
            async with asyncio.timeout(20):
                await connect(f"buckram+tls://127.0.0.1:{port}", token="eyJhbGciOiJFZERTQSJ9.e30.c2ln")
    assert heard
    assert not any(b"eyJ" in first for first in heard), heard


@pytest.mark.parametrize("later_s", [0, 60])
async def test_a_ledger_that_gets_an_id_later_is_not_judged_by_the_one_before(tmp_path: Path, later_s: float) -> None:
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        everything = {"read", "append", "create", "delete"}
        await grant(running, "token:mallory", "other", everything)
        await grant(running, "token:alice", "shop", everything)
        bookie, door = running.bookie.info, running.bookie.server._door
        assert bookie is not None
        assert door is not None
        async with (
            client_of(running, "root", "admin") as admin,
            client_of(running, "mallory") as mallory,
            client_of(running, "alice") as alice,
        ):
            keys, call = running.store.keys, mallory.services.pool.call
            key = await running.store.ledgers.key(5000)
            custom = {"buckram.namespace": b"other"}
            mine = created(1, 1, 1, [bookie.bookie_id], custom_metadata=custom, birth=b"m" * 16)
            await keys.create(key, serialise(mine))
            assert (await call(bookie.bookie_id, ReadLac(5000))).code is not Code.UNAUTHORIZED
            await running.store.keys.delete(key, 0)  # nobody records that it was deleted
            assert door.entries is not None
            known = door.entries.owners._known
            known[5000] = known[5000]._replace(at=known[5000].at - later_s)
            shop = {"buckram.namespace": b"shop"}
            async with admin.create(ensemble=1, ledger_id=5000, custom_metadata=shop) as writer:
                await writer.append(b"secret")
            for request in (Read(5000, 0), BatchRead(5000, 0, 5, 1000), ListEntries(5000)):
                reply = await call(bookie.bookie_id, request)
                assert reply.code is not Code.OK or not getattr(reply, "runs", ())
            async with alice.open(5000) as reader:
                assert await reader.read_payloads(0, 0) == [b"secret"]
            async with client_of(running, "mallory") as again:
                assert (await again.services.pool.call(bookie.bookie_id, Read(5000, 0))).code is Code.UNAUTHORIZED


async def test_the_uid_of_a_stream_is_its_own_before_anything_was_written_to_it(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        everything = {"read", "append", "create", "delete"}
        await grant(running, "token:alice", "shop", everything)
        await grant(running, "token:mallory", "other", everything)
        await grant(running, "token:mallory", "shop", {"read"})
        own = running.store.own
        async with client_of(running, "alice") as alice, client_of(running, "mallory") as mallory:
            await alice.namespace("shop").create("fresh")
            keys = mallory.services.store.keys
            head = (await keys.get(f"{own}/streams/heads/shop/fresh")).value
            with pytest.raises(AccessRefused, match="uid of another stream"):
                await keys.create(f"{own}/streams/heads/other/mine", head)
            async with alice.namespace("shop").writer("fresh") as writer:
                await writer.append(b"first")
            await alice.namespace("shop").delete("fresh")


async def test_a_client_without_the_key_of_a_streams_data_gets_it_with_the_head(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        await grant(running, "token:alice", "shop", {"read", "create"})
        own = running.store.own
        async with client_of(running, "alice") as alice:
            key = f"{own}/streams/heads/shop/old"
            assert await alice.services.store.keys.create(key, encode_head(Head("a" * 32, 0))) == 0
        assert (await running.store.keys.get(f"{own}/streams/data/{'a' * 32}")).value == b""


KEY = b"k" * 20
ASKED: dict[str, tuple[Item, str]] = {
    "read": (Incoming(Read(7, 0), ReplyContext(2, 2, OP_READ, 7, 0)), "read"),
    "batch read": (Incoming(BatchRead(7, 0, 5, 100), ReplyContext(2, 2, OP_BATCH_READ, 7, 0)), "read"),
    "read the LAC": (Incoming(ReadLac(7), ReplyContext(3, 3, OP_READ_LAC, 7, 0)), "read"),
    "list entries": (Incoming(ListEntries(7), ReplyContext(3, 3, OP_LIST_ENTRIES, 7, 0)), "read"),
    "fence": (Incoming(Read(7, -1, True, KEY), ReplyContext(2, 2, OP_READ, 7, -1)), "append"),
    "fence all": (Incoming(BatchRead(7, 0, 5, 9, True, KEY), ReplyContext(2, 2, OP_BATCH_READ, 7, 0)), "append"),
    "force": (Incoming(Force(7), ReplyContext(3, 3, OP_FORCE, 7, 0)), "append"),
    "write the LAC": (Incoming(WriteLac(7, 0, KEY, bytes(20)), ReplyContext(3, 3, OP_WRITE_LAC, 7, 0)), "append"),
    "add": (AddRun(b"", 0, 0, 7, 0, 1, KEY, 0, -1, 0), "append"),
}  # fmt: skip


class Granted:
    """What alice was granted on everything, for now."""

    version = 0
    acl = Acl()

    def grant(self, permissions: Iterable[str]) -> None:
        self.version += 1
        self.acl = Acl().granting("token:alice", "shop", permissions)

    def rights(self, session: Session, namespace: str) -> int:
        return bits(self.acl.allowed(Principal("token:alice"), namespace))


async def test_each_request_about_entries_needs_its_permission_and_no_other() -> None:
    judge, passed = Granted(), list[object]()

    def take(session: Session, item: object) -> None:
        passed.append(item)

    access = EntryAccess(Owners(await memory_metadata()), judge, take, take, lambda _: b"")
    access.owners.note(7, Owner("shop", 1, b"b" * 16, access.now() + 3600))
    session = Session(
        ServerProtocol(1 << 20), Budget(1 << 20, 1 << 20), BookieServer(production_runtime(), CONFIG, NET)
    )
    session.principal = Principal("token:alice")
    gate = ConnectionAccess(access, session)
    for what, (item, needed) in ASKED.items():
        for size in range(len(PERMISSIONS) + 1):
            for given in itertools.combinations(PERMISSIONS, size):
                judge.grant(given)
                passed.clear()
                if isinstance(item, AddRun):
                    gate.add(session, item)
                else:
                    gate.item(session, item)
                assert passed == ([item] if needed in given or "admin" in given else []), (what, given)

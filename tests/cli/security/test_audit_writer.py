"""The audit trail: what bookies note, how it becomes a stream, who may write there, and what happens when it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import until
from tests.support.secure_kit import Guarded, guarded

from buckram import connect
from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.cli.security import audit_writer as writing
from buckram.cli.security.audit_writer import AuditWriter, FileSink
from buckram.cluster import Client
from buckram.config import AuthConfig, ClientConfig, TlsConfig
from buckram.core.security.acl import PERMISSIONS
from buckram.core.streams.metadata.purposes import Purpose
from buckram.core.streams.names import StreamName
from buckram.core.tenants.audit_trail import AuditEvent, ChainCheck
from buckram.errors import AccessRefused, BuckramError, MetadataUnavailable
from buckram.metadata.records.pending_audit_events import leave_note, notes
from buckram.runtime.process.stats import NullStats
from buckram.runtime.production import production_runtime
from buckram.streams import system_streams as system
from buckram.streams.maintain.delete import delete_stream

AUTH = AuthConfig(logins="token", authorisation="on")
QUIET = ClientConfig(local_read_bytes=0, idle_lac_ms=0)


@pytest.fixture(autouse=True)
def no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")


def log(most: int = 100) -> AuditLog:
    return AuditLog(production_runtime().clock, NullStats(), most)


@asynccontextmanager
async def server(running: Guarded) -> AsyncIterator[Client]:
    """A client that opens the store itself, as a bookie's own does: nothing notes what it changes there."""
    async with connect(running.store, token=await running.token("bookie", "admin"), config=QUIET) as client:
        yield client


@asynccontextmanager
async def client_of(running: Guarded, subject: str, *roles: str) -> AsyncIterator[Client]:
    async with connect(running.service, token=await running.token(subject, *roles), config=QUIET) as client:
        yield client


def said(events: AuditLog) -> list[tuple[str, str, str, str]]:
    return [(one.principal, one.action, one.what, one.result) for one in events.batch(100)]


async def prepared(running: Guarded) -> None:
    """Namespace `shop`, of which alice may do everything; and by a pattern, of all others."""
    async with client_of(running, "root", "admin") as admin:
        await admin.namespaces.create("shop", ensemble="1/1/1")
    for namespaces in ("shop", "*"):
        await running.security.change_acl(
            lambda acl, namespaces=namespaces: acl.granting("token:alice", namespaces, set(PERMISSIONS) - {"admin"})
        )
    guard = running.bookie._guard
    assert guard is not None
    wanted = await running.security.acl()
    await until(lambda: guard.state.acl == wanted)


async def test_what_clients_do_is_noted_with_who_did_it(tmp_path: Path) -> None:
    events = log()
    async with guarded(tmp_path, auth=AUTH, events=events) as running:
        await prepared(running)
        events.written(events.batch(100))
        async with client_of(running, "alice") as alice:
            shop = alice.namespace("shop")
            async with shop.writer("orders") as writer:
                for number in range(3):
                    await writer.append(b"%d" % number)
                first = await alice.create(ensemble=1, custom_metadata={"buckram.namespace": b"shop"})
                await first.append(b"x")
                await (await alice.recover(first.ledger_id)).close()
            await shop.truncate("orders", before=2)
            await shop.delete("orders")
            with pytest.raises(AccessRefused):
                await alice.namespaces.set("shop", retention_s=5)
        assert {
            ("token:alice", "create", "stream shop/orders", "done"),
            ("token:alice", "create", f"ledger {first.ledger_id}", "done"),
            ("token:alice", "fence", f"ledger {first.ledger_id}", "done"),
            ("token:alice", "recover", f"ledger {first.ledger_id}", "done"),
            ("token:alice", "truncate", "stream shop/orders", "done"),
            ("token:alice", "delete", "stream shop/orders", "done"),
            ("token:alice", "policy", f"key {running.store.own}/streams/namespaces/shop", "refused"),
        } <= set(said(events))
        assert {one.namespace for one in events.batch(100) if one.action in ("truncate", "fence")} == {"shop"}


async def test_a_login_that_fails_is_noted(tmp_path: Path) -> None:
    events = log()
    async with guarded(tmp_path, auth=AUTH, events=events) as running:
        with pytest.raises(BuckramError):
            await connect(running.service, token="eyJhbGciOiJFZERTQSJ9.e30.c2ln", config=QUIET)
        await until(lambda: ("anonymous", "login", "bookie", "refused") in said(events))
        assert not any("eyJ" in str(one) for one in events.batch(100))


async def records(client: Client) -> list[AuditEvent]:
    async with client.namespace("system").read("audit") as reader:
        return [AuditEvent.parse(record.value or b"") async for record in reader]


async def test_events_and_notes_become_records_once(tmp_path: Path) -> None:
    events = log()
    async with guarded(tmp_path, auth=AUTH, events=events) as running:
        await leave_note(running.store, "grant", "before anybody writes")
        assert await notes(running.store) == {}
        async with server(running) as admin:
            writer = AuditWriter(admin, running.store, events, "b1")
            await writer._prepare()
            await leave_note(running.store, "grant", "token:alice", "shop", "read")
            for number in range(5):
                events.add(events.event("token:alice", "create", f"ledger {number}"))
            await writer.write()
            found = await records(admin)
            assert sum(one.what == "token:alice" and one.namespace == "shop" for one in found) == 1
            assert [one.what for one in found if one.principal == "token:alice"] == [f"ledger {n}" for n in range(5)]
            assert await notes(running.store) == {}
            await writer.write()
            again = [one for one in await records(admin) if one.principal == "token:alice"]
            assert len(again) == 5


async def test_only_servers_write_there_and_a_pattern_does_not_give_it_to_readers(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=AUTH, events=log()) as running:
        await prepared(running)
        async with server(running) as admin, client_of(running, "alice") as alice:
            await AuditWriter(admin, running.store, log(), "b1")._prepare()
            with pytest.raises(AccessRefused):
                await alice.namespace("system").info("audit")
            await running.security.change_acl(lambda acl: acl.granting("token:alice", "system", PERMISSIONS))
            guard = running.bookie._guard
            assert guard is not None
            await until(lambda: any(one.namespaces == "system" for one in guard.state.acl.grants))
            await alice.namespace("system").info("audit")
            with pytest.raises(BuckramError):
                async with alice.namespace("system").writer("audit") as writer:
                    await writer.append(b"{}")
            with pytest.raises(BuckramError):
                await alice.namespace("system").delete("audit")


async def test_what_cannot_be_written_waits_and_what_is_dropped_is_counted(tmp_path: Path) -> None:
    events = log(most=3)
    async with guarded(tmp_path, auth=AUTH, events=log()) as running, server(running) as admin:
        writer = AuditWriter(admin, running.store, events, "b1")
        await writer._prepare()
        for number in range(5):
            events.add(events.event("token:alice", "create", f"ledger {number}"))
        await running.bookie.stop()
        with pytest.raises(BuckramError):
            await writer.write()
        assert len(events) == 3
    waiting = events.batch(10)
    assert [one.what for one in waiting] == ["ledger 0", "ledger 1", "ledger 2"]
    events.written(waiting)
    lost = events.batch(10)
    assert [(one.action, one.what) for one in lost] == [("lost", "2 events")]
    events.written(lost)
    assert events.batch(10) == []


async def checked(client: Client) -> ChainCheck:
    check = ChainCheck(from_start=True)
    async with client.namespace("system").read("audit") as reader:
        async for record in reader:
            check.see(record.offset, record.value or b"")
    return check


async def test_the_trail_has_one_chain_for_each_life_of_a_bookie_with_its_notes(tmp_path: Path) -> None:
    events, again = log(), log()
    async with guarded(tmp_path, auth=AUTH, events=events) as running, server(running) as admin:
        writer = AuditWriter(admin, running.store, events, "b1")
        await writer._prepare()
        for batch in range(3):
            for number in range(4):
                events.add(events.event("token:alice", "create", f"ledger {4 * batch + number}"))
            await leave_note(running.store, "grant", f"token:{batch}", "shop", "read")
            await writer.write()
        again.add(again.event("token:alice", "create", "ledger 99"))
        await AuditWriter(admin, running.store, again, "b1").write()
        check, found = await checked(admin), await records(admin)
        chains = {name: (chain.first, chain.last) for name, chain in check.chains.items()}
        assert check.whole
        assert check.before_chain == 0
        noted = sum(one.chain == events.chain for one in found)
        assert chains == {events.chain: (1, noted), again.chain: (1, 1)}
        assert {one.chain for one in found if one.action == "grant"} == {events.chain}


async def test_the_sink_of_a_bookie_has_what_the_trail_has(tmp_path: Path) -> None:
    events, path = log(), tmp_path / "audit.log"
    async with guarded(tmp_path, auth=AUTH, events=events) as running:
        await prepared(running)
        sink = FileSink(str(path))
        bookie, store = running.bookie, running.store
        async with writing.writing(bookie, events, store, store.uri, TlsConfig(), AUTH, sink=sink):
            async with client_of(running, "alice") as alice:
                await alice.namespace("shop").create("orders")
            await until(lambda: len(events) == 0)
        lines = path.read_bytes().splitlines()
        async with server(running) as admin:
            found = await records(admin)
    assert "stream shop/orders" in [one.what for one in found]
    assert [AuditEvent.parse(line) for line in lines][: len(found)] == found


async def test_a_batch_whose_answer_was_lost_is_written_again_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, append = log(), system.append_in_one_step
    lost: list[bool] = []

    async def losing(*arguments: Any) -> None:
        await append(*arguments)
        if not lost:
            lost.append(True)
            raise MetadataUnavailable("the answer was lost")

    monkeypatch.setattr(writing, "append_in_one_step", losing)
    async with guarded(tmp_path, auth=AUTH, events=log()) as running, server(running) as admin:
        writer = AuditWriter(admin, running.store, events, "b1")
        await writer._prepare()
        await leave_note(running.store, "grant", "token:alice", "shop", "read")
        events.add(events.event("token:alice", "create", "ledger 1"))
        with pytest.raises(MetadataUnavailable):
            await writer.write()
        events.add(events.event("token:alice", "create", "ledger 2"))
        await writer.write()
        check = await checked(admin)
        assert check.whole
        chain = check.chains[events.chain]
        assert (chain.first, chain.last, chain.repeated) == (1, 3, 2)
        assert await notes(running.store) == {}


async def test_a_trail_that_is_gone_is_made_anew(tmp_path: Path) -> None:
    events = log()
    async with guarded(tmp_path, auth=AUTH, events=log()) as running, server(running) as admin:
        writer = AuditWriter(admin, running.store, events, "b1")
        running_writer = asyncio.create_task(writer.run())
        try:
            await until(lambda: writer._prepared)
            streams = admin.namespace("system").store
            await delete_stream(admin, streams, StreamName("system", "audit"), acting_for=Purpose.AUDIT)
            events.add(events.event("token:alice", "create", "ledger 1"))
            await until(lambda: len(events) == 0, "the event waits for a stream that is not there", 8.0)
        finally:
            running_writer.cancel()
            await asyncio.wait([running_writer])
        assert "ledger 1" in [one.what for one in await records(admin)]

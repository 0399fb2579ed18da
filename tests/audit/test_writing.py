"""The audit trail: what bookies note, how it becomes a stream, who may write there, and what happens when it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.polling import until
from tests.support.secure_kit import Guarded, guarded

from buckram import connect
from buckram.audit.writing import AuditWriter
from buckram.bookie.audit_log import AuditLog
from buckram.client.client import Client
from buckram.config import AuthConfig, ClientConfig
from buckram.core.security.acl import PERMISSIONS
from buckram.core.streams.names import StreamName
from buckram.core.streams.purposes import Purpose
from buckram.core.tenants.audit import AuditEvent
from buckram.errors import AccessRefused, BuckramError
from buckram.metadata.audit_notes import leave_note, notes
from buckram.net.runtime import production_runtime
from buckram.net.stats import NullStats
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
    assert [one.what for one in waiting] == ["2 events", "ledger 2", "ledger 3", "ledger 4"]
    assert waiting[0].action == "lost"
    events.written(waiting)
    assert events.batch(10) == []


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

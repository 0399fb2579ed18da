"""Whose a ledger is: metadata that are late, or that cannot be read, or that have no such ledger yet."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.support.bookie_kit import CONFIG, memory_metadata
from tests.support.polling import until

from buckram.bookie.service.connections.memory_budget import Budget
from buckram.bookie.service.connections.session import Session
from buckram.bookie.service.security.entry_access import ConnectionAccess, EntryAccess
from buckram.bookie.service.security.ledger_owners import ABSENT, NOBODY, Owner, Owners
from buckram.bookie.service.server import BookieServer
from buckram.config import NetConfig
from buckram.core.ledgers.metadata import created
from buckram.core.security.namespace_rules import LEDGER_NAMESPACE
from buckram.core.wire.adds import AddRun
from buckram.core.wire.messages import (
    LAST_ENTRY,
    OP_READ,
    Read,
    ReplyContext,
)
from buckram.core.wire.server_protocol import Incoming, Item, ServerProtocol
from buckram.errors import MetadataUnavailable
from buckram.runtime.production import production_runtime
from buckram.types import LedgerId

NET, KEY = NetConfig(), b"k" * 20


class Welcoming(BookieServer):
    """Takes each connection, without a store behind it."""

    def session_opened(self, session: Session) -> bool:
        return True


class LateOwners(Owners):
    """Metadata that answers when it is let."""

    answers: asyncio.Event

    async def look(self, ledger_id: LedgerId) -> Owner:
        await self.answers.wait()
        return await super().look(ledger_id)


async def test_metadata_is_asked_again_whose_a_ledger_is_that_could_not_be_read() -> None:
    store, passed = await memory_metadata(), list[object]()

    def take(session: Session, item: object) -> None:
        passed.append(item)

    bad, good, absent = [await store.allocate_ledger_id() for _ in range(3)]
    for ledger_id in (bad, good):
        await store.create_ledger(
            ledger_id, created(3, 2, 2, ("b1", "b2", "b3"), custom_metadata={LEDGER_NAMESPACE: b"shop"})
        )
    keys = {ledger_id: await store.ledgers.key(ledger_id) for ledger_id in (bad, good)}
    records = {ledger_id: (await store.keys.get(key)).value for ledger_id, key in keys.items()}
    for key in keys.values():
        await store.keys.set(key, b"nonsense", (await store.keys.get(key)).version)
    access = EntryAccess(Owners(store), None, take, take, lambda _: b"")
    session = Session(ServerProtocol(1 << 20), Budget(1 << 20, 1 << 20), Welcoming(production_runtime(), CONFIG, NET))
    here, there = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: session, here)
    gate = ConnectionAccess(access, session)
    for count, ledger_id in enumerate((bad, good, absent), start=1):
        gate.add(session, AddRun(b"", 0, 0, ledger_id, 0, 1, KEY, 0, -1, 0))
        await until(lambda count=count: len(passed) == count)  # an unknown owner holds nothing up
        assert access.owners.get(ledger_id) == (ABSENT if ledger_id == absent else NOBODY)
    await store.keys.set(keys[good], records[good], (await store.keys.get(keys[good])).version)

    def found() -> bool:
        owner = access.owners.get(good)
        return owner is not None and owner.namespace == "shop" and owner.copies == 2

    await until(found)
    assert access.owners.get(bad) == NOBODY, "its record is still nonsense, and stops no other"
    assert access.owners.get(absent) == ABSENT
    await access.close()
    transport.close()
    there.close()


async def test_who_read_an_id_before_it_had_a_ledger_does_not_make_it_nobodys() -> None:
    """Quotas are held although somebody asked for the id first; a writer on the same connection, or on another one."""
    store, passed = await memory_metadata(), list[object]()

    def take(session: Session, item: object) -> None:
        passed.append(item)

    access = EntryAccess(Owners(store), None, take, take, lambda _: b"")
    session = Session(ServerProtocol(1 << 20), Budget(1 << 20, 1 << 20), Welcoming(production_runtime(), CONFIG, NET))
    here, there = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: session, here)
    gates = [ConnectionAccess(access, session), ConnectionAccess(access, session)]
    ledger_id = await store.allocate_ledger_id()
    gates[0].item(session, Incoming(Read(ledger_id, 0), ReplyContext(2, 2, OP_READ, ledger_id, 0)))
    await until(lambda: len(passed) == 1)
    assert access.owners.get(ledger_id) == ABSENT
    await store.create_ledger(
        ledger_id, created(3, 2, 2, ("b1", "b2", "b3"), custom_metadata={LEDGER_NAMESPACE: b"shop"})
    )
    for count, gate in enumerate(gates, start=2):
        gate.add(session, AddRun(b"", 0, 0, ledger_id, 0, 1, KEY, 0, -1, 0))
        await until(lambda count=count: len(passed) == count)
        owner = access.owners.get(ledger_id)
        assert owner is not None
        assert (owner.namespace, owner.copies) == ("shop", 2)
    await access.close()
    transport.close()
    there.close()


async def test_the_search_for_owners_goes_on_when_it_failed_with_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    store, passed, looks = await memory_metadata(), list[object](), list[LedgerId]()
    ledger_id = await store.allocate_ledger_id()
    await store.create_ledger(
        ledger_id, created(3, 2, 2, ("b1", "b2", "b3"), custom_metadata={LEDGER_NAMESPACE: b"shop"})
    )
    owners = Owners(store)
    look = owners.look

    async def looked(wanted: LedgerId) -> Owner:
        looks.append(wanted)
        if len(looks) == 1:
            raise MetadataUnavailable("away")
        if len(looks) == 2:
            raise ValueError("nobody expected it")
        return await look(wanted)

    monkeypatch.setattr(owners, "look", looked)
    access = EntryAccess(owners, None, lambda _, item: passed.append(item), lambda *_: None, lambda _: b"")
    session = Session(ServerProtocol(1 << 20), Budget(1 << 20, 1 << 20), Welcoming(production_runtime(), CONFIG, NET))
    here, there = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: session, here)
    ConnectionAccess(access, session).add(session, AddRun(b"", 0, 0, ledger_id, 0, 1, KEY, 0, -1, 0))
    await until(lambda: (owner := owners.get(ledger_id)) is not None and owner.namespace == "shop")
    assert len(looks) == 3
    await access.close()
    transport.close()
    there.close()


@pytest.mark.parametrize("timeout_ms", [20, 60_000])
async def test_a_long_poll_ends_when_its_client_expects_it_also_if_metadata_is_late(timeout_ms: int) -> None:
    store, handled = await memory_metadata(), list[Item]()
    ledger_id = await store.allocate_ledger_id()
    await store.create_ledger(ledger_id, created(1, 1, 1, ("b1",)))
    owners = LateOwners(store)
    owners.answers = asyncio.Event()
    access = EntryAccess(owners, None, lambda *_: None, lambda _, item: handled.append(item), lambda _: b"")
    session = Session(ServerProtocol(1 << 20), Budget(1 << 20, 1 << 20), Welcoming(production_runtime(), CONFIG, NET))
    here, there = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: session, here)
    request = Read(ledger_id, LAST_ENTRY, previous_lac=3, timeout_ms=timeout_ms)
    began = access.now()
    ConnectionAccess(access, session).item(session, Incoming(request, ReplyContext(3, 3, OP_READ, ledger_id, 0)))
    held = access.now()  # It has waited since before that, and not since `began`.
    await until(lambda: access.now() > held + 0.03)
    owners.answers.set()
    await until(lambda: handled)
    (item,) = handled
    assert isinstance(item, Incoming)
    assert isinstance(item.request, Read)
    left_ms, waited_ms = item.request.timeout_ms, round((access.now() - began) * 1000)
    assert left_ms is not None
    assert max(0, timeout_ms - waited_ms - 1) <= left_ms <= max(0, timeout_ms - 29)
    await access.close()
    transport.close()
    there.close()


async def test_a_record_speaks_of_as_many_copies_as_there_are_bookies() -> None:
    """Rates count a copy for its part, so whoever claims a thousand of them would have a thousand times the rate."""
    store = await memory_metadata()
    owners = Owners(store)
    for bookie in ("b1", "b2", "b3"):
        await store.write_cookie(bookie, b"", None)
    for claimed, counted in ((2, 2), (3, 3), (1000, 3)):
        ledger = await store.allocate_ledger_id()
        names = tuple(f"b{number}" for number in range(claimed))
        await store.create_ledger(ledger, created(claimed, claimed, 1, names, custom_metadata={}))
        assert (await owners.look(ledger)).copies == counted

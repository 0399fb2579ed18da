"""Chunks of plain adds where something stands before them: grants, quotas, a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.bookie_kit import CONFIG, KEY, Kit, Wire, add, add_frames, ledger_metadata, memory_metadata, running
from tests.support.clock import pass_time
from tests.support.polling import until
from tests.support.tenants_kit import tenants

from buckram.bookie.service.connections.memory_budget import Budget
from buckram.bookie.service.connections.session import Session
from buckram.bookie.service.entries.traced_adds import TracedAdds
from buckram.bookie.service.security.entry_access import APPEND, READ, ConnectionAccess, EntryAccess
from buckram.bookie.service.security.ledger_owners import Owner, Owners
from buckram.bookie.service.server import BookieServer
from buckram.config import NetConfig
from buckram.core.security.principal import Principal
from buckram.core.wire.adds import AddRun
from buckram.core.wire.server_protocol import ServerProtocol
from buckram.core.wire.v2 import trace_add
from buckram.runtime.production import production_runtime
from buckram.types import LedgerId

BIRTH = b"b" * 16
FOUR = range(901, 905)


def noted(part: Any, name: str) -> list[int]:
    """The ledgers of the runs that are handed to this function from now on."""
    found: list[int] = []
    usual = getattr(part, name)

    def handed_on(session: Session, run: AddRun) -> None:
        found.append(run.ledger_id)
        usual(session, run)

    setattr(part, name, handed_on)
    return found


async def made(kit: Kit, namespace: str) -> None:
    for ledger in FOUR:
        metadata = replace(ledger_metadata([kit.id]), custom_metadata={"buckram.namespace": namespace.encode()})
        await kit.metadata.create_ledger(ledger, metadata)


async def add_one_each(wire: Wire, entry: int) -> None:
    """An entry of each of the ledgers, in one chunk."""
    wire.writer.write(b"".join(add_frames(ledger, entry, 1) for ledger in FOUR))
    for _ in FOUR:
        assert (await wire.reply()).code == 0


# -- quotas ------------------------------------------------------------------------------------------------------------


async def test_adds_of_a_namespace_are_taken_together_and_counted(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop") as here:
        await here.limit("shop", in_entries_per_s=1_000_000)
        await made(here.kit, "shop")
        runs, wire = noted(here.limiter, "_add"), await here.kit.wire()
        for entry in range(3):
            await add_one_each(wire, entry)
        runs.clear()
        tenant = here.tenant("shop")
        before, credit, entries = tenant.tally(), tenant.credit, tenant.credit_entries
        for entry in range(3, 6):
            await add_one_each(wire, entry)
        assert runs == []
        size = len(add_frames(901, 0, 1))
        assert tenant.tally().in_entries - before.in_entries == 12
        assert tenant.tally().stored - before.stored == 12 * size
        assert (credit - tenant.credit, entries - tenant.credit_entries) == (12 * size, 12)


async def test_without_credit_adds_come_as_runs_and_are_held_back(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop") as here:
        await here.limit("shop", in_entries_per_s=1_000_000)
        await made(here.kit, "shop")
        wire = await here.kit.wire()
        for entry in range(3):
            await add_one_each(wire, entry)
        await here.limit("shop", in_entries_per_s=1_000_000, stored_bytes=0)
        wire.writer.write(add_frames(901, 3, 1))
        assert (await wire.reply()).code != 0


async def test_what_nobody_counted_before_is_counted_once_quotas_begin(tmp_path: Path) -> None:
    async with tenants(tmp_path, "shop") as here:
        await here.limit("shop", in_entries_per_s=1_000_000)
        await made(here.kit, "shop")
        wire = await here.kit.wire()
        await add_one_each(wire, 0)
        here.limiter.active = False  # the connection is looked at still
        for entry in range(1, 4):
            await add_one_each(wire, entry)
        here.limiter.active = True
        before = here.tenant("shop").tally().in_entries
        for entry in range(4, 7):
            await add_one_each(wire, entry)
        assert here.tenant("shop").tally().in_entries - before == 12


# -- grants ------------------------------------------------------------------------------------------------------------


class Grants:
    def __init__(self) -> None:
        self.version, self.given = 0, READ | APPEND

    def rights(self, session: Session, name: str) -> int:
        return self.given


class Behind:
    """What stands behind the gate: one purse for all, and note of what it was to take."""

    def __init__(self) -> None:
        self.asked: list[dict[LedgerId, bytes]] = []

    def purse(self, ledger_id: LedgerId) -> str | None:
        return None if ledger_id == 9 else "one"

    def take(
        self, session: Session, chunk: bytes, offset: int, max_packet: int, v3: bool,
        ledgers: Mapping[LedgerId, bytes], purse: str,
    ) -> int:  # fmt: skip
        assert purse == "one"
        self.asked.append(dict(ledgers))
        return offset + 1


class Gate:
    """A connection whose client named the birth of ledger 7, and not of 8 and 9."""

    def __init__(self, owners: Owners) -> None:
        self.grants, self.behind = Grants(), Behind()
        self.passed: list[object] = []
        self.access = EntryAccess(owners, self.grants, self.note, self.note, lambda _: BIRTH)
        self.access.plain = self.behind
        for ledger in (7, 8, 9):
            owners.note(ledger, Owner("shop", 1, BIRTH, self.access.now()))
        server = BookieServer(production_runtime(), CONFIG, NetConfig())
        self.session = Session(ServerProtocol(1 << 20), Budget(1 << 20, 1 << 20), server)
        self.session.principal = Principal("token:alice")
        self.session.births.name(7, BIRTH)
        self.gate = ConnectionAccess(self.access, self.session)

    def note(self, session: Session, item: object) -> None:
        self.passed.append(item)

    def add(self, ledger: int) -> None:
        self.gate.add(self.session, AddRun(b"", 0, 0, ledger, 0, 1, KEY, 0, -1, 0))

    def take(self) -> int:
        return self.gate.take(self.session, b"chunk", 0, 100, False)


@pytest.fixture
async def gate() -> Gate:
    return Gate(Owners(await memory_metadata()))


async def test_a_ledger_passes_once_a_run_of_it_has(gate: Gate) -> None:
    assert gate.take() == 0
    for _ in range(2):
        gate.add(7)
    assert gate.take() == 1
    assert gate.behind.asked == [{7: BIRTH}]
    for _ in range(2):
        gate.add(9)
    assert gate.take() == 0, "whose it is was not certain"


async def test_changed_grants_end_it(gate: Gate) -> None:
    for _ in range(2):
        gate.add(7)
    gate.grants.version += 1
    gate.grants.given = READ
    assert gate.take() == 0
    gate.add(7)
    assert gate.take() == 0
    assert len(gate.passed) == 2


async def test_a_right_that_does_not_last_ends_by_itself(gate: Gate) -> None:
    for _ in range(2):
        gate.add(8)
    assert gate.take() == 1
    await pass_time(1.1)
    assert gate.take() == 0


async def test_nothing_passes_those_that_wait_for_metadata(gate: Gate) -> None:
    for _ in range(2):
        gate.add(7)
    gate.add(10)
    assert gate.take() == 0
    await gate.access.close()


# -- traces ------------------------------------------------------------------------------------------------------------


class OneSpan:
    def __init__(self) -> None:
        self.notes: dict[str, object] = {}
        self.ended: list[str] = []

    def continued(self, name: str, context: bytes, attributes: Mapping[str, str | int]) -> OneSpan:
        return self

    def note(self, name: str, value: str | int) -> None:
        self.notes[name] = value

    def end(self, error: str = "") -> None:
        self.ended.append(error)


async def test_an_announced_add_comes_as_a_run_and_has_its_span(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        service, span = kit.bookie.service, OneSpan()
        assert service is not None
        parts = service.polls, kit.bookie.server.budget, kit.runtime.stats, service.admission
        service.adds = service.traced = TracedAdds(span, service.store, *parts)  # type: ignore[arg-type]
        runs, wire = noted(service.adds, "add"), await kit.wire()
        for ledger in (1, 2, 3):
            await wire.call(add(ledger, 0))
        runs.clear()
        chunk = add_frames(1, 1, 1) + trace_add(2, 1, b"c" * 24) + add_frames(2, 1, 1) + add_frames(3, 1, 1)
        wire.writer.write(chunk)
        assert [(await wire.reply()).code for _ in range(3)] == [0, 0, 0]
        assert runs == [2]
        await until(lambda: span.ended == [""])
        assert span.notes == {"buckram.entries": 1}

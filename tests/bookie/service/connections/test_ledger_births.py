"""Which ledger an id means at a bookie: births that are named, learned and compared."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import bookie_kit
from tests.support.bookie_kit import (
    DIGEST,
    KEY,
    OTHER_KEY,
    FlakyMetadata,
    Kit,
    Wire,
    add,
    add_frames,
    batch,
    ledger_metadata,
    memory_metadata,
)
from tests.support.polling import until

from buckram.core.ledgers.metadata import BIRTH, birth_of
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire.messages import Add, BatchRead, Force, ListEntries, Read, ReadLac, Request, WriteLac
from buckram.errors import Code, MetadataUnavailable
from buckram.metadata.tree.ledger_tree import used_key
from buckram.types import NO_BIRTH, LedgerState

A, B = b"A" * 16, b"B" * 16
PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])


def running(path: Path, **options: Any) -> contextlib.AbstractAsyncContextManager[Kit]:
    return bookie_kit.running(path, **{"admission": "known", **options})


async def make(
    kit: Kit, birth: bytes = b"", *, ctime: int | None = None, state: LedgerState = LedgerState.OPEN, ledger: int = 5
) -> None:
    """Put ledger 5 of this birth into metadata."""
    custom = {BIRTH: birth} if birth else {}
    md = replace(
        ledger_metadata([kit.id], state), custom_metadata=custom, creation_time_ms=ctime, last_entry=None, length=None,
        state=LedgerState.OPEN,
    )  # fmt: skip
    found = await kit.metadata.create_ledger(ledger, md)
    if state is not LedgerState.OPEN:
        await kit.metadata.write_ledger(
            ledger,
            replace(ledger_metadata([kit.id], state, last=2), custom_metadata=custom, creation_time_ms=ctime),
            found.version,
        )


async def forget(kit: Kit, ledger: int = 5, *, accepted: bool = True) -> None:
    """Delete it from metadata, which forgets that the id was used: as after an old backup, that somebody accepted."""
    key = await kit.metadata.ledger_key(ledger)
    await kit.metadata.keys.delete(key, (await kit.metadata.keys.get(key)).version)
    used = used_key(kit.metadata.layout.own, ledger)
    await kit.metadata.keys.delete(used, (await kit.metadata.keys.get(used)).version)
    if accepted:
        accept(kit, ledger)


def accept(kit: Kit, ledger: int = 5) -> None:
    """The bookie knows that ids up to this one may have been given twice."""
    witness = kit.bookie.witness
    assert witness is not None
    witness._memory.value = replace(witness.memory, settled=ledger)


class Named:
    """A connection that says which ledger it means, as clients of ours do."""

    def __init__(self, wire: Wire, birth: bytes) -> None:
        self.wire, self.birth, self._said = wire, birth, False

    async def call(self, request: Request) -> Any:
        self.send(request)
        return await self.wire.reply()

    def send(self, request: Request) -> None:
        if self.wire.protocol == 2:
            if not self._said:
                self.wire.writer.write(wire_v2.name_ledger(5, self.birth))
                self._said = True
            self.wire.send(request)
        else:
            self.wire.send(_with_birth(request, self.birth))


def _with_birth(request: Request, birth: bytes) -> Request:
    if isinstance(request, Read):
        return request._replace(birth=birth)
    assert isinstance(request, Add | BatchRead | WriteLac | ReadLac | Force | ListEntries)
    return replace(request, birth=birth)


async def named(kit: Kit, birth: bytes, protocol: int = 2) -> Named:
    return Named(await kit.wire(protocol), birth)


async def ten_of_a(kit: Kit, protocol: int = 2) -> None:
    await make(kit, A)
    writer = await named(kit, A, protocol)
    for entry in range(10):
        assert (await writer.call(add(5, entry))).code is Code.OK
    assert kit.store.ledger(5).birth == A


@PROTOCOLS
async def test_a_birth_is_learned_at_admission_and_kept(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        await ten_of_a(kit, protocol)
        metadata = kit.metadata
    async with running(tmp_path, metadata=metadata) as kit:
        assert kit.store.ledger(5).birth == A
        assert (await (await named(kit, A, protocol)).call(Read(5, 9))).code is Code.OK


@PROTOCOLS
async def test_data_of_another_birth_does_not_answer(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        await ten_of_a(kit)
        await forget(kit)
        await make(kit, B)
        b = await named(kit, B, protocol)
        assert (await b.call(Read(5, 0))).code is Code.NO_LEDGER
        assert (await b.call(Read(5, -1))).code is Code.NO_LEDGER
        if protocol == 2:
            assert (await b.call(batch(5, 0))).code is Code.NO_LEDGER
            assert (await b.call(batch(5, 0, framed=True, master_key=KEY))).code is Code.NO_LEDGER
            assert (await b.call(batch(5, 0, framed=True, located=True, master_key=KEY))).code is Code.NO_LEDGER
        else:
            assert (await b.call(ReadLac(5))).code is Code.NO_ENTRY
            assert (await b.call(ListEntries(5))).code is Code.NO_LEDGER
            assert (await b.call(Force(5))).code is Code.NO_LEDGER
            assert (await b.call(WriteLac(5, 0, KEY, DIGEST.seal_lac(5, 0)))).code is Code.NO_LEDGER
            assert (await b.call(Read(5, -1, previous_lac=-1, timeout_ms=10))).code is Code.NO_LEDGER
        assert (await (await named(kit, A, protocol)).call(Read(5, 0))).code is Code.OK
        assert (await (await kit.wire(protocol)).call(Read(5, 0))).code is Code.OK  # a client that names nothing


@PROTOCOLS
async def test_an_add_of_the_living_ledger_buries_the_dead_one(tmp_path: Path, protocol: int) -> None:
    """Create 5, ten entries, delete, create 5, two entries: two entries."""
    async with running(tmp_path) as kit:
        await ten_of_a(kit)
        await forget(kit)
        await make(kit, B)
        b, a = await named(kit, B, protocol), await named(kit, A, protocol)
        for entry in range(2):
            assert (await b.call(add(5, entry, payload=b"new"))).code is Code.OK
        assert kit.store.entries(5) == [(0, 2)]
        assert kit.store.ledger(5).birth == B
        assert (await b.call(Read(5, -1))).body.endswith(b"new")
        assert (await b.call(Read(5, 2))).code is Code.NO_ENTRY
        assert (await a.call(Read(5, 1))).code is Code.NO_LEDGER
        assert (await a.call(add(5, 10))).code is Code.FENCED
        assert (await b.call(add(5, 2, payload=b"new"))).code is Code.OK
        metadata = kit.metadata
    async with running(tmp_path, metadata=metadata) as kit:
        assert kit.store.entries(5) == [(0, 3)]
        assert (await (await named(kit, B, protocol)).call(Read(5, 9))).code is Code.NO_ENTRY


@PROTOCOLS
async def test_a_ledger_that_nobody_deleted_does_not_give_way(tmp_path: Path, protocol: int) -> None:
    """Ids are not given twice, so a store that says otherwise went back: what is here is not its to kill."""
    async with running(tmp_path) as kit:
        await ten_of_a(kit)
        await forget(kit, accepted=False)
        await make(kit, B)
        b, a = await named(kit, B, protocol), await named(kit, A, protocol)
        assert (await b.call(add(5, 0))).code is Code.TOO_MANY_REQUESTS
        witness = kit.bookie.witness
        assert witness is not None
        assert "ledger 5 is of another ledger" in witness.suspect
        assert kit.store.entries(5) == [(0, 10)]
        assert (await a.call(Read(5, 9))).code is Code.OK
        assert (await a.call(add(5, 10))).code is Code.READ_ONLY
        assert not await witness.confirm()  # also at the next look, although the key is as it should be


@PROTOCOLS
async def test_another_password_is_no_hindrance_to_another_ledger(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        await ten_of_a(kit)
        await forget(kit)
        md = replace(ledger_metadata([kit.id], password=b"wrong"), custom_metadata={BIRTH: B})
        await kit.metadata.create_ledger(5, md)
        b = await named(kit, B, protocol)
        assert (await b.call(add(5, 0, KEY))).code is Code.UNAUTHORIZED
        assert kit.store.ledger(5).birth == A
        assert (await b.call(add(5, 0, OTHER_KEY))).code is Code.OK


@PROTOCOLS
async def test_a_tombstone_of_one_birth_does_not_fence_another(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        await ten_of_a(kit)
        await forget(kit)
        kit.store.delete_ledger(5)
        await make(kit, B)
        b = await named(kit, B, protocol)
        assert (await b.call(add(5, 0))).code is Code.OK
        assert (await (await named(kit, A, protocol)).call(add(5, 1))).code is Code.FENCED


async def test_a_tombstone_of_unknown_birth_fences(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        kit.store.put_ledger(5, KEY)
        kit.store.delete_ledger(5)
        await make(kit, B)
        assert (await (await named(kit, B)).call(add(5, 0))).code is Code.FENCED


@PROTOCOLS
async def test_a_stale_writer_does_not_come_back_with_the_dead_ledger(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        await make(kit, B)
        assert (await (await named(kit, A, protocol)).call(add(5, 0))).code is Code.FENCED
        assert kit.store.ledger(5) is None
        b = await named(kit, B, protocol)
        assert (await b.call(add(5, 0))).code is Code.OK
        assert (await (await named(kit, A, protocol)).call(add(5, 1))).code is Code.FENCED
        assert kit.store.entries(5) == [(0, 1)]


@PROTOCOLS
async def test_without_metadata_neither_of_two_ledgers_wins(tmp_path: Path, protocol: int) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata, admission_timeout_s=0.2) as kit:
        await ten_of_a(kit)
        await forget(kit)
        await make(kit, B)
        metadata.error = MetadataUnavailable("partitioned")
        b, a = await named(kit, B, protocol), await named(kit, A, protocol)
        assert (await b.call(add(5, 0))).code is Code.TOO_MANY_REQUESTS
        assert (await b.call(add(5, 0, recovery=True))).code is Code.TOO_MANY_REQUESTS
        assert (await b.call(Read(5, 0, fence=True, master_key=KEY))).code is Code.TOO_MANY_REQUESTS
        assert (await b.call(Read(5, 0))).code is Code.NO_LEDGER
        assert (await a.call(add(5, 10))).code is Code.OK  # it was admitted, and nobody said that it is dead
        assert kit.store.entries(5) == [(0, 11)]


@PROTOCOLS
@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
async def test_a_fence_of_the_living_ledger_takes_the_place_of_the_dead_one(
    tmp_path: Path, protocol: int, state: LedgerState
) -> None:
    async with running(tmp_path) as kit:
        await ten_of_a(kit)
        await forget(kit)
        await make(kit, B, state=state)
        b = await named(kit, B, protocol)
        assert (await b.call(Read(5, -1, fence=True, master_key=KEY))).code is Code.NO_ENTRY
        record = kit.store.ledger(5)
        assert (record.birth, record.fenced) == (B, True)
        assert (await b.call(add(5, 0))).code is Code.FENCED
        assert (await b.call(add(5, 0, recovery=True))).code is Code.OK
        assert kit.store.entries(5) == [(0, 1)]


@PROTOCOLS
async def test_a_fence_of_a_dead_ledger_leaves_the_living_one_alone(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        await make(kit, B)
        b, a = await named(kit, B, protocol), await named(kit, A, protocol)
        assert (await b.call(add(5, 0))).code is Code.OK
        assert (await a.call(Read(5, -1, fence=True, master_key=KEY))).code is Code.NO_LEDGER
        assert (await a.call(add(5, 1, recovery=True))).code is Code.NO_LEDGER
        assert (await b.call(add(5, 1))).code is Code.OK
        assert kit.store.entries(5) == [(0, 2)]


async def test_what_recovery_brings_is_of_the_ledger_that_it_named(tmp_path: Path) -> None:
    """A repair of A, long before anybody asked for B."""
    async with running(tmp_path) as kit:
        a = await named(kit, A)
        assert (await a.call(add(5, 7, recovery=True))).code is Code.OK
        assert kit.store.ledger(5).birth == A
        accept(kit)
        await make(kit, B)
        b = await named(kit, B)
        assert (await b.call(Read(5, 7))).code is Code.NO_LEDGER
        assert (await b.call(add(5, 0))).code is Code.OK
        assert kit.store.entries(5) == [(0, 1)]


async def test_a_record_without_birth_learns_it_at_the_next_look(tmp_path: Path) -> None:
    """Of the release before: its data is this ledger's, as it always was."""
    async with running(tmp_path) as kit:
        await make(kit, A)
        kit.store.put_ledger(5, KEY)
        frames = add_frames(5, 0, 1)
        kit.store.add_run(5, 0, 1, -1, frames, 0, len(frames))
        a = await named(kit, A)
        assert (await a.call(Read(5, 0))).code is Code.OK
        assert kit.store.ledger(5).birth == NO_BIRTH
        assert (await a.call(add(5, 1))).code is Code.OK
        assert kit.store.ledger(5).birth == A
        assert kit.store.entries(5) == [(0, 2)]


async def test_a_record_without_birth_goes_on_without_metadata(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata, admission_timeout_s=0.1) as kit:
        kit.store.put_ledger(5, KEY)
        metadata.error = MetadataUnavailable("partitioned")
        a = await named(kit, A)
        assert (await a.call(add(5, 0))).code is Code.OK


@PROTOCOLS
async def test_a_ledger_of_apaches_clients_is_known_by_its_creation_time(tmp_path: Path, protocol: int) -> None:
    """Its clients name nothing: a first entry that is here already, a fence or a tombstone makes the bookie look."""
    async with running(tmp_path) as kit:
        await make(kit, ctime=1000)
        wire = await kit.wire(protocol)
        for entry in range(3):
            assert (await wire.call(add(5, entry))).code is Code.OK
        await forget(kit)
        await make(kit, ctime=2000)
        assert (await wire.call(add(5, 0, payload=b"new"))).code is Code.OK
        assert kit.store.entries(5) == [(0, 1)]
        kit.store.delete_ledger(5)
        await forget(kit)
        await make(kit, ctime=3000)
        assert (await wire.call(add(5, 0))).code is Code.OK
        assert kit.store.entries(5) == [(0, 1)]


async def test_runs_do_not_overtake_the_look_at_a_ledger_without_name(tmp_path: Path) -> None:
    """What is inserted behind the dead ledger's data while metadata is asked would be deleted with it."""
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await make(kit, ctime=1000)
        wire = await kit.wire()
        assert (await wire.call(add(5, 0))).code is Code.OK
        await forget(kit)
        await make(kit, ctime=2000)
        metadata.gate.clear()
        reads = metadata.reads
        wire.send(add(5, 0))
        await until(lambda: metadata.reads == reads + 1)
        wire.send(add(5, 1))
        assert await wire.silent()
        metadata.gate.set()
        assert [(await wire.reply()).code for _ in range(2)] == [Code.OK] * 2
        assert kit.store.entries(5) == [(0, 2)]


async def test_a_ledger_without_name_is_looked_at_once_per_connection(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await make(kit, ctime=1000)
        wire, again = await kit.wire(), await kit.wire()
        for entry in range(4):
            assert (await wire.call(add(5, entry))).code is Code.OK
        assert metadata.reads == 1
        for entry in (1, 2, 3):
            assert (await again.call(add(5, entry))).code is Code.OK
        assert metadata.reads == 2


async def test_names_are_bounded_and_the_newest_count(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await ten_of_a(kit)
        wire = await kit.wire()
        wire.writer.write(wire_v2.name_ledger(5, B))
        assert (await wire.call(Read(5, 0))).code is Code.NO_LEDGER
        wire.writer.write(wire_v2.name_ledger(5, A))
        assert (await wire.call(Read(5, 0))).code is Code.OK
        wire.writer.write(b"".join(wire_v2.name_ledger(100 + n, B) for n in range(9000)))
        assert (await wire.call(Read(5, 0))).code is Code.OK
        (session,) = [one for one in kit.bookie.server.sessions if len(one.named) > 1]
        assert len(session.named) == 8192


@pytest.mark.parametrize("packet", [b"\x02\x42\0\0", b"\x02\x42\0\0" + bytes(23), b"\x02\x42\0\0" + b"\xff" * 24])
async def test_a_name_that_says_nothing_closes_the_connection(tmp_path: Path, packet: bytes) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        wire.writer.write(len(packet).to_bytes(4, "big") + packet)
        assert await wire.closed()


def test_births_are_of_metadata() -> None:
    md = ledger_metadata(["a:1"])
    assert birth_of(md) == b""
    assert birth_of(replace(md, custom_metadata={BIRTH: A})) == A
    by_time = birth_of(replace(md, creation_time_ms=1000))
    assert len(by_time) == 16
    assert by_time != birth_of(replace(md, creation_time_ms=1001))
    assert birth_of(replace(md, custom_metadata={BIRTH: b"short"}, creation_time_ms=1000)) == by_time

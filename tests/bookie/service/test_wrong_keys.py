"""Requests with a wrong master key change nothing (F14): also of ledgers that a bookie has never seen, and also where
its metadata is away at first: what they did goes when the right key comes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bookie.service.connections.test_ledger_births import A, B, make, named
from tests.support import bookie_kit
from tests.support.bookie_kit import (
    DIGEST,
    KEY,
    OTHER_KEY,
    FlakyMetadata,
    Kit,
    Wire,
    add,
    memory_metadata,
    stored,
)
from tests.support.polling import until

from buckram.core.wire import v2 as wire_v2
from buckram.core.wire.messages import Read, Request, WriteLac
from buckram.errors import Code, InvalidArgument, MetadataUnavailable
from buckram.types import NO_BIRTH, LedgerState

PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])


def running(path: Path, **options: Any) -> contextlib.AbstractAsyncContextManager[Kit]:
    return bookie_kit.running(path, **{"admission": "known", "admission_timeout_s": 0.2, **options})


def fencing(key: bytes, ledger: int = 5) -> Read:
    return Read(ledger, -1, fence=True, master_key=key)


def lac(key: bytes, ledger: int = 5) -> WriteLac:
    return WriteLac(ledger, 0, key, DIGEST.seal_lac(ledger, 0))


FIRST: dict[str, Callable[[bytes], Request]] = {
    "fence": fencing,
    "copy": lambda key: add(5, 0, key, recovery=True),
    "lac": lac,
    "add": lambda key: add(5, 0, key),
}
FIRST_SIGHT = pytest.mark.parametrize("first", FIRST)
AWAY = pytest.mark.parametrize("first", ["fence", "copy", "lac"])


@contextlib.asynccontextmanager
async def attacked_alone(path: Path, first: str, **options: Any) -> Any:
    """A bookie that a request with a wrong password has reached while its metadata was away."""
    metadata = FlakyMetadata(await memory_metadata())
    async with running(path, metadata=metadata, **options) as kit:
        await make(kit, A)
        metadata.error = MetadataUnavailable("partitioned")
        intruder = await kit.wire(3)
        assert (await intruder.call(FIRST[first](OTHER_KEY))).code in (Code.OK, Code.NO_ENTRY)
        record = kit.store.ledger(5)
        assert record.master_key == OTHER_KEY
        assert not record.proven
        yield kit, metadata


@FIRST_SIGHT
async def test_a_wrong_password_leaves_nothing_at_a_bookie_that_never_saw_the_ledger(
    tmp_path: Path, first: str
) -> None:
    async with running(tmp_path) as kit:
        await make(kit, A)
        intruder, owner = await kit.wire(3), await kit.wire(3)
        assert (await intruder.call(FIRST[first](OTHER_KEY))).code is Code.UNAUTHORIZED
        assert kit.store.ledger(5) is None
        assert (await owner.call(add(5, 0))).code is Code.OK
        assert (await owner.call(fencing(KEY))).code is Code.OK


@PROTOCOLS
@AWAY
async def test_the_right_key_takes_the_place_of_one_that_nobody_could_check(
    tmp_path: Path, first: str, protocol: int
) -> None:
    async with attacked_alone(tmp_path, first) as (kit, metadata):
        metadata.error = None
        owner = await kit.wire(protocol)
        assert (await owner.call(add(5, 0, payload=b"the owner's"))).code is Code.OK
        assert (await owner.call(Read(5, 0))).body == stored(5, 0, payload=b"the owner's")
        record = kit.store.ledger(5)
        assert (record.master_key, record.proven, record.fenced) == (KEY, True, False)
        intruder = await kit.wire(3)
        assert (await intruder.call(FIRST[first](OTHER_KEY))).code is Code.UNAUTHORIZED


@AWAY
async def test_an_unproven_key_stays_one_over_a_restart(tmp_path: Path, first: str) -> None:
    async with attacked_alone(tmp_path, first) as (_, metadata):
        pass
    metadata.error = None
    async with running(tmp_path, metadata=metadata) as kit:
        owner = await kit.wire()
        assert kit.store.ledger(5).master_key == OTHER_KEY
        assert (await owner.call(add(5, 0))).code is Code.OK
    async with running(tmp_path, metadata=metadata) as kit:
        record = kit.store.ledger(5)
        assert (record.master_key, record.proven, record.fenced) == (KEY, True, False)
        assert kit.store.entries(5) == [(0, 1)]


@AWAY
async def test_recovery_takes_the_place_too(tmp_path: Path, first: str) -> None:
    """What came with the wrong key is no entry of the ledger, and the fence is the recoverer's."""
    async with attacked_alone(tmp_path, first) as (kit, metadata):
        metadata.error = None
        owner, writer = await kit.wire(3), await kit.wire()
        assert (await owner.call(fencing(KEY))).code is Code.NO_ENTRY
        assert (await owner.call(add(5, 0, recovery=True))).code is Code.OK
        assert (await owner.call(lac(KEY))).code is Code.OK
        assert (await writer.call(add(5, 1))).code is Code.FENCED


@AWAY
async def test_without_metadata_the_right_key_gets_too_many_requests(tmp_path: Path, first: str) -> None:
    """The answer is not UNAUTHORIZED, which would end a writer or a recovery."""
    async with attacked_alone(tmp_path, first) as (kit, metadata):
        owner = await kit.wire(3)
        for request in FIRST.values():
            assert (await owner.call(request(KEY))).code is Code.TOO_MANY_REQUESTS
        metadata.error = None
        assert (await owner.call(add(5, 0))).code is Code.OK


async def test_an_unproven_key_that_was_right_is_proven_by_who_disputes_it(tmp_path: Path) -> None:
    """A recovery fenced while the bookie's metadata was away: its fence holds, whoever comes."""
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await make(kit, A)
        metadata.error = MetadataUnavailable("partitioned")
        recoverer, intruder, writer = await kit.wire(3), await kit.wire(3), await kit.wire()
        assert (await recoverer.call(fencing(KEY))).code is Code.NO_ENTRY
        metadata.error = None
        for request in FIRST.values():
            assert (await intruder.call(request(OTHER_KEY))).code is Code.UNAUTHORIZED
        assert kit.store.ledger(5).proven
        assert (await writer.call(add(5, 0))).code is Code.FENCED


async def test_a_ledger_without_a_password_in_its_record_is_of_who_came_first(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await kit.ledger(5, password=None)
        owner, other = await kit.wire(3), await kit.wire(3)
        assert (await owner.call(fencing(KEY))).code is Code.NO_ENTRY
        assert (await other.call(add(5, 0, OTHER_KEY))).code is Code.UNAUTHORIZED
        assert kit.store.ledger(5).proven


async def test_wrong_passwords_hold_up_nobody(tmp_path: Path) -> None:
    """All that wait are judged by one look, however many wrong ones are before the right one."""
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata, admission_timeout_s=5.0) as kit:
        await make(kit, A)
        metadata.gate.clear()
        intruder, owner = await kit.wire(3), await kit.wire(3)
        for _ in range(50):
            intruder.send(add(5, 0, OTHER_KEY))
        await until(lambda: metadata.reads == 1)
        owner.send(add(5, 0))
        assert await owner.silent()
        metadata.gate.set()
        assert (await owner.reply()).code is Code.OK
        assert {(await intruder.reply()).code for _ in range(50)} == {Code.UNAUTHORIZED}
        assert metadata.reads == 1


@PROTOCOLS
@pytest.mark.parametrize("key", [OTHER_KEY, KEY])
async def test_a_name_that_nobody_could_check_is_no_evidence_against_the_store(
    tmp_path: Path, protocol: int, key: bytes
) -> None:
    """A made-up birth at a ledger that the bookie never saw: the store that names another one did not go back."""
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await make(kit, A)
        metadata.error = MetadataUnavailable("partitioned")
        intruder = await named(kit, B, protocol)
        assert (await intruder.call(fencing(key))).code is Code.NO_ENTRY
        assert kit.store.ledger(5).birth == B
        metadata.error = None
        owner = await named(kit, A, protocol)
        assert (await owner.call(add(5, 0))).code is Code.OK
        assert kit.store.ledger(5).birth == A
        witness = kit.bookie.witness
        assert witness is not None
        assert not witness.suspect


async def test_what_an_earlier_release_kept_of_a_wrong_key_gives_way(tmp_path: Path) -> None:
    """It marked no key as proven; a key that it had admitted is."""
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await make(kit, A)
        kit.store.put_ledger(5, OTHER_KEY, admitted=False, birth=NO_BIRTH)
        kit.store.fence(5)
        owner = await kit.wire()
        assert (await owner.call(add(5, 0))).code is Code.OK
        kit.store.put_ledger(6, KEY)
        assert kit.store.ledger(6).proven


async def test_of_a_ledger_that_is_gone_no_key_is_right(tmp_path: Path) -> None:
    async with attacked_alone(tmp_path, "copy") as (kit, metadata):
        metadata.error = None
        await kit.metadata.delete_ledger(5, (await kit.metadata.read_ledger(5)).version)
        owner: Wire = await kit.wire(3)
        assert (await owner.call(fencing(KEY))).code is Code.NO_LEDGER
        assert kit.store.ledger(5).fenced
        assert (await owner.call(add(5, 0, recovery=True))).code is Code.NO_LEDGER
        assert (await owner.call(add(5, 1))).code is Code.FENCED


async def test_a_closed_ledger_keeps_its_owner(tmp_path: Path) -> None:
    async with attacked_alone(tmp_path, "fence") as (kit, metadata):
        metadata.error = None
        await make(kit, state=LedgerState.CLOSED, ledger=7)
        owner, intruder = await kit.wire(3), await kit.wire(3)
        assert (await intruder.call(add(7, 0, OTHER_KEY, recovery=True))).code is Code.UNAUTHORIZED
        assert (await owner.call(add(7, 0, recovery=True))).code is Code.OK
        assert kit.store.ledger(7).proven
        assert not kit.store.ledger(7).fenced


@PROTOCOLS
async def test_a_key_of_another_size_is_refused(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        await make(kit, A)
        wire = await kit.wire(3)
        for key in (b"", b"short", bytes(21)):
            assert (await wire.call(fencing(key))).code in (Code.UNAUTHORIZED, Code.BAD_REQUEST)
        assert kit.store.ledger(5) is None


@pytest.mark.parametrize("first", ["copy", "fence", "add"])
async def test_who_waits_is_of_the_ledger_that_was_named_then(tmp_path: Path, first: str) -> None:
    """A connection may name another ledger of the id while what it sent before still waits for metadata."""
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata, admission_timeout_s=5.0) as kit:
        await make(kit, A)
        metadata.gate.clear()
        wire = await named(kit, A)
        wire.send(FIRST[first](KEY))
        await until(lambda: metadata.reads == 1)
        wire.wire.writer.write(wire_v2.name_ledger(5, B))
        assert await wire.wire.silent()
        metadata.gate.set()
        assert (await wire.wire.reply()).code in (Code.OK, Code.NO_ENTRY)
        assert kit.store.ledger(5).birth == A
        owner = await named(kit, A)
        assert (await owner.call(add(5, 1))).code is (Code.FENCED if first == "fence" else Code.OK)


async def test_an_id_that_the_store_cannot_have_stops_no_other_ledger(tmp_path: Path) -> None:
    """Whatever a look ends with, who waits hears of it, and the next look goes on."""
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await make(kit, A)
        metadata.error = InvalidArgument("an id beyond what this store can have")
        wire = await kit.wire(3)
        assert (await wire.call(add(2**62, 0))).code is Code.IO_ERROR
        assert (await wire.call(fencing(KEY, 2**62))).code is Code.NO_ENTRY
        metadata.error = None
        assert (await wire.call(add(5, 0))).code is Code.OK

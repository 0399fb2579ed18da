"""Ledgers of tenants: under ids that they were given, within the quota, and they stay the ledgers that they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.gate_kit import TENANT, Stream, World

from buckram.core.ledgers.metadata import BIRTH, closed, created, ensemble_changed, in_recovery
from buckram.core.ledgers.metadata_codec import serialise
from buckram.core.streams.names import StreamName, owner_mark
from buckram.errors import AccessRefused, LedgerExists, LedgerIdRefused, MetadataUnavailable, NoSuchLedger
from buckram.metadata.service.packets import KeyRequest, RequestKind
from buckram.metadata.service.store import ServiceStore
from buckram.types import Create, DigestType, Fragment, LedgerId, LedgerMetadata, LedgerState, SetValue


async def stream(world: World) -> Stream:
    return await (await world.tenant("mallory")).stream("mall/bait")


async def test_no_change_creates_a_ledger(world: World) -> None:
    mine = await stream(world)
    given = await mine.tenant.store.allocate_ledger_id()
    for ledger in (given, given + 1000):
        key = await mine.tenant.ledger_key(ledger)
        for ops in ([Create(key, serialise(mine.record()))], [Create(mine.data + "/cursors/c", b""), Create(key, b"")]):
            with pytest.raises(AccessRefused):
                await mine.tenant.keys.multi(ops)
        with pytest.raises(NoSuchLedger):
            await world.direct.read_ledger(ledger)


async def test_a_ledger_gets_an_id_that_this_session_was_given(world: World) -> None:
    mine, other = await stream(world), await world.tenant("mallory")
    gone = await mine.make_ledger()
    await mine.tenant.store.delete_ledger(gone, 0)
    foreign, own = await other.store.allocate_ledger_id(), await mine.tenant.store.allocate_ledger_id()
    next_id = await world.direct.next_ledger_id()
    for ledger in (gone, foreign, next_id, next_id + 3000, 2**62):
        for chosen in (True, False):
            request = KeyRequest(RequestKind.LEDGER_CREATE, number=ledger, watch=chosen, value=serialise(mine.record()))
            with pytest.raises(LedgerIdRefused, match=f"ledger {ledger}: .*given by the cluster"):
                await mine.tenant.store._service.tell(request)
    assert await world.direct.next_ledger_id() == next_id
    await mine.tenant.store.create_ledger(own, mine.record())
    with pytest.raises((LedgerIdRefused, LedgerExists)):
        await mine.tenant.store.create_ledger(own, mine.record())


async def test_an_id_is_used_once_also_by_requests_at_the_same_time(world: World) -> None:
    mine = await stream(world)
    ledger = await mine.tenant.store.allocate_ledger_id()
    requests = (KeyRequest(RequestKind.LEDGER_CREATE, number=ledger, value=serialise(mine.record())) for _ in range(5))
    tell = mine.tenant.store._service.tell
    done = await asyncio.gather(*map(tell, requests), return_exceptions=True)
    assert sum(isinstance(one, int) for one in done) == 1
    assert sum(isinstance(one, LedgerIdRefused) for one in done) == 4


@pytest.mark.parametrize("birth", [b"", bytes(16), b"ctime" + bytes(11)])
async def test_a_ledger_has_a_birth_of_its_own(world: World, birth: bytes) -> None:
    mine = await stream(world)
    ledger = await mine.tenant.store.allocate_ledger_id()
    with pytest.raises(AccessRefused, match="birth"):
        await mine.tenant.store.create_ledger(ledger, mine.record(birth=birth))
    await mine.tenant.store.create_ledger(ledger, mine.record())


async def test_an_id_of_a_session_that_is_over_is_refused_unless_the_ledger_is_there(world: World) -> None:
    mine = await stream(world)
    store, record = mine.tenant.store, mine.record()
    made, lost = await store.allocate_ledger_id(), await store.allocate_ledger_id()
    await store.create_ledger(made, record)
    world.served["mallory"].drop()
    assert (await retried(store, made, record)).metadata == record
    with pytest.raises(LedgerIdRefused):
        await retried(store, lost, record)
    with pytest.raises(LedgerIdRefused):
        await retried(store, made, replace(record, creator_token=1))


async def retried(store: ServiceStore, ledger: LedgerId, record: LedgerMetadata) -> object:
    """The first request may find the connection ending."""
    while True:
        try:
            return await store.create_ledger(ledger, record)
        except MetadataUnavailable:
            continue


Change = Callable[[LedgerMetadata], LedgerMetadata]


def custom(name: str, value: bytes | None) -> Change:
    def change(record: LedgerMetadata) -> LedgerMetadata:
        left = {key: one for key, one in record.custom_metadata.items() if key != name}
        return replace(record, custom_metadata=left if value is None else {**left, name: value})

    return change


LASTING: dict[str, Change] = {
    "birth": custom(BIRTH, b"x" * 16),
    "no birth": custom(BIRTH, None),
    "stream": custom("buckram.stream", b"mall/other"),
    "uid": custom("buckram.stream.uid", b"u"),
    "purpose": custom("buckram.stream.purpose", b"object"),
    "no mark": custom("buckram.stream.uid", None),
    "namespace": custom("buckram.namespace", b"shop"),
    "another word": custom("application", b"x"),
    "password": lambda record: replace(record, password=b"mine"),
    "digest": lambda record: replace(record, digest_type=DigestType.DUMMY),
    "creation time": lambda record: replace(record, creation_time_ms=5),
    "quorum": lambda record: replace(record, ack_quorum=1),
    "write quorum": lambda record: replace(record, write_quorum=3),
    "format": lambda record: replace(record, format_version=2),
    "token": lambda record: replace(record, creator_token=77),
}


@pytest.mark.parametrize("what", LASTING)
async def test_what_makes_a_ledger_this_one_never_changes(world: World, what: str) -> None:
    mine = await stream(world)
    mark = dict(mine.record().custom_metadata)
    birth = mark.pop(BIRTH)
    record = created(3, 2, 2, ("a", "b", "c"), custom_metadata=mark, birth=birth, password=b"p", creation_time_ms=4)
    ledger = await mine.tenant.store.allocate_ledger_id()
    await mine.tenant.store.create_ledger(ledger, record)
    key = await mine.tenant.ledger_key(ledger)
    changed = LASTING[what](record)
    with pytest.raises(AccessRefused):
        await mine.tenant.keys.set(key, serialise(changed), 0)
    with pytest.raises(AccessRefused):
        await mine.tenant.keys.multi([SetValue(key, serialise(changed), 0), SetValue(mine.head_key, b"", 0)])
    assert (await world.direct.read_ledger(ledger)).metadata == record


async def test_writers_and_recovery_change_the_rest(world: World) -> None:
    mine = await stream(world)
    ledger, record = await mine.tenant.store.allocate_ledger_id(), mine.record()
    at = await mine.tenant.store.create_ledger(ledger, record)
    for change in (
        lambda now: ensemble_changed(now, 5, ("c",)),
        in_recovery,
        lambda now: closed(now, 7, 100),
    ):
        at = await mine.tenant.store.write_ledger(ledger, change(at.metadata), at.version)
    assert (await world.direct.read_ledger(ledger)).metadata.closed


BACK: dict[str, Callable[[LedgerMetadata], LedgerMetadata]] = {
    "open again": lambda now: replace(now, state=LedgerState.OPEN, last_entry=None, length=None),
    "in recovery again": lambda now: replace(now, state=LedgerState.IN_RECOVERY, last_entry=None, length=None),
    "another end": lambda now: replace(now, last_entry=5000, length=100),
    "another length": lambda now: replace(now, length=99),
    "a fragment less": lambda now: replace(now, fragments=now.fragments[:1]),
    "a fragment elsewhere": lambda now: replace(now, fragments=(now.fragments[0], Fragment(6, ("c",)))),
    "a fragment more": lambda now: replace(now, fragments=(*now.fragments, Fragment(7, ("d",)))),
}


@pytest.mark.parametrize("what", BACK)
async def test_a_record_takes_no_step_that_no_program_takes(world: World, what: str) -> None:
    """Healing looks at a ledger, copies it, and changes the record as it is then; it ended where that went back."""
    mine = await stream(world)
    ledger, record = await mine.tenant.store.allocate_ledger_id(), mine.record()
    at = await mine.tenant.store.create_ledger(ledger, record)
    for change in (lambda now: ensemble_changed(now, 5, ("c",)), lambda now: closed(now, 7, 100)):
        at = await mine.tenant.store.write_ledger(ledger, change(at.metadata), at.version)
    key = await mine.tenant.ledger_key(ledger)
    with pytest.raises(AccessRefused):
        await mine.tenant.keys.set(key, serialise(BACK[what](at.metadata)), at.version)
    assert (await world.direct.read_ledger(ledger)).metadata == at.metadata


async def test_folders_are_tidied_after_ledgers_alone(world: World) -> None:
    """Whoever says that a ledger's record went has empty folders above it removed: of ledgers, and by no other key."""
    mine = await stream(world)
    theirs = await (await world.tenant("alice")).stream("shop/orders")
    world.grant("mallory", "shop/orders", "read")
    ledger, own = await theirs.make_listed(), await mine.make_listed()
    record, mine_record = await theirs.tenant.ledger_key(ledger), await mine.tenant.ledger_key(own)
    kept = [record, mine_record, theirs.data, theirs.head_key, mine.data, mine.head_key]
    before = await world.held(kept)
    for key in (
        f"{record}/{mine.uid}",
        f"{record}/{theirs.uid}",
        f"{mine_record}/{mine.uid}",
        f"{theirs.data}/cursors/x",
        f"{mine.data}/cursors/x",
        f"{mine.head_key}/x",
        record,
    ):
        with pytest.raises(AccessRefused):
            await mine.tenant.store._service.tell(KeyRequest(RequestKind.REMOVED, key))
        assert await world.held(kept) == before
    await mine.tenant.store._service.tell(KeyRequest(RequestKind.REMOVED, mine_record))
    assert await world.held(kept) == before


@pytest.mark.parametrize("claim", [{"last_entry": 10**10}, {"last_entry": 2**62}, {"length": 2**62}])
async def test_a_record_claims_no_more_than_a_ledger_can_hold(world: World, claim: dict[str, int]) -> None:
    """Healing looks for each entry that a record speaks of."""
    mine = await stream(world)
    ledger = await mine.make_listed()
    record = (await world.direct.read_ledger(ledger)).metadata
    sealed = replace(closed(in_recovery(record), 7, 100), creator_token=0)
    with pytest.raises(AccessRefused, match="begin another ledger"):
        await mine.tenant.store.write_ledger(ledger, replace(sealed, **claim), 0)
    other = await mine.tenant.store.allocate_ledger_id()
    with pytest.raises(AccessRefused, match="begin another ledger"):
        await mine.tenant.store.create_ledger(other, replace(closed(in_recovery(mine.record()), 7, 100), **claim))
    await mine.tenant.store.write_ledger(ledger, sealed, 0)


async def test_a_ledger_belongs_to_a_namespace_that_is_there(world: World) -> None:
    """Usage is counted by namespaces, and a grant by a pattern is for any number of them."""
    world.grant("mallory", "mall*", *TENANT)
    mine = await stream(world)
    birth = dict(mine.record().custom_metadata)[BIRTH]
    for space, there in (("mall", True), ("mall-1", False), ("mall ", False), ("mall-2", False)):
        ledger = await mine.tenant.store.allocate_ledger_id()
        for custom in ({"buckram.namespace": space.encode()}, owner_mark(StreamName(space, "s"), "u", "segment")):
            record = created(1, 1, 1, ("b",), custom_metadata=custom, birth=birth)
            if there:
                await mine.tenant.store.create_ledger(await mine.tenant.store.allocate_ledger_id(), record)
            else:
                with pytest.raises(AccessRefused):
                    await mine.tenant.store.create_ledger(ledger, record)

"""What a stream's keys may name: only ledgers that were made for this stream, or that it holds. Not those of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.gate_kit import INTENT, Stream, World, rows

from buckram.bookie.service.metadata.key_session import KeySession
from buckram.core.ledgers.metadata_codec import serialise
from buckram.core.streams.external.exports import Export, encode_export
from buckram.core.streams.metadata.head import HISTORY, SnapshotRow, decode_head
from buckram.errors import AccessRefused, KeyExists, LedgerIdRefused, MetadataUnavailable, NoSuchKey, VersionConflict
from buckram.metadata.service.packets import KeyReply, KeyRequest, RequestKind
from buckram.metadata.tree.store import TreeStore
from buckram.types import CheckVersion, Create, Delete, KeyOp, LedgerId, SetValue


async def both(world: World) -> tuple[Stream, Stream, LedgerId]:
    """Streams of mallory and alice, and a ledger that alice's lists."""
    mine = await (await world.tenant("mallory")).stream("mall/bait")
    theirs = await (await world.tenant("alice")).stream("shop/orders")
    return mine, theirs, await theirs.make_listed()


def in_tail(mine: Stream, ledger: LedgerId) -> KeyOp:
    return mine.setting(0, tail=rows([ledger]))


def in_table(mine: Stream, ledger: LedgerId) -> KeyOp:
    return mine.setting(0, table=rows([ledger])[0])


def in_garbage(mine: Stream, ledger: LedgerId) -> KeyOp:
    return mine.setting(0, garbage=(ledger,))


def in_snapshots(mine: Stream, ledger: LedgerId) -> KeyOp:
    return mine.setting(0, snapshots=(SnapshotRow(0, ledger, 0, 1, "", 1),))


def in_page(mine: Stream, ledger: LedgerId) -> KeyOp:
    return mine.page(ledger)


def in_export(mine: Stream, ledger: LedgerId) -> KeyOp:
    return Create(f"{mine.layout.exports(mine.uid)}/x", encode_export(Export("/x", 1, (ledger,))))


def in_intent(mine: Stream, ledger: LedgerId) -> KeyOp:
    return Create(mine.layout.intent(mine.uid, ledger), INTENT)


def in_mark(mine: Stream, ledger: LedgerId) -> KeyOp:
    return Create(f"{mine.layout.shared(mine.uid)}/{ledger:019d}", b"")


PLACES = [in_tail, in_table, in_garbage, in_snapshots, in_page, in_export, in_intent, in_mark]


@pytest.mark.parametrize("place", PLACES)
async def test_nobody_names_a_ledger_of_another_stream(
    world: World, place: Callable[[Stream, LedgerId], KeyOp]
) -> None:
    mine, _, ledger = await both(world)
    if place is in_snapshots:  # only a machine's log has some
        mine = await mine.tenant.stream("mall/machine", snapshots=())
    op = place(mine, ledger)
    before = await world.held([op.key])
    with pytest.raises(AccessRefused, match=str(ledger)):
        await mine.tenant.keys.multi([op])
    assert await world.held([op.key]) == before


async def test_each_row_is_looked_at(world: World) -> None:
    """Behind own ones, and in each place at once."""
    mine, _, ledger = await both(world)
    own = [await mine.make_listed() for _ in range(3)]
    version = (await mine.head())[1]
    mixed: list[KeyOp] = [
        mine.page(*own, ledger),
        mine.page(ledger, *own),
        mine.setting(version, tail=rows([*own, ledger])),
        mine.setting(version, tail=rows([own[0], ledger, *own[1:]])),
        mine.setting(version, garbage=(*own, ledger)),
        Create(f"{mine.layout.exports(mine.uid)}/x", encode_export(Export("/x", 1, (*own, ledger)))),
    ]
    for op in mixed:
        for ops in ([op], [CheckVersion(mine.head_key, version), op]):
            with pytest.raises(AccessRefused, match=str(ledger)):
                await mine.tenant.keys.multi(ops)
    await mine.tenant.keys.multi([mine.page(*own)])


async def test_a_page_is_the_one_that_its_key_says(world: World) -> None:
    """Whoever deletes a stream goes through its pages by their numbers."""
    mine, _, _ = await both(world)
    own = await mine.make_listed()
    page = mine.page(own, number=1)
    for name in ("000000000000", "1", "0000000000001", "x"):
        with pytest.raises(AccessRefused, match="holds page 1"):
            await mine.tenant.keys.create(f"{page.key.rpartition('/')[0]}/{name}", page.value)
    await mine.tenant.keys.multi([page])


@pytest.mark.parametrize("place", [in_tail, in_garbage, in_page, in_intent])
async def test_an_own_ledger_is_named_without_its_intent(
    world: World, place: Callable[[Stream, LedgerId], KeyOp]
) -> None:
    """As a fork writes its pages, and compaction retires a segment."""
    mine, _, _ = await both(world)
    ledger = await mine.make_ledger()
    await mine.tenant.keys.delete(mine.layout.intent(mine.uid, ledger), 0)
    await (await world.tenant("mallory")).keys.multi([place(mine, ledger)])


async def test_an_owner_mark_counts_by_name_and_uid(world: World) -> None:
    mine, theirs, _ = await both(world)
    other = await mine.tenant.stream("mall/other")
    for record in (mine.record(uid=theirs.uid), mine.record(name=other.name), other.record()):
        ledger = await mine.tenant.store.allocate_ledger_id()
        await mine.tenant.store.create_ledger(ledger, record)
        with pytest.raises(AccessRefused):
            await mine.tenant.keys.multi([in_tail(mine, ledger)])


async def test_an_intent_proves_an_id_only_if_it_was_there_before(world: World) -> None:
    mine, _, ledger = await both(world)
    key = mine.layout.intent(mine.uid, ledger)
    for ops in (
        [Create(key, INTENT), in_tail(mine, ledger), CheckVersion(key, 0)],
        [in_tail(mine, ledger), Create(key, INTENT), Delete(key, 0)],
        [in_tail(mine, ledger), Create(key, INTENT)],
    ):
        with pytest.raises(AccessRefused):
            await mine.tenant.keys.multi(ops)
    with pytest.raises((NoSuchKey, AccessRefused)):
        await mine.tenant.keys.multi([in_tail(mine, ledger), Delete(key, 0)])
    assert decode_head("", (await world.direct.keys.get(mine.head_key)).value).tail == ()


async def test_an_id_is_named_by_an_intent_only_where_it_was_given(world: World) -> None:
    mine, _, ledger = await both(world)
    other = await world.tenant("mallory")
    given = await other.store.allocate_ledger_id()
    for wrong in (given, ledger + 1_000_000):
        with pytest.raises(LedgerIdRefused, match=str(wrong)):
            await mine.tenant.keys.create(mine.layout.intent(mine.uid, wrong), INTENT)
    await other.keys.create(mine.layout.intent(mine.uid, given), INTENT)
    with pytest.raises(AccessRefused, match="19 digits"):
        await other.keys.create(f"{mine.layout.intents(mine.uid)}/x", INTENT)
    fresh = await other.store.allocate_ledger_id()
    for value in (b"", b"{}", INTENT.replace(b"1", b'"1"'), b"[" * 2000):
        with pytest.raises(AccessRefused, match="intent"):
            await other.keys.create(mine.layout.intent(mine.uid, fresh), value)


async def test_rows_move_within_a_change_and_nothing_is_looked_up(world: World) -> None:
    """From the head to a page and to the garbage, and along with an intent, also where the records are gone."""
    mine, _, _ = await both(world)
    ledgers = [await mine.make_listed() for _ in range(4)]
    for ledger in ledgers:
        await world.direct.delete_ledger(ledger, 0)
    version = (await mine.head())[1]
    page = mine.page(*ledgers[:2])
    moved = mine.setting(version, tail=rows(ledgers[3:]), garbage=(ledgers[2],))
    retired = [Create(mine.layout.intent(mine.uid, one), INTENT) for one in ledgers]
    await mine.tenant.keys.multi([page, moved, *retired])
    with pytest.raises(AccessRefused):
        await mine.tenant.keys.multi([mine.setting(version + 1, garbage=(ledgers[0],))])
    back = mine.setting(version + 1, garbage=(ledgers[0],), tail=())
    await mine.tenant.keys.multi([Delete(page.key, 0), back])


async def test_files_are_no_ledgers_and_prove_none(world: World) -> None:
    mine, _, ledger = await both(world)
    await mine.tenant.keys.multi([mine.setting(0, tail=rows([ledger], HISTORY)), mine.page(ledger, kind=HISTORY)])
    for op in (mine.setting(1, tail=rows([ledger])), SetValue(in_page(mine, ledger).key, mine.page(ledger).value, 0)):
        with pytest.raises(AccessRefused, match=str(ledger)):
            await mine.tenant.keys.multi([op])
    with pytest.raises(AccessRefused):
        await mine.tenant.keys.multi([mine.setting(1, tail=()), in_intent(mine, ledger)])


async def test_a_copy_leaves_an_export_by_its_intent(world: World) -> None:
    mine, _, _ = await both(world)
    copy = await mine.tenant.store.allocate_ledger_id()
    intent = mine.layout.intent(mine.uid, copy)
    await mine.tenant.keys.create(intent, INTENT)
    published = in_export(mine, copy)
    await mine.tenant.keys.multi([published, Delete(intent, 0)])
    later = await world.tenant("mallory")
    empty = SetValue(published.key, encode_export(Export("/x", 1)), 0)
    await later.keys.multi([empty, Create(intent, INTENT)])


async def test_a_conflict_is_said_before_a_ledger_that_is_gone(world: World) -> None:
    """An honest client looks again then; it would stop at a refusal."""
    mine, _, _ = await both(world)
    listed = await mine.make_listed()
    await world.direct.delete_ledger(listed, 0)
    with pytest.raises(VersionConflict):
        await mine.tenant.keys.multi([in_tail(mine, listed)])
    gone = mine.layout.intent(mine.uid, listed)
    with pytest.raises(NoSuchKey):
        await mine.tenant.keys.multi([in_page(mine, listed), Delete(gone[:-1] + "x", 0)])
    await world.direct.keys.create(mine.page().key, b"")
    with pytest.raises(KeyExists):
        await mine.tenant.keys.multi([in_page(mine, listed)])


async def test_a_head_is_judged_by_what_the_store_has_and_not_by_another_version(world: World) -> None:
    mine, _, _ = await both(world)
    listed = await mine.make_listed()
    for version in (0, 7):
        with pytest.raises(VersionConflict):
            await mine.tenant.keys.multi([mine.setting(version, garbage=(listed, listed + 500))])


# Ledgers that several streams hold


async def shared(world: World, mine: Stream, theirs: Stream, ledger: LedgerId) -> list[KeyOp]:
    """As `streams/shared/shared_ledgers.py` begins it."""
    key = await mine.tenant.ledger_key(ledger)
    return [
        Create(f"{key}/{theirs.uid}", str(theirs.name).encode()),
        Create(f"{key}/{mine.uid}", str(mine.name).encode()),
        in_mark(mine, ledger),
    ]


async def test_a_fork_names_what_it_holds(world: World) -> None:
    world.grant("mallory", "shop/orders", "read")
    world.grant("mallory", "shop/fork", "read", "append", "create")
    theirs = await (await world.tenant("alice")).stream("shop/orders")
    ledger = await theirs.make_listed()
    mine = await (await world.tenant("mallory")).stream("shop/fork")
    ops = await shared(world, mine, theirs, ledger)
    own, both_ops = ops[1], ops[:2]
    assert isinstance(own, Create)
    refused: list[list[KeyOp]] = [
        [ops[2]],  # nobody holds it
        [ops[0]],  # it makes nobody hold it but the owner, of whose stream mallory may change nothing
        [own],  # the ledger's own stream does not, so mallory would be the last to let go
        [ops[0], Create(own.key, b"shop/other")],
        [ops[0], Create(own.key, b"")],
        [ops[0], Create(own.key, own.value, ephemeral=True)],
        [Create(ops[0].key, str(theirs.name).encode(), ephemeral=True), own],
    ]
    for attempt in refused:
        with pytest.raises(AccessRefused):
            await mine.tenant.keys.multi(attempt)
    assert await world.direct.keys.children(await mine.tenant.ledger_key(ledger)) == []
    await mine.tenant.keys.multi([*both_ops, ops[2], in_page(mine, ledger)])
    await mine.tenant.keys.multi([in_tail(mine, ledger), in_intent(mine, ledger)])
    with pytest.raises(AccessRefused):
        await mine.tenant.keys.delete(ops[0].key, 0)


async def test_a_held_ledger_is_there_when_the_key_comes(world: World) -> None:
    """The record's version belongs to the change, so that none of a deleted ledger comes back as a parent."""
    theirs = await (await world.tenant("alice")).stream("shop/orders")
    fork = await theirs.tenant.stream("shop/fork")
    ledger = await theirs.make_listed()
    ops = await shared(world, fork, theirs, ledger)
    await world.direct.delete_ledger(ledger, 0)
    with pytest.raises((NoSuchKey, AccessRefused)):
        await fork.tenant.keys.multi(ops)
    assert (await world.held([await fork.tenant.ledger_key(ledger)])).popitem()[1] is None


async def test_nor_does_it_come_when_the_ledger_went_while_the_change_was_judged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = await (await world.tenant("alice")).stream("shop/orders")
    fork = await theirs.tenant.stream("shop/fork")
    ledger = await theirs.make_listed()
    ops = await shared(world, fork, theirs, ledger)
    change = KeySession._changed

    async def late(self: KeySession, ops: Sequence[KeyOp]) -> KeyReply:
        await world.direct.delete_ledger(ledger, 0)
        return await change(self, ops)

    monkeypatch.setattr(KeySession, "_changed", late)
    with pytest.raises((NoSuchKey, VersionConflict)):
        await fork.tenant.keys.multi(ops)
    assert await world.direct.keys.children(await fork.tenant.ledger_key(ledger)) == []


async def test_a_stream_marks_as_shared_what_it_holds_together_with_others_only(world: World) -> None:
    mine, _, _ = await both(world)
    own = await mine.make_listed()
    with pytest.raises(AccessRefused, match=str(own)):
        await mine.tenant.keys.multi([in_mark(mine, own)])


async def test_an_id_whose_creation_nobody_answered_is_looked_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger may be there, and made for another stream."""
    mine, _, _ = await both(world)
    other = await mine.tenant.stream("mall/other")
    ledger = await mine.tenant.store.allocate_ledger_id()
    create = TreeStore.create_record

    async def unanswered(self: TreeStore, number: LedgerId, record: bytes, **how: Any) -> int:
        monkeypatch.undo()
        await create(self, number, record, **how)
        raise MetadataUnavailable("the reply was lost")

    monkeypatch.setattr(TreeStore, "create_record", unanswered)
    request = KeyRequest(RequestKind.LEDGER_CREATE, number=ledger, value=serialise(other.record()))
    with pytest.raises(MetadataUnavailable):
        await mine.tenant.store._service.tell(request)
    with pytest.raises(AccessRefused, match=str(ledger)):
        await mine.tenant.keys.multi([in_intent(mine, ledger)])
    await mine.tenant.keys.multi([in_intent(other, ledger)])

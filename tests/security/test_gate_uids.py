"""A stream's uid is its own: nobody takes that of another, neither in one change nor in two."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.gate_kit import Stream, World

from buckram.bookie.service.metadata.key_session import KeySession
from buckram.errors import AccessRefused, KeyExists
from buckram.metadata.service.packets import KeyReply
from buckram.types import Create, Delete, KeyOp


async def both(world: World) -> tuple[Stream, Stream]:
    mine = await (await world.tenant("mallory")).stream("mall/bait")
    theirs = await (await world.tenant("alice")).stream("shop/orders")
    await theirs.tenant.keys.create(f"{theirs.layout.cursors(theirs.uid)}/c", b"{}")
    await theirs.tenant.keys.create(theirs.layout.lease(theirs.uid), b"alice", ephemeral=True)
    return mine, theirs


def bait(mine: Stream, theirs: Stream) -> Create:
    return Create(mine.head_key, mine.head_value().replace(mine.uid.encode(), theirs.uid.encode()))


async def test_a_head_is_not_made_anew_with_the_uid_of_a_victim(world: World) -> None:
    mine, theirs = await both(world)
    victims = [f"{theirs.layout.cursors(theirs.uid)}/c", theirs.layout.lease(theirs.uid), theirs.data]
    before = await world.held([*victims, mine.head_key])
    takes = bait(mine, theirs)
    removal = [Delete(key, 0) for key in victims[:2]]
    attempts: list[list[KeyOp]] = [
        [Delete(mine.head_key, 0), takes, *removal],
        [Delete(mine.head_key, 0), takes],
        [takes, Delete(mine.head_key, 0), *removal],
        [Create(f"{mine.head_key}2", takes.value), *removal],
        [*removal, Create(f"{mine.head_key}2", takes.value)],
        [Delete(theirs.data, 0), Create(f"{mine.head_key}2", takes.value)],
    ]
    for ops in attempts:
        with pytest.raises(AccessRefused):
            await mine.tenant.keys.multi(ops)
    with pytest.raises((AccessRefused, KeyExists)):
        await mine.tenant.keys.multi([takes, *removal])
    assert await world.held(before) == before


async def test_nor_in_two_steps_or_by_a_change_of_the_head(world: World) -> None:
    mine, theirs = await both(world)
    await mine.tenant.keys.delete(mine.head_key, 0)
    with pytest.raises(AccessRefused, match="uid"):
        await mine.tenant.keys.multi([bait(mine, theirs)])
    again = await mine.tenant.stream("mall/again")
    with pytest.raises(AccessRefused, match="uid"):
        await again.tenant.keys.set(again.head_key, bait(mine, theirs).value, 0)


async def test_the_same_key_is_not_made_and_deleted_in_one_change(world: World) -> None:
    mine, _ = await both(world)
    with pytest.raises(AccessRefused, match="a change of its own"):
        await mine.tenant.keys.multi([Delete(mine.head_key, 0), Create(mine.head_key, mine.head_value())])


async def test_two_streams_do_not_begin_with_one_uid(world: World) -> None:
    mine, _ = await both(world)
    uid = b"c" * 16
    value = mine.head_value().replace(mine.uid.encode(), uid)
    with pytest.raises(AccessRefused, match="two new streams"):
        await mine.tenant.keys.multi([Create(f"{mine.head_key}{n}", value) for n in range(2)])


async def test_a_lease_passes_from_writer_to_writer_in_one_change(world: World) -> None:
    mine, _ = await both(world)
    lease = mine.layout.lease(mine.uid)
    await mine.tenant.keys.create(lease, b"one", ephemeral=True)
    await mine.tenant.keys.multi([Delete(lease, 0), Create(lease, b"two", ephemeral=True)])
    assert (await mine.tenant.keys.get(lease)).value == b"two"


async def test_keys_of_a_new_stream_come_with_it(world: World) -> None:
    mine, _ = await both(world)
    fresh = Stream(mine.tenant, "mall/fresh", "d" * 16)
    lease = Create(fresh.layout.lease(fresh.uid), b"me", ephemeral=True)
    await mine.tenant.keys.multi([Create(fresh.head_key, fresh.head_value()), lease])
    assert await world.direct.keys.get(fresh.data)
    with pytest.raises(KeyExists):
        await mine.tenant.keys.multi([Create(fresh.head_key, fresh.head_value()), Create(fresh.data, b"")])


async def test_a_stream_that_is_there_says_so_whatever_uid_it_should_get(world: World) -> None:
    mine, theirs = await both(world)
    with pytest.raises(KeyExists):
        await mine.tenant.keys.multi([bait(mine, theirs)])


async def test_a_stream_that_came_to_nothing_gives_no_rights(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its uid was taken by another one while the change was judged."""
    mine, theirs = await both(world)
    fresh, late = Stream(mine.tenant, "mall/fresh", "d" * 16), Stream(theirs.tenant, "shop/late", "d" * 16)
    change = KeySession._changed

    async def after_another(self: KeySession, ops: Sequence[KeyOp]) -> KeyReply:
        monkeypatch.undo()
        await world.direct.keys.multi([Create(late.head_key, late.head_value()), Create(late.data, b"")])
        return await change(self, ops)

    monkeypatch.setattr(KeySession, "_changed", after_another)
    with pytest.raises(KeyExists):
        await mine.tenant.keys.create(fresh.head_key, fresh.head_value())
    lease = late.layout.lease(late.uid)
    for keys in (mine.tenant.keys, (await world.tenant("mallory")).keys):
        with pytest.raises(AccessRefused):
            await keys.create(lease, b"mallory", ephemeral=True)
    await late.tenant.keys.create(lease, b"alice", ephemeral=True)

"""What tenants tell the cluster's healing stands in keys that all of them share: nobody takes the places of others."""

from __future__ import annotations

import pytest
from tests.support.gate_kit import Stream, World

from buckram.errors import AccessRefused, NoSuchKey
from buckram.metadata.records.bookie_health import DEGRADED, degraded_bookies, say_degraded
from buckram.metadata.records.incomplete_copies import BEHIND, note_behind, noted_members
from buckram.types import Create, SetValue


async def both(world: World) -> tuple[Stream, Stream]:
    for bookie in ("b", "c"):
        await world.direct.keys.create(world.direct.cookie_key(bookie), b"")
    mine = await (await world.tenant("mallory")).stream("mall/bait")
    return mine, await (await world.tenant("alice")).stream("shop/orders")


async def test_who_writes_a_ledger_says_who_lacks_entries_of_it(world: World) -> None:
    mine, theirs = await both(world)
    ledger, other = await mine.make_listed(), await theirs.make_listed()
    for _ in range(2):  # a later note is another version
        assert await note_behind(mine.tenant.store, ledger, ["b", "c"])
    assert await noted_members(world.direct) == [(ledger, "b"), (ledger, "c")]
    folder = f"{world.direct.own}/{BEHIND}"
    foreign = f"{folder}/{other:019d}@b"
    await theirs.tenant.keys.create(foreign, b"")
    for op in (SetValue(foreign, b"", 0), Create(f"{folder}/{other:019d}@c", b"")):
        with pytest.raises(AccessRefused):
            await mine.tenant.keys.multi([op])
    with pytest.raises(NoSuchKey):
        await mine.tenant.keys.create(f"{folder}/{other + 1000:019d}@b", b"")
    for name, why in (
        (f"{ledger:019d}@moon", "no bookie 'moon' is known"),
        (f"{ledger:019d}@../../x", "none below it"),
        (f"x/{ledger:019d}@b", "none below it"),
        (f"{ledger:019d}@", "LEDGER@BOOKIE"),
    ):
        with pytest.raises(AccessRefused, match=why):
            await mine.tenant.keys.create(f"{folder}/{name.replace('../../', 'x/')}", b"")
    with pytest.raises(AccessRefused):
        await mine.tenant.keys.delete(foreign, 0)


async def test_what_a_client_says_of_slow_bookies_is_its_own_and_goes_with_it(world: World) -> None:
    mine, theirs = await both(world)
    for why in ("slow", "slower", ""):
        await say_degraded(theirs.tenant.store, "b", "alice", why)
    await say_degraded(theirs.tenant.store, "b", "alice", "slow")
    await say_degraded(mine.tenant.store, "c", "mallory", "slow")
    folder = f"{world.direct.own}/{DEGRADED}"
    with pytest.raises(AccessRefused, match="another session made this report"):
        await say_degraded(mine.tenant.store, "b", "alice", "")
    other = await world.tenant("mallory")
    with pytest.raises(AccessRefused, match="another session made this report"):
        await say_degraded(other.store, "c", "mallory", "")
    with pytest.raises(AccessRefused, match="belongs to the session"):
        await mine.tenant.keys.create(f"{folder}/b@mallory", b"slow")
    for name, why in (("moon@x", "is known"), ("b", "BOOKIE@CLIENT"), ("b@", "BOOKIE@CLIENT"), ("b@x/y", "none below")):
        with pytest.raises(AccessRefused, match=why):
            await mine.tenant.keys.create(f"{folder}/{name}", b"slow", ephemeral=True)
    assert await degraded_bookies(world.direct) == {"b": "slow", "c": "slow"}


@pytest.mark.parametrize("folder", ["namespaces", "replication"])
async def test_who_administers_a_namespace_makes_no_keys_below_its_record(world: World, folder: str) -> None:
    world.grant("mallory", "mall", "admin")
    mine, _ = await both(world)
    for below in ("x", "x/y"):
        with pytest.raises(AccessRefused):
            await mine.tenant.keys.create(f"{world.direct.own}/streams/{folder}/mall/{below}", bytes(60_000))
    with pytest.raises(AccessRefused):
        await mine.tenant.keys.create(f"{world.direct.own}/streams/heads/mall/bait/x", mine.head_value())

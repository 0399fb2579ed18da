"""How large and how many the keys of a tenant may be, and how they are named."""

from __future__ import annotations

import pytest
from tests.support.gate_kit import Stream, World

from buckram.bookie.service.metadata import change_gate as gate
from buckram.core.security import write_limits as bounds
from buckram.core.security.acl import Acl
from buckram.core.security.write_limits import OF_STREAM, Bound
from buckram.errors import AccessRefused, ValueTooLarge
from buckram.seams import MAX_VALUE_BYTES
from buckram.types import Create, KeyOp


async def stream(world: World) -> Stream:
    return await (await world.tenant("mallory")).stream("mall/bait")


@pytest.mark.parametrize(
    "key", ["cursors/c", "lease", "intents/0000000000000000001", "writers/w", "backup", "progress", "shared/1", ""]
)
async def test_a_value_is_as_large_as_its_kind_needs(world: World, key: str) -> None:
    mine = await stream(world)
    full = f"{mine.data}/{key}".rstrip("/")
    folder, slash, _ = key.partition("/")
    limit = OF_STREAM[folder + slash].most_bytes if key else 1024
    with pytest.raises(ValueTooLarge, match=f"are over the limit of {limit}"):
        await mine.tenant.keys.create(full, bytes(limit + 1))
    if key:
        with pytest.raises(ValueTooLarge):
            await mine.tenant.keys.multi([Create(f"{mine.data}/cursors/x", b""), Create(full, bytes(limit + 1))])


def test_the_largest_values_are_what_stores_take() -> None:
    assert bounds.STORED == MAX_VALUE_BYTES
    assert max(one.most_bytes for one in OF_STREAM.values()) == MAX_VALUE_BYTES


async def test_three_hundred_cursors_of_half_a_megabyte_are_none(world: World) -> None:
    mine = await stream(world)
    await mine.tenant.keys.create(f"{mine.data}/cursors/c", b"{}")
    with pytest.raises(ValueTooLarge, match="a cursor"):
        await mine.tenant.keys.set(f"{mine.data}/cursors/c", bytes(500_000), 0)


@pytest.mark.parametrize("which", ["cursors/c", "progress"])
async def test_what_is_set_again_and_again_is_judged_each_time(world: World, which: str) -> None:
    """Of another tenant, and of one's own once the grant is gone: these keys are changed without a look at any."""
    hers = await (await world.tenant("alice")).stream("shop/orders")
    key = f"{hers.data}/{which}"
    await hers.tenant.keys.create(key, b"{}")
    mallory = await world.tenant("mallory")
    with pytest.raises(AccessRefused):
        await mallory.keys.set(key, b"[]", 0)
    assert await hers.tenant.keys.set(key, b"1", 0) == 1
    world.acl = Acl()
    world.grant("alice", "other", "read")
    with pytest.raises(AccessRefused):
        await hers.tenant.keys.set(key, b"2", 1)
    assert await world.held([key]) == {key: (b"1", 1)}


async def test_keys_of_a_kind_are_counted_once_and_then_those_that_come(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bounds.OF_STREAM, "cursors/", Bound("a cursor", 1024, 20))
    mine = await stream(world)
    for number in range(12):
        await world.direct.keys.create(f"{mine.data}/cursors/old{number}", b"{}")
    counted = []
    count = gate.ChangeGate._count

    async def counting(self: gate.ChangeGate, parent: str, most: int) -> int:
        counted.append(parent)
        return await count(self, parent, most)

    monkeypatch.setattr(gate.ChangeGate, "_count", counting)
    monkeypatch.setattr(gate, "_COUNTED_FOR", 5)
    for number in range(8):
        await mine.tenant.keys.create(f"{mine.data}/cursors/{number}", b"{}")
    assert len(counted) == 2
    many: list[KeyOp] = [Create(f"{mine.data}/cursors/m{number}", b"{}") for number in range(30)]
    for ops in (many[:1], many):
        with pytest.raises(AccessRefused, match="20 keys are the limit there, each a cursor; delete some"):
            await mine.tenant.keys.multi(ops)
    await mine.tenant.keys.delete(f"{mine.data}/cursors/0", 0)
    await mine.tenant.keys.create(f"{mine.data}/cursors/again", b"{}")
    with pytest.raises(AccessRefused):
        await (await world.tenant("mallory")).keys.create(f"{mine.data}/cursors/another", b"{}")


async def test_names_are_short_and_of_a_kind_that_is_known(world: World) -> None:
    mine = await stream(world)
    heads = mine.layout.heads("mall")
    for key, why in (
        (f"{mine.data}/cursors/{'c' * 201}", "201 bytes"),
        (f"{mine.data}/elsewhere", "no key of a stream"),
        (f"{mine.data}/elsewhere/x", "no key of a stream"),
        (f"{mine.data}/cursors/a/b", "more than two below"),
        (f"{heads}/a/b", "separator"),
        (f"{heads}/.a", "dot"),
        (f"{heads}/{'s' * 201}", "201 bytes"),
        (f"{world.direct.own}/healing/behind/x", "LEDGER@BOOKIE"),
    ):
        with pytest.raises(AccessRefused, match=why):
            await mine.tenant.keys.create(key, mine.head_value().replace(mine.uid.encode(), b"e" * 16))


@pytest.mark.parametrize("key", ["cursors/c", "pages/000000000000", "backup", ""])
async def test_what_stays_is_bound_to_no_session(world: World, key: str) -> None:
    mine = await stream(world)
    with pytest.raises(AccessRefused, match="does not go with a session"):
        await mine.tenant.keys.create(f"{mine.data}/{key}".rstrip("/"), b"", ephemeral=True)


async def test_a_head_speaks_of_as_many_pages_as_there_can_be(world: World) -> None:
    mine = await stream(world)
    with pytest.raises(AccessRefused, match="delete old segments first"):
        await mine.tenant.keys.multi([mine.setting(0, paged=10**15)])

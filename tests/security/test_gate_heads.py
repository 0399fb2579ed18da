"""What a tenant makes of a head: no deletion without the right to it, no odd uid, and nothing that ends servers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.gate_kit import INTENT, Stream, World

from buckram.core.streams.metadata.head import Fork
from buckram.errors import AccessRefused, InvalidArgument, KeyExists, VersionConflict
from buckram.types import Create, Delete, KeyOp, SetValue


async def lent(world: World, *permissions: str) -> tuple[Stream, Stream]:
    """A stream of mallory, and one of alice on which mallory has these permissions."""
    world.grant("mallory", "shop/orders", *permissions)
    mine = await (await world.tenant("mallory")).stream("mall/bait")
    return mine, await (await world.tenant("alice")).stream("shop/orders")


async def test_a_uid_stays_taken_as_long_as_its_stream_is_there(world: World) -> None:
    """Whoever may append could free it, take it for a stream of its own, and keep all rights below it."""
    mine, theirs = await lent(world, "read", "append")
    takes = Create(f"{mine.head_key}2", mine.head_value().replace(mine.uid.encode(), theirs.uid.encode()))
    attempts: list[list[KeyOp]] = [
        [Delete(theirs.data, 0)],
        [Delete(theirs.data, 0), takes],
        [takes, Delete(theirs.data, 0)],
        [Delete(theirs.data, 0), SetValue(theirs.head_key, theirs.head_value(), 0)],
    ]
    for ops in attempts:
        with pytest.raises((AccessRefused, KeyExists)):
            await mine.tenant.keys.multi(ops)
    assert await world.direct.keys.get(theirs.data)
    with pytest.raises(AccessRefused, match="stream shop/orders still exists"):
        await theirs.tenant.keys.delete(theirs.data, 0)
    await theirs.tenant.keys.multi([SetValue(theirs.head_key, theirs.head_value(deleting=True), 0)])
    await theirs.tenant.keys.delete(theirs.data, 0)
    await mine.tenant.keys.multi([Delete(mine.head_key, 0), Delete(mine.data, 0)])


async def test_whoever_has_no_right_to_delete_has_no_janitor_delete(world: World) -> None:
    mine, theirs = await lent(world, "read", "append")
    for fields in ({"deleting": True}, {"deleting": True, "ended": True}):
        with pytest.raises(AccessRefused, match="no permission `delete` on stream shop/orders"):
            await mine.tenant.keys.multi([SetValue(theirs.head_key, theirs.head_value(**fields), 0)])
    unmade = {"fork": Fork("shop/x", "u", 0, False)}
    for tenant in (mine.tenant, theirs.tenant):
        with pytest.raises(AccessRefused, match="complete stays so"):
            await tenant.keys.multi([SetValue(theirs.head_key, theirs.head_value(**unmade), 0)])
    world.grant("mallory", "shop/orders", "delete")
    await mine.tenant.keys.multi([SetValue(theirs.head_key, theirs.head_value(deleting=True), 0)])


async def test_a_stream_that_is_being_deleted_stays_so(world: World) -> None:
    mine, _ = await lent(world)
    await mine.tenant.keys.set(mine.head_key, mine.head_value(deleting=True), 0)
    with pytest.raises(AccessRefused, match="some of it may be gone"):
        await mine.tenant.keys.set(mine.head_key, mine.head_value(), 1)
    with pytest.raises(VersionConflict):  # an honest writer that has not seen it yet looks again
        await mine.tenant.keys.set(mine.head_key, mine.head_value(), 0)


async def test_whoever_makes_a_fork_may_give_it_up_and_complete_it(world: World) -> None:
    world.grant("mallory", "shop/fork*", "read", "append", "create")
    tenant = await world.tenant("mallory")
    for name, fields in (("fork1", {"deleting": True}), ("fork2", {})):
        fork = await tenant.stream(f"shop/{name}", fork=Fork("shop/orders", "u", 0, False))
        done = Fork("shop/orders", "u", 0, not fields)
        await tenant.keys.set(fork.head_key, fork.head_value(fork=done, **fields), 0)


@pytest.mark.parametrize("uid", ["a/b", "UID/cursors/x", "UID/cursors", ".", "..", "a b", "\u00fc", "u" * 65, "\n", ""])
async def test_a_uid_is_one_part_of_a_path(world: World, uid: str) -> None:
    """A reader may keep cursors, and could have a stream below those of another one."""
    mine, theirs = await lent(world, "read")
    wanted = json.dumps(uid.replace("UID", theirs.uid))[1:-1].encode()
    value = mine.head_value().replace(mine.uid.encode(), wanted)
    with pytest.raises((AccessRefused, InvalidArgument)):  # a store that is asked for such a key refuses it itself
        await mine.tenant.keys.create(f"{mine.head_key}2", value)
    assert len(await world.direct.keys.children(mine.layout.all_data)) == 2


ODD: dict[str, dict[str, Any]] = {
    "a setting that nobody knows": {"policy": {"colour": "red"}},
    "a setting of another type": {"policy": {"retention_s": "soon"}},
    "a list for a word": {"policy": {"digest": [], "compression": {}}},
    "no number": {"policy": {"retention_s": float("nan")}},
    "history at no place": {"policy": {"offload_to": "nowhere"}},
    "backups where a tenant says": {"policy": {"backup_to": "s3://mine/backups"}},
    "half a character": {"properties": {"a": "\ud800"}},
    "a property in a property": {"properties": {"buckram": {"a": []}}},
    "a number of many digits": {"end": 10**400},
    "a row of many digits": {"tail": [[0, "ledger", 5, 0, 10**400]]},
}


@pytest.mark.parametrize("what", ODD)
async def test_a_head_has_nothing_in_it_that_no_program_writes(world: World, what: str) -> None:
    mine, _ = await lent(world)
    value = json.dumps(json.loads(mine.head_value()) | ODD[what]).encode()
    with pytest.raises(AccessRefused):
        await mine.tenant.keys.set(mine.head_key, value, 0)
    new = value.replace(mine.uid.encode(), b"c" * 16)
    with pytest.raises(AccessRefused):
        await mine.tenant.keys.create(f"{mine.head_key}2", new)


async def test_a_setting_of_a_later_release_keeps_no_writer_out(world: World) -> None:
    """An administrator set it, and the writer leaves it as it is."""
    mine, _ = await lent(world)
    value = json.dumps(json.loads(mine.head_value()) | {"policy": {"colour": "red"}}).encode()
    await world.direct.keys.set(mine.head_key, value, 0)
    await mine.tenant.keys.set(mine.head_key, value.replace(b'"epoch": 0', b'"epoch": 1'), 1)


@pytest.mark.parametrize("fields", [{"time": 10**400}, {"epoch": -(2**64)}, {"place": "\ud800"}, {"query": "\udfff"}])
async def test_nor_has_an_intent(world: World, fields: dict[str, Any]) -> None:
    mine, _ = await lent(world)
    ledger = await mine.tenant.store.allocate_ledger_id()
    value = json.dumps(json.loads(INTENT) | fields).encode()
    with pytest.raises(AccessRefused):
        await mine.tenant.keys.create(mine.layout.intent(mine.uid, ledger), value)

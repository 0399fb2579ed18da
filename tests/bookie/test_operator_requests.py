"""A bookie follows what operators ask of it through the metadata store: read-only, a maintenance, being out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.bookie_kit import add, memory_metadata, running, seen, start
from tests.support.polling import until

from buckram.core.healing.operator_requests import NOTHING, OperatorRequest
from buckram.errors import Code, WrongCookie
from buckram.metadata.records.operator_requests import change_wish, read_wish, wish_key
from buckram.metadata.sqlite.keys import SqliteKeys
from buckram.metadata.tree.memory import MemoryTree
from buckram.metadata.uri import open_store


async def test_a_bookie_becomes_read_only_and_writable_again(tmp_path: Path) -> None:
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with running(tmp_path, metadata=await memory_metadata(tree)) as kit:
        wire = await kit.wire()
        assert (await wire.call(add(1, 0))).code is Code.OK
        await change_wish(operator, kit.id, lambda wish: replace(wish, readonly=True))
        await seen(operator, writable=[], readonly=[kit.id])
        assert (await wire.call(add(1, 1))).code is Code.READ_ONLY
        assert (await wire.call(add(1, 1, recovery=True))).code is Code.OK, "a recovery may end its ledger here"
        assert kit.bookie.state == "readonly"
        await change_wish(operator, kit.id, lambda wish: NOTHING)
        await seen(operator, writable=[kit.id], readonly=[])
        assert (await wire.call(add(1, 2))).code is Code.OK


async def test_a_wish_said_while_it_was_down_holds_from_its_start_on(tmp_path: Path) -> None:
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with running(tmp_path, metadata=await memory_metadata(tree)) as kit:
        bookie = kit.id
    await change_wish(operator, bookie, lambda wish: replace(wish, leave=True))
    async with running(tmp_path, metadata=await memory_metadata(tree)) as kit:
        found = await operator.bookies()
        assert (list(found.writable), list(found.readonly)) == ([], [bookie])
        assert (await (await kit.wire()).call(add(1, 0))).code is Code.READ_ONLY


async def test_in_a_maintenance_no_ensemble_finds_it_and_its_ledgers_go_on_until_it_is_over(tmp_path: Path) -> None:
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with running(tmp_path, metadata=await memory_metadata(tree)) as kit:
        await change_wish(operator, kit.id, lambda wish: replace(wish, rest="one", rest_s=0.5))
        await seen(operator, writable=[], readonly=[kit.id])
        assert (await (await kit.wire()).call(add(1, 0))).code is Code.OK
        await seen(operator, writable=[kit.id], readonly=[])
        assert await read_wish(operator, kit.id) == NOTHING, "it wrote down that the maintenance is over"


async def test_one_that_is_out_takes_its_registration_back_for_good(tmp_path: Path) -> None:
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with running(tmp_path, metadata=await memory_metadata(tree)) as kit:
        bookie = kit.id
        await change_wish(operator, bookie, lambda wish: replace(wish, leave=True, out=True))
        await seen(operator, writable=[], readonly=[])
        await operator.delete_cookie(bookie, (await operator.read_cookie(bookie)).version)
        assert kit.bookie.wishes is not None
        heard = kit.bookie.wishes
        await change_wish(operator, bookie, lambda wish: NOTHING)
        await until(lambda: heard._wish == NOTHING, "it did not read its wish")
        assert kit.bookie.state == "unregistered"
        assert heard.readonly
        await seen(operator, writable=[], readonly=[])
    with pytest.raises(WrongCookie):
        await start(tmp_path, metadata=await memory_metadata(tree))


async def test_what_is_no_wish_leaves_the_bookie_as_it_is(tmp_path: Path) -> None:
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with running(tmp_path, metadata=await memory_metadata(tree)) as kit:
        await change_wish(operator, kit.id, lambda wish: OperatorRequest(readonly=True))
        await seen(operator, writable=[], readonly=[kit.id])
        key = wish_key(operator, kit.id)
        await operator.keys.set(key, b"?", (await operator.keys.get(key)).version)
        await change_wish(operator, "another", lambda wish: OperatorRequest(readonly=True))
        assert (await (await kit.wire()).call(add(1, 0))).code is Code.READ_ONLY


async def test_an_idle_bookie_looks_at_the_metadata_file_twice_a_second_at_most(tmp_path: Path) -> None:
    """Everything that bookies watch is read every few seconds anyway; each look takes half a millisecond of CPU."""
    (tmp_path / "b1").mkdir()
    store = await open_store(f"sqlite://{tmp_path}/metadata.db")
    await store.initialise()
    keys = store.keys
    assert isinstance(keys, SqliteKeys)
    async with running(tmp_path / "b1", metadata=store):
        watched = keys._worker._watches
        await until(lambda: {"wishes", "tenants"} <= {key.split("/")[2] for _, key in watched if key.count("/") > 1})
        assert keys._worker._pause() == 0.5, sorted(watched)
    await store.close()

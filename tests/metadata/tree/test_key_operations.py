"""All children by name or with their values, however many pages they take."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.bookie_kit import memory_metadata

from buckram.metadata.tree.key_operations import all_children, all_names


@pytest.mark.parametrize("page", [1, 3, 4, 7, 1000])
async def test_each_child_comes_once_and_in_order(page: int) -> None:
    store = await memory_metadata()
    for number in range(7):
        await store.keys.create(f"/list/{number}", b"%d" % number)
    await store.keys.create("/list/3/below", b"")
    found = [(name, kept.value) async for name, kept in all_children(store.keys, "/list", page=page)]
    assert found == [(str(number), b"%d" % number) for number in range(7)]
    assert [name async for name in all_names(store.keys, "/list", page=page)] == [name for name, _ in found]


async def test_a_key_that_is_not_there_has_none() -> None:
    store = await memory_metadata()
    assert [child async for child in all_children(store.keys, "/nothing")] == []
    assert [name async for name in all_names(store.keys, "/nothing")] == []


async def test_the_watch_fires_when_a_name_comes() -> None:
    store, fired = await memory_metadata(), asyncio.Event()
    for number in range(3):
        await store.keys.create(f"/list/{number}", b"")
    assert len([name async for name in all_names(store.keys, "/list", watch=fired.set, page=2)]) == 3
    assert not fired.is_set()
    await store.keys.create("/list/3", b"")
    await asyncio.wait_for(fired.wait(), 30)

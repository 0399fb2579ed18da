"""What operators ask of bookies is kept alike on every store, and two who ask at the same time both count."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.contracts.conftest import Cluster, Watch

from buckram.core.healing.operator_requests import NOTHING, OperatorRequest
from buckram.errors import MalformedRecord
from buckram.metadata.records.operator_requests import change_wish, read_wish, read_wishes, wish_key


async def test_who_asks_at_the_same_time_takes_nothing_back_from_another(cluster: Cluster) -> None:
    one, two = await cluster.store(), await cluster.store()
    for number in range(10):
        bookie = f"b{number}"
        await asyncio.gather(
            change_wish(one, bookie, lambda wish: replace(wish, leave=True)),
            change_wish(two, bookie, lambda wish: replace(wish, readonly=True)),
            change_wish(one, bookie, lambda wish: replace(wish, rest="r", rest_s=5.0)),
        )
        assert await read_wish(one, bookie) == OperatorRequest(readonly=True, leave=True, rest="r", rest_s=5.0)
    assert len(await read_wishes(two)) == 10


async def test_nothing_asked_is_no_record(cluster: Cluster) -> None:
    store = await cluster.store()
    await change_wish(store, "b1", lambda wish: replace(wish, leave=True))
    await change_wish(store, "b1", lambda wish: NOTHING)
    assert await store.keys.children(f"{store.own}/wishes") == []
    assert await change_wish(store, "b1", lambda wish: NOTHING) == NOTHING
    assert await change_wish(store, "b1", lambda wish: None) == NOTHING


async def test_a_bookie_is_told_of_its_own_wish_and_an_auditor_of_all(cluster: Cluster) -> None:
    asking, listening = await cluster.store(), await cluster.store()
    own, every = Watch(), Watch()
    assert await read_wish(listening, "b1", own) == NOTHING
    assert await read_wishes(listening, every) == {}
    await change_wish(asking, "b1", lambda wish: replace(wish, readonly=True))
    await own.fired()
    await every.fired()
    again = Watch()
    assert await read_wishes(listening, again) == {"b1": OperatorRequest(readonly=True)}
    await change_wish(asking, "b1", lambda wish: replace(wish, leave=True))
    await again.fired()


async def test_a_record_that_is_none_holds_nobody_up(cluster: Cluster) -> None:
    store = await cluster.store()
    await store.keys.create(wish_key(store, "b1"), b"?")
    await change_wish(store, "b2", lambda wish: replace(wish, leave=True))
    assert await read_wishes(store) == {"b2": OperatorRequest(leave=True)}
    with pytest.raises(MalformedRecord, match="b1"):
        await read_wish(store, "b1")

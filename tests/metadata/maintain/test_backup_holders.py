"""Shared ledgers in a copy that was read while forks came and went, as ZooKeeper's are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from buckram.client.cluster.store_history import unguarded
from buckram.cluster import Client
from buckram.core.streams.names import StreamName
from buckram.metadata.maintain.backup_holders import wrong_holders
from buckram.metadata.tree.memory import MemoryKeys
from buckram.namespace import Namespace
from buckram.streams.maintain.compaction import compact_stream
from buckram.testing import cluster

Values = dict[str, bytes]
SOURCE, FORK = StreamName("shop", "s"), StreamName("shop", "f")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with cluster(bookies=1) as one, one.client() as client:
        await client.namespaces.create("shop", ensemble="1/1/1")
        yield client


async def stream(client: Client) -> Namespace:
    """A stream of three sealed segments."""
    ns = client.namespace("shop")
    for number in range(3):
        async with ns.writer("s") as writer:
            await writer.append(b"%d" % number)
    return ns


def now(client: Client) -> Values:
    keys = unguarded(client.services.store).keys
    assert isinstance(keys, MemoryKeys)
    return {key: found.value for key, found in keys.tree.lasting().items()}


def as_read(client: Client, first: Values, later: Values) -> Values:
    """A copy whose streams are of one moment, and its ledgers of a later one; then as it is mended."""
    own = client.services.store.own
    copy = {key: value for key, value in first.items() if key.startswith(f"{own}/")}
    copy |= {key: value for key, value in later.items() if not key.startswith(f"{own}/")}
    layout = client.services.store.layout
    ledgers = {ledger: key for key in copy if (ledger := layout.ledger_of(key)) is not None}
    lacking, unknown = wrong_holders(copy, own, ledgers)
    assert not lacking.keys() & copy.keys()
    assert unknown <= copy.keys()
    mended = {key: value for key, value in copy.items() if key not in unknown} | lacking
    assert wrong_holders(mended, own, ledgers) == ({}, set())
    return mended


async def held(client: Client, values: Values) -> dict[int, list[str]]:
    """Who holds each ledger in the copy."""
    found: dict[int, list[str]] = {}
    layout = client.services.store.layout
    for key, value in values.items():
        ledger = layout.ledger_of(key.rpartition("/")[0])
        if ledger is not None:
            found.setdefault(ledger, []).append(value.decode())
    return {ledger: sorted(names) for ledger, names in found.items()}


def by(ledgers: list[int], *names: str) -> dict[int, list[str]]:
    return {ledger: list(names) for ledger in ledgers}


async def shared(ns: Namespace) -> list[int]:
    return [row.ledger async for row in ns.segments("s")][:2]


@pytest.mark.parametrize("gone", ["f", "s"])
async def test_who_let_go_meanwhile_holds_what_it_lists_in_the_copy(client: Client, gone: str) -> None:
    ns = await stream(client)
    await ns.fork_stream("s", "f", offset=2)
    ledgers, first = await shared(ns), now(client)
    await ns.delete(gone)
    later = now(client)
    copy = as_read(client, first, later)
    assert await held(client, copy) == by(ledgers, "shop/f", "shop/s")


async def test_a_fork_that_is_not_in_the_copy_holds_nothing(client: Client) -> None:
    ns = await stream(client)
    first = now(client)
    await ns.fork_stream("s", "f", offset=2)
    copy = as_read(client, first, now(client))
    assert await held(client, copy) == by(await shared(ns), "shop/s")


async def test_a_fork_holds_what_its_source_has_replaced_and_not_yet_let_go(client: Client) -> None:
    ns = await stream(client)
    await ns.fork_stream("s", "f", offset=2)
    ledgers = await shared(ns)
    assert (await compact_stream(client, ns.store, SOURCE)).segments
    first = now(client)
    await ns.delete("f")
    assert await held(client, as_read(client, first, now(client))) == by(ledgers, "shop/f", "shop/s")


async def test_what_is_of_one_moment_is_left_as_it_is(client: Client) -> None:
    ns = await stream(client)
    await ns.fork_stream("s", "f", offset=2)
    await ns.fork_stream("f", "g", offset=1)
    await ns.truncate("s", before=1)
    assert as_read(client, now(client), now(client)) == now(client)


async def test_nothing_is_dropped_where_a_head_cannot_be_read(client: Client) -> None:
    ns = await stream(client)
    await ns.fork_stream("s", "f", offset=2)
    values = now(client)
    key = ns.store.layout.head(FORK)
    copy = as_read(client, values | {key: b"spoilt"}, values)
    assert await held(client, copy) == by(await shared(ns), "shop/f", "shop/s")

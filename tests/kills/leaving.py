"""Commands that take bookies out, or let their ids come back: `decommission`, `replace`, `forget` and `rejoin`."""

from __future__ import annotations

import shutil
from dataclasses import replace

from tests.kills.harness import Case, Ended
from tests.kills.world import BOOKIES, Command, World, buckram, use, with_store

from buckram.cluster import Client
from buckram.core.healing.needs import members_of
from buckram.errors import NoSuchKey
from buckram.healing.operations.dependency_check import ledgers_naming
from buckram.healing.operations.operator_calls import is_half_forgotten
from buckram.metadata.tree.store import TreeStore

PAYLOADS = [b"entry %d" % number for number in range(50)]


def one_more(world: World, *, named: bool) -> tuple[int, str, list[int]]:
    """Start one more bookie; returns its number, its id, and ledgers, of which it holds one if it shall be `named`."""
    number = world.cluster.add()
    bookie = world.cluster.bookies[number]

    async def written(client: Client) -> list[int]:
        made: list[int] = []
        there = not named
        while not there:
            async with await client.create(ensemble="3/3/2") as writer:
                await writer.append_many(PAYLOADS)
            made.append(writer.ledger_id)
            there = bookie in members_of((await client.services.store.read_ledger(writer.ledger_id)).metadata)
        return made

    return number, bookie, use(world.uri, written)


def is_gone(world: World, bookie: str, ledgers: list[int]) -> None:
    """Nothing of the bookie is left, and everything is in the ledgers, with all copies."""

    async def nothing_left(store: TreeStore) -> None:
        assert await ledgers_naming(store, bookie) == {}
        assert not await is_half_forgotten(store, bookie), "what was asked of it would be asked of the next of its name"
        assert bookie not in await store.known_bookies()
        try:
            await store.read_cookie(bookie)
        except NoSuchKey:
            return
        raise AssertionError("its cookie is there")

    with_store(world.uri, nothing_left)
    are_whole(world, ledgers)


def are_whole(world: World, ledgers: list[int]) -> None:
    async def read(client: Client) -> None:
        for ledger in ledgers:
            async with await client.open(ledger) as reader:
                assert [bytes(one.payload) for one in await reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS
            report = await client.repair(ledger)
            assert report.healthy
            assert report.entries_copied == 0

    use(world.uri, read)


def decommission(world: World) -> Case:
    number, bookie, ledgers = one_more(world, named=True)
    world.cluster.stop(number)

    def check(_: Ended) -> None:
        is_gone(world, bookie, ledgers)

    words = ("bookie", "decommission", bookie, "--metadata", world.uri, "--json")
    return Case(words, world.new_folder(), check, lambda: are_readable(world, ledgers))


def are_readable(world: World, ledgers: list[int]) -> None:
    async def read(client: Client) -> None:
        for ledger in ledgers:
            async with await client.open(ledger) as reader:
                assert [bytes(one.payload) for one in await reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS

    use(world.uri, read)


def replace_dead(world: World) -> Case:
    case = decommission(world)
    bookie = case.words[2]
    new = world.cluster.bookies[BOOKIES - 1]
    return replace(case, words=("bookie", "replace", bookie, new, "--metadata", world.uri, "--json"))


def replace_living(world: World) -> Case:
    """The process of the bookie that is replaced ends by itself."""
    _, bookie, ledgers = one_more(world, named=True)

    def check(_: Ended) -> None:
        is_gone(world, bookie, ledgers)

    words = ("bookie", "replace", bookie, "--metadata", world.uri, "--json")
    return Case(words, world.new_folder(), check, lambda: are_readable(world, ledgers))


def forget(world: World) -> Case:
    """What was asked of the bookie is forgotten with it."""
    number, bookie, _ = one_more(world, named=False)
    buckram("bookie", "readonly", bookie, "--metadata", world.uri)
    world.cluster.stop(number)

    def check(_: Ended) -> None:
        is_gone(world, bookie, [])

    return Case(("bookie", "forget", bookie, "--metadata", world.uri, "--json"), world.new_folder(), check)


def rejoin(world: World) -> Case:
    """A bookie that lost its disk comes back under its name, and is writable."""
    number, bookie, _ = one_more(world, named=False)
    buckram("bookie", "readonly", bookie, "--metadata", world.uri)
    world.cluster.stop(number)
    directory = world.cluster._running._nodes[number].directory

    def check(_: Ended) -> None:
        shutil.rmtree(directory)
        directory.mkdir()
        world.cluster.restart(number)

        async def writable(store: TreeStore) -> bool:
            return bookie in (await store.bookies()).writable

        assert with_store(world.uri, writable)
        world.cluster.stop(number)
        buckram("bookie", "forget", bookie, "--metadata", world.uri)

    return Case(("bookie", "rejoin", bookie, "--metadata", world.uri, "--json"), world.new_folder(), check)


COMMANDS: dict[str, Command] = {
    "bookie decommission": decommission,
    "bookie replace, of a dead one": replace_dead,
    "bookie replace, of a living one": replace_living,
    "bookie forget": forget,
    "bookie rejoin": rejoin,
}

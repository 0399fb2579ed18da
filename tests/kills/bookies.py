"""Commands that start bookies: their first start, and later ones, which have data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kills.harness import Case
from tests.kills.world import Command, World, buckram, use

from buckram.cluster import Client
from buckram.launch.processes import BookieProcess

PAYLOADS = [b"entry %d" % number for number in range(200)]


async def write(client: Client) -> int:
    async with await client.create(ensemble="1/1/1") as writer:
        await writer.append_many(PAYLOADS)
        return writer.ledger_id


async def read(client: Client, ledger: int) -> list[bytes]:
    async with client.recover(ledger) as reader:
        return [bytes(entry.payload) for entry in await reader.read(0, reader.last_confirmed)]


def first_start(world: World) -> Case:
    folder = world.new_folder()
    (folder / "outside").mkdir()
    uri = world.new_uri(folder / "outside")
    if world.store.scheme:
        buckram("cluster", "init", "--metadata", uri)

    def ready(_: dict[str, Any]) -> None:
        async def used(client: Client) -> list[bytes]:
            return await read(client, await write(client))

        assert use(uri, used) == PAYLOADS

    words = ("bookie", "run", "--metadata", uri, "--data", f"{folder}/data", "--port", "0", "--json")
    return Case(words, folder, ready=ready)


def later_start(world: World) -> Case:
    """A bookie that was killed while its ledger was open; what it acknowledged is there after any number of deaths."""
    made: dict[str, Any] = world.kept

    def make(folder: Path) -> None:
        uri = world.new_uri(folder)
        buckram("cluster", "init", "--metadata", uri)
        bookie = BookieProcess(uri, folder / "data", bookie_id="one", log=folder.with_suffix(".log"))
        bookie.start()
        try:
            bookie.wait_ready()

            async def left_open(client: Client) -> int:
                writer = await client.create(ensemble="1/1/1")
                await writer.append_many(PAYLOADS)
                bookie.kill()
                return writer.ledger_id

            made["later start"] = uri, use(uri, left_open)
        finally:
            bookie.kill()

    folder = world.copied("later", make)
    uri, ledger = made["later start"]

    def ready(_: dict[str, Any]) -> None:
        assert use(uri, lambda client: read(client, ledger)) == PAYLOADS

    words = ("bookie", "run", "--metadata", uri, "--data", f"{folder}/data", "--id", "one", "--port", "0", "--json")
    return Case(words, folder, ready=ready)


COMMANDS: dict[str, Command] = {"bookie run, first": first_start, "bookie run, later": later_start}

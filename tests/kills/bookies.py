"""Commands that start bookies, alone or as a cluster: their first start, and later ones, which have data."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.kills.harness import Case, nobody_lives
from tests.kills.world import Command, World, buckram, use
from tests.support.polling import wait_until

from buckram.cluster import Client
from buckram.launch.processes import BookieProcess
from buckram.sync import connect

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


# -- a whole cluster ----------------------------------------------------------------------------------------


def up(world: World, folder: Path, *options: str) -> tuple[str, ...]:
    store = () if world.store.kind == "sqlite" else (f"--{world.store.kind}",)
    return ("up", "--bookies", "1", "--data", f"{folder}/data", "--json", *store, *options)


def first_up(world: World) -> Case:
    folder = world.new_folder()

    def ready(line: dict[str, Any]) -> None:
        async def used(client: Client) -> list[bytes]:
            return await read(client, await write(client))

        assert use(line["uri"], used) == PAYLOADS

    return Case(up(world, folder), folder, ready=ready)


def secure_up(world: World) -> Case:
    """Its certificates, keys and tokens are made by its first start, and good for its client."""
    folder = world.new_folder()

    def ready(line: dict[str, Any]) -> None:
        given = {"BUCKRAM_TOKEN": line["client"]["token"], "BUCKRAM_CA": line["client"]["ca"], "BUCKRAM_SOCKETS": "tcp"}
        with environment(given), connect(line["service"]) as client:
            with client.namespace("default").writer("s") as writer:
                offset = writer.append(b"1")
            assert bytes(client.namespace("default").get("s", offset).value) == b"1"

    return Case(up(world, folder, "--secure", "--no-gateway"), folder, ready=ready)


def later_up(world: World) -> Case:
    """A cluster that was killed as a whole while a ledger was open."""

    def make(folder: Path) -> None:
        command = [sys.executable, "-m", "buckram", *up(world, folder, "--no-gateway")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0)
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())

            async def left_open(client: Client) -> int:
                writer = await client.create(ensemble="1/1/1")
                await writer.append_many(PAYLOADS)
                for pid in (process.pid, ready["bookies"][0]["pid"]):
                    os.kill(pid, signal.SIGKILL)
                return writer.ledger_id

            world.kept["later up"] = use(ready["uri"], left_open)
        finally:
            process.kill()
            process.communicate()
        wait_until(partial(nobody_lives, folder), "its processes live on")

    folder = world.copied("up", make)
    ledger = world.kept["later up"]

    def ready(line: dict[str, Any]) -> None:
        assert use(line["uri"], lambda client: read(client, ledger)) == PAYLOADS

    return Case(up(world, folder, "--no-gateway"), folder, ready=ready)


@contextlib.contextmanager
def environment(given: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


COMMANDS: dict[str, Command] = {
    "bookie run, first": first_start,
    "bookie run, later": later_start,
    "up, first": first_up,
    "up --secure, first": secure_up,
    "up, later": later_up,
}

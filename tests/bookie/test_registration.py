"""Registration: found by clients, read-only and back, again after a lost session.

The host that a bookie registers.
"""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

import pytest
from tests.support.bookie_kit import CONFIG, STORE, add, memory_metadata, running, seen
from tests.support.clock import pass_time
from tests.support.polling import until

from buckram.bookie.process import Bookie
from buckram.bookie.registration import BOOT_ID, Registration, check_host_id, place_properties, running_host
from buckram.config import NetConfig
from buckram.errors import Code, ConfigError, WrongCookie
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.production import production_runtime
from buckram.types import BookieAddress, BookieInfo

INFO = BookieInfo("alpha", BookieAddress("127.0.0.1", 4000), {"buckram.incarnation": "i"})


async def test_a_bookie_is_found_and_goes_when_it_stops(tmp_path: Path) -> None:
    tree = MemoryTree()
    watcher = await memory_metadata(tree)
    async with running(tmp_path, metadata=await memory_metadata(tree)) as kit:
        found = (await watcher.bookies()).writable
        assert list(found) == [kit.id]
        assert found[kit.id].incarnation == kit.store.incarnation
        assert found[kit.id].address == kit.bookie.info.address  # type: ignore[union-attr]
    assert list((await watcher.bookies()).writable) == []
    assert await watcher.known_bookies() == [kit.id]


async def test_read_only_and_back() -> None:
    metadata = await memory_metadata()
    registration = Registration(metadata, INFO, random.Random(1))
    await registration.start(readonly=False)
    registration.set_readonly(True)
    await seen(metadata, writable=[], readonly=["alpha"])
    registration.set_readonly(False)
    await seen(metadata, writable=["alpha"], readonly=[])
    await registration.close(unregister=True)
    await seen(metadata, writable=[], readonly=[])


async def test_registers_again_after_the_session_was_lost(tmp_path: Path) -> None:
    tree = MemoryTree()
    watcher = await memory_metadata(tree)
    metadata = await memory_metadata(tree)
    async with running(tmp_path, metadata=metadata) as kit:
        wire = await kit.wire()
        keys = metadata.keys
        assert isinstance(keys, MemoryKeys)
        tree.expire(keys.session)
        # It goes on serving meanwhile.
        assert (await wire.call(add(1, 0))).code is Code.OK
        await seen(watcher, writable=[kit.id], readonly=[])


async def test_a_start_waits_for_the_session_of_the_one_before(tmp_path: Path) -> None:
    """After kill -9 the old session may live a little longer."""
    tree = MemoryTree()
    first = await memory_metadata(tree)
    registration = Registration(first, INFO, random.Random(1))
    await registration.start(readonly=False)
    second = await memory_metadata(tree)
    again = Registration(second, INFO, random.Random(2))
    starting = asyncio.ensure_future(again.start(readonly=False))
    await pass_time(0.05)
    assert not starting.done()
    await registration.close(unregister=False)
    await first.close()
    await starting
    await seen(second, writable=["alpha"], readonly=[])
    await again.close(unregister=True)


async def test_nothing_is_left_after_a_start_that_failed(tmp_path: Path) -> None:
    (tmp_path / "something").write_bytes(b"")
    before = len(asyncio.all_tasks())
    disk = LocalDisk(str(tmp_path), "inline")
    bookie = Bookie(production_runtime(seed=1), disk, await memory_metadata(), CONFIG, STORE, NetConfig())
    with pytest.raises(WrongCookie, match="something"):
        await bookie.start()
    disk.close()
    await until(lambda: len(asyncio.all_tasks()) == before)


ID = "5c1e9a40-7d3b-4f62-8f10-2b6f0c9d4e77"


def test_the_running_kernel_is_the_host(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text(f"{ID}\n")
    assert running_host(tmp_path / "boot_id") == "boot-5c1e9a407d3b"
    if BOOT_ID.exists():
        assert running_host() == running_host(BOOT_ID) != running_host(tmp_path / "boot_id")


@pytest.mark.parametrize("text", ["", "nonsense", "00000000-0000-0000-0000-000000000000", "\udcff"])
def test_without_an_id_of_the_kernel_it_is_the_machines_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_bytes(text.encode("utf-8", "surrogateescape"))
    name = socket.gethostname()
    wanted = "" if name.partition(".")[0] in ("", "localhost") else name
    assert running_host(tmp_path / "boot_id") == running_host(tmp_path / "none") == wanted


def test_a_name_is_taken_and_what_is_none_is_refused() -> None:
    assert check_host_id("node-7.example.org", "") == "node-7.example.org"
    assert check_host_id("node-7", "/eu/r1") == "node-7"
    assert check_host_id("h7", "/eu/a/r1/h7") == "h7"
    for wrong in ("a b", "a/b", "a=b", "x" * 201, "\x07"):
        with pytest.raises(ConfigError, match=r"host_id.*needs a name"):
            check_host_id(wrong, "")
    assert place_properties("/eu/r1", "node-7") == {"buckram.location": "/eu/r1", "buckram.host": "node-7"}
    assert place_properties("", "") == {}, "then what was found out stays"
    with pytest.raises(ConfigError, match=r"'node-7'.*says that it is 'h7': give one of the two"):
        check_host_id("node-7", "/eu/a/r1/h7")

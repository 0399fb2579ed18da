"""What is short for a while, descriptors or memory: a state of the store, no end of it and no damage."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest
from tests.support.polling import until
from tests.support.store_kit import add, durable, open_store, read, settle, stored

from buckram.bookie.registration import Registration
from buckram.bookie.storage.store import Store, StoreError
from buckram.errors import AlreadyRegistered
from buckram.runtime.disk import descriptors
from buckram.runtime.disk.io_errors import explained, passing
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.disk.memory import MemoryDisk, MemoryFile
from buckram.types import BookieInfo


class ShortDisk(MemoryDisk):
    """Opens nothing while `short` is set."""

    short = 0

    def open(self, name: str, *, create: bool = False, size: int = 0, direct: bool = False) -> MemoryFile:
        if self.short:
            raise explained(OSError(self.short, ""), "open it", name)
        return super().open(name, create=create, size=size, direct=direct)


async def filled(disk: ShortDisk) -> Store:
    """A store that was opened with several sealed files, none of which is open or in memory."""
    store = open_store(disk)
    for entry in range(120):
        add(store, entry % 3, entry, [bytes(2000)])
        await durable(store)
    await settle(store)
    assert store.stats()["sealed_segments"] > 2
    await store.close()
    store = open_store(disk)
    store._state.files.close()
    return store


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES])
async def test_a_file_that_cannot_be_opened_now_says_nothing_of_the_data(number: int) -> None:
    disk = ShortDisk()
    store = await filled(disk)
    disk.short = number
    for ledger in range(3):
        try:
            outcomes = await read(store, (ledger, ledger), (ledger, 1000))
        except StoreError as error:
            outcomes = [error]  # not even the ledger's state can be looked up
        assert {one.kind for one in outcomes if isinstance(one, StoreError)} == {"io"}
        with pytest.raises(StoreError, match="cannot be read now"):
            store.entries(ledger)
    assert not store.limbo
    assert store.loss == 0
    assert store.failed is None
    disk.short = 0
    everything = [stored(entry % 3, entry, -1, bytes(2000)) for entry in range(120)]
    assert await read(store, *[(entry % 3, entry) for entry in range(120)]) == everything
    assert await read(store, (0, 1000)) == [None]
    await store.close()


async def test_a_start_without_descriptors_finds_no_loss() -> None:
    disk = ShortDisk()
    await (await filled(disk)).close()
    for number in (errno.EMFILE, errno.ENOMEM):
        disk.short = number
        with pytest.raises(OSError, match=r"raise the limit of open files|more memory"):
            open_store(disk)
    disk.short = 0
    store = open_store(disk)
    assert not store.limbo
    await store.close()


async def settle_a_little() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_log_file_that_cannot_be_made_is_a_state_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.bookie.storage.upkeep.maintenance.POLL_S", 0.001)
    monkeypatch.setattr("buckram.bookie.storage.upkeep.log_files.RETRY_S", 0.001)
    disk = ShortDisk()
    store = open_store(disk)
    await settle(store)
    disk.short = errno.EMFILE
    entry = 0
    while store.is_writable:
        add(store, 1, entry, [bytes(2000)])
        await settle_a_little()
        entry += 1
        assert entry < 100
    assert "raise the limit of open files" in store._state.space.reason
    disk.short = 0
    assert await durable(store) is None
    await until(lambda: store.is_writable, "its own poll does not look again", 10.0)
    await settle(store)
    assert store.failed is None
    everything = [stored(1, one, -1, bytes(2000)) for one in range(entry)]
    assert await read(store, *[(1, one) for one in range(entry)]) == everything
    await store.close()


async def test_a_block_that_finds_no_memory_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.bookie.storage.log.group_commit.RETRY_S", 0.001)
    disk = MemoryDisk()
    store = open_store(disk)
    for number in (errno.ENOMEM, errno.EDQUOT):
        add(store, 1, number, [b"x"])
        disk.fail = OSError(number, "short")
        assert await durable(store) is None
    assert store.failed is None
    await store.close()


def test_errors_of_files_name_path_operation_and_cure(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path / "d")
    with pytest.raises(FileNotFoundError) as caught:
        disk.open("superblock")
    assert caught.value.strerror == (
        f"{tmp_path}/d/superblock: cannot open it: No such file or directory; put it back if it was moved or removed"
    )
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/d/x: cannot remove it: No such file"):
        disk.remove("x")
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/d/x: cannot give it the name y: No such file"):
        disk.rename("x", "y")
    file = disk.open("log", create=True)
    with pytest.raises(OSError, match=f"{tmp_path}/d/log: cannot read 5 bytes at -1: Invalid argument; look into"):
        file.read(-1, 5)
    file.close()
    disk.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=f"{tmp_path}/file: cannot make this directory: File exists; move the file"):
        LocalDisk(tmp_path / "file")
    told = explained(OSError(errno.ENOSPC, "No space left on device"), "write 512 bytes at 4096", "/d/log-1")
    assert str(told.strerror) == (
        "/d/log-1: cannot write 512 bytes at 4096: No space left on device; free space on its file system"
    )
    assert passing(told)
    assert not passing(OSError(errno.EIO, "x"))


def test_descriptors_are_shared_between_files_and_connections() -> None:
    for limit in (descriptors.LEAST, 256, 1024, 4096, 1 << 20):
        share = descriptors.shares(limit)
        used = share.connections + 2 * share.files + descriptors.OWN + descriptors.OPERATORS
        assert used <= limit
        assert share.connections >= 16
    assert descriptors.shares(1024).connections > 600


async def test_a_wait_for_the_id_is_told_as_long_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.bookie.registration.WITHIN_S", 1.2)

    class Taken:
        def on_session_lost(self, notify: object) -> None: ...

        async def register(self, info: object, *, readonly: bool, **rest: object) -> None:
            raise AlreadyRegistered("b1", 0.01)

    registration = Registration(Taken(), BookieInfo("b1", None), random.Random(1))  # type: ignore[arg-type]
    with pytest.raises(AlreadyRegistered, match=r"waited 1 s for it to end"):
        await registration.start(readonly=False)

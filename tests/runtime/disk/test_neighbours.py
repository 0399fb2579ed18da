"""Files of bookies beside us: whatever is asked for is what plain reading gives, or an error, and never a wait."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from buckram.runtime.disk import inline_reads as page_cache
from buckram.runtime.disk import neighbours
from buckram.runtime.disk.inline_reads import FAST_S, SLOW_S, Speed, read_cached, resident
from buckram.runtime.disk.neighbours import NeighbourDirectory, Neighbours, identity_of
from buckram.seams import FileData, FileRange

KIB = 1024
LARGE = 128 * KIB
SIZE = 3 * 1024 * KIB + 777


def taken(pieces: list[FileData], places: list[FileRange]) -> list[bytes]:
    return [bytes(data[at : at + place.length]) for (data, at), place in zip(pieces, places, strict=True)]


def uncache(*paths: Path) -> None:
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def contents(tmp_path: Path) -> dict[str, bytes]:
    rng = random.Random(5)
    found = {f"log-{n}": rng.randbytes(SIZE + n) for n in range(3)}
    for name, data in found.items():
        (tmp_path / name).write_bytes(data)
    return found


@pytest.fixture
def directory(tmp_path: Path, contents: dict[str, bytes]) -> NeighbourDirectory:
    return NeighbourDirectory(str(tmp_path), Speed(), set())


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_read_is_what_is_there(
    tmp_path: Path, contents: dict[str, bytes], directory: NeighbourDirectory, cached: bool, seed: int
) -> None:
    rng = random.Random(seed)
    for _ in range(12):
        if not cached:
            uncache(*(tmp_path / name for name in contents))
        places = []
        for _ in range(rng.randrange(1, 6)):
            offset = rng.choice((0, 4096, rng.randrange(SIZE), rng.randrange(SIZE)))
            length = rng.choice((1, 100, 4096, LARGE - 1, LARGE, LARGE + 1, rng.randrange(1, 1024 * KIB)))
            places.append(FileRange(rng.choice(list(contents)), offset, min(length, SIZE - offset)))
        pieces = directory.read_now(places)
        assert taken(pieces, places) == [contents[name][at : at + length] for name, at, length in places]
        directory.give_back(pieces)


def test_memory_given_back_is_used_again_and_no_other(
    directory: NeighbourDirectory, contents: dict[str, bytes]
) -> None:
    place = FileRange("log-0", 5, 300 * KIB)
    (first,) = directory.read_now([place])
    (second,) = directory.read_now([place])
    assert first.data is not second.data
    directory.give_back([first])
    large, small = FileRange("log-1", 4097, LARGE), FileRange("log-1", 9, 10)
    third, fourth, fifth = directory.read_now([large, small, large])
    assert third.data is first.data  # large enough for less
    assert fifth.data is not third.data
    assert taken([third, fourth, fifth], [large, small, large]) == [
        contents["log-1"][at : at + length] for _, at, length in (large, small, large)
    ]
    directory.give_back([third])
    whole = FileRange("log-2", 0, SIZE)  # for which it is too small
    assert taken(directory.read_now([whole]), [whole]) == [contents["log-2"][:SIZE]]
    assert taken([second], [place]) == [contents["log-0"][5 : 5 + 300 * KIB]]
    directory.give_back([FileData(bytearray(1), 0)] * 8)
    kept = len(directory._spare)
    directory.give_back([FileData(bytearray(1), 0)] * 100)
    assert len(directory._spare) == kept


def open_below(path: Path) -> list[str]:
    """The files there that this process has open; what other tests left open may be closed at any moment."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(file for file in found if file.startswith(str(path)))


@pytest.mark.parametrize("length", [100, LARGE, LARGE + 4097])
@pytest.mark.parametrize("cached", [True, False])
def test_a_file_that_ends_before_gives_what_it_has(
    directory: NeighbourDirectory, contents: dict[str, bytes], tmp_path: Path, length: int, cached: bool
) -> None:
    if not cached:
        uncache(tmp_path / "log-0")
    for have in (0, 1, 50):
        place = FileRange("log-0", SIZE - have, length)
        ((data, at),) = directory.read_now([place])
        assert bytes(data[at : at + have]) == contents["log-0"][SIZE - have :]
    directory.read_now([FileRange("log-0", 10 * SIZE, length)])


@pytest.mark.parametrize("length", [10, LARGE])
def test_what_is_no_log_file_is_refused_and_nobody_waits(
    directory: NeighbourDirectory, tmp_path: Path, length: int
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "log-0")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "log-9").write_bytes(bytes(LARGE))
    (tmp_path / "hard\udcff").write_bytes(bytes(LARGE))
    for name in ("fifo", "link", "inner", "inner/log-9", "../" + tmp_path.name + "/log-0", str(tmp_path / "log-0"), "",
                 ".", "..", "gone", "log-0\0", "\ud800", "x" * 300):  # fmt: skip
        before = open_below(tmp_path)
        with pytest.raises(OSError):  # noqa: PT011 - each has its own
            directory.read_now([FileRange("log-1", 0, 1), FileRange(name, 0, length)])
        assert open_below(tmp_path) == before, name
    assert directory.read_now([FileRange("hard\udcff", 0, 1)]) == [FileData(b"\0", 0)]
    for offset in (2**63 - 1, 2**63 - 4096):
        with suppress(OSError):  # this or nothing, as the kernel likes
            directory.read_now([FileRange("log-0", offset, length)])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_is_a_permission_error(directory: NeighbourDirectory, tmp_path: Path) -> None:
    (tmp_path / "log-0").chmod(0)
    with pytest.raises(PermissionError):
        directory.read_now([FileRange("log-0", 0, 1)])


class Opened(list[str]):
    """Names of files opened past the page cache, in order."""


@pytest.fixture
def past_cache(monkeypatch: pytest.MonkeyPatch) -> Opened:
    found, opened = Opened(), os.open

    def noted(path: str, flags: int, *rest: Any) -> int:
        if flags & neighbours._DIRECT:
            found.append(os.path.basename(path))
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", noted)
    return found


def test_file_systems_without_direct_reads(
    directory: NeighbourDirectory, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def no_direct(path: str, flags: int, *rest: Any) -> int:
        if flags & neighbours._DIRECT:
            raise OSError(errno.EINVAL, "no direct reads")
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", no_direct)
    monkeypatch.setattr(neighbours, "read_cached", lambda *place: False)
    places = [FileRange("log-0", 7, LARGE), FileRange("log-0", 9, LARGE + 5)]
    assert taken(directory.read_now(places), places) == [contents["log-0"][at : at + size] for _, at, size in places]

    def broken(file: int, rooms: Any, offset: int) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(OSError, match="broken"):
        directory.read_now(places)


def test_first_uncached_read_bypasses_the_page_cache_the_second_fills_it(
    tmp_path: Path, contents: dict[str, bytes], past_cache: Opened
) -> None:
    files = Neighbours()
    place = FileRange("log-0", 4096 * 64, LARGE)
    with (tmp_path / place.name).open("rb") as file:
        uncache(tmp_path / place.name)
        if resident(file.fileno(), *place[1:]) or not cache_is_seen(tmp_path):
            pytest.skip("this file system keeps what it has, or does not say so")
        for passes in ([place.name], []):  # the memory of it outlives one opening of the directory
            directory = files.open(str(tmp_path), identity_of(tmp_path))
            assert directory is not None
            past_cache.clear()
            assert taken(directory.read_now([place]), [place]) == [contents["log-0"][place.offset :][:LARGE]]
            assert past_cache == passes
            assert resident(file.fileno(), *place[1:]) is not bool(passes)
        past_cache.clear()
        directory.read_now([FileRange("log-1", 0, LARGE)])  # it was written through the cache
        assert past_cache == []


def test_places_read_once_are_not_remembered_without_end(
    directory: NeighbourDirectory, monkeypatch: pytest.MonkeyPatch, contents: object
) -> None:
    monkeypatch.setattr(neighbours, "_REMEMBERED", 5)
    monkeypatch.setattr(neighbours, "read_cached", lambda *place: False)
    for at in range(23):
        directory.read_now([FileRange("log-0", at * 4096, LARGE)])
        assert 0 < len(directory._past) <= 5


def cache_is_seen(folder: Path) -> bool:
    (folder / "seen").write_bytes(bytes(8192))
    with (folder / "seen").open("rb") as file:
        return resident(file.fileno(), 0, 8192) is True


def test_what_the_page_cache_holds(tmp_path: Path) -> None:
    if not cache_is_seen(tmp_path):
        pytest.skip("this kernel or file system does not say")
    with (tmp_path / "seen").open("rb") as file:
        assert resident(file.fileno(), 4095, 2)
        assert resident(file.fileno(), 4096, 4097) is False  # beyond its end is nothing
        assert resident(10**6, 0, 1) is None


@pytest.mark.parametrize("call", [10**6, None], ids=["older kernel", "no Linux"])
def test_kernels_that_do_not_say_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int | None) -> None:
    monkeypatch.setattr(page_cache, "_CACHESTAT", call)
    if call is None:
        monkeypatch.setattr(page_cache, "_syscall", None)
    data = random.Random(1).randbytes(9000)
    (tmp_path / "file").write_bytes(data)
    room = bytearray(5000)
    refusals = (errno.EAGAIN, errno.EOPNOTSUPP, errno.EIO)
    with (tmp_path / "file").open("rb") as file:
        assert resident(file.fileno(), 0, 1) is None
        if read_cached(file.fileno(), memoryview(room), 10):  # what was just written mostly is there
            assert room == data[10:5010]
        assert not read_cached(file.fileno(), memoryview(room), 4500)  # too short
        for number in refusals:

            def refused(*args: Any, number: int = number) -> int:
                raise OSError(number, "refused")

            monkeypatch.setattr(os, "preadv", refused)
            with pytest.raises(OSError, match="refused") if number == errno.EIO else nullcontext():
                assert not read_cached(file.fileno(), memoryview(room), 0)
        monkeypatch.setattr(page_cache, "_NOWAIT", 0)
        assert not read_cached(file.fileno(), memoryview(room), 0)


# -- on a loop


def slow() -> Speed:
    speed = Speed()
    for _ in range(100):
        speed.took(1.0)
    assert not speed.fast
    return speed


async def test_a_fast_device_is_read_at_once(directory: NeighbourDirectory, contents: dict[str, bytes]) -> None:
    places = [FileRange("log-0", 3, 10), FileRange("log-1", 3, LARGE)]
    coming = directory.read(places)
    assert coming.done()
    assert taken(await coming, places) == [contents[name][at : at + size] for name, at, size in places]
    failed = directory.read([FileRange("gone", 0, 1)])
    with pytest.raises(FileNotFoundError):
        await failed


async def test_a_slow_device_is_read_in_a_thread(
    tmp_path: Path, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = NeighbourDirectory(str(tmp_path), slow(), set())
    gate = threading.Event()
    read_now = directory.read_now

    def late(places: list[FileRange]) -> list[FileData]:
        assert gate.wait(30)
        return read_now(places)

    monkeypatch.setattr(directory, "read_now", late)
    place = FileRange("log-0", 3, LARGE)
    coming, failed = directory.read([place]), directory.read([FileRange("gone", 0, 1)])
    cancelled = directory.read([place])
    for _ in range(10):
        await asyncio.sleep(0)  # the loop goes on meanwhile
    assert not coming.done()
    cancelled.cancel()
    gate.set()
    assert taken(await coming, [place]) == [contents["log-0"][3 : 3 + LARGE]]
    with pytest.raises(FileNotFoundError):
        await failed
    assert cancelled.cancelled()


async def test_threads_share_what_was_given_back(tmp_path: Path, contents: dict[str, bytes]) -> None:
    directory = NeighbourDirectory(str(tmp_path), slow(), set())
    place = FileRange("log-1", 11, LARGE)
    pieces: list[FileData] = []
    for _ in range(30):
        for _ in range(100):
            directory._speed.took(1.0)
        directory.give_back(pieces[:1])  # one for three
        coming = [directory.read([place]) for _ in range(3)]
        pieces = [piece for one in coming for piece in await one]
        assert len({id(data) for data, _ in pieces}) == 3
        assert taken(pieces, [place] * 3) == [contents["log-1"][11 : 11 + LARGE]] * 3


def test_taking_memory_that_another_thread_just_took(directory: NeighbourDirectory) -> None:
    class Contested(list[bytearray]):
        """Seems to have one left when it is looked at."""

        def __bool__(self) -> bool:
            return True

    directory._spare = Contested()
    assert len(directory.read_now([FileRange("log-0", 0, LARGE)])) == 1


# -- whose they are


def test_only_the_directory_that_was_meant_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, here = Neighbours(), identity_of(tmp_path)
    assert files.open(str(tmp_path), here) is not None
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "file").write_bytes(b"")
    wrong: list[tuple[str, str]] = [
        (str(other), here), (str(tmp_path), here + "0"), (str(tmp_path), ""), (str(tmp_path / "gone"), here),
        ("", here), ("/data\0", here), ("\ud800", here),
    ]  # fmt: skip
    for path, identity in wrong:
        assert files.open(path, identity) is None
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert files.open(str(tmp_path), here) is None
    monkeypatch.undo()
    read_text: Callable[..., str] = Path.read_text

    def no_boot_id(self: Path, *args: Any) -> str:
        if "boot_id" in str(self):
            raise OSError(errno.ENOENT, "no such file")
        return read_text(self, *args)

    monkeypatch.setattr(Path, "read_text", no_boot_id)
    assert identity_of(tmp_path) == ""
    assert files.open(str(tmp_path), "") is None  # two machines that do not know who they are would be the same


def test_speed_changes_its_mind_late() -> None:
    speed = Speed()
    assert speed.fast
    speed.took(10 * SLOW_S)  # one slow operation says nothing
    assert speed.fast
    count = 0
    while speed.fast:
        speed.took(1.2 * SLOW_S)
        count += 1
        assert count < 100
    for _ in range(200):
        speed.took((SLOW_S + FAST_S) / 2)  # between both it stays what it is
    assert not speed.fast
    while not speed.fast:
        speed.took(0.0)
    for _ in range(200):
        speed.took((SLOW_S + FAST_S) / 2)
    assert speed.fast

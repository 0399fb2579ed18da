"""Pulls on real bookies: what is copied from a neighbour's files is what adds would have stored, or is not stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.bookie_kit import (
    KEY,
    OTHER_KEY,
    HeldDisk,
    Kit,
    Wire,
    add,
    add_frames,
    ledger_metadata,
    memory_metadata,
    running,
    start,
    stored,
)
from tests.support.polling import until

from buckram.bookie.service.entries import pulls
from buckram.core.ledgers.metadata import BIRTH
from buckram.core.wire.located import Located
from buckram.core.wire.messages import (
    MEMORY_USE,
    BookieInfoReply,
    GetBookieInfo,
    ListEntries,
    LocatedReply,
    MemoryUse,
    Pull,
    PullReply,
    Read,
    ask_for_places,
)
from buckram.core.wire.v2 import name_ledger
from buckram.errors import Code
from buckram.runtime.disk.neighbours import Neighbours
from buckram.seams import FileData, FileRange, LocalDirectory
from buckram.types import DigestType, EntryId

COUNT = 300


class Pair:
    """A source with entries in its files, and a target that may read them."""

    def __init__(self, source: Kit, target: Kit, wire: Wire) -> None:
        self.source, self.target, self.wire = source, target, wire

    async def places(self, ledger: int = 1, first: EntryId = 0, last: EntryId = COUNT - 1) -> Located:
        wire = await self.source.wire()
        reply = await wire.call(ask_for_places(ledger, first, last, KEY))
        assert isinstance(reply, LocatedReply)
        return reply.located

    async def request(self, ledger: int = 1, first: EntryId = 0, last: EntryId = COUNT - 1, **other: Any) -> Pull:
        located = await self.places(ledger, first, last)
        asked = Pull(ledger, first, last - first + 1, KEY, DigestType.CRC32C, self.source.id, located)
        return replace(asked, **other)

    async def pull(self, request: Pull) -> tuple[Code, int]:
        reply = await self.wire.call(request)
        assert isinstance(reply, PullReply)
        assert (reply.ledger_id, reply.entry_id) == (request.ledger_id, request.entry_id)
        return reply.code, reply.count

    async def held(self, entry: EntryId, ledger: int = 1) -> bytes | None:
        body: bytes | None = (await self.wire.call(Read(ledger, entry))).body
        return body


@asynccontextmanager
async def pair(path: Path, *, disk: Any = None, **config: Any) -> AsyncIterator[Pair]:
    metadata = await memory_metadata()
    for name in ("source", "target"):
        (path / name).mkdir()
    async with running(path / "source", metadata=metadata, bookie_id="source") as filled:
        adding = await filled.wire()
        adding.writer.write(add_frames(1, 0, COUNT) + add_frames(2, 0, COUNT))
        for _ in range(2 * COUNT):
            await adding.frame()
    # The second start seals the log.
    async with running(path / "source", metadata=metadata, bookie_id="source") as source:
        files = config.pop("files", Neighbours(in_threads=True))
        target = await start(path / "target", metadata=metadata, bookie_id="target", disk=disk, files=files, **config)
        try:
            yield Pair(source, target, await target.wire())
        finally:
            await target.close()


def entries(first: EntryId, last: EntryId) -> list[bytes]:
    return [stored(1, entry) for entry in range(first, last + 1)]


async def test_what_is_pulled_is_there_as_if_it_had_been_added(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        reply = await both.wire.call(await both.request())
        assert reply == PullReply(Code.OK, 1, 0, COUNT, sum(map(len, entries(0, COUNT - 1))))
        assert [await both.held(entry) for entry in range(COUNT)] == entries(0, COUNT - 1)
        assert both.target.bookie.service is not None
        assert both.target.bookie.service.pulls.entries == COUNT
        assert both.target.store.ledger(1).master_key == KEY
        # From the middle of a file's run, and what is there already, once more.
        assert await both.pull(await both.request(2, 17, 40)) == (Code.OK, 24)
        assert await both.pull(await both.request(2, 10, 20)) == (Code.OK, 11)
        v3 = await both.target.wire(3)
        assert (await v3.call(ListEntries(2))).code is Code.OK
        assert await both.held(9, 2) is None


async def test_no_answer_before_it_is_durable(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    disk = HeldDisk(tmp_path / "disk")
    async with pair(tmp_path, disk=disk) as both:
        request = await both.request()
        disk.holding = True
        both.wire.send(request)
        await until(lambda: disk.waiting > 0)
        assert await both.wire.silent()
        disk.release()
        assert (await both.wire.reply()).count == COUNT


async def test_an_entry_of_wrong_bytes_is_not_stored(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        request = await both.request()
        spoil(tmp_path / "source", stored(1, 123))
        code, count = await both.pull(request)
        assert code is Code.NO_ENTRY
        assert count <= 123
        assert [await both.held(entry) for entry in range(count)] == entries(0, count - 1)
        assert await both.held(123) is None


@pytest.mark.parametrize("wrong", ["ledger", "first", "digest", "key", "length", "offset", "gone", "name", "entries"])
async def test_what_is_not_there_is_not_stored(tmp_path: Path, wrong: str) -> None:
    async with pair(tmp_path) as both:
        request = await both.request(1, 100, 199)
        places = request.located
        (extent,) = places.extents
        others: dict[str, dict[str, Any]] = {
            "ledger": {"ledger_id": 2},
            "first": {"entry_id": 101, "located": replace(places, extents=[extent._replace(first=101)])},
            "digest": {"digest": DigestType.CRC32},
            "key": {"master_key": OTHER_KEY},
            "length": {"located": replace(places, extents=[extent._replace(length=extent.length - 1)])},
            "offset": {"located": replace(places, extents=[extent._replace(offset=extent.offset + 1)])},
            "gone": {"located": replace(places, extents=[extent._replace(name="log-of-before")])},
            "name": {"located": replace(places, extents=[extent._replace(name="../source/" + extent.name)])},
            "entries": {"count": 10**6, "located": replace(places, extents=[extent._replace(entries=10**6)])},
        }
        asked = replace(request, **others[wrong])
        code, count = await both.pull(asked)
        assert code is Code.NO_ENTRY
        assert (count <= COUNT - 100) if wrong == "entries" else not count
        assert await both.held(100 + count) is None
        assert await both.pull(request) == (Code.OK, 100)


async def test_only_directories_of_bookies_of_the_cluster_are_read(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        request = await both.request()
        places = request.located
        copy = tmp_path / "copy"
        copy.mkdir()
        for path in (tmp_path / "source").iterdir():
            if path.name != "VERSION":
                (copy / path.name).write_bytes(path.read_bytes())
        facts = copy.stat()
        elsewhere = f"{places.identity.split()[0]} {facts.st_dev} {facts.st_ino}"
        for wrong in (
            replace(request, source="target"),
            replace(request, source="nobody"),
            replace(request, located=replace(places, identity="another machine")),
            replace(request, located=replace(places, directory="/proc")),
            replace(request, located=replace(places, directory=str(copy), identity=elsewhere)),
            replace(request, digest=DigestType.MAC),
        ):
            assert await both.pull(wrong) == (Code.BAD_REQUEST, 0)
        # A cookie that somebody wrote does not make it the directory of a bookie.
        version = (tmp_path / "source" / "VERSION").read_text()
        there = replace(places, directory=str(copy), identity=elsewhere)
        instance = await both.source.metadata.instance_id()
        forged = {"nobody": ("source", "nobody"), "target": ("source", "elsewhere"), "source": (instance, "another")}
        for named, change in forged.items():
            assert change[0] in version
            (copy / "VERSION").write_text(version.replace(*change))
            assert await both.pull(replace(request, source=named, located=there)) == (Code.BAD_REQUEST, 0)
        assert await both.held(0) is None
        assert await both.pull(request) == (Code.OK, COUNT)


async def test_a_bookie_without_neighbours_refuses(tmp_path: Path) -> None:
    async with pair(tmp_path, files=None) as both:
        assert await both.pull(await both.request()) == (Code.BAD_REQUEST, 0)


async def test_fenced_and_closed_ledgers_take_copies_and_wrong_keys_do_not(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        assert (await both.wire.call(add(1, 0))).code is Code.OK
        assert (await both.wire.call(Read(1, 0, True, KEY))).code is Code.OK
        assert (await both.wire.call(add(1, 1))).code is Code.FENCED
        assert await both.pull(await both.request()) == (Code.OK, COUNT)
        assert (await both.wire.call(add(1, COUNT))).code is Code.FENCED
        # The key that the ledger has here is another.
        assert (await both.wire.call(add(2, 0, OTHER_KEY))).code is Code.OK
        assert await both.pull(await both.request(2)) == (Code.UNAUTHORIZED, 0)


async def test_a_deleted_ledger_stays_fenced_and_its_birth_counts(tmp_path: Path) -> None:
    async with pair(tmp_path, admission="known") as both:
        birth = b"A" * 16
        metadata = replace(ledger_metadata([both.target.id]), custom_metadata={BIRTH: birth})
        await both.target.metadata.create_ledger(1, metadata)
        request = await both.request()
        both.wire.writer.write(name_ledger(1, birth))
        assert await both.pull(request) == (Code.OK, COUNT)
        both.wire.writer.write(name_ledger(1, b"B" * 16))
        assert await both.pull(request) == (Code.NO_LEDGER, 0)
        both.wire.writer.write(name_ledger(1, birth))
        both.target.store.delete_ledger(1)
        assert await both.pull(request) == (Code.OK, COUNT)
        assert (await both.wire.call(add(1, COUNT))).code is Code.FENCED


async def test_a_bookie_that_is_read_only_takes_copies_as_long_as_it_takes_recovery_adds(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        request = await both.request()
        both.target.store.asked_readonly = True
        assert await both.pull(request) == (Code.OK, COUNT)
        both.target.store.suspended = True
        assert await both.pull(replace(request, located=request.located)) == (Code.READ_ONLY, 0)


class Held:
    """Files that are read when the gate opens."""

    def __init__(self) -> None:
        self.inner, self.gate, self.reading = Neighbours(), asyncio.Event(), 0
        self.slow: int | None = None
        """Where reads wait that begin at this offset; None: all do."""

    def open(self, directory: str, identity: str) -> LocalDirectory | None:
        found = self.inner.open(directory, identity)
        return None if found is None else HeldDirectory(self, found)


class HeldDirectory:
    def __init__(self, files: Held, inner: LocalDirectory) -> None:
        self._files, self._inner = files, inner

    def read(self, places: Sequence[FileRange]) -> asyncio.Future[list[FileData]]:
        return asyncio.ensure_future(self._read(places))

    async def _read(self, places: Sequence[FileRange]) -> list[FileData]:
        if places[0].name != "VERSION" and self._files.slow in (None, places[0].offset):
            self._files.reading += 1
            await self._files.gate.wait()
            self._files.reading -= 1
        return await self._inner.read(places)

    def give_back(self, pieces: Sequence[FileData]) -> None:
        self._inner.give_back(pieces)


async def test_memory_is_bounded_and_others_go_on_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Held()
    async with pair(tmp_path, files=files) as both:
        request = await both.request(1, 0, 9)
        monkeypatch.setattr(pulls, "MOST_BYTES", 3 * request.size)
        monkeypatch.setattr(pulls, "MOST_WAITING", 5)
        for _ in range(10):
            both.wire.send(request)
        await until(lambda: files.reading == 3)
        assert ("pulls", 3 * request.size, 3 * request.size) in await memory(both.target)
        refused = [await both.wire.reply() for _ in range(2)]
        assert [(one.code, one.count) for one in refused] == [(Code.TOO_MANY_REQUESTS, 0)] * 2
        other = await both.target.wire()
        assert (await other.call(add(3, 0))).code is Code.OK
        assert files.reading == 3
        files.gate.set()
        assert [(one.code, one.count) for one in [await both.wire.reply() for _ in range(8)]] == [(Code.OK, 10)] * 8
        assert both.target.bookie.server.budget.total == 0
        assert ("pulls", 0, 3 * request.size) in await memory(both.target)


async def memory(kit: Kit) -> Sequence[MemoryUse]:
    """What the bookie says of its memory."""
    reply = await (await kit.wire(3)).call(GetBookieInfo(MEMORY_USE))
    assert isinstance(reply, BookieInfoReply)
    return reply.memory


async def test_entries_of_one_ledger_are_stored_in_the_order_of_the_requests(tmp_path: Path) -> None:
    files = Held()
    async with pair(tmp_path, files=files) as both:
        low, high = await both.request(1, 0, 99), await both.request(1, 100, 199)
        files.slow = low.located.extents[0].offset
        both.wire.send(low)
        both.wire.send(high)
        other = await both.request(2, 0, 9)
        assert (await (await both.target.wire()).call(other)).count == 10
        await until(lambda: files.reading == 1)
        assert await both.wire.silent()
        assert both.target.store.ledger(1) is None
        files.gate.set()
        replies = [await both.wire.reply() for _ in range(2)]
        assert sorted((one.entry_id, one.count) for one in replies) == [(0, 100), (100, 100)]


async def test_an_id_that_means_another_ledger_by_now_gets_nothing(tmp_path: Path) -> None:
    files = Held()
    async with pair(tmp_path, files=files) as both:
        request = await both.request(1, 0, 9)
        both.wire.writer.write(name_ledger(1, b"A" * 16))
        both.wire.send(request)
        await until(lambda: files.reading == 1)
        both.wire.writer.write(name_ledger(1, b"B" * 16))
        both.wire.send(Read(2, 0))
        assert (await both.wire.reply()).code is Code.NO_LEDGER  # what came before is heard
        files.gate.set()
        reply = await both.wire.reply()
        assert (reply.code, reply.count) == (Code.TOO_MANY_REQUESTS, 0)
        assert both.target.store.ledger(1) is None


async def test_a_connection_that_ends_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Held()
    async with pair(tmp_path, files=files) as both:
        request = await both.request(1, 0, 9)
        monkeypatch.setattr(pulls, "MOST_BYTES", request.size)
        ending = await both.target.wire()
        for _ in range(3):
            ending.send(request)
        await until(lambda: files.reading == 1)
        await ending.close()
        await until(lambda: len(both.target.bookie.server.sessions) == 1)
        files.gate.set()
        assert await both.pull(request) == (Code.OK, 10)


def spoil(directory: Path, body: bytes) -> None:
    """Change a byte of an entry in a bookie's files."""
    (path,) = [path for path in directory.iterdir() if path.is_file() and body in path.read_bytes()]
    data = path.read_bytes()
    at = data.index(body) + len(body) - 1
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))

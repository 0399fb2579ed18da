"""Bulk reads from the files of bookies beside the client: always the same entries, whatever becomes of the files."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.readable_bookie import ReadableBookie, readable
from tests.unit.scripted_bookie import NET, eventually

from buckram.client.client import Client, connect
from buckram.config import ClientConfig
from buckram.core.located import Extent, Located
from buckram.core.messages import BatchRead, LocatedReply
from buckram.core.protocol import Incoming
from buckram.core.wire_v2 import located_reply
from buckram.disk.neighbours import NeighbourDirectory, Neighbours, identity_of
from buckram.errors import HandleClosed
from buckram.net.pool import BookiePool
from buckram.net.runtime import production_runtime
from buckram.seams import Piece, Place
from buckram.testing import Cluster, cluster

KIB = 1024
ALWAYS = ClientConfig(local_read_bytes=1)


class Files:
    """This machine's files; counts, and holds back or changes what comes from them."""

    def __init__(self) -> None:
        self.inner, self.here = Neighbours(), True
        self.opened: list[str] = []
        self.reads: list[list[Place]] = []
        self.gate: asyncio.Event | None = None

    def open(self, directory: str, identity: str) -> Directory | None:
        self.opened.append(directory)
        found = self.inner.open(directory, identity if self.here else "another")
        return None if found is None else Directory(self, found)

    @property
    def bytes(self) -> int:
        return sum(place.length for places in self.reads for place in places)


class Directory:
    def __init__(self, files: Files, inner: NeighbourDirectory) -> None:
        self._files, self._inner = files, inner

    def read(self, places: Sequence[Place]) -> asyncio.Future[list[Piece]]:
        self._files.reads.append(list(places))
        return self._inner.read(places) if self._files.gate is None else asyncio.ensure_future(self._late(places))

    async def _late(self, places: Sequence[Place]) -> list[Piece]:
        assert self._files.gate is not None
        await self._files.gate.wait()
        return await self._inner.read(places)

    def give_back(self, pieces: Sequence[Piece]) -> None:
        self._inner.give_back(pieces)
        for data, _ in pieces:
            if isinstance(data, bytearray):
                data[:] = bytes(len(data))  # whoever still looked at it would notice


class Asked(list[str]):
    """Bookies that were asked for places, in order; `located`: what they said."""

    def __init__(self) -> None:
        super().__init__()
        self.located: list[Located] = []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()
    call = BookiePool.call

    async def counted(self: BookiePool, bookie: str, request: Any, **options: Any) -> Any:
        if not (isinstance(request, BatchRead) and request.located):
            return await call(self, bookie, request, **options)
        found.append(bookie)
        reply = await call(self, bookie, request, **options)
        if isinstance(reply, LocatedReply):
            found.located.append(reply.located)
        return reply

    monkeypatch.setattr(BookiePool, "call", counted)
    return found


@pytest.fixture(autouse=True)
async def nothing_is_left(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """No task, and no error that nobody looked at."""
    before = asyncio.all_tasks()
    loop = asyncio.get_running_loop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: unseen.append(context))
    yield
    gc.collect()
    await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert unseen == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    before |= {asyncio.current_task()}  # type: ignore[arg-type]  # there is one
    left = [task for task in asyncio.all_tasks() if task not in before and not task.done()]
    assert not left, f"tasks left: {left}"


@asynccontextmanager
async def reading(c: Cluster, config: ClientConfig = ALWAYS) -> AsyncIterator[tuple[Client, Files]]:
    files = Files()
    async with connect(c.uri, config=config, runtime=replace(production_runtime(), files=files)) as client:
        yield client, files


@asynccontextmanager
async def settled(*ledgers: Sequence[bytes], **options: Any) -> AsyncIterator[tuple[Cluster, list[int]]]:
    """A cluster with these closed ledgers in its files: restarted bookies have sealed what they held in memory."""
    async with cluster(3) as c:
        ids = []
        async with c.client() as client:
            for payloads in ledgers:
                async with client.create(**options) as writer:
                    await writer.append_many(payloads)
                ids.append(writer.ledger_id)
        await settle(c)
        yield c, ids


async def settle(c: Cluster) -> None:
    for number in range(len(c.bookies)):
        await c.restart(number)


def sized(kind: str) -> list[bytes]:
    rng = random.Random(kind)
    sizes = {
        "tiny": [5] * 5000, "empty": [0] * 10, "large": [300 * KIB] * 12, "one": [77],
        "mixed": [rng.choice((0, 1, 100, 5000, 150 * KIB, 1500 * KIB)) for _ in range(40)],
    }[kind]
    return [rng.randbytes(size) for size in sizes]


async def same_in_every_way(c: Cluster, ledger: int, payloads: Sequence[bytes], password: str = "") -> None:
    async with reading(c) as (client, files), reading(c, replace(ALWAYS, local_read_bytes=0)) as (plain, none):  # noqa: SIM117 - too long as one
        async with client.open(ledger, password=password) as one, plain.open(ledger, password=password) as other:
            last = len(payloads) - 1
            expected = await other.read(0, last)
            assert [entry.payload for entry in expected] == payloads
            assert await one.read(0, last) == expected
            whole = files.bytes
            assert whole >= sum(map(len, payloads))
            assert await one.read_payloads(0, last) == payloads
            assert files.bytes == 2 * whole
            assert [entry async for entry in one.entries()] == expected
            chunks = [chunk async for chunk in one.chunks(last // 2)]
            assert [entry for chunk in chunks for entry in chunk] == expected[last // 2 :]
            rng = random.Random(ledger)
            for _ in range(10):
                low, high = sorted((rng.randrange(last + 1), rng.randrange(last + 1)))
                before = files.bytes
                assert await one.read(low, high) == expected[low : high + 1]
                assert await one.read_payloads(low, high) == payloads[low : high + 1]
                assert files.bytes > before
            assert (files.opened != [], none.opened) == (True, [])


@pytest.mark.parametrize("kind", ["tiny", "empty", "large", "one", "mixed"])
async def test_every_size_comes_as_from_bookies(kind: str) -> None:
    payloads = sized(kind)
    async with settled(payloads) as (c, (ledger,)):
        await same_in_every_way(c, ledger, payloads)


@pytest.mark.parametrize("digest", ["crc32", "mac"])
async def test_every_digest_and_a_password(digest: str) -> None:
    payloads = sized("mixed")
    async with settled(payloads, digest=digest, password="secret") as (c, (ledger,)):
        await same_in_every_way(c, ledger, payloads, "secret")


async def test_ledgers_that_lie_between_each_other() -> None:
    """Many extents of one entry."""
    async with cluster(3) as c:
        expected: list[list[bytes]] = [[], [], []]
        async with c.client() as client:  # noqa: SIM117 - too long as one
            async with client.create() as a, client.create(ensemble="3/3/2") as b, client.create() as d:
                for entry in range(150):
                    for writer, payloads in zip((a, b, d), expected, strict=True):
                        payloads.append(b"%d" % entry * (1 + entry % 7))
                        await writer.append(payloads[-1])
        await settle(c)
        for writer, payloads in zip((a, b, d), expected, strict=True):
            await same_in_every_way(c, writer.ledger_id, payloads)
        async with reading(c) as (client, files), client.open(a.ledger_id) as reader:
            assert await reader.read_payloads(0, 149) == expected[0]
            assert sum(map(len, files.reads)) > 50


async def test_each_fragment_is_read_where_it_is(asked: Asked) -> None:
    payloads = sized("mixed")
    async with cluster(3) as c:
        async with c.client(ALWAYS) as client, client.create(ensemble="2/2/2") as writer:
            await writer.append_many(payloads)
            gone = writer.metadata.last_fragment.ensemble[0]
            await c.kill(c.bookies.index(gone))
            await writer.append_many(payloads)
        assert len(writer.metadata.fragments) == 2
        await c.restart(c.bookies.index(gone))
        await settle(c)
        await same_in_every_way(c, writer.ledger_id, payloads * 2)
        first, second = (fragment.ensemble[0] for fragment in writer.metadata.fragments)
        assert first != second
        assert {first, second} <= set(asked)


async def test_what_is_in_memory_comes_from_bookies(asked: Asked) -> None:
    payloads = sized("mixed")
    async with cluster(3) as c:
        async with c.client(ALWAYS) as other, other.create(ensemble="3/3/3") as writer:
            await writer.append_many(payloads[:20])
            await settle(c)
            await writer.append_many(payloads[20:])
        async with reading(c) as (client, _), client.open(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 39) == payloads
        assert asked


async def test_without_a_digest_nobody_asks_for_places(asked: Asked) -> None:
    payloads = sized("large")
    async with settled(payloads, digest="dummy") as (c, (ledger,)), reading(c) as (client, files):
        async with client.open(ledger) as reader:
            assert await reader.read_payloads(0, 11) == payloads
        assert (asked, files.opened) == ([], [])


async def test_striped_ledgers_and_the_other_protocol_do_without(asked: Asked) -> None:
    payloads = sized("mixed")
    async with settled(payloads, ensemble="3/2/2") as (c, (ledger,)):  # noqa: SIM117 - too long as one
        async with reading(c) as (client, files), client.open(ledger) as reader:
            assert await reader.read_payloads(0, 39) == payloads
            assert files.opened == []
    async with settled(payloads) as (c, (ledger,)):  # noqa: SIM117 - too long as one
        async with reading(c, replace(ALWAYS, wire_protocol=3)) as (client, files), client.open(ledger) as reader:
            assert await reader.read_payloads(0, 39) == payloads
            assert files.opened == []
    assert asked == []


async def test_small_reads_ask_as_ever_and_every_client_can(monkeypatch: pytest.MonkeyPatch, asked: Asked) -> None:
    reads: list[int] = []
    read = NeighbourDirectory.read

    def counted(self: NeighbourDirectory, places: Sequence[Place]) -> asyncio.Future[list[Piece]]:
        reads.append(len(places))
        return read(self, places)

    monkeypatch.setattr(NeighbourDirectory, "read", counted)
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)), c.client() as client, client.open(ledger) as reader:
        assert await reader.read_payloads(0, 5) == payloads[:6]  # 1.8 MB
        assert (asked, reads) == ([], [])
        assert await reader.read_payloads(0, 11) == payloads  # 3.6 MB
        assert asked
        assert reads


# -- files that are not as they should be


@pytest.mark.parametrize("kind", ["large", "tiny"])
@pytest.mark.parametrize("part", [0.0, 0.4, 0.999])
async def test_a_flipped_byte_is_never_read(asked: Asked, kind: str, part: float) -> None:
    payloads = sized(kind)
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        last = len(payloads) - 1
        await reader.read_payloads(0, last)
        located = asked.located[0]
        total = sum(extent.length for extent in located.extents)
        at = int(part * total)
        for extent in located.extents:
            if at < extent.length:
                break
            at -= extent.length
        with (Path(located.directory) / extent.name).open("r+b") as file:
            file.seek(extent.offset + at)
            byte = file.read(1)
            file.seek(extent.offset + at)
            file.write(bytes([byte[0] ^ 4]))
        before = files.bytes
        assert await reader.read_payloads(0, last) == payloads
        assert [entry.payload for entry in await reader.read(0, last)] == payloads
        assert files.bytes > before


@pytest.mark.parametrize("kind", ["large", "tiny"])
async def test_files_that_are_removed(asked: Asked, kind: str) -> None:
    payloads = sized(kind)
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        last = len(payloads) - 1
        await reader.read_payloads(0, last)
        for extent in asked.located[0].extents:
            (Path(asked.located[0].directory) / extent.name).unlink(missing_ok=True)
        before = len(files.reads)
        assert await reader.read_payloads(0, last) == payloads
        assert len(files.reads) > before


async def test_bookies_elsewhere_are_asked_once(asked: Asked) -> None:
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        files.here = False
        for _ in range(5):
            assert await reader.read_payloads(0, 11) == payloads
        assert files.reads == []
        assert 0 < len(asked) <= 3
        assert len(set(asked)) == len(asked)


async def test_files_that_may_not_be_read_are_tried_once_per_bookie(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: NeighbourDirectory, places: Sequence[Place]) -> list[Piece]:
        raise PermissionError("of another user")

    monkeypatch.setattr(NeighbourDirectory, "read_now", refused)
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        for _ in range(5):
            assert await reader.read_payloads(0, 11) == payloads
        assert 0 < len(files.opened) <= 3
        assert len(set(files.opened)) == len(files.opened)


async def test_a_device_that_hangs_is_not_waited_for() -> None:
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)):  # noqa: SIM117 - too long as one
        async with reading(c, replace(ALWAYS, speculative_read_ms=20.0)) as (client, files):
            files.gate = asyncio.Event()  # never
            async with client.open(ledger) as reader, asyncio.timeout(60):
                assert await reader.read_payloads(0, 11) == payloads
            assert files.reads


# -- an end in the middle


async def test_a_reader_closed_between_chunks(asked: Asked) -> None:
    async with settled(sized("large")) as (c, (ledger,)), reading(c) as (client, files):
        reader = await client.open(ledger)
        chunks = reader.chunks()
        assert await anext(chunks)
        await reader.close()
        with pytest.raises(HandleClosed):
            await anext(chunks)
        assert files.reads


@pytest.mark.parametrize("whole", [True, False])
async def test_a_reader_or_client_closed_while_files_are_read(whole: bool) -> None:
    async with settled(sized("large")) as (c, (ledger,)), reading(c) as (client, files):
        files.gate = asyncio.Event()
        reader = await client.open(ledger)
        task = asyncio.create_task(reader.read_payloads(0, 11))
        await eventually(lambda: files.reads != [], "files are read")
        await (client if whole else reader).close()
        files.gate.set()
        with pytest.raises(HandleClosed):
            await task


async def test_a_reader_closed_while_places_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    never, waiting = asyncio.Event(), asyncio.Event()
    call = BookiePool.call

    async def hanging(self: BookiePool, bookie: str, request: Any, **options: Any) -> Any:
        if isinstance(request, BatchRead) and request.located:
            waiting.set()
            await never.wait()
        return await call(self, bookie, request, **options)

    monkeypatch.setattr(BookiePool, "call", hanging)
    config = replace(ALWAYS, speculative_read_ms=0.0)
    async with settled(sized("one")) as (c, (ledger,)), reading(c, config) as (client, _):
        reader = await client.open(ledger)
        task = asyncio.create_task(reader.read_payloads(0, 0))
        await waiting.wait()
        await reader.close()
        with pytest.raises(HandleClosed):
            await task


async def test_a_caller_cancelled_while_files_are_read() -> None:
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        files.gate = asyncio.Event()
        task = asyncio.create_task(reader.read_payloads(0, 11))
        await eventually(lambda: files.reads != [], "files are read")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        files.gate = None
        before = files.bytes
        assert await reader.read_payloads(0, 11) == payloads
        assert files.bytes > before


async def test_a_consumer_that_stops_early() -> None:
    payloads = sized("large")
    async with settled(payloads) as (c, (ledger,)), reading(c) as (client, files), client.open(ledger) as reader:
        async for entry in reader.entries():
            assert entry.payload == payloads[0]
            break
        assert files.reads


# -- bookies of another kind


@asynccontextmanager
async def scripted_reading(
    payloads: Sequence[bytes], config: ClientConfig = ALWAYS
) -> AsyncIterator[tuple[list[ReadableBookie], Client, int, Files]]:
    async with readable(3, net=replace(NET, request_timeout_s=300.0)) as (c, writing):
        async with writing.create() as writer:
            await writer.append_many(payloads)
        files = Files()
        net = replace(NET, request_timeout_s=300.0)
        runtime = replace(c.runtime, files=files)
        async with connect(c.store, config=config, net=net, runtime=runtime) as client:
            yield c.all, client, writer.ledger_id, files


PAYLOADS = [b"payload %d" % number for number in range(200)]


async def test_a_bookie_that_knows_no_places_answers_with_entries(asked: Asked) -> None:
    async with scripted_reading(PAYLOADS) as (_, client, ledger, files), client.open(ledger) as reader:
        assert await reader.read_payloads(0, 199) == PAYLOADS
        assert (len(asked), asked.located, files.opened) == (1, [], [])


async def test_a_bookie_that_hangs_up_on_batch_reads_is_left_alone(asked: Asked) -> None:
    async with scripted_reading(PAYLOADS) as (bookies, client, ledger, _), client.open(ledger) as reader:
        for bookie in bookies:
            bookie.batches = False
        for _ in range(3):
            assert await reader.read_payloads(0, 199) == PAYLOADS
        known = len(asked)
        for _ in range(10):
            assert await reader.read_payloads(0, 199) == PAYLOADS
        assert len(asked) == known


async def test_a_bookie_that_hangs_is_waited_for_as_in_any_read(asked: Asked) -> None:
    config = replace(ALWAYS, speculative_read_ms=20.0)
    async with scripted_reading(PAYLOADS, config) as (bookies, client, ledger, _), client.open(ledger) as reader:
        for bookie in bookies:
            bookie.hang = lambda request: isinstance(request, BatchRead) and request.located
        async with asyncio.timeout(100):
            assert await reader.read_payloads(0, 199) == PAYLOADS
        assert asked


def lies(directory: str, identity: str, size: int) -> Iterator[Located]:
    whole = Extent("log-1", 0, size, 0, 0, 200)
    for extents in (
        [whole._replace(entries=0)],
        [whole._replace(first=1)],
        [whole._replace(entries=201)],
        [whole._replace(entries=2**62)],
        [whole._replace(skip=2**62)],
        [whole._replace(skip=1)],
        [whole._replace(name="\0")],
        [whole._replace(name="\ud800")],
        [whole._replace(length=2**62)],
        [whole._replace(length=0)],
        [whole._replace(offset=2**63 - 1)],
        [whole, whole],
        [whole._replace(entries=100), whole._replace(first=0, entries=100)],
        [whole._replace(entries=100), whole._replace(first=100, skip=100, entries=0)],
    ):
        yield Located(directory, identity, extents)
    yield Located("\0", identity, [whole])


async def test_whatever_a_bookie_names_the_entries_are_right(tmp_path: Path, asked: Asked) -> None:
    async with scripted_reading(PAYLOADS) as (bookies, client, ledger, files), client.open(ledger) as reader:
        stored = [bookies[0].entries[ledger][number] for number in range(200)]
        frames = b"".join((24 + len(one)).to_bytes(4, "big") + bytes(24) + one for one in stored)
        (tmp_path / "log-1").write_bytes(frames)
        identity = identity_of(tmp_path)
        said: list[Located] = []

        def serving(bookie: ReadableBookie) -> None:
            serve = bookie.serve

            def placed(item: Incoming, transport: asyncio.Transport) -> None:
                if isinstance(item.request, BatchRead) and item.request.located:
                    transport.write(located_reply(item.context, said[-1]))
                else:
                    serve(item, transport)

            bookie.serve = placed  # type: ignore[method-assign]  # one bookie's alone

        for bookie in bookies:
            serving(bookie)
        said.append(Located(str(tmp_path), identity, [Extent("log-1", 0, len(frames), 0, 0, 200)]))
        assert await reader.read_payloads(0, 199) == PAYLOADS
        assert files.bytes == len(frames)
        # The bookie has the end in memory.
        part = Extent("log-1", 0, sum(28 + len(one) for one in stored[:50]), 0, 0, 50)
        said.append(Located(str(tmp_path), identity, [part]))
        before, served = files.bytes, len(asked)
        assert await reader.read_payloads(0, 199) == PAYLOADS
        assert files.bytes - before == part.length
        assert len(asked) == served + 2
        served = sum(len(bookie.requests) for bookie in bookies)
        for lie in lies(str(tmp_path), identity, len(frames)):
            said.append(lie)
            client.services.elsewhere.clear()
            async with asyncio.timeout(100):
                assert await reader.read_payloads(0, 199) == PAYLOADS, lie
                assert await reader.read_payloads(0, 98) == PAYLOADS[:99], lie
        assert sum(len(bookie.requests) for bookie in bookies) > served

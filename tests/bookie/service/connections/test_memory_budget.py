"""Memory bounds: peers that do not read, floods of reads, connections, fairness."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.bookie_kit import Kit, add, add_frames, batch, running, stored
from tests.support.polling import until

from buckram.bookie.service.connections import memory_budget as limits
from buckram.bookie.service.connections.memory_budget import Budget
from buckram.bookie.service.server import BadFrames
from buckram.bookie.storage.log import group_commit as commit
from buckram.bookie.storage.upkeep import maintenance
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire.messages import Read
from buckram.errors import Code
from buckram.runtime.disk.local import LocalDisk

MB = 1 << 20


async def fill(kit: Kit, entries: int, size: int) -> None:
    wire = await kit.wire()
    for entry in range(entries):
        assert (await wire.call(add(1, entry, payload=bytes(size)))).code is Code.OK


async def deaf(kit: Kit) -> socket.socket:
    """A connection with a small receive buffer that reads nothing."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.setblocking(False)
    address = kit.bookie.info.address  # type: ignore[union-attr]
    await asyncio.get_running_loop().sock_connect(peer, (address.host, address.port))  # type: ignore[union-attr]
    return peer


async def test_a_peer_that_never_reads_is_bounded_and_others_are_served(tmp_path: Path) -> None:
    async with running(tmp_path, connection_buffer_bytes=1 * MB, total_buffer_bytes=8 * MB) as kit:
        await fill(kit, 20, 100_000)
        peer = await deaf(kit)
        request = wire_v2.encode_request(batch(1, 0, 0, 1 * MB)) * 3000  # would be 3 GB of answers
        sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(peer, request))
        budget = kit.bookie.server.budget
        await until(lambda: budget.total > 100_000)
        wire = await kit.wire()
        for entry in range(20):
            assert (await wire.call(Read(1, entry))).body == stored(1, entry, payload=bytes(100_000))
            assert (await wire.call(add(2, entry))).code is Code.OK
        # One connection's limit, one batch beyond it, and the requests themselves.
        assert budget.highest_total < 4 * MB
        sending.cancel()
        peer.close()
        await until(lambda: budget.total < 10_000)


async def test_a_peer_that_takes_nothing_is_closed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "SLOW_CONSUMER_S", 0.2)
    monkeypatch.setattr(limits, "SWEEP_S", 0.05)
    async with running(tmp_path, connection_buffer_bytes=1 * MB) as kit:
        await fill(kit, 10, 100_000)
        peer = await deaf(kit)
        await asyncio.get_running_loop().sock_sendall(peer, wire_v2.encode_request(batch(1, 0, 0, 1 * MB)) * 50)
        await until(lambda: len(kit.bookie.server.sessions) == 2)
        await until(lambda: len(kit.bookie.server.sessions) == 1)
        assert "has read nothing" in caplog.text
        peer.close()


async def test_a_slow_reader_gets_everything(tmp_path: Path) -> None:
    async with running(tmp_path, connection_buffer_bytes=256 * 1024) as kit:
        await fill(kit, 10, 100_000)
        wire = await kit.wire()
        for _ in range(10):
            for entry in range(10):
                wire.send(Read(1, entry))
        for _ in range(100):
            assert (await wire.reply()).code is Code.OK
            await asyncio.sleep(0)
        for _ in range(20):
            wire.send(batch(1, 0, 0, 1 * MB))
        assert [len((await wire.reply()).bodies) for _ in range(20)] == [10] * 20


async def test_many_small_requests_in_one_chunk_all_get_answers(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await fill(kit, 1, 10)
        wire = await kit.wire()
        wire.writer.write(wire_v2.encode_request(Read(1, 0)) * 5000)
        for _ in range(5000):
            assert (await wire.reply()).code is Code.OK
        await until(lambda: kit.bookie.server.budget.total == 0)


async def test_connections_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, max_connections=3) as kit:
        wires = [await kit.wire() for _ in range(3)]
        await until(lambda: len(kit.bookie.server.sessions) == 3)
        one_more = await kit.wire()
        assert await one_more.closed()
        assert "max_connections = 3" in caplog.text
        await wires[0].close()
        await until(lambda: len(kit.bookie.server.sessions) == 2)
        assert (await (await kit.wire()).call(add(1, 0))).code is Code.OK


async def test_unfinished_frames_count(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        frame = add_frames(1, 0, 1, payload=bytes(3 * MB))
        wire.writer.write(frame[:-10])
        await until(lambda: kit.bookie.server.budget.total > 2.9 * MB)
        wire.writer.write(frame[-10:])
        assert (await wire.reply()).code is Code.OK
        await until(lambda: kit.bookie.server.budget.total == 0)


async def test_adds_that_wait_for_a_commit_are_counted_and_given_back(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        for start in range(0, 4000, 500):
            wire.writer.write(add_frames(1, start, 500, payload=bytes(1000)))
        for _ in range(4000):
            await wire.frame()
        await until(lambda: kit.bookie.server.budget.total == 0)
        assert kit.bookie.server.budget.highest_total > 0


async def test_a_connection_with_little_goes_on_when_the_others_have_used_everything() -> None:
    budget = Budget(1000, 200, fair_bytes=50)
    big, small = Peer(), Peer()
    budget.join(big)
    budget.join(small)
    big.bytes, small.bytes = 500, 50
    budget.update(big)
    budget.update(small)
    assert (big.reads_paused, small.reads_paused) == (True, False)
    budget.close()


class Peer:
    """A member of a budget without a connection."""

    def __init__(self) -> None:
        self.charged = 0
        self.reads_paused = False
        self.waiting_since = 0.0
        self.waiting_mark = 0
        self.bytes = 0
        self.aborted = ""

    def held(self) -> int:
        return self.bytes

    def unfinished(self) -> int:
        return 0

    def in_work(self) -> int:
        return 0

    def progress(self) -> int:
        return 0

    def poke(self) -> None:
        pass

    def pause_reads(self) -> None:
        self.reads_paused = True

    def resume_reads(self) -> None:
        self.reads_paused = False

    def abort(self, why: str) -> None:
        self.aborted = why


async def test_the_heaviest_pause_first_and_come_back_below_the_mark() -> None:
    budget = Budget(100, 200, fair_bytes=0)
    peers = [Peer() for _ in range(4)]
    for peer in peers:
        budget.join(peer)

    async def hold(index: int, size: int) -> list[bool]:
        peers[index].bytes = size
        budget.update(peers[index])
        return [peer.reads_paused for peer in peers]

    for index, size in enumerate((90, 80, 20, 5)):
        assert await hold(index, size) == [False] * 4
    assert await hold(3, 15) == [True, False, False, False]
    assert await hold(1, 101) == [True, True, True, False]  # over its own limit, and one more for the total
    assert await hold(0, 40) == [True, True, True, False]  # 176 in all: above the mark of 150
    assert await hold(1, 60) == [False, True, False, False]  # 135, but it holds more than half of its own limit
    assert await hold(1, 50) == [False] * 4
    assert budget.total == 125
    for peer in peers:
        budget.leave(peer)
    assert budget.total == 0
    budget.close()


async def test_the_last_resort_is_for_reads_first() -> None:
    budget = Budget(1000, 100)
    peer = Peer()
    budget.join(peer)
    seen = []
    for size in (100, 151, 201):
        peer.bytes = size
        budget.update(peer)
        seen.append((budget.refuse_reads, budget.refuse_adds))
    assert seen == [(False, False), (True, False), (True, True)]
    budget.close()


async def test_reads_are_refused_before_adds(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        await wire.call(add(1, 0))
        budget = kit.bookie.server.budget
        ballast = Peer()
        budget.join(ballast)
        ballast.bytes = int(budget.total_limit * 1.6)
        budget.update(ballast)
        assert (await wire.call(Read(1, 0))).code is Code.TOO_MANY_REQUESTS
        assert (await wire.call(batch(1, 0))).code is Code.TOO_MANY_REQUESTS
        budget.leave(ballast)
        assert (await wire.call(add(1, 1))).code is Code.OK


def test_one_line_a_second_for_bad_frames(caplog: pytest.LogCaptureFixture) -> None:
    frames = BadFrames()
    with caplog.at_level(logging.WARNING):
        for n in range(1000):
            frames.report("peer", "nonsense", n * 0.0025)
    assert len(caplog.records) == 3
    assert "399 more" in caplog.text
    assert frames.total == 1000


async def test_writers_faster_than_the_index_wait_instead_of_being_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New ledgers fill the index of the log file while the next one is not ready: no answer is TOO_MANY_REQUESTS."""
    for module in (commit, maintenance):
        monkeypatch.setattr(module, "INDEX_LIMIT", 60_000)  # a hundred ledgers
    monkeypatch.setattr(maintenance, "UNSEALED_COST", 60_000)
    disk = SlowJobs(tmp_path)
    async with running(tmp_path, disk=disk) as kit:
        disk.gate.clear()
        ranges = [range(start, start + 1000, 40) for start in (0, 1000, 2000)]
        writers = [asyncio.ensure_future(_new_ledgers(kit, one)) for one in ranges]
        await until(lambda: kit.store.backpressure)
        await until(lambda: all(one.reads_paused for one in kit.bookie.server.sessions))
        assert not any(writer.done() for writer in writers)
        disk.gate.set()
        assert set(await asyncio.gather(*writers)) == {1000}
        assert not kit.store.backpressure
        assert not any(one.reads_paused for one in kit.bookie.server.sessions)


async def _new_ledgers(kit: Kit, starts: range) -> int:
    """Forty at a time from each of `starts` on; how many were written."""
    wire, written = await kit.wire(), 0
    for start in starts:
        wire.writer.write(b"".join(add_frames(start + one, 0, 1) for one in range(40)))
        for _ in range(40):
            assert (await wire.reply()).code is Code.OK
            written += 1
    return written


class SlowJobs:
    """A LocalDisk whose background jobs wait at a gate."""

    def __init__(self, path: Path) -> None:
        self._disk = LocalDisk(str(path), "inline")
        self.alignment = self._disk.alignment
        self.gate = asyncio.Event()
        self.gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    async def offload(self, job: Callable[[], Any]) -> Any:
        await self.gate.wait()
        return await self._disk.offload(job)

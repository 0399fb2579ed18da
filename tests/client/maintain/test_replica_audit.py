"""Audits of replicas on real bookies with real files: what is good, what is bad, where, and what cannot be told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from tests.support.polling import until

from buckram.client.maintain.replica_audit import ReplicaAuditor, differing
from buckram.cluster import Client
from buckram.config import ClientConfig, NetConfig
from buckram.core.entries.entry import Digest
from buckram.core.entries.packed import PackedBodies
from buckram.core.ledgers.metadata import created
from buckram.core.ledgers.replica_audit import BlockSums, Piece, PieceReport, plan_pieces
from buckram.core.wire.introduction import Expected, Introduction, Peer
from buckram.runtime.net.pace import Pace
from buckram.runtime.production import production_runtime
from buckram.testing import Cluster, cluster
from buckram.types import BookieAddress, DigestType, LedgerMetadata

MARK = b"here is the byte that will be flipped"


@pytest.fixture
async def running() -> AsyncIterator[Cluster]:
    async with cluster(bookies=3) as c:
        yield c


async def written(client: Client, entries: int, size: int, *, ensemble: str = "3/3/2", digest: str = "crc32c") -> int:
    rng = Random(entries)
    async with client.create(ensemble=ensemble, digest=digest, password="secret") as writer:
        await writer.append_many([rng.randbytes(size - len(MARK)) + MARK for _ in range(entries)])
    return writer.ledger_id


async def pieces_of(client: Client, ledger: int, piece_bytes: int = 1 << 20) -> list[Piece]:
    return plan_pieces(ledger, await client.metadata(ledger), piece_bytes)


async def audited(client: Client, ledger: int, **options: int) -> list[PieceReport]:
    seen = await client.services.store.bookies()
    addresses = {info.bookie_id: info.address for info in seen.writable.values()}
    async with ReplicaAuditor(production_runtime(), addresses) as auditor:
        return [await auditor.check(piece) for piece in await pieces_of(client, ledger, **options)]


def flip(directory: Path, which: int = 0) -> None:
    """Change one byte of a payload in a bookie's log."""
    for log in sorted(directory.glob("log-*")):
        content = log.read_bytes()
        place = -1
        for _ in range(which + 1):
            place = content.find(MARK, place + 1)
        if place >= 0:
            with log.open("r+b") as file:
                file.seek(place)
                file.write(bytes([content[place] ^ 1]))
            return
    raise AssertionError("no log holds the mark")


def directory_of(running: Cluster, number: int) -> Path:
    return running._nodes[number].directory


@pytest.mark.parametrize("digest", ["crc32c", "crc32", "mac", "dummy"])
@pytest.mark.parametrize("ensemble", ["3/3/2", "3/2/2", "1/1/1"])
async def test_good_replicas(running: Cluster, digest: str, ensemble: str) -> None:
    async with running.client() as client:
        ledger = await written(client, 300, 200, ensemble=ensemble, digest=digest)
        reports = await audited(client, ledger)
        assert [report.state for report in reports] == ["good"] * len(reports)
        copies = int(ensemble[2])
        assert sum(report.good for report in reports) == 300 * copies
        sums: dict[tuple[int, int], list[int]] = {}
        for report in reports:
            for one in report.sums:
                sums.setdefault((one.block, one.share), []).append(one.sum)
        assert {len(found) for found in sums.values()} == {copies}
        assert all(len(set(found)) == 1 for found in sums.values())


async def test_pieces_have_the_same_borders_everywhere(running: Cluster) -> None:
    async with running.client() as client:
        ledger = await written(client, 3000, 4000)
        pieces = await pieces_of(client, ledger, 1 << 20)
        spans = [(piece.first, piece.last) for piece in pieces]
        assert len(set(spans)) == 3
        assert sorted(spans) == sorted([span for span in set(spans) for _ in range(3)])
        assert all(first % pieces[0].block == 0 for first, _ in spans)
        reports = await audited(client, ledger, piece_bytes=1 << 20)
        assert sum(report.good for report in reports) == 9000


async def test_a_flipped_byte(running: Cluster) -> None:
    """In the file of a bookie that runs and no longer has it in memory."""
    async with running.client() as client:
        ledger = await written(client, 6500, 4000)
        flip(directory_of(running, 1), 7)
        reports = await audited(client, ledger)
        bad = [report for report in reports if report.state != "good"]
        assert [(r.piece.bookie, r.damaged, r.missing) for r in bad] == [(running.bookies[1], 1, 0)]
        assert len(bad[0].bad) == 1
        assert bad[0].good == bad[0].piece.entries - 1
        assert (await client.repair(ledger, password="secret")).entries_copied == 1
        assert {report.state for report in await audited(client, ledger)} == {"good"}


async def test_a_byte_that_was_flipped_a_moment_ago(running: Cluster) -> None:
    """The newest entries are in the bookie's memory, too, where they are still good; so are chunks that it has read."""
    async with running.client() as client:
        ledger = await written(client, 200, 1000)
        assert {report.state for report in await audited(client, ledger)} == {"good"}
        flip(directory_of(running, 1), 20)
        (bad,) = [report for report in await audited(client, ledger) if report.state != "good"]
        assert (bad.piece.bookie, bad.damaged, bad.good, bad.bad) == (running.bookies[1], 1, 199, [20])
        repaired = await client.repair(ledger, password="secret")
        assert (repaired.entries_copied, repaired.healthy) == (1, True)
        assert {report.state for report in await audited(client, ledger)} == {"good"}


@pytest.mark.parametrize("ensemble", ["3/3/2", "3/2/2"])
async def test_repair_reads_what_is_on_disk_on_either_wire(running: Cluster, ensemble: str) -> None:
    """A bookie that runs has the entry in memory, where it is good; a restart would not find it."""
    async with running.client() as writing:
        ledger = await written(writing, 60, 500, ensemble=ensemble)
    flip(directory_of(running, 1), 5)
    for wire, copied in ((3, 1), (2, 0)):
        async with running.client(ClientConfig(wire_protocol=wire)) as client:
            assert (await client.repair(ledger, password="secret")).entries_copied == copied
            assert {report.state for report in await audited(client, ledger)} == {"good"}


async def test_a_file_that_was_removed_under_a_running_bookie_is_missed(running: Cluster) -> None:
    """Its open file still has everything; after a restart nothing would be there."""
    async with running.client() as client:
        ledger = await written(client, 40, 500)
        assert {report.state for report in await audited(client, ledger)} == {"good"}
        for log in directory_of(running, 1).glob("log-*"):
            log.unlink()
        bad = [report for report in await audited(client, ledger) if report.state != "good"]
        assert [(report.piece.bookie, report.damaged) for report in bad] == [(running.bookies[1], 40)]
        repaired = await client.repair(ledger, password="secret")
        assert not repaired.healthy
        assert "cannot read it" in repaired.problems[0]


async def test_a_byte_in_a_chunk_that_was_read_before(running: Cluster) -> None:
    """Large pieces of the log, which a bookie keeps for readers in order, are read anew for an audit."""
    async with running.client() as client:
        ledger = await written(client, 4000, 2000)
        assert {report.state for report in await audited(client, ledger, piece_bytes=1 << 30)} == {"good"}
        flip(directory_of(running, 1), 20)
        deadline = asyncio.get_running_loop().time() + 30
        while not (bad := [r for r in await audited(client, ledger, piece_bytes=1 << 30) if r.state != "good"]):
            assert asyncio.get_running_loop().time() < deadline
        assert (bad[0].piece.bookie, bad[0].damaged, bad[0].bad) == (running.bookies[1], 1, [20])


async def test_a_truncated_replica(running: Cluster) -> None:
    async with running.client() as client:
        ledger = await written(client, 500, 4000)
        await running.stop(2)
        (log,) = [log for log in directory_of(running, 2).glob("log-*") if MARK in log.read_bytes()]
        os.truncate(log, log.read_bytes().rfind(MARK) // 2)
        await running.restart(2)
        reports = await audited(client, ledger)
        bad = [report for report in reports if report.state != "good"]
        assert {report.piece.bookie for report in bad} == {running.bookies[2]}
        assert sum(report.damaged + report.missing for report in bad) >= 200
        assert (await client.repair(ledger, password="secret")).healthy
        assert {report.state for report in await audited(client, ledger)} == {"good"}


async def test_entries_that_a_bookie_never_got(running: Cluster) -> None:
    async with running.client() as client:
        writer = await client.create(password="secret")
        await writer.append_many([b"x" * 100] * 50)
        await running.kill(0)
        await writer.append_many([b"y" * 100] * 70)
        await writer.close()
        (gone, *_) = [r for r in await audited(client, writer.ledger_id) if r.state != "good"]
        assert (gone.state, gone.piece.bookie) == ("unknown", running.bookies[0])
        assert "not registered" in gone.error
        await running.restart(0)
        (bad,) = [r for r in await audited(client, writer.ledger_id) if r.state != "good"]
        assert bad.piece.bookie == running.bookies[0]
        assert (bad.missing + bad.damaged, bad.good) == (70, 50)
        assert bad.bad == list(range(50, 120))


async def test_a_bookie_that_hangs_is_no_bad_replica(running: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async with running.client() as client:
        ledger = await written(client, 20, 200)
        (first, *_) = await pieces_of(client, ledger)
        nobody = {first.bookie: BookieAddress("127.0.0.1", 1)}
        async with ReplicaAuditor(production_runtime(), nobody, within_s=0.3) as auditor:
            report = await auditor.check(first)
            began = asyncio.get_running_loop().time()
            again = [await auditor.check(first) for _ in range(20)]
        assert report.state == "unknown"
        assert first.bookie in report.error
        assert {one.state for one in again} == {"unknown"}
        assert asyncio.get_running_loop().time() - began < 20 * 0.3  # one that is away is not waited for each time
        assert not caplog.records, "what stands in the report is no failure of a task"


class Door:
    """In front of a bookie, closed at first: connections are taken, and nothing of what they say goes on."""

    def __init__(self, address: BookieAddress) -> None:
        self._address, self.open = address, asyncio.Event()
        self.turned_away = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> BookieAddress:
        self._server = await asyncio.start_server(self._come, "127.0.0.1", 0)
        return BookieAddress("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open.is_set():
            self.turned_away += 1
            while await reader.read(1 << 16):
                pass
            writer.close()
            return
        there, back = await asyncio.open_connection(self._address.host, self._address.port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                sink.write(data)
            sink.close()

        await asyncio.gather(pump(reader, back), pump(there, writer))


async def test_a_bookie_that_is_away_for_a_moment_is_asked_again(running: Cluster) -> None:
    async with running.client() as client:
        ledger = await written(client, 20, 200)
        (first, *_) = await pieces_of(client, ledger)
        address = (await client.services.store.bookies()).writable[first.bookie].address
        assert address is not None
        net = NetConfig(request_timeout_s=0.1, sweep_interval_s=0.02)
        door = Door(address)
        async with door as outside, ReplicaAuditor(production_runtime(), {first.bookie: outside}, net) as auditor:
            checking = asyncio.ensure_future(auditor.check(first))
            await until(lambda: door.turned_away >= 2 or checking.done(), "turned away twice")
            assert not checking.done(), checking.result()
            door.open.set()
            report = await checking
        assert (report.state, report.good, report.error) == ("good", 20, "")


async def test_a_bookie_that_was_away_now_and_then_still_gets_batch_reads(running: Cluster) -> None:
    async with running.client() as client:
        ledger = await written(client, 20, 200)
        (first, *_) = await pieces_of(client, ledger)
        address = (await client.services.store.bookies()).writable[first.bookie].address
        async with ReplicaAuditor(production_runtime(), {first.bookie: address}) as auditor:
            for _ in range(10):
                auditor.hung_up(first.bookie)
                assert (await auditor.check(first)).state == "good"
            assert auditor.takes_batches(first.bookie)


async def test_what_can_still_grow_is_left(running: Cluster) -> None:
    async with running.client() as client:
        writer = await client.create()
        await writer.append(b"x")
        assert await pieces_of(client, writer.ledger_id) == []
        await writer.close()
        assert len(await pieces_of(client, writer.ledger_id)) == 3


async def test_good_copies_that_differ(running: Cluster) -> None:
    async with running.client() as client:
        one, other = await written(client, 40, 200, ensemble="1/1/1"), await written(client, 41, 200, ensemble="1/1/1")
        (left,), (right,) = await pieces_of(client, one), await pieces_of(client, other)
        addresses = {b.bookie_id: b.address for b in (await client.services.store.bookies()).writable.values()}
        async with ReplicaAuditor(production_runtime(), addresses) as auditor:
            assert await differing(auditor, [left, left], range(40)) == []
            assert await differing(auditor, [left, right], range(3)) == [0, 1, 2]


async def test_a_speed_limit(running: Cluster) -> None:
    async with running.client() as client:
        ledger = await written(client, 100, 4000)
        (piece, *_) = await pieces_of(client, ledger)
        addresses = {b.bookie_id: b.address for b in (await client.services.store.bookies()).writable.values()}
        async with ReplicaAuditor(production_runtime(), addresses) as auditor:
            began = asyncio.get_running_loop().time()
            await auditor.check(piece, Pace(1_000_000))
            assert asyncio.get_running_loop().time() - began > 0.1


def metadata(entries: int, size: int, shape: tuple[int, int, int] = (3, 2, 2)) -> LedgerMetadata:
    from dataclasses import replace

    from buckram.types import LedgerState

    made = created(*shape, [f"b{n}" for n in range(shape[0])], digest_type=DigestType.CRC32C, password=b"",
                   custom_metadata={}, creation_time_ms=0, creator_token=1)  # fmt: skip
    return replace(made, state=LedgerState.CLOSED, last_entry=entries - 1, length=entries * size)


@pytest.mark.parametrize("shape", [(3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 1, 1)])
def test_each_entry_is_in_as_many_pieces_as_it_has_copies(shape: tuple[int, int, int]) -> None:
    seen: dict[int, int] = {}
    for piece in plan_pieces(1, metadata(5000, 20_000, shape), 4 << 20):
        for first, last in piece.ranges:
            for entry in range(first, last + 1):
                seen[entry] = seen.get(entry, 0) + 1
    assert seen == dict.fromkeys(range(5000), shape[1])


@pytest.mark.parametrize("shape", [(3, 3, 2), (3, 2, 2), (5, 3, 2)])
def test_sums_do_not_depend_on_how_entries_came(shape: tuple[int, int, int]) -> None:
    rng = Random(1)
    digests = {entry: rng.getrandbits(32) for entry in range(3000)}
    found: dict[tuple[int, int, int], set[int]] = {}
    for piece in plan_pieces(1, metadata(3000, 1000, shape), 1 << 20):
        sums = BlockSums(piece)
        for first, last in piece.ranges:
            at = first
            while at <= last:
                stop = min(last + 1, at + rng.choice((1, 2, 700)))
                sums.add(at, [digests[entry] for entry in range(at, stop)])
                at = stop
        for one in sums.result():
            found.setdefault((piece.first, one.block, one.share), set()).add(one.sum)
    assert all(len(values) == 1 for values in found.values())


def test_a_block_with_a_bad_entry_has_no_sum() -> None:
    (piece, *_) = plan_pieces(1, metadata(3000, 1000, (3, 3, 2)), 8 << 20)
    sums = BlockSums(piece)
    sums.add(0, [1] * 2000)
    sums.bad(1500)
    assert {one.block for one in sums.result()} == {0}


@pytest.mark.parametrize("kind", list(DigestType))
@pytest.mark.parametrize("sizes", [[50] * 300, [1, 50, 0, 7] * 10], ids=["equal", "mixed"])
def test_digests_of_a_batch(kind: DigestType, sizes: list[int]) -> None:
    digest = Digest(kind, b"p")
    bodies = [digest.seal(7, 10 + n, 9 + n, 100, bytes([n % 256]) * size) for n, size in enumerate(sizes)]
    packet = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    packed = PackedBodies.parse(packet, 0)
    assert packed is not None
    whole = digest.open_digests(7, 10, packed)
    assert len(whole) == len(bodies)
    assert whole == digest.open_digests(7, 10, bodies)
    assert len(set(whole)) > 1
    assert digest.open_digests(8, 10, packed) == []
    assert digest.open_digests(7, 11, packed) == []
    for bad in (0, 20, len(bodies) - 1):
        changed = bytearray(bodies[bad])
        changed[9] ^= 1  # its entry id: no digest kind lets that pass
        broken = [*bodies[:bad], bytes(changed), *bodies[bad + 1 :]]
        assert digest.open_digests(7, 10, broken) == whole[:bad]


async def test_a_stranger_at_its_address_has_lost_nothing(running: Cluster) -> None:
    async with running.client() as client:
        ledger = await written(client, 20, 100)
        services = client.services
        peers = {
            name: Peer(info.address, services.identities.expected(name))
            for name, info in services.bookies.bookies.writable.items() if info.address is not None
        }  # fmt: skip
        pieces = await pieces_of(client, ledger)
    async with ReplicaAuditor(production_runtime(), peers) as auditor:
        assert sum([(await auditor.check(piece)).good for piece in pieces]) == 60
    strange = {
        name: Peer(peer.address, Expected(Introduction("another", name), must_answer=True))
        for name, peer in peers.items()
    }  # fmt: skip
    async with ReplicaAuditor(production_runtime(), strange, within_s=0.1) as auditor:
        for piece in pieces:
            report = await auditor.check(piece)
            assert report.error is not None
            assert "not to be found" in report.error
            assert (report.good, report.missing, report.damaged) == (0, 0, 0)

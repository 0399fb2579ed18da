"""Scans of the files of a bookie on this machine: they give the same entries as the bookie, or end early."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.reading import batch_reader, numbered, rows, write
from tests.spark.test_read_scan import KIB, ledger_of, sizes

from buckram.core.entries.entry import Digest
from buckram.core.wire.introduction import Peer
from buckram.core.wire.located import Located
from buckram.runtime.disk import neighbours
from buckram.spark.source import replica_scan as local_scan
from buckram.spark.source import replica_scan as stream_scan
from buckram.spark.source.replica_scan import LocalScan, Scan
from buckram.testing import ThreadedCluster
from buckram.types import BookieAddress, DigestType


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    yield
    local_scan._remote.clear()
    for link in stream_scan._idle.values():
        link.close()
    stream_scan._idle.clear()


def found(scan: LocalScan) -> list[tuple[int, bytes]]:
    return [pair for first, payloads in scan.entries() for pair in enumerate(payloads, first)]


def settled(cluster: ThreadedCluster) -> None:
    """Restart the bookies, so that entries they had in memory are in sealed files."""
    for number in range(3):
        cluster.restart(number)


CRC32C = Digest(DigestType.CRC32C, b"")


@pytest.fixture(scope="module")
def stored() -> Iterator[tuple[ThreadedCluster, dict[str, tuple[int, BookieAddress, list[bytes]]]]]:
    with ThreadedCluster(bookies=3) as cluster:
        ledgers = {}
        for kind in ("tiny", "empty", "large", "one", "mixed"):
            payloads = [os.urandom(size) for size in sizes(kind)]
            ledgers[kind] = (*ledger_of(cluster.uri, payloads), payloads)
        settled(cluster)
        yield cluster, ledgers


@pytest.mark.parametrize("kind", ["tiny", "empty", "large", "one", "mixed"])
def test_every_size_and_every_part(stored: tuple[ThreadedCluster, dict], kind: str) -> None:  # type: ignore[type-arg]
    ledger, address, payloads = stored[1][kind]
    last = len(payloads) - 1
    assert found(LocalScan(Peer(address), ledger, CRC32C, 0, last)) == list(enumerate(payloads))
    rng = random.Random(3)
    for _ in range(20):
        low, high = sorted(rng.randrange(len(payloads)) for _ in range(2))
        assert found(LocalScan(Peer(address), ledger, CRC32C, low, high)) == list(enumerate(payloads))[low : high + 1]
    assert found(LocalScan(Peer(address), ledger, CRC32C, 0, last + 5)) == list(enumerate(payloads))
    assert found(LocalScan(Peer(address), ledger, CRC32C, last + 1, last + 5)) == []


@pytest.mark.parametrize("digest", ["crc32", "mac", "dummy"])
def test_scans_of_every_digest(stored: tuple[ThreadedCluster, dict], digest: str) -> None:  # type: ignore[type-arg]
    cluster, _ = stored
    payloads = [os.urandom(size) for size in (20 * KIB, 7, 100)]
    ledger, address = ledger_of(cluster.uri, payloads, digest=digest, password="p")
    settled(cluster)
    kind = DigestType[digest.upper()]
    # Without a digest a reused file would go unnoticed.
    expected = [] if digest == "dummy" else list(enumerate(payloads))
    assert found(LocalScan(Peer(address), ledger, Digest(kind, b"p"), 0, 2)) == expected
    assert found(LocalScan(Peer(address), ledger, Digest(kind, b"another"), 0, 2)) == []


@pytest.mark.parametrize("size", [50, 40 * KIB])
def test_a_scan_ends_before_an_entry_with_a_changed_byte(size: int, tmp_path: Path) -> None:
    with ThreadedCluster(bookies=3) as cluster:
        payloads = [os.urandom(size) for _ in range(5)]
        ledger, address = ledger_of(cluster.uri, payloads)
        settled(cluster)
        scan = LocalScan(Peer(address), ledger, CRC32C, 0, 4)
        located = scan._ask()
        (extent,) = located.extents
        place = Path(located.directory) / extent.name
        whole = place.read_bytes()
        frame = extent.length // 5
        for at in [*range(28, 68), *(random.Random(size).randrange(28, frame) for _ in range(10)), frame - 1]:
            number = at % 5
            changed = extent.offset + number * frame + at
            with place.open("r+b") as file:
                file.seek(changed)
                file.write(bytes([whole[changed] ^ 0x10]))
            assert found(LocalScan(Peer(address), ledger, CRC32C, 0, 4)) == list(enumerate(payloads))[:number]
            with place.open("r+b") as file:
                file.seek(changed)
                file.write(whole[changed : changed + 1])
        assert found(LocalScan(Peer(address), ledger, CRC32C, 0, 4)) == list(enumerate(payloads))


def test_a_scan_ends_where_files_are_deleted_or_on_another_machine(
    stored: tuple[ThreadedCluster, dict],
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[type-arg]
) -> None:
    ledger, address, payloads = stored[1]["large"]
    ask = LocalScan._ask

    def changed(change: dict[str, str]) -> list[tuple[int, bytes]]:
        def other(self: LocalScan) -> Located:
            there = ask(self)
            extents = [extent._replace(name=change.get("name", extent.name)) for extent in there.extents]
            return Located(change.get("directory", there.directory), there.identity, extents)

        local_scan._remote.clear()
        monkeypatch.setattr(LocalScan, "_ask", other)
        return found(LocalScan(Peer(address), ledger, CRC32C, 0, len(payloads) - 1))

    assert changed({"directory": "/nowhere"}) == []
    assert (os.getpid(), Peer(address)) in local_scan._remote
    assert changed({"name": "../bookie/log-1"}) == []
    assert changed({"name": "gone"}) == []
    assert (os.getpid(), Peer(address)) not in local_scan._remote
    assert changed({}) == list(enumerate(payloads))
    monkeypatch.setattr(LocalScan, "_ask", ask)
    monkeypatch.setattr(neighbours, "identity_of", lambda directory: "another machine")
    assert found(LocalScan(Peer(address), ledger, CRC32C, 0, 3)) == []
    monkeypatch.undo()
    assert (os.getpid(), Peer(address)) in local_scan._remote
    assert found(LocalScan(Peer(address), ledger, CRC32C, 0, 3)) == []  # The bookie is not asked again.
    assert found(LocalScan(Peer(BookieAddress("127.0.0.1", 1)), ledger, CRC32C, 0, 3)) == []


def test_the_reader_continues_at_the_bookie_where_files_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record is read once, wherever the files end; records in the bookie's memory come from the bookie."""
    with ThreadedCluster(bookies=3) as cluster:
        write(cluster.uri, "default/s", numbered(300), numbered(300))
        settled(cluster)
        scans: list[int] = []
        made = Scan.__init__

        def counted(self: Scan, *args: object) -> None:
            scans.append(1)
            made(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Scan, "__init__", counted)
        for local in (True, False):
            reader = batch_reader(cluster.uri, "offset", subscribe="default/s", localReads=local)
            assert [row["offset"] for row in rows(reader)] == list(range(600))
            assert bool(scans) is not local
        write(cluster.uri, "default/s", numbered(100))
        scans.clear()
        whole = LocalScan.entries
        for broken in range(4):

            def entries(self: LocalScan, broken: int = broken) -> Iterator[tuple[int, list[bytes]]]:
                for at, piece in enumerate(whole(self)):
                    if at == broken:
                        return
                    yield piece

            monkeypatch.setattr(LocalScan, "entries", entries)
            reader = batch_reader(cluster.uri, "value", subscribe="default/s", minPartitions=3)
            assert [row["value"] for row in rows(reader)] == [*numbered(300), *numbered(300), *numbered(100)]
        assert scans

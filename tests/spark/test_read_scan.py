"""Scans of one replica: they give the same entries as the client, and raise ScanFailed at any trouble."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.spark.reading import batch_reader, numbered, rows, write

from buckram import sync
from buckram.core.entries.entry import Digest
from buckram.core.entries.packed import FRAME_HEAD
from buckram.core.wire.introduction import Peer
from buckram.spark.shared import clients
from buckram.spark.source import partition_reader as stream_read
from buckram.spark.source import replica_scan as stream_scan
from buckram.spark.source.replica_scan import Scan, ScanFailed
from buckram.testing import ThreadedCluster
from buckram.types import BookieAddress, DigestType

KIB = 1024


@pytest.fixture(autouse=True)
def no_idle_links() -> Iterator[None]:
    """Close idle connections, so that no test uses those of another."""
    yield
    for link in stream_scan._idle.values():
        link.close()
    stream_scan._idle.clear()


def ledger_of(uri: str, payloads: list[bytes], **options: str) -> tuple[int, BookieAddress]:
    """Write a closed ledger; returns it and the address of its first replica."""
    with sync.connect(uri) as client:
        with client.create(**options) as writer:
            writer.append_many(payloads)
        link = clients.connection(uri)
        members = client.metadata(writer.ledger_id).fragments[0].ensemble
        address = link.client.services.bookies.resolve(members[0])
    assert address is not None
    return writer.ledger_id, address


def scanned(scan: Scan) -> list[tuple[int, bytes]]:
    try:
        return [pair for first, payloads in scan.entries() for pair in enumerate(payloads, first)]
    finally:
        scan.close()


def sizes(kind: str) -> list[int]:
    rng = random.Random(7)
    if kind == "mixed":
        # Entries are much larger than expected, or much smaller.
        return [rng.choice([0, 1, 100, 3 * 1024 * KIB]) for _ in range(30)]
    return {"tiny": [5] * 5000, "empty": [0] * 10, "large": [300 * KIB] * 12, "one": [77]}[kind]


@pytest.mark.parametrize("kind", ["tiny", "empty", "large", "one", "mixed"])
@pytest.mark.parametrize("guess", [1, 100, 100 * KIB, 8 * 1024 * KIB])
def test_entries_of_every_size_are_read_for_any_expected_size(cluster: ThreadedCluster, kind: str, guess: int) -> None:
    payloads = [os.urandom(size) for size in sizes(kind)]
    ledger, address = ledger_of(cluster.uri, payloads)
    digest, last = Digest(DigestType.CRC32C, b""), len(payloads) - 1
    assert scanned(Scan(Peer(address), ledger, digest, 0, last, guess)) == list(enumerate(payloads))
    part = Scan(Peer(address), ledger, digest, last // 2, last, guess)
    assert scanned(part) == list(enumerate(payloads))[last // 2 :]


@pytest.mark.parametrize("digest", ["crc32c", "crc32", "mac", "dummy"])
def test_ledgers_of_every_digest_are_read(cluster: ThreadedCluster, digest: str) -> None:
    payloads = [os.urandom(20 * KIB) for _ in range(20)]
    ledger, address = ledger_of(cluster.uri, payloads, digest=digest, password="p")
    for guess in (100, 20 * KIB):
        scan = Scan(Peer(address), ledger, Digest(DigestType[digest.upper()], b"p"), 0, 19, guess)
        assert scanned(scan) == list(enumerate(payloads))


def test_a_connection_is_reused_unless_replies_are_outstanding(cluster: ThreadedCluster) -> None:
    payloads = [os.urandom(300 * KIB) for _ in range(12)]
    ledger, address = ledger_of(cluster.uri, payloads)
    digest = Digest(DigestType.CRC32C, b"")
    scanned(Scan(Peer(address), ledger, digest, 0, 11, 300 * KIB))
    (kept,) = stream_scan._idle.values()
    assert scanned(Scan(Peer(address), ledger, digest, 3, 3, 300 * KIB)) == [(3, payloads[3])]
    assert list(stream_scan._idle.values()) == [kept]
    stopped = Scan(Peer(address), ledger, digest, 0, 11, 300 * KIB)
    assert next(iter(stopped.entries())) == (0, [payloads[0]])
    stopped.close()
    assert not stream_scan._idle
    assert len(scanned(Scan(Peer(address), ledger, digest, 0, 11, 300 * KIB))) == 12


def test_a_connection_closed_by_the_bookie_is_replaced() -> None:
    with ThreadedCluster(bookies=3) as cluster:
        ledger, address = ledger_of(cluster.uri, numbered(10))
        digest = Digest(DigestType.CRC32C, b"")
        assert len(scanned(Scan(Peer(address), ledger, digest, 0, 9, 10))) == 10
        for number in range(3):
            cluster.restart(number)  # The bookie keeps its address.
        assert len(scanned(Scan(Peer(address), ledger, digest, 0, 9, 10))) == 10
        clients.close_connections()


def test_missing_entries_and_unreachable_bookies_fail_the_scan(cluster: ThreadedCluster) -> None:
    ledger, address = ledger_of(cluster.uri, numbered(10))
    digest = Digest(DigestType.CRC32C, b"")
    with pytest.raises(ScanFailed, match="code"):
        scanned(Scan(Peer(address), ledger + 10**9, digest, 0, 9, 10))
    with pytest.raises(ScanFailed, match=r"code|entries came"):
        scanned(Scan(Peer(address), ledger, digest, 5, 15, 10))
    with pytest.raises(ScanFailed, match="refused"):
        scanned(Scan(Peer(BookieAddress("127.0.0.1", 1)), ledger, digest, 0, 9, 10))
    with pytest.raises(ScanFailed, match="bad copy"):
        scanned(Scan(Peer(address), ledger, Digest(DigestType.CRC32, b""), 0, 9, 10))


class Meddler:
    """A proxy between a scan and a bookie; `change` may alter the bytes of each reply."""

    def __init__(self, bookie: BookieAddress, change: Callable[[bytes], bytes]) -> None:
        self._bookie, self._change = bookie, change
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = BookieAddress("127.0.0.1", self._server.getsockname()[1])
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        try:
            client, _ = self._server.accept()
        except OSError:
            return
        with client, socket.create_connection((self._bookie.host, self._bookie.port)) as bookie:
            back = threading.Thread(target=self._back, args=(bookie, client), daemon=True)
            back.start()
            try:
                while data := client.recv(65536):
                    bookie.sendall(data)
            except OSError:
                pass
            bookie.close()
            back.join()

    def _back(self, bookie: socket.socket, client: socket.socket) -> None:
        try:
            while True:
                size = bookie.recv(4, socket.MSG_WAITALL)
                if len(size) < 4:
                    return
                packet = bookie.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
                client.sendall(self._change(size + packet))
        except OSError:
            return

    def close(self) -> None:
        self._server.close()


def flip(at: int) -> Callable[[bytes], bytes]:
    def change(answer: bytes) -> bytes:
        place = at % len(answer)
        return answer[:place] + bytes([answer[place] ^ 0x40]) + answer[place + 1 :]

    return change


@pytest.mark.parametrize("size", [50, 40 * KIB])
def test_every_changed_byte_fails_the_scan(
    cluster: ThreadedCluster, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changed bytes are in an entry's header, digest or payload, in sizes, and in the header of the reply.

    Only the packet header and key in a frame do not concern the entry: with any bytes there, the scan returns what was
    written.
    """
    monkeypatch.setattr(stream_scan, "TIMEOUT_S", 0.3)
    payloads = [os.urandom(size) for _ in range(5)]
    ledger, address = ledger_of(cluster.uri, payloads)
    frame = FRAME_HEAD + 36 + size
    entry = 36 + FRAME_HEAD
    places = [8, 11, 13, 20, 35, 36, 39, entry + 1, entry + 15, entry + 32, entry + 36, entry + 50, -1, -size - 3]
    places += [36 + 5, 36 + 4 * frame + 27]
    places += [random.Random(size).randrange(36, 36 + 5 * frame) for _ in range(5)]
    for place in places:
        meddler = Meddler(address, flip(place))
        scan = Scan(Peer(meddler.address), ledger, Digest(DigestType.CRC32C, b""), 0, 4, size)
        try:
            if place >= 36 and 4 <= (place - 36) % frame < FRAME_HEAD:
                assert scanned(scan) == list(enumerate(payloads))
            else:
                with pytest.raises(ScanFailed):
                    scanned(scan)
        finally:
            meddler.close()


def test_a_reply_that_is_cut_off_fails_the_scan(cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_scan, "TIMEOUT_S", 0.3)
    payloads = [os.urandom(40 * KIB) for _ in range(5)]
    ledger, address = ledger_of(cluster.uri, payloads)
    for kept in (3, 20, 38, 1000, 80 * KIB):
        meddler = Meddler(address, lambda answer, kept=kept: answer[:kept])  # type: ignore[misc]
        found: list[int] = []
        scan = Scan(Peer(meddler.address), ledger, Digest(DigestType.CRC32C, b""), 0, 4, 40 * KIB)
        try:
            with pytest.raises(ScanFailed):
                found.extend(first for first, _ in scan.entries())
        finally:
            scan.close()
            meddler.close()
        assert found == list(range(len(found)))


# -- with PartitionReader ----------------------------------------------------------------------------------


def test_the_client_continues_where_a_scan_failed(
    cluster: ThreadedCluster, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record is read once, wherever the scan fails."""
    write(cluster.uri, stream, numbered(300), numbered(300))
    reader = batch_reader(cluster.uri, "value", subscribe=stream, minPartitions=3)
    parts = reader.partitions()
    whole = Scan.entries
    for broken in range(4):

        def entries(self: Scan, broken: int = broken) -> Iterator[tuple[int, list[bytes]]]:
            for count, found in enumerate(whole(self)):
                if count == broken:
                    raise ScanFailed("here")
                yield found[0], found[1][: broken + 1]
                if len(found[1]) > broken + 1:
                    raise ScanFailed("in the middle")

        monkeypatch.setattr(Scan, "entries", entries)
        assert [row["value"] for row in rows(reader, parts)] == numbered(300) * 2


def test_healthy_replicas_are_read_by_scans_only(
    cluster: ThreadedCluster, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(cluster.uri, stream, numbered(300))

    def never(*_: object) -> None:
        raise AssertionError("the client was asked")

    reader = batch_reader(cluster.uri, "value", subscribe=stream)
    parts = reader.partitions()
    monkeypatch.setattr(stream_read, "direct_client", never)
    assert [row["value"] for row in rows(reader, parts)] == numbered(300)


def test_a_striped_stream_is_read_by_the_client(cluster: ThreadedCluster, stream: str) -> None:
    with sync.connect(cluster.uri) as client:
        client.namespace().create(stream, ensemble="3/2/2")
    write(cluster.uri, stream, numbered(300))
    reader = batch_reader(cluster.uri, "value", subscribe=stream, minPartitions=2)
    assert [row["value"] for row in rows(reader)] == numbered(300)


def test_a_bookie_that_hangs_is_replaced_by_another(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_scan, "TIMEOUT_S", 0.3)
    with ThreadedCluster(bookies=3) as cluster:
        write(cluster.uri, stream, numbered(300))
        reader = batch_reader(cluster.uri, "value", subscribe=stream, minPartitions=3)
        parts = reader.partitions()
        cluster.pause(0)
        assert [row["value"] for row in rows(reader, parts)] == numbered(300)
        cluster.resume(0)
        clients.close_connections()

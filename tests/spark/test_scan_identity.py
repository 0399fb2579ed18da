"""Executors read from the bookies that the planner saw, and not from others that have their addresses now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from tests.spark.reading import batch_reader, numbered, rows, write

from buckram.core.entries.entry import Digest
from buckram.core.wire.introduction import IDENTITY_PROPERTY, INCARNATION_PROPERTY, Expected, Introduction, Peer
from buckram.spark.shared.stream_partition import StreamPartition
from buckram.spark.source import replica_scan as local_scan
from buckram.spark.source import replica_scan as stream_scan
from buckram.spark.source.replica_scan import LocalScan, Scan, ScanFailed
from buckram.testing import ThreadedCluster
from buckram.types import BookieInfo, DigestType

CRC32C = Digest(DigestType.CRC32C, b"")


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    yield
    local_scan._remote.clear()
    for link in stream_scan._idle.values():
        link.close()
    stream_scan._idle.clear()


def planned(cluster: ThreadedCluster, stream: str) -> StreamPartition:
    write(cluster.uri, stream, numbered(500))
    (part,) = batch_reader(cluster.uri, "value", subscribe=stream).partitions()
    assert isinstance(part, StreamPartition)
    return part


def scanned(peer: Peer, part: StreamPartition) -> int:
    piece = part.slices[0]
    with closing(Scan(peer, piece.ledger, CRC32C, piece.first_entry, piece.last_entry, 100)) as scan:
        return sum(len(payloads) for _, payloads in scan.entries())


def test_partitions_carry_identities_and_other_bookies_are_refused(
    cluster: ThreadedCluster, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_scan, "_idle", {})  # other tests have left theirs
    part = planned(cluster, stream)
    for info in part.bookies:
        assert info.properties[IDENTITY_PROPERTY] == "1"
        assert info.properties[INCARNATION_PROPERTY]
    piece = part.slices[0]
    right = part.peer(part.ledgers[piece.ledger].last_fragment.ensemble[0])
    assert right is not None
    assert right.expected is not None
    assert scanned(right, part) == piece.last_entry - piece.first_entry + 1
    said = right.expected.introduction
    for other in (replace(said, cluster="d"), replace(said, bookie_id="b"), replace(said, incarnation="j")):
        for must_answer in (True, False):
            wrong = Peer(right.address, Expected(other, must_answer))
            with pytest.raises(ScanFailed, match="not to be found"):
                scanned(wrong, part)
            assert list(LocalScan(wrong, piece.ledger, CRC32C, 0, piece.last_entry).entries()) == []
    # The accepted connection is kept for later scans that expect the same bookie.
    assert [peer for _, peer in stream_scan._idle] == [right]
    assert scanned(Peer(right.address, Expected(Introduction(said.cluster, said.bookie_id))), part)


def test_other_replicas_are_read_if_a_bookie_s_identity_changed(cluster: ThreadedCluster, stream: str) -> None:
    part = planned(cluster, stream)
    first = part.ledgers[part.slices[0].ledger].last_fragment.ensemble[0]
    part.bookies = [
        BookieInfo(info.bookie_id, info.address, {**info.properties, INCARNATION_PROPERTY: "gone"})
        if info.bookie_id == first else info
        for info in part.bookies
    ]  # fmt: skip
    reader = batch_reader(cluster.uri, "value", subscribe=stream)
    assert [row["value"] for row in rows(reader, [part])] == numbered(500)

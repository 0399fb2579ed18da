"""Scans of one replica by an executor, which end early at times: the rest is read with the client, as in production.

A scan reads over a blocking socket or from files of the executor's machine, of which the simulator has neither. Here it
yields what a bookie would give, up to some entry, or all of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager

from buckram.errors import BuckramError
from buckram.spark.shared.stream_partition import Slice, StreamPartition
from buckram.spark.source import partition_reader
from buckram.spark.source.partition_reader import PartitionReader
from buckram.spark.source.replica_scan import ScanFailed
from simulator.engine.planting import patched
from simulator.engine.world import World
from simulator.pipeline.queries import URI


def simulated_scans(world: World) -> AbstractContextManager[None]:
    """Have executors scan in the simulation."""
    rng = random.Random(f"scans {world.seed}")
    read, through = PartitionReader._read_ledger, PartitionReader._read_through_list

    def scan(partition: StreamPartition, piece: Slice, *, local: bool) -> Iterator[tuple[int, bytes]]:
        if rng.random() < 0.4:
            raise ScanFailed("no connection")
        reader = PartitionReader.__new__(PartitionReader)
        reader._uri = URI
        most = rng.choice((1, 3, 1000))
        try:
            for count, found in enumerate(read(reader, partition, piece, piece.first_entry)):
                if count >= most:
                    raise ScanFailed("the bookie hung up")
                yield found
        except BuckramError as error:
            raise ScanFailed(str(error)) from None

    def watched_through(self: PartitionReader, piece: Slice, position: int) -> Iterator[object]:
        world.report.situation("a ledger was not where the planner saw it")
        yield from through(self, piece, position)

    return patched((partition_reader, "_scan_entries", scan), (PartitionReader, "_read_through_list", watched_through))


__all__ = ["simulated_scans"]

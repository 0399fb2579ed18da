"""Gathers what a bookie says of itself to operators. Not here: the record (`core/cluster/bookie_report.py`)."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from buckram.bookie.gc import Collector
from buckram.bookie.service.server import BookieServer, Service
from buckram.core.cluster.bookie_report import BookieReport
from buckram.disk.descriptors import current_limit, in_use


class Reporting(Protocol):
    """The parts of a bookie that have something to report (`bookie/process.py:Bookie`)."""

    collector: Collector | None
    service: Service | None

    @property
    def server(self) -> BookieServer: ...
    @property
    def state(self) -> str: ...


def release() -> str:
    """The version of this program; "unknown" where it is not installed."""
    try:
        return version("buckram")
    except PackageNotFoundError:
        return "unknown"


def report_of(bookie: Reporting) -> BookieReport:
    """The bookie as it is now."""
    collector, service = bookie.collector, bookie.service
    return BookieReport(
        version=release(),
        state=bookie.state,
        open_files=in_use(),
        most_files=current_limit(),
        connections=len(bookie.server.sessions),
        most_connections=bookie.server.most_connections,
        collections=collector.rounds if collector is not None else 0,
        collected_ledgers=collector.collected if collector is not None else 0,
        collected_bytes=collector.freed_bytes if collector is not None else 0,
        added_entries=service.adds.entries if service is not None else 0,
        added_bytes=service.adds.bytes if service is not None else 0,
        read_entries=service.reads.served.entries if service is not None else 0,
        read_bytes=service.reads.served.bytes if service is not None else 0,
        collection=collector.last if collector is not None else None,
    )

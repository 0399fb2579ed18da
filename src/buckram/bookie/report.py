"""The gathering of a bookie's report for operators. Not here: the record (`core/cluster/bookie_report.py`)."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from buckram.bookie.garbage.collector import Collector
from buckram.bookie.service.security.bookie_security import BookieSecurity
from buckram.bookie.service.security.connection_gate import ConnectionGate
from buckram.bookie.service.server import BookieServer, Service
from buckram.bookie.storage.store import Store
from buckram.bookie.trust.witness import Refusal, Witness
from buckram.config import StoreConfig
from buckram.core.cluster.bookie_report import BookieReport
from buckram.runtime.disk.descriptors import current_limit, in_use
from buckram.seams import Clock


class Reporting(Protocol):
    """The parts of a bookie that have something to report (`bookie/process.py:Bookie`)."""

    collector: Collector | None
    service: Service | None
    store: Store | None
    witness: Witness | None

    @property
    def server(self) -> BookieServer: ...
    @property
    def state(self) -> str: ...


def release() -> str:
    """Return the version of this program; "unknown" if it is not installed."""
    try:
        return version("buckram")
    except PackageNotFoundError:
        return "unknown"


def report_of(
    bookie: Reporting,
    clock: Clock,
    config: StoreConfig,
    door: ConnectionGate | None,
    guard: BookieSecurity | None,
    time_doubt: str,
) -> BookieReport:
    """Return the report about the bookie as it is now. `time_doubt`: why it doubts the time."""
    collector, service, store = bookie.collector, bookie.service, bookie.store
    refusal = bookie.witness.refusal if bookie.witness is not None else Refusal()
    certificate, ends_s = door.certificate if door is not None else ("", 0)
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
        wall_us=clock.wall_us(),
        time_is="doubt" if time_doubt else "certain",
        time_doubt=time_doubt,
        readonly_why=store.readonly_why if store is not None else "",
        reserved_bytes=config.reserved_bytes,
        writable_again_bytes=config.writable_again_bytes,
        witness_refusal=refusal.denied,
        metadata_refusal=refusal.unwritten,
        certificate=certificate,
        certificate_ends_s=ends_s,
        expired_tokens=guard.expired_tokens() if guard is not None else (),
    )

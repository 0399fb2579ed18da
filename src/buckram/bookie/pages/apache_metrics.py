"""A bookie's metrics under the names that dashboards for Apache's bookies ask for.

They are made from our own counters and histograms when the page is read, so that nothing is counted twice. Latencies
are summaries in milliseconds with Apache's labels and quantiles; the quantiles are those of the last minute or two,
although the histograms only grow. Metrics of parts that a bookie of ours does not have are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from buckram.bookie.pages.gauges import Figures

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)

JOURNAL = (("journalIndex", "0"),)

Labels = tuple[tuple[str, str], ...]


class Summary(NamedTuple):
    """`seconds` is our histogram, of loop turns or blocks; `good` and `bad` count the operations in them."""

    name: str
    seconds: str
    good: str
    bad: str = ""
    labels: Labels = ()


class Total(NamedTuple):
    """One of our counters under another name."""

    name: str
    ours: str


SUMMARIES = (
    *(
        Summary(name, "buckram_bookie_add_seconds", "buckram_bookie_added_entries", "buckram_bookie_refused_adds")
        for name in ("bookkeeper_server_ADD_ENTRY_REQUEST", "bookkeeper_server_ADD_ENTRY", "bookie_ADD_ENTRY")
    ),
    *(
        Summary(name, "buckram_bookie_read_seconds", "buckram_bookie_read_entries", "buckram_bookie_failed_reads")
        for name in ("bookkeeper_server_READ_ENTRY_REQUEST", "bookkeeper_server_READ_ENTRY", "bookie_READ_ENTRY")
    ),
    Summary(
        "bookie_journal_JOURNAL_ADD_ENTRY",
        "buckram_bookie_add_seconds",
        "buckram_bookie_added_entries",
        "buckram_bookie_refused_adds",
        JOURNAL,
    ),
    *(
        Summary(name, "buckram_store_commit_seconds", "buckram_store_commits", labels=JOURNAL)
        for name in ("bookie_journal_JOURNAL_SYNC", "bookie_journal_JOURNAL_FLUSH_LATENCY")
    ),
)

TOTALS = (
    Total("bookie_WRITE_BYTES", "buckram_bookie_added_bytes"),
    Total("bookie_READ_BYTES", "buckram_bookie_read_bytes"),
    Total("bookie_rejected_write_requests", "buckram_bookie_refused_adds"),
    Total("bookkeeper_server_ADD_ENTRY_REJECTED", "buckram_bookie_refused_adds"),
    Total("bookkeeper_server_READ_ENTRY_REJECTED", "buckram_bookie_failed_reads"),
    Total("bookie_journal_JOURNAL_WRITE_BYTES", "buckram_store_log_bytes"),
    Total("bookie_RECLAIMED_COMPACTION_SPACE_BYTES", "buckram_bookie_collection_reclaimed_bytes"),
    Total("scrubber_detectedScrubErrors", "buckram_scrub_bad_records"),
)


class ApacheMetrics:
    """Renders the page. `directory` is the data directory, whose use is a metric of its own."""

    def __init__(self, registry: CollectorRegistry, directory: str) -> None:
        self._registry = registry
        self._usage = f"bookie_ledger_dir_{re.sub(r'[^a-zA-Z0-9_]', '_', directory)}_usage"
        self._windows: dict[str, Window] = {}

    def render(self, now: Figures, total_bytes: int, clock: float) -> bytes:
        """Return the page. `total_bytes`: size of the device; `clock`: seconds of a clock that does not go back."""
        values, buckets = self._values()
        for name, (bounds, counts) in buckets.items():
            self._windows.setdefault(name, Window(bounds)).feed(clock, counts)
        lines: list[str] = []
        for summary in SUMMARIES:
            lines += self._summary(summary, values)
        for total in TOTALS:
            lines += _single(total.name, "counter", values.get(f"{total.ours}_total", 0.0))
        lines += _batches(values)
        for name, kind, value, labels in self._measured(now, total_bytes):
            lines += _single(name, kind, value, labels)
        return ("\n".join(lines) + "\n").encode()

    def _values(self) -> tuple[dict[str, float], dict[str, tuple[list[float], list[float]]]]:
        """Return our samples without labels, and the buckets of our histograms."""
        values: dict[str, float] = {}
        buckets: dict[str, tuple[list[float], list[float]]] = {}
        for family in self._registry.collect():
            for sample in family.samples:
                if "le" in sample.labels:
                    bounds, counts = buckets.setdefault(family.name, ([], []))
                    bounds.append(float(sample.labels["le"]))
                    counts.append(sample.value)
                elif not sample.labels:
                    values[sample.name] = sample.value
        return values, buckets

    def _summary(self, summary: Summary, values: Mapping[str, float]) -> Iterable[str]:
        good = values.get(f"{summary.good}_total", 0.0)
        bad = values.get(f"{summary.bad}_total", 0.0) if summary.bad else 0.0
        observed = values.get(f"{summary.seconds}_count", 0.0)
        mean = values.get(f"{summary.seconds}_sum", 0.0) / observed if observed else 0.0
        window = self._windows.get(summary.seconds)
        yield f"# TYPE {summary.name} summary"
        for success, count, each in (("false", bad, 0.0), ("true", good, mean)):
            for part in QUANTILES:
                value = window.quantile(part) if window is not None and success == "true" else math.nan
                labels = (("success", success), ("quantile", str(part)), *summary.labels)
                yield f"{summary.name}{_labels(labels)} {_number(value * 1000)}"
            labels = (("success", success), *summary.labels)
            yield f"{summary.name}_count{_labels(labels)} {_number(count)}"
            yield f"{summary.name}_sum{_labels(labels)} {_number(count * each * 1000)}"

    def _measured(self, now: Figures, total_bytes: int) -> Iterable[tuple[str, str, float, Labels]]:
        status = {"writable": 1, "readonly": 0}.get(now.state, -1)
        used = 100.0 * (1 - now.free_bytes / total_bytes) if total_bytes else 0.0
        memory = {part: (size, most) for part, size, most in now.memory}
        pending, most_pending = memory.get("write buffer", (0, 0))
        gauge = "gauge"
        yield "bookie_SERVER_STATUS", gauge, status, ()
        yield "bookie_SERVER_SANITY", gauge, -1 if now.state == "failed" else 1, ()
        yield "bookie_ledger_writable_dirs", gauge, int(now.state == "writable"), ()
        yield "bookie_ledger_num_dirs", gauge, 1, ()
        yield self._usage, gauge, used, ()
        yield "bookie_journal_JOURNAL_MEMORY_USED", gauge, pending, JOURNAL
        yield "bookie_journal_JOURNAL_MEMORY_MAX", gauge, most_pending, JOURNAL
        yield "bookie_write_cache_size", gauge, memory.get("tail cache", (0, 0))[0], ()
        yield "bookie_read_cache_size", gauge, memory.get("read cache", (0, 0))[0], ()
        yield "bookie_ACTIVE_LEDGER_TOTAL", gauge, now.ledgers, ()
        yield "bookie_ledgers_count", gauge, now.ledgers, ()
        yield "bookie_ACTIVE_ENTRY_LOG_TOTAL", gauge, now.log_files, ()
        yield "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES", gauge, now.log_bytes, ()
        yield "bookie_ENTRY_LOG_SPACE_BYTES", gauge, now.log_bytes, ()
        yield "bookie_ENTRY_LOG_COMPACT_RATIO", gauge, now.dead_bytes / now.log_bytes if now.log_bytes else 0.0, ()
        yield "bookie_DELETED_LEDGER_TOTAL", "counter", now.deleted_ledgers, ()
        yield "bookie_MAJOR_COMPACTION_TOTAL", "counter", now.compactions, ()
        yield "bookie_MINOR_COMPACTION_TOTAL", "counter", 0, ()
        yield "bookkeeper_server_READ_ENTRY_IN_PROGRESS", gauge, now.queued_reads, ()


def _batches(values: Mapping[str, float]) -> Iterable[str]:
    """Return the metrics of one journal write with its sync: sums and counts, without quantiles."""
    count = values.get("buckram_store_commits_total", 0.0)
    for name, ours in (("ENTRIES", "buckram_bookie_added_entries"), ("BYTES", "buckram_store_log_bytes")):
        full = f"bookie_journal_JOURNAL_FORCE_WRITE_BATCH_{name}"
        labels = _labels((("success", "true"), *JOURNAL))
        yield f"# TYPE {full} summary"
        yield f"{full}_count{labels} {_number(count)}"
        yield f"{full}_sum{labels} {_number(values.get(f'{ours}_total', 0.0))}"


def _single(name: str, kind: str, value: float, labels: Labels = ()) -> list[str]:
    return [f"# TYPE {name} {kind}", f"{name}{_labels(labels)} {_number(value)}"]


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(float(value))


# -- quantiles of the last minutes ----------------------------------------------------------------------------

WINDOW_S = 60.0


class Window:
    """Keeps two earlier states of a histogram; what came since the older one is the window, of one to two minutes."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper bounds of the buckets, ascending, the last one infinite."""
        self._bounds = tuple(bounds)
        nothing = (0.0,) * len(self._bounds)
        self._older, self._newer = nothing, nothing
        self._newer_at: float | None = None
        self._counts: tuple[float, ...] = nothing

    def feed(self, now: float, cumulative: Sequence[float]) -> None:
        """Take the number of observations in each bucket and those below it; `now` in seconds of any clock."""
        if self._newer_at is None or now - self._newer_at >= WINDOW_S:
            self._older = self._newer if self._newer_at is not None else (0.0,) * len(self._bounds)
            self._newer, self._newer_at = tuple(cumulative), now
        self._counts = tuple(have - had for have, had in zip(cumulative, self._older, strict=True))

    def quantile(self, part: float) -> float:
        """Return the value below which this part of the window's observations lies; NaN if there were none."""
        total = self._counts[-1]
        if total <= 0:
            return math.nan
        rank, below, before = part * total, 0.0, 0.0
        for bound, count in zip(self._bounds, self._counts, strict=True):
            if count >= rank and count > before:
                if math.isinf(bound):
                    return below
                return below + (bound - below) * (rank - before) / (count - before)
            below, before = (below if math.isinf(bound) else bound), count
        return below

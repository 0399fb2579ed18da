"""The pages of `--metrics` and `--http` that every bookie has: /metrics, /health, /ready, /heartbeat and /version.

/metrics also has the names that dashboards for Apache's bookies ask for. They are made from our own counters and
histograms when the page is read, so that nothing is counted twice. Latencies are summaries in milliseconds with
Apache's labels and quantiles; the quantiles are those of the last minute or two, although the histograms only grow.
Metrics of parts that a bookie of ours does not have are left out. Gauges that are computed only when the metrics are
read are here, too. Not here: the API for operators (`serve/admin`).
"""

from __future__ import annotations

import math
import platform
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from buckram.bookie.garbage.collector import Collector
from buckram.bookie.pages.http_thread import OtherLoop
from buckram.bookie.process import Bookie
from buckram.bookie.report import release
from buckram.bookie.service.server import BookieServer
from buckram.bookie.storage.store import Store
from buckram.core.entries.hot import COMPILED
from buckram.core.security.principal import ANONYMOUS, Principal
from buckram.core.security.tokens import TokenRefused
from buckram.runtime.net.http_server import Answer, Request, json_answer, text_answer
from buckram.runtime.process.stats import CONTENT_TYPE, PrometheusStats
from buckram.seams import Stats
from buckram.types import BookieId, BookieInfo

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

STATES = ("starting", "writable", "readonly", "unregistered", "failed")


class Measured(Protocol):
    """The parts of a bookie that are looked at (`bookie/process.py:Bookie`)."""

    store: Store | None
    collector: Collector | None
    info: BookieInfo | None

    @property
    def server(self) -> BookieServer: ...
    @property
    def state(self) -> str: ...


class Figures(NamedTuple):
    """Figures of a bookie at one moment that are not in its counters."""

    state: str
    bookie_id: BookieId
    log_files: int = 0
    log_bytes: int = 0
    dead_bytes: int = 0
    pending_bytes: int = 0
    """Bytes of adds that are not yet durable."""
    free_bytes: int = 0
    ledgers: int = 0
    deleted_ledgers: int = 0
    compactions: int = 0
    queued_reads: int = 0
    memory: tuple[tuple[str, int, int], ...] = ()
    """Parts of the memory, with the bytes in use and the most that they take; 0: without a limit."""


def figures_of(bookie: Measured) -> Figures:
    """Look at the bookie now; on its loop."""
    bookie_id = "" if bookie.info is None else bookie.info.bookie_id
    queued = sum(len(session.jobs) for session in bookie.server.sessions)
    store, collector = bookie.store, bookie.collector
    if store is None:
        return Figures(bookie.state, bookie_id)
    counts = store.stats()
    return Figures(
        bookie.state,
        bookie_id,
        counts["segments"],
        counts["data_bytes"],
        counts["dead_bytes"],
        counts["pending_bytes"],
        counts["free_bytes"],
        collector.ledgers if collector is not None else 0,
        collector.collected if collector is not None else 0,
        collector.compactions if collector is not None else 0,
        queued,
        tuple((one.name, one.bytes, one.limit or 0) for one in store.memory()),
    )


class Gauges:
    """Gauges of a bookie under Buckram's own names."""

    def __init__(self, stats: Stats) -> None:
        self._states = {
            state: stats.gauge("buckram_bookie_state", "1 for the state that the bookie is in.", state=state)
            for state in STATES
        }
        self._files = stats.gauge("buckram_store_log_files", "log files with data")
        self._dead = stats.gauge("buckram_store_dead_bytes", "bytes in log files that no ledger needs, about")
        self._pending = stats.gauge("buckram_store_pending_bytes", "bytes of adds that are not yet durable")
        self._ledgers = stats.gauge(
            "buckram_bookie_ledgers", "ledgers with data here, as the newest collection found them"
        )
        self._compactions = stats.gauge("buckram_bookie_compactions", "compactions that ended since the start")
        self._queued = stats.gauge("buckram_bookie_queued_reads", "reads that wait for their turn")

    def show(self, now: Figures) -> None:
        """Set all gauges; callable in any thread."""
        for state, gauge in self._states.items():
            gauge.set(state == now.state)
        self._files.set(now.log_files)
        self._dead.set(now.dead_bytes)
        self._pending.set(now.pending_bytes)
        self._ledgers.set(now.ledgers)
        self._compactions.set(now.compactions)
        self._queued.set(now.queued_reads)


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


NAMES = ("buckram", "apache", "both")
SERVED = ("/metrics", "/health", "/ready", "/heartbeat", "/version")
PROBES = ("/health", "/ready", "/heartbeat")
"""Pages that need no token, also where clients log in."""
MONITOR = "monitor"
"""The role of a token that may read metrics, and nothing else by itself."""


class StatusPages:
    """Answers GET. /health fails only when the store has failed, /ready also while the bookie is not registered."""

    def __init__(
        self,
        bookie: OtherLoop[Bookie],
        stats: PrometheusStats,
        names: str = "buckram",
        directory: str = "",
        *,
        tokens: bool = False,
    ) -> None:
        """Serve metrics under `names`, one of NAMES, to readers who do not choose. `tokens`: pages beyond PROBES need a
        token."""
        self._bookie, self._stats, self._tokens = bookie, stats, tokens
        self._facts = _facts()
        stats.gauge("buckram_build_info", "Always 1; the labels say what runs.", **self._facts).set(1)
        self._names, self._gauges = names, Gauges(stats)
        self._apache = ApacheMetrics(stats.registry, directory)

    async def __call__(self, request: Request) -> Answer:
        """Return a page; 404 for other pages, 405 for other methods."""
        path = "/metrics" if request.path == "/" else request.path
        if path not in SERVED:
            return text_answer(f"only these are served: {', '.join(SERVED)}\n", 404)
        if request.method != "GET":
            return text_answer("only GET is served\n", 405)
        if self._tokens and path not in PROBES:
            who, refusal = await self._refused(request)
            if refusal is not None:
                why = refusal.content.decode().strip()
                await self._bookie.ask(lambda bookie: bookie.page_refused(who, path, why))
                return refusal
        if path == "/metrics":
            return await self.metrics(request)
        if path == "/heartbeat":
            return text_answer("OK\n")
        if path == "/version":
            return json_answer(self._facts)
        state = await self._bookie.ask(lambda bookie: bookie.state)
        good = state != "failed" if path == "/health" else state in ("writable", "readonly")
        return text_answer(f"{state}\n", 200 if good else 503)

    async def _refused(self, request: Request) -> tuple[Principal, Answer | None]:
        """Return who asks, and the error reply if that principal may not read metrics, else None."""
        token = bearer_of(request)
        how = f"an administrator's, or one of `buckram token create --role {MONITOR}`"
        if not token:
            why = f"this bookie asks for tokens: send Authorization: Bearer TOKEN, {how}\n"
            return ANONYMOUS, Answer(why.encode(), 401, headers={"WWW-Authenticate": "Bearer"})
        try:
            principal = await self._bookie.ask(lambda bookie: bookie.principal_of(token.encode()))
        except TokenRefused as error:
            return ANONYMOUS, text_answer(f"the token is refused: {error}\n", 401)
        if principal.admin or MONITOR in principal.roles:
            return principal, None
        return principal, text_answer(f"{principal} may not read metrics: the token has to be {how}\n", 403)

    async def metrics(self, request: Request) -> Answer:
        """Return the text that Prometheus reads. The bookie's loop only looks at figures; the text is made in this
        thread."""
        names = request.query.get("names", self._names)
        if names not in NAMES:
            return text_answer(f"names = {names[:40]!r}: must be one of {', '.join(NAMES)}\n", 400)
        now, size = await self._bookie.ask(_measured)
        self._gauges.show(now)
        ours = self._stats.render() if names != "apache" else b""
        theirs = self._apache.render(now, size, time.monotonic()) if names != "buckram" else b""
        return Answer(ours + theirs, content_type=CONTENT_TYPE)


def bearer_of(request: Request) -> str:
    """Return the token of a request; empty for one without."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _measured(bookie: Bookie) -> tuple[Figures, int]:
    """Return the figures, and the size of the device; 0 if it cannot be read now."""
    bookie.server.refresh_gauges()
    try:
        size = bookie.disk_space().total_bytes
    except OSError:
        size = 0
    return figures_of(bookie), size


def _facts() -> dict[str, str]:
    return {"version": release(), "python": platform.python_version(), "compiled": "yes" if COMPILED else "no"}

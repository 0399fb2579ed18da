"""The exporter: it looks at a cluster periodically, and serves the newest look as metrics.

So a scrape costs the cluster nothing. A look goes through the client and the metadata store. Each look starts without
gauges, so that series of deleted things disappear.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from buckram.cluster import Client
from buckram.core.health.state_table import TABLE
from buckram.core.tenants.quotas import NOTHING, Counts, Quotas
from buckram.errors import BuckramError, NoSuchNamespace
from buckram.healing.overview import Overview, overview
from buckram.health.gathering import Gatherer, Health
from buckram.metadata.records.tenants import Published, TenantStore
from buckram.runtime.net.http_server import Answer, Request, text_answer
from buckram.runtime.process.stats import CONTENT_TYPE, PrometheusStats
from buckram.state.db.commits.database_log import is_database
from buckram.state.db.commits.replica_reports import ReplicaReport, shown_replicas
from buckram.streams.info import StreamInfo
from buckram.streams.read.cursors import CursorInfo
from buckram.streams.shared.namespaces import all_namespaces

AT_ONCE = 16
PAGE = 1000
MOST_CURSORS = 100
"""Maximum cursors that are exported for one stream: those with the largest lag."""


# -- serving ----------------------------------------------------------------------------------------------

log = logging.getLogger("buckram.exporter")
PATHS = ("/metrics", "/health", "/ready")
Show = Callable[[PrometheusStats], Awaitable[None]]
"""Looks at the cluster and sets gauges. Raises BuckramError."""


class Exporter:
    """The exporter: `run` looks until it is cancelled, `answer` serves PATHS. After a failed look the last one stays.

    `first`: runs before `show` in each look, and is served even if `show` fails.
    """

    def __init__(self, show: Show, every_s: float, first: Show | None = None) -> None:
        self._show, self._every_s, self._first = show, every_s, first
        self._text = self._first_text = b""
        self._own = PrometheusStats()
        self._failed = self._own.counter("buckram_exporter_failed_looks_total", "looks at the cluster that failed")
        self._took = self._own.gauge("buckram_exporter_look_seconds", "how long the newest look at the cluster took")
        self._at = self._own.gauge(
            "buckram_exporter_look_timestamp_seconds", "when the newest look at the cluster ended"
        )

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.look()
            except BuckramError as error:
                self._failed.inc()
                log.warning("the cluster cannot be read: %s", error)
            self._took.set(loop.time() - began)
            await asyncio.sleep(max(0.0, self._every_s - (loop.time() - began)))

    async def look(self) -> None:
        """Look once. Raises BuckramError."""
        if self._first is not None:
            first = PrometheusStats()
            await self._first(first)
            self._first_text = first.render()
        stats = PrometheusStats()
        await self._show(stats)
        self._text = stats.render()
        self._at.set(time.time())

    async def answer(self, request: Request) -> Answer:
        path = "/metrics" if request.path == "/" else request.path
        if path not in PATHS:
            return text_answer(f"only these are served: {', '.join(PATHS)}\n", 404)
        if request.method != "GET":
            return text_answer("only GET is served\n", 405)
        if path == "/metrics":
            return Answer(self._own.render() + self._first_text + self._text, content_type=CONTENT_TYPE)
        if path == "/ready" and not self._text:
            return text_answer("the cluster was not looked at yet\n", 503)
        return text_answer("OK\n")


def cluster(client: Client, most_streams: int) -> Show:
    """Return a Show of the cluster as a whole, with at most `most_streams` streams."""

    async def shown(stats: PrometheusStats) -> None:
        show(await look(client, most_streams), stats)

    return shown


def health(gatherer: Gatherer) -> Show:
    """Return a Show of the findings about a cluster; it works also while the metadata store is away or refused."""

    async def shown(stats: PrometheusStats) -> None:
        show_health(await gatherer.look(), stats)

    return shown


# -- one look ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamLook:
    """A stream with its cursors, and where it is the log of a database, with the replicas that are shown."""

    info: StreamInfo
    cursors: tuple[CursorInfo, ...] = ()
    replicas: tuple[ReplicaReport, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """A cluster at one moment. `left_out`: streams beyond the limit, or that could not be read now."""

    bookies: Mapping[str, int]
    """Numbers of bookies by state: writable, readonly, down."""
    healing: Overview
    streams: tuple[StreamLook, ...] = ()
    left_out: int = 0
    usage: Published = field(default_factory=Published)
    quotas: Mapping[str, Quotas] = field(default_factory=dict)


async def look(client: Client, most_streams: int) -> ClusterSample:
    """Look at a cluster once, at the first `most_streams` streams in the order of their names. Raises MetadataError."""
    store = client.services.store
    registered = await store.bookies()
    known = {*await store.known_bookies(), *registered.writable, *registered.readonly}
    bookies = {"writable": len(registered.writable), "readonly": len(registered.readonly)}
    bookies["down"] = len(known) - sum(bookies.values())
    healing = await overview(store, client.services.runtime.clock.wall_us() // 1000)
    names, left_out = await _names(client, most_streams)
    found: list[StreamLook] = []
    for first in range(0, len(names), AT_ONCE):
        part = await asyncio.gather(*(_look_at_stream(client, *one) for one in names[first : first + AT_ONCE]))
        found += [one for one in part if one is not None]
    tenants = TenantStore(store)
    usage, quotas = Published(), dict[str, Quotas]()
    if await tenants.is_on():
        usage, quotas = await tenants.published(), await tenants.quotas()
    return ClusterSample(bookies, healing, tuple(found), left_out + len(names) - len(found), usage, quotas)


async def _names(client: Client, most: int) -> tuple[list[tuple[str, str]], int]:
    """Return pairs of namespace and stream, at most `most`, and how many streams there are beyond."""
    names: list[tuple[str, str]] = []
    left_out = 0
    async for namespace in all_namespaces(client.namespaces):
        after = ""
        with suppress(NoSuchNamespace):  # it was deleted meanwhile
            while page := await client.namespace(namespace).list(after=after, limit=PAGE):
                taken = page[: most - len(names)]
                names += [(namespace, stream) for stream in taken]
                left_out += len(page) - len(taken)
                after = page[-1]
    return names, left_out


async def _look_at_stream(client: Client, namespace: str, name: str) -> StreamLook | None:
    """Return a stream with its cursors and replicas; None if it was deleted or cannot be read now."""
    place = client.namespace(namespace)
    try:
        info = await place.info(name)
        cursors: list[CursorInfo] = []
        after = ""
        while page := await place.cursors(name, after=after, limit=PAGE):
            cursors = heapq.nlargest(MOST_CURSORS, [*cursors, *page], key=lambda one: one.lag)
            after = page[-1].name
        replicas = await shown_replicas(place.store, info.uid) if is_database(info) else ()
        return StreamLook(info, tuple(cursors), tuple(replicas))
    except BuckramError:
        return None


# -- gauges -----------------------------------------------------------------------------------------------


def show_health(found: Health, stats: PrometheusStats) -> None:
    """Set a gauge for every state of the table, 0 where nothing is in it, so that alerts end."""
    stats.gauge("buckram_cluster_healthy", "1 while nothing that was found is an error").set(int(found.healthy))
    counts = Counter(one.state.name for one in found.findings)
    for state in TABLE.values():
        shown = stats.gauge(
            "buckram_cluster_findings",
            "findings in a state of the table of health",
            state=state.name,
            severity=state.severity.value,
        )
        shown.set(counts[state.name])


def show(found: ClusterSample, stats: PrometheusStats) -> None:
    """Set the gauges of everything that was found."""
    _cluster(found, stats)
    for stream in found.streams:
        _stream(stream, stats)
        if is_database(stream.info):
            _database(stream, stats)
    _namespaces(found, stats)


def _cluster(found: ClusterSample, stats: PrometheusStats) -> None:
    for state, number in found.bookies.items():
        stats.gauge("buckram_cluster_bookies", "bookies that the cluster knows", state=state).set(number)
    healing = found.healing
    stats.gauge("buckram_cluster_marked_ledgers", "ledgers that lack copies").set(len(healing.queue))
    unreadable = sum(one.unreadable for one in healing.queue)
    stats.gauge("buckram_cluster_unreadable_ledgers", "ledgers with entries that cannot be read now").set(unreadable)
    age = healing.oldest.age_s if healing.oldest is not None and healing.oldest.age_s is not None else 0.0
    stats.gauge("buckram_cluster_oldest_mark_seconds", "how long the ledger marked first has lacked copies").set(age)
    enabled = stats.gauge("buckram_cluster_autorecovery_enabled", "1 while lost copies may be made again")
    enabled.set(int(healing.enabled))
    audited = stats.gauge("buckram_cluster_auditor", "1 while a process is the auditor")
    audited.set(int(bool(healing.auditor)))
    brake = stats.gauge(
        "buckram_cluster_brake", "1 while copying is stopped because too many bookies were lost at once"
    )
    brake.set(int(healing.brake is not None))
    copied = stats.gauge("buckram_cluster_copied_bytes_per_second", "bytes per second that all replicators copy")
    copied.set(sum(one.bytes_per_s for one in healing.workers))
    left_out = stats.gauge("buckram_cluster_streams_left_out", "streams that are not exported here")
    left_out.set(found.left_out)


def _stream(found: StreamLook, stats: PrometheusStats) -> None:
    info, name = found.info, found.info.name
    stats.gauge("buckram_stream_end_offset", "the offset after the last readable record", stream=name).set(info.end)
    earliest = stats.gauge("buckram_stream_earliest_offset", "the first offset that can be read", stream=name)
    earliest.set(info.earliest)
    stats.gauge("buckram_stream_segments", "segments in the list", stream=name).set(info.segments)
    has_writer = info.writer is not None and not info.writer_gone
    stats.gauge("buckram_stream_has_writer", "1 while a writer has the stream open", stream=name).set(int(has_writer))
    for cursor in found.cursors:
        lag = stats.gauge(
            "buckram_cursor_lag_records", "records from the cursor to the end", stream=name, cursor=cursor.name
        )
        lag.set(cursor.lag)
        moved = stats.gauge(
            "buckram_cursor_moved_timestamp_seconds", "when the cursor was moved last", stream=name, cursor=cursor.name
        )
        moved.set(cursor.changed / 1e6)
    for application, step in info.transactions.items():
        version = stats.gauge(
            "buckram_stream_application_version",
            "the newest version that an application published, such as the batch of a Spark query",
            stream=name,
            application=application,
        )
        version.set(step.version)
        published = stats.gauge(
            "buckram_stream_application_timestamp_seconds",
            "when that version was published",
            stream=name,
            application=application,
        )
        published.set(step.time / 1e6)


def _database(found: StreamLook, stats: PrometheusStats) -> None:
    info, name = found.info, found.info.name
    stats.gauge("buckram_database_offset", "the end of the database's log", database=name).set(info.end)
    leader = info.writer.name if info.writer is not None and not info.writer_gone else ""
    stats.gauge("buckram_database_leaders", "1 while a server leads the database", database=name).set(int(bool(leader)))
    for replica in found.replicas:
        lag = stats.gauge(
            "buckram_database_replica_lag_records",
            "records of the log that a replica has not applied",
            database=name,
            server=replica.id,
        )
        lag.set(max(0, info.end - replica.offset))


def _namespaces(found: ClusterSample, stats: PrometheusStats) -> None:
    total = found.usage.total
    for name in sorted({*total, *found.usage.counts, *found.quotas}):
        used, counts = total.get(name, NOTHING), found.usage.counts.get(name, Counts())
        stored = stats.gauge("buckram_namespace_stored_bytes", "bytes on all disks, copies counted", namespace=name)
        stored.set(used.stored_bytes)
        came = stats.gauge("buckram_namespace_in_bytes_per_second", "bytes of entries that come in", namespace=name)
        came.set(used.in_bytes_per_s)
        entries = stats.gauge("buckram_namespace_in_entries_per_second", "entries that come in", namespace=name)
        entries.set(used.in_entries_per_s)
        left = stats.gauge("buckram_namespace_out_bytes_per_second", "bytes of entries sent to readers", namespace=name)
        left.set(used.out_bytes_per_s)
        stats.gauge("buckram_namespace_connections", "connections to bookies", namespace=name).set(used.connections)
        stats.gauge("buckram_namespace_ledgers", "ledgers", namespace=name).set(counts.ledgers)
        stats.gauge("buckram_namespace_streams", "streams, databases among them", namespace=name).set(counts.streams)
        stats.gauge("buckram_namespace_databases", "databases", namespace=name).set(counts.databases)
        if name in found.quotas:
            for quota, limit in found.quotas[name].limits().items():
                set_to = stats.gauge(
                    "buckram_namespace_quota", "the limit that a quota sets", namespace=name, quota=quota
                )
                set_to.set(limit)

"""Sets the gauges of one look at a cluster. Each look starts without gauges, so series of deleted things disappear."""

from __future__ import annotations

from collections import Counter

from buckram.core.health.state_table import TABLE
from buckram.core.tenants.usage import NOTHING, Counts
from buckram.health.gathering import Health
from buckram.runtime.process.stats import PrometheusStats
from buckram.serve.exporter.looking import ClusterSample, StreamLook
from buckram.state.db.commits.database_log import is_database


def show_health(found: Health, stats: PrometheusStats) -> None:
    """Set a gauge for every state of the table, 0 where nothing is in it, so that alerts end."""
    stats.gauge("buckram_cluster_healthy", "1 while nothing that was found is an error").set(int(found.healthy))
    counts = Counter(one.state.name for one in found.findings)
    for state in TABLE.values():
        shown = stats.gauge(
            "buckram_cluster_findings",
            "what is in a state of the table of health",
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
    stats.gauge("buckram_cluster_oldest_mark_seconds", "how long a ledger has lacked copies at most").set(age)
    enabled = stats.gauge("buckram_cluster_autorecovery_enabled", "1 while lost copies may be made again")
    enabled.set(int(healing.enabled))
    audited = stats.gauge("buckram_cluster_auditor", "1 while some process is the auditor")
    audited.set(int(bool(healing.auditor)))
    brake = stats.gauge("buckram_cluster_brake", "1 while nothing is copied because too many bookies went at once")
    brake.set(int(healing.brake is not None))
    copied = stats.gauge("buckram_cluster_copied_bytes_per_second", "what all replicators copy")
    copied.set(sum(one.bytes_per_s for one in healing.workers))
    left_out = stats.gauge("buckram_cluster_streams_left_out", "streams that have no lines here")
    left_out.set(found.left_out)


def _stream(found: StreamLook, stats: PrometheusStats) -> None:
    info, name = found.info, found.info.name
    stats.gauge("buckram_stream_end_offset", "the offset after the last readable record", stream=name).set(info.end)
    earliest = stats.gauge("buckram_stream_earliest_offset", "the first offset that can be read", stream=name)
    earliest.set(info.earliest)
    stats.gauge("buckram_stream_segments", "segments in the list", stream=name).set(info.segments)
    has_writer = info.writer is not None and not info.writer_gone
    stats.gauge("buckram_stream_has_writer", "1 while a writer has it open", stream=name).set(int(has_writer))
    for cursor in found.cursors:
        lag = stats.gauge(
            "buckram_cursor_lag_records", "records from the cursor to the end", stream=name, cursor=cursor.name
        )
        lag.set(cursor.lag)
        moved = stats.gauge(
            "buckram_cursor_moved_timestamp_seconds", "when it was moved last", stream=name, cursor=cursor.name
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
            "buckram_stream_application_timestamp_seconds", "when that was", stream=name, application=application
        )
        published.set(step.time / 1e6)


def _database(found: StreamLook, stats: PrometheusStats) -> None:
    info, name = found.info, found.info.name
    stats.gauge("buckram_database_offset", "the end of its log", database=name).set(info.end)
    leader = info.writer.name if info.writer is not None and not info.writer_gone else ""
    stats.gauge("buckram_database_leaders", "1 while some server leads it", database=name).set(int(bool(leader)))
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
                    "buckram_namespace_quota", "what a namespace may have or do", namespace=name, quota=quota
                )
                set_to.set(limit)

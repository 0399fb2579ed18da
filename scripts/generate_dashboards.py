"""Writes the Grafana dashboards in deploy/grafana from the table below: `python scripts/generate_dashboards.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "deploy" / "grafana"
BY = 'instance=~"$instance"'
VARIABLES = {
    "bookie": ("instance", "buckram_bookie_state"),
    "streams": ("stream", "buckram_stream_end_offset"),
    "spark": ("application", "buckram_stream_application_version"),
    "tenants": ("namespace", "buckram_namespace_stored_bytes"),
    "databases": ("database", "buckram_database_offset"),
}
"""Variables at the top of a dashboard: a label, and the metric that has its values."""


class Panel(NamedTuple):
    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """Expressions with their legends."""


def quantiles(histogram: str, by: str = "") -> tuple[tuple[str, str], ...]:
    chosen = f"{{{BY}}}" if by else ""
    legend = "{{instance}} " if by else ""
    return tuple(
        (
            f"histogram_quantile({part}, sum by (le{by}) (rate({histogram}_bucket{chosen}[$__rate_interval])))",
            f"{legend}p{part * 100:g}",
        )
        for part in (0.5, 0.99)
    )


def rate(metric: str, chosen: str = "") -> str:
    return f"sum(rate({metric}{chosen}[$__rate_interval]))"


def chosen(metric: str, label: str, legend: str = "", *, of: str = "value") -> tuple[tuple[str, str], ...]:
    """Return a query of an exporter's metric for the chosen values of `label`, with its legend."""
    found = f'{metric}{{{label}=~"${label}"}}'
    return ((f"rate({found}[$__rate_interval])" if of == "rate" else found, legend or f"{{{{{label}}}}}"),)


def each(metric: str, *, of: str = "rate") -> tuple[tuple[str, str], ...]:
    chosen = f"{metric}{{{BY}}}"
    return ((f"rate({chosen}[$__rate_interval])" if of == "rate" else chosen, "{{instance}}"),)


DASHBOARDS: dict[str, tuple[str, tuple[Panel, ...]]] = {
    "cluster": (
        "Buckram: cluster",
        (
            Panel("Bookies by state", "short", (("sum by (state) (buckram_bookie_state)", "{{state}}"),)),
            Panel(
                "Entries per second",
                "ops",
                (
                    (rate("buckram_bookie_added_entries_total"), "added, copies included"),
                    (rate("buckram_bookie_read_entries_total"), "read"),
                ),
            ),
            Panel(
                "Bytes per second",
                "Bps",
                (
                    (rate("buckram_bookie_added_bytes_total"), "added"),
                    (rate("buckram_bookie_read_bytes_total"), "read"),
                ),
            ),
            Panel("Time of an add", "s", quantiles("buckram_bookie_add_seconds")),
            Panel("Time of a read", "s", quantiles("buckram_bookie_read_seconds")),
            Panel("Free space", "bytes", (("buckram_store_free_bytes", "{{instance}}"),)),
            Panel(
                "Refused per second",
                "ops",
                (
                    (rate("buckram_bookie_refused_adds_total"), "adds"),
                    (rate("buckram_bookie_failed_reads_total"), "reads"),
                    (rate("buckram_bookie_refused_connections_total"), "connections"),
                ),
            ),
            Panel(
                "Trouble",
                "short",
                (
                    ("sum(buckram_bad_records)", "bad entries"),
                    ("sum(buckram_disk_slow)", "slow disks"),
                    ("sum(buckram_bookie_suspect)", "bookies that doubt the metadata"),
                    ("sum(buckram_bookie_collection_waiting_ledgers)", "ledgers that wait for a word"),
                ),
            ),
            Panel(
                "Ledgers that lack copies",
                "short",
                (
                    ("buckram_cluster_marked_ledgers", "marked"),
                    ("buckram_cluster_unreadable_ledgers", "of them with entries that cannot be read"),
                ),
            ),
            Panel(
                "Copies are made again",
                "Bps",
                (("buckram_cluster_copied_bytes_per_second", "by all replicators"),),
            ),
            Panel("Oldest ledger that lacks copies", "s", (("buckram_cluster_oldest_mark_seconds", "marked since"),)),
            Panel(
                "Self-healing is there",
                "short",
                (
                    ("buckram_cluster_auditor", "auditor"),
                    ("buckram_cluster_autorecovery_enabled", "enabled"),
                    ("buckram_cluster_brake", "brake: nothing is copied"),
                ),
            ),
        ),
    ),
    "bookie": (
        "Buckram: bookie",
        (
            Panel("State", "short", ((f"buckram_bookie_state{{{BY}}} == 1", "{{instance}} {{state}}"),)),
            Panel("Entries added per second", "ops", each("buckram_bookie_added_entries_total")),
            Panel("Entries read per second", "ops", each("buckram_bookie_read_entries_total")),
            Panel("Time of an add", "s", quantiles("buckram_bookie_add_seconds", ", instance")),
            Panel("Time of a read", "s", quantiles("buckram_bookie_read_seconds", ", instance")),
            Panel("Time of a write with its sync", "s", quantiles("buckram_store_commit_seconds", ", instance")),
            Panel("Log bytes written per second", "Bps", each("buckram_store_log_bytes_total")),
            Panel("Adds that are not yet durable", "bytes", each("buckram_store_pending_bytes", of="value")),
            Panel("Reads that wait", "short", each("buckram_bookie_queued_reads", of="value")),
            Panel("Connections", "short", each("buckram_bookie_connections", of="value")),
            Panel("Bytes in memory for connections", "bytes", each("buckram_bookie_buffered_bytes", of="value")),
            Panel(
                "Log files",
                "bytes",
                (
                    (f"buckram_store_log_file_bytes{{{BY}}}", "{{instance}} all"),
                    (f"buckram_store_dead_bytes{{{BY}}}", "{{instance}} dead"),
                    (f"buckram_store_free_bytes{{{BY}}}", "{{instance}} free on the disk"),
                ),
            ),
            Panel("Ledgers", "short", each("buckram_bookie_ledgers", of="value")),
            Panel(
                "Bytes kept by collection, by reason",
                "bytes",
                ((f"sum by (why) (buckram_bookie_collection_kept_bytes{{{BY}}})", "{{why}}"),),
            ),
            Panel("Bytes checked per second", "Bps", each("buckram_scrub_bytes_total")),
        ),
    ),
    "streams": (
        "Buckram: streams",
        (
            Panel("Records per second", "ops", chosen("buckram_stream_end_offset", "stream", of="rate")),
            Panel("Lag of cursors", "short", chosen("buckram_cursor_lag_records", "stream", "{{stream}} {{cursor}}")),
            Panel(
                "Cursors moved before",
                "s",
                (('time() - buckram_cursor_moved_timestamp_seconds{stream=~"$stream"}', "{{stream}} {{cursor}}"),),
            ),
            Panel(
                "Records kept",
                "short",
                (
                    (
                        'buckram_stream_end_offset{stream=~"$stream"} '
                        '- buckram_stream_earliest_offset{stream=~"$stream"}',
                        "{{stream}}",
                    ),
                ),
            ),
            Panel("Segments", "short", chosen("buckram_stream_segments", "stream")),
            Panel("Has a writer", "short", chosen("buckram_stream_has_writer", "stream")),
            Panel("Streams that are not shown", "short", (("buckram_cluster_streams_left_out", "left out"),)),
            Panel(
                "The exporter's looks",
                "s",
                (
                    ("buckram_exporter_look_seconds", "took"),
                    ("time() - buckram_exporter_look_timestamp_seconds", "ago"),
                ),
            ),
        ),
    ),
    "spark": (
        "Buckram: Spark",
        (
            Panel(
                "Batches per minute",
                "short",
                (
                    (
                        'rate(buckram_stream_application_version{application=~"$application"}[$__rate_interval]) * 60',
                        "{{application}} to {{stream}}",
                    ),
                ),
            ),
            Panel(
                "Newest batch",
                "short",
                chosen("buckram_stream_application_version", "application", "{{application}} to {{stream}}"),
            ),
            Panel(
                "Published before",
                "s",
                (
                    (
                        'time() - buckram_stream_application_timestamp_seconds{application=~"$application"}',
                        "{{application}} to {{stream}}",
                    ),
                ),
            ),
            Panel("Lag of queries' cursors", "short", (("buckram_cursor_lag_records", "{{stream}} {{cursor}}"),)),
        ),
    ),
    "tenants": (
        "Buckram: tenants",
        (
            Panel("Bytes stored", "bytes", chosen("buckram_namespace_stored_bytes", "namespace")),
            Panel(
                "Part of the quota of bytes stored",
                "percentunit",
                (
                    (
                        'buckram_namespace_stored_bytes{namespace=~"$namespace"} '
                        '/ on (namespace) group_left () buckram_namespace_quota{quota="stored_bytes"}',
                        "{{namespace}}",
                    ),
                ),
            ),
            Panel("Bytes in per second", "Bps", chosen("buckram_namespace_in_bytes_per_second", "namespace")),
            Panel("Entries in per second", "ops", chosen("buckram_namespace_in_entries_per_second", "namespace")),
            Panel("Bytes out per second", "Bps", chosen("buckram_namespace_out_bytes_per_second", "namespace")),
            Panel("Connections", "short", chosen("buckram_namespace_connections", "namespace")),
            Panel("Ledgers", "short", chosen("buckram_namespace_ledgers", "namespace")),
            Panel("Streams", "short", chosen("buckram_namespace_streams", "namespace")),
            Panel("Quotas", "short", chosen("buckram_namespace_quota", "namespace", "{{namespace}} {{quota}}")),
        ),
    ),
    "databases": (
        "Buckram: databases",
        (
            Panel("Transactions per second", "ops", chosen("buckram_database_offset", "database", of="rate")),
            Panel("Has a leader", "short", chosen("buckram_database_leaders", "database")),
            Panel(
                "Lag of replicas",
                "short",
                chosen("buckram_database_replica_lag_records", "database", "{{database}} {{server}}"),
            ),
            Panel(
                "Replicas",
                "short",
                (
                    (
                        'count by (database) (buckram_database_replica_lag_records{database=~"$database"})',
                        "{{database}}",
                    ),
                ),
            ),
        ),
    ),
}


def dashboard(name: str) -> dict[str, Any]:
    title, panels = DASHBOARDS[name]
    source = {"type": "prometheus", "uid": "${source}"}
    variables: list[dict[str, Any]] = [{"name": "source", "type": "datasource", "query": "prometheus"}]
    if name in VARIABLES:
        label, metric = VARIABLES[name]
        query = f"label_values({metric}, {label})"
        variables.append(
            {
                "name": label,
                "type": "query",
                "datasource": source,
                "query": query,
                "multi": True,
                "includeAll": True,
                "refresh": 2,
            }
        )
    return {
        "uid": f"buckram-{name}",
        "title": title,
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, panel, source) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel, source: dict[str, str]) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + place), "expr": expression, "legendFormat": legend, "datasource": source}
            for place, (expression, legend) in enumerate(panel.queries)
        ],
    }


def text(name: str) -> str:
    return json.dumps(dashboard(name), indent=1) + "\n"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(text(name))


if __name__ == "__main__":
    main()

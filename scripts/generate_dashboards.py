"""Writes the Grafana dashboards in deploy/grafana from the table below: `python scripts/generate_dashboards.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "deploy" / "grafana"
BY = 'instance=~"$instance"'


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
}


def dashboard(name: str) -> dict[str, Any]:
    title, panels = DASHBOARDS[name]
    source = {"type": "prometheus", "uid": "${source}"}
    variables: list[dict[str, Any]] = [{"name": "source", "type": "datasource", "query": "prometheus"}]
    if name != "cluster":
        query = "label_values(buckram_bookie_state, instance)"
        variables.append(
            {
                "name": "instance",
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

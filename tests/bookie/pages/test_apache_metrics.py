"""Metrics of a bookie under Apache's names."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from buckram.bookie.pages.apache_metrics import QUANTILES, ApacheMetrics
from buckram.bookie.pages.gauges import Figures
from buckram.runtime.process.stats import PrometheusStats

NOW = Figures("writable", "b", log_files=2, log_bytes=1000, dead_bytes=250, free_bytes=25, ledgers=7)


def samples(stats: PrometheusStats, now: Figures = NOW) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = ApacheMetrics(stats.registry, "/data/b-1").render(now, 100, 0.0).decode()
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_operations_are_counted_and_latencies_are_milliseconds() -> None:
    stats = PrometheusStats()
    stats.counter("buckram_bookie_added_entries_total", "entries acknowledged").inc(40)
    stats.counter("buckram_bookie_refused_adds_total", "entries answered with an error").inc(3)
    for _ in range(4):
        stats.histogram("buckram_bookie_add_seconds", "from arrival to acknowledgement").observe(0.003)
    found = samples(stats)
    name, good = "bookkeeper_server_ADD_ENTRY_REQUEST", ("success", "true")
    assert found[f"{name}_count", frozenset([good])] == 40
    assert found[f"{name}_count", frozenset([("success", "false")])] == 3
    assert abs(found[f"{name}_sum", frozenset([good])] - 40 * 3) < 1e-6
    for part in QUANTILES:
        assert 2.5 <= found[name, frozenset([good, ("quantile", str(part))])] <= 5
    journal = frozenset([good, ("quantile", "0.99"), ("journalIndex", "0")])
    assert 2.5 <= found["bookie_journal_JOURNAL_ADD_ENTRY", journal] <= 5


def test_state_and_space_have_their_names() -> None:
    found = {name: value for (name, labels), value in samples(PrometheusStats()).items() if not labels}
    assert found["bookie_SERVER_STATUS"] == 1
    assert found["bookie_ledger_writable_dirs"] == 1
    assert found["bookie_ledger_dir__data_b_1_usage"] == 75
    assert found["bookie_ENTRY_LOG_COMPACT_RATIO"] == 0.25
    assert found["bookie_ledgers_count"] == 7
    away = {name: value for (name, labels), value in samples(PrometheusStats(), Figures("unregistered", "b")).items()}
    assert (away["bookie_SERVER_STATUS"], away["bookie_ENTRY_LOG_COMPACT_RATIO"]) == (-1, 0)

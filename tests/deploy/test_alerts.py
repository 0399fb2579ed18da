"""Each alert fires on samples of its fault, as promtool reckons them, and not on those of a cluster that is well."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scripts.states_page import LEVELS, alert_of
from tests.deploy.test_dashboards import rules
from tests.support.prometheus_kit import RULES, program

from buckram.core.health.state_table import TABLE

BOOKIE = 'job="buckram",instance="b1"'
LE = ("0.05", "0.1", "0.5", "+Inf")


def buckets(slow: int) -> dict[str, str]:
    """A histogram to which each minute 100 adds come, so many of them slower than 0.1 s."""
    counts = {"0.05": 100 - slow, "0.1": 100 - slow, "0.5": 100, "+Inf": 100}
    return {f'buckram_bookie_add_seconds_bucket{{{BOOKIE},le="{le}"}}': f"0+{counts[le]}x130" for le in LE}


def steady(name: str, value: float, labels: str = BOOKIE) -> dict[str, str]:
    return {f"{name}{{{labels}}}": f"{value:g}x130"}


def grows(name: str, by: float, labels: str = BOOKIE, begin: int = 0) -> dict[str, str]:
    return {f"{name}{{{labels}}}": f"{begin}+{by:g}x130"}


CURSOR = 'stream="shop/orders",cursor="billing"'
SPACE, QUOTA = 'namespace="shop"', 'namespace="shop",quota="stored_bytes"'
DATABASE, REPLICA = 'database="shop/main"', 'database="shop/main",server="s1"'
OTHER_REPLICA = 'database="shop/other",server="s1"'


CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "BuckramAddsRefused": (
        grows("buckram_bookie_refused_adds_total", 6),
        steady("buckram_bookie_refused_adds_total", 5),
    ),
    "BuckramSlowAdds": (buckets(5), buckets(0)),
    "BuckramConnectionsRefused": (
        grows("buckram_bookie_refused_connections_total", 1),
        steady("buckram_bookie_refused_connections_total", 1),
    ),
    "BuckramReaderLags": (
        grows("buckram_cursor_lag_records", 1000, CURSOR, 90_000),
        steady("buckram_cursor_lag_records", 200_000, CURSOR),
    ),
    "BuckramQuotaNearlyUsed": (
        {**steady("buckram_namespace_stored_bytes", 95, SPACE), **steady("buckram_namespace_quota", 100, QUOTA)},
        {**steady("buckram_namespace_stored_bytes", 80, SPACE), **steady("buckram_namespace_quota", 100, QUOTA)},
    ),
    "BuckramDatabaseWithoutLeader": (
        {
            **steady("buckram_database_leaders", 0, DATABASE),
            **steady("buckram_database_replica_lag_records", 0, REPLICA),
        },
        steady("buckram_database_leaders", 0, DATABASE),  # nobody serves it, so nobody misses it
    ),
    "BuckramDatabaseReplicaLags": (
        steady("buckram_database_replica_lag_records", 20_000, OTHER_REPLICA),
        steady("buckram_database_replica_lag_records", 5, OTHER_REPLICA),
    ),
    "BuckramAuditTrailLost": (
        grows("buckram_bookie_lost_audit_events_total", 1),
        steady("buckram_bookie_lost_audit_events_total", 1),
    ),
    "BuckramClusterNotSeen": (
        steady("buckram_exporter_look_timestamp_seconds", 0, ""),
        grows("buckram_exporter_look_timestamp_seconds", 60, ""),
    ),
}
CASES |= {
    alert_of(state): (
        steady("buckram_cluster_findings", 2, f'state="{state.name}",severity="{state.severity.value}"'),
        steady("buckram_cluster_findings", 0, f'state="{state.name}",severity="{state.severity.value}"'),
    )
    for state in TABLE.values()
    if state.severity in LEVELS
}
"""Samples, one a minute, with which an alert fires, and with which it does not."""


def group(name: str, faulty: frozenset[str]) -> dict[str, Any]:
    """Samples of the faults of some alerts, and of none for the others; just those alerts fire."""
    series: dict[str, str] = {}
    for alert, (fault, well) in CASES.items():
        samples = fault if alert in faulty else well
        assert not series.keys() & samples.keys(), f"{alert}: its samples are another alert's, too"
        series |= samples
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": series_name, "values": values} for series_name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "2h",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(faulty)],
            }
        ],
    }


def groups() -> list[dict[str, Any]]:
    """Any two alerts are in some group in which only the one's fault is there, and in one with the other's alone.

    A group for each bit of an alert's number, and one for its opposite: a test for each alert costs ten times as much.
    """
    found = []
    for bit in range(len(CASES).bit_length()):
        there = frozenset(alert for number, alert in enumerate(CASES) if number >> bit & 1)
        found.append(group(f"bit {bit}", there))
        found.append(group(f"bit {bit} not", frozenset(CASES) - there))
    return found


@pytest.mark.share(3, "containers and alerts")
def test_each_alert_fires_on_its_fault_and_only_then(tmp_path: Path) -> None:
    assert set(CASES) == {rule[0] for rule in rules()}
    document = {"rule_files": [str(path) for path in RULES], "evaluation_interval": "1m", "tests": groups()}
    path = tmp_path / "tests.yml"
    path.write_text(json.dumps(document))  # JSON is YAML
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

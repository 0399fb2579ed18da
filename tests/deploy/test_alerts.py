"""Each alert fires on samples of its fault, as promtool reckons them, and not on those of a cluster that is well."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.test_dashboards import rules
from tests.support.prometheus_kit import RULES, program

BOOKIE = 'job="buckram",instance="b1"'
LE = ("0.05", "0.1", "0.5", "+Inf")


def buckets(slow: int) -> dict[str, str]:
    """A histogram to which each minute 100 adds come, so many of them slower than 0.1 s."""
    counts = {"0.05": 100 - slow, "0.1": 100 - slow, "0.5": 100, "+Inf": 100}
    return {f'buckram_bookie_add_seconds_bucket{{{BOOKIE},le="{le}"}}': f"0+{counts[le]}x240" for le in LE}


def steady(name: str, value: float, labels: str = BOOKIE) -> dict[str, str]:
    return {f"{name}{{{labels}}}": f"{value:g}x240"}


def grows(name: str, by: float, labels: str = BOOKIE, begin: int = 0) -> dict[str, str]:
    return {f"{name}{{{labels}}}": f"{begin}+{by:g}x240"}


CURSOR = 'stream="shop/orders",cursor="billing"'
SPACE, QUOTA = 'namespace="shop"', 'namespace="shop",quota="stored_bytes"'
DATABASE, REPLICA = 'database="shop/main"', 'database="shop/main",server="s1"'
HEALING = ("buckram_cluster_brake", "buckram_cluster_autorecovery_enabled", "buckram_cluster_auditor")


def healing(brake: int, enabled: int, auditor: int) -> dict[str, str]:
    one, two, three = (steady(name, value, "") for name, value in zip(HEALING, (brake, enabled, auditor), strict=True))
    return {**one, **two, **three}


CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "BuckramBookieDown": (steady("up", 0), steady("up", 1)),
    "BuckramBookieNotWritable": (
        steady("buckram_bookie_state", 1, f'{BOOKIE},state="readonly"'),
        steady("buckram_bookie_state", 1, f'{BOOKIE},state="writable"'),
    ),
    "BuckramDiskNearlyFull": (steady("buckram_store_free_bytes", 1e9), steady("buckram_store_free_bytes", 1e11)),
    "BuckramSlowDisk": (steady("buckram_disk_slow", 1), steady("buckram_disk_slow", 0)),
    "BuckramBadRecords": (steady("buckram_bad_records", 2), steady("buckram_bad_records", 0)),
    "BuckramMetadataWentBack": (steady("buckram_bookie_suspect", 1), steady("buckram_bookie_suspect", 0)),
    "BuckramAddsRefused": (
        grows("buckram_bookie_refused_adds_total", 6),
        steady("buckram_bookie_refused_adds_total", 5),
    ),
    "BuckramSlowAdds": (buckets(5), buckets(0)),
    "BuckramConnectionsRefused": (
        grows("buckram_bookie_refused_connections_total", 1),
        steady("buckram_bookie_refused_connections_total", 1),
    ),
    "BuckramCollectionWaits": (
        steady("buckram_bookie_collection_waiting_ledgers", 3),
        steady("buckram_bookie_collection_waiting_ledgers", 0),
    ),
    "BuckramLedgersLackCopies": (
        grows("buckram_cluster_oldest_mark_seconds", 60, ""),
        steady("buckram_cluster_oldest_mark_seconds", 60, ""),
    ),
    "BuckramLedgersUnreadable": (
        steady("buckram_cluster_unreadable_ledgers", 1, ""),
        steady("buckram_cluster_unreadable_ledgers", 0, ""),
    ),
    "BuckramNothingIsCopied": (healing(1, 1, 1), healing(0, 1, 1)),
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
        steady("buckram_database_replica_lag_records", 20_000, REPLICA),
        steady("buckram_database_replica_lag_records", 5, REPLICA),
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
"""Samples, one a minute, with which an alert fires, and with which it does not."""


def checked(alert: str, series: dict[str, str], fires: bool) -> dict[str, Any]:
    expected = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "name": f"{alert} {'fires' if fires else 'is quiet'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": "3h",
                "exp_samples": expected,
            }
        ],
    }


@pytest.mark.share(3, "containers and alerts")
def test_each_alert_fires_on_its_fault_and_only_then(tmp_path: Path) -> None:
    assert set(CASES) == {rule[0] for rule in rules()}
    tests = [
        checked(alert, series, fires)
        for alert, both in CASES.items()
        for series, fires in zip(both, (True, False), strict=True)
    ]
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    path = tmp_path / "tests.yml"
    path.write_text(json.dumps(document))  # JSON is YAML
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

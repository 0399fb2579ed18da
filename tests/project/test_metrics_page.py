"""The page of metrics has each one that the sources make, once, with its labels and under who has it."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.metrics_page import WHO, metrics, page

SOURCE = Path(__file__).parents[2] / "src" / "buckram"


def test_every_metric_of_the_sources_is_found() -> None:
    """Also one that is not made by a call with literal text would be missed: then this regular expression sees it."""
    texts = (path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    named = {name for text in texts for name in re.findall(r'\.(?:counter|gauge|histogram)\(\s*"(buckram_\w+)"', text)}
    assert {metric.name for metric in metrics()} == named
    assert len(named) > 30


def test_labels_and_owners_are_read_from_the_calls(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "made.py").write_text(
        'stats.gauge("buckram_x", "bytes", why=reason)\nstats.inc("buckram_y", "z")\n'
    )
    assert [(one.name, one.kind, one.labels, one.package) for one in metrics(tmp_path)] == [
        ("buckram_x", "gauge", ("why",), "net")
    ]


def test_the_page_has_a_row_for_each() -> None:
    rows = re.findall(r"^\| `(buckram_\w+)` \|", page("note"), re.MULTILINE)
    assert sorted(rows) == sorted({metric.name for metric in metrics()})


def test_each_metric_stands_under_the_process_that_has_it() -> None:
    """A module that was moved would take its metrics to another process's section without a word."""
    assert {metric.package for metric in metrics()} == set(WHO)
    assert [name for name in WHO if not (SOURCE / name).exists()] == []
    sections = re.split(r"^## ", page("note"), flags=re.MULTILINE)[1:]
    found = {section.split("\n")[0]: set(re.findall(r"`(buckram_\w+)`", section)) for section in sections}
    assert "buckram_cluster_healthy" in found["The exporter"]
    assert "buckram_replication_lag_seconds" in found["A replication"]
    assert all(found.values())

"""Names of metrics: Prometheus takes `x_total` of a counter and a gauge `x` for the same, and refuses the second."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "buckram"
MADE = re.compile(r'\.(counter|gauge|histogram)\(\s*"(buckram_\w+)"')
SUFFIX = re.compile(r"_(total|created|sum|count|bucket|info)$")


def test_no_two_metrics_share_a_name() -> None:
    found: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for kind, name in MADE.findall(path.read_text(encoding="utf-8")):
            found[SUFFIX.sub("", name)].add((kind, name))
    assert len(found) > 30
    assert {name: made for name, made in found.items() if len(made) > 1} == {}

"""The page of all metrics, docs/reference/metrics.md, read from the calls that make them; see generate_docs.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "buckram"
KINDS = ("counter", "gauge", "histogram")
PREFIX = "buckram_"
WHO = {
    "bookie": "A bookie",
    "cli/security": "A bookie",
    "client": "A client",
    "streams": "A client",
    "runtime/net": "A client",
    "healing": "The auditor",
    "serve/cluster_exporter.py": "The exporter",
    "replication": "A replication",
    "spark": "A Spark driver",
    "runtime/telemetry": "Whoever sends traces",
}
"""Process whose metrics a folder or module makes; the parts of each run in one process."""


class Metric(NamedTuple):
    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    package: str


def _package_of(path: Path) -> str:
    """Return the folder or module that WHO knows, or else the first folder, which `page` refuses."""
    known = [folder for folder in WHO if path.is_relative_to(folder)]
    return known[0] if known else path.parts[0]


def metrics(source: Path = SOURCE) -> Iterator[Metric]:
    """Yield each `stats.counter("name", "help", label=...)` and the like in the sources."""
    for path in sorted(source.rglob("*.py")):
        package, text = _package_of(path.relative_to(source)), path.read_text(encoding="utf-8")
        if PREFIX not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or len(node.args) < 2:
                continue
            name, told = (one.value if isinstance(one, ast.Constant) else None for one in node.args[:2])
            if node.func.attr in KINDS and isinstance(name, str) and name.startswith(PREFIX) and isinstance(told, str):
                labels = tuple(keyword.arg for keyword in node.keywords if keyword.arg)
                yield Metric(name, node.func.attr, told, labels, package)


def page(note: str) -> str:
    """Return the page's text."""
    lines = [
        "# Metrics\n",
        note,
        "A bookie serves its metrics as Prometheus text under `/metrics` of `--metrics HOST:PORT`. A client has its\n"
        "own in the process that uses it, and `buckram exporter` serves those of a cluster as a whole.\n"
        "[Operations](../howto/operations.md#metrics) says which to watch.\n",
    ]
    known = {metric.name: metric for metric in metrics()}
    for title in dict.fromkeys(WHO.values()):
        rows = [known[name] for name in sorted(known) if WHO[known[name].package] == title]
        lines.append(f"## {title}\n\n| metric | kind | meaning |\n|---|---|---|")
        for row in rows:
            labels = f" (label {', '.join(f'`{label}`' for label in row.labels)})" if row.labels else ""
            lines.append(f"| `{row.name}` | {row.kind} | {row.help.rstrip('.')}{labels} |")
        lines.append("")
    return "\n".join(lines)

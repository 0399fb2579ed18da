"""Runs cases, saves finished ones, prints a table and one JSON line.

`python -m bench [CASE...] [--again] [--repeat N] [--save-baseline] [--list]`. A case that was measured for this very
commit is not run again, so an interrupted suite goes on where it stopped. Figures that are worse than those of the
baseline for this kind of machine (bench/baselines) by more than their noise are named.

With NET=1 in the environment every bookie is on a machine of its own (machines.py); results are kept apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.baseline import Worse, load, machine_kind, save, summary, worse
from bench.cases import CASES, Figures
from bench.machines import network, wanted

RESULTS = Path("bench-results")
APART = RESULTS / "net"
"""Directory of results between machines."""


def commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src", "bench"], check=False).returncode
    return (asked.stdout.strip() or "unknown") + ("+" if changed else "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    parser.add_argument("--again", action="store_true", help="measure again what is already there")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="measure each case so often; medians count")
    parser.add_argument("--save-baseline", action="store_true", help="later runs are compared with this one")
    parser.add_argument("--list", action="store_true", help="say what each case measures")
    options = parser.parse_args()
    if options.list:
        for name, function in CASES.items():
            print(f"{name:22} {(function.__doc__ or '').strip()}")
        return 0
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]!r}; known: {', '.join(CASES)}")
    apart = wanted(os.environ)
    with network(apart):
        return _run(options, APART if apart else RESULTS, "-net" if apart else "")


def _run(options: argparse.Namespace, folder: Path, suffix: str) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    version, failed = commit(), False
    measured: dict[str, list[Figures]] = {}
    for name in options.cases or CASES:
        try:
            measured[name] = _measured(name, version, folder, again=options.again, repeat=options.repeat)
        except (RuntimeError, OSError) as error:
            failed = True
            print(f"{name} failed: {error}", file=sys.stderr)
    results = {name: _middle(figures) for name, figures in measured.items()}
    _show(results, version + (", as between machines" if suffix else ""))
    kind = machine_kind() + suffix
    lost = _compare(measured, kind)
    if options.save_baseline:
        print(f"baseline: {save(kind, version, {name: summary(many) for name, many in measured.items()})}")
    print(json.dumps({"cases": results, "worse": [str(one) for one in lost]}), flush=True)
    return 1 if failed else 0


def _compare(measured: dict[str, list[Figures]], kind: str) -> list[Worse]:
    """Return the figures that are worse than in the baseline, and print them."""
    known = load(kind)
    if not known:
        print(f"no baseline for {kind}: --save-baseline makes one")
        return []
    lost = [one for name, figures in measured.items() for one in worse(name, figures, known.get(name, {}))]
    for one in lost:
        print(f"WORSE {one}")
    if not lost:
        print("nothing is worse than in the baseline")
    return lost


def _measured(name: str, version: str, folder: Path, *, again: bool, repeat: int) -> list[Figures]:
    """Return the measurements saved for this case, plus as many new ones as are missing."""
    path, kept = folder / f"{name}.json", list[Figures]()
    if path.exists() and not again:
        found = json.loads(path.read_text())
        if found["commit"] == version and not version.endswith("+"):
            kept = found.get("measured", [found["figures"]])
    while len(kept) < repeat:
        print(f"{name} ...", file=sys.stderr, flush=True)
        began = time.monotonic()
        kept.append(CASES[name]())
        about = {"commit": version, "machine": platform.platform(), "seconds": round(time.monotonic() - began, 1)}
        path.write_text(json.dumps({**about, "figures": _middle(kept), "measured": kept}, indent=1) + "\n")
    return kept


def _middle(measured: list[Figures]) -> Figures:
    """Return the median of each numeric figure, and the last value of others."""
    if len(measured) == 1:
        return measured[0]
    found = dict(measured[-1])
    for figure, value in found.items():
        values = [one[figure] for one in measured if isinstance(one.get(figure), (int, float))]
        if len(values) == len(measured) and not isinstance(value, bool):
            found[figure] = type(value)(statistics.median(values))
    return found


def _show(results: dict[str, dict[str, Any]], version: str) -> None:
    table = Table(title=f"benchmarks of {version}", title_justify="left")
    for column in ("case", "figure", "value"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for name, figures in results.items():
        for n, (figure, value) in enumerate(figures.items()):
            shown = f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
            table.add_row(name if n == 0 else "", figure, shown, end_section=n == len(figures) - 1)
    Console(stderr=False, width=100).print(table)


if __name__ == "__main__":
    raise SystemExit(main())

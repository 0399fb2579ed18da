"""Runs cases, remembers what is done, prints a table and one JSON line.

`python -m bench [CASE...] [--again] [--list]`. A case that was measured for this very commit is not run again, so an
interrupted suite goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cases import CASES

RESULTS = Path("bench-results")


def commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src", "bench"], check=False).returncode
    return (asked.stdout.strip() or "unknown") + ("+" if changed else "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    parser.add_argument("--again", action="store_true", help="measure again what is already there")
    parser.add_argument("--list", action="store_true", help="say what each case measures")
    options = parser.parse_args()
    if options.list:
        for name, function in CASES.items():
            print(f"{name:22} {(function.__doc__ or '').strip()}")
        return 0
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]!r}; known: {', '.join(CASES)}")
    RESULTS.mkdir(exist_ok=True)
    version, results, failed = commit(), {}, False
    for name in options.cases or CASES:
        try:
            results[name] = _one(name, version, options.again)
        except (RuntimeError, OSError) as error:
            failed = True
            print(f"{name} failed: {error}", file=sys.stderr)
    _show(results, version)
    print(json.dumps({"cases": results}), flush=True)
    return 1 if failed else 0


def _one(name: str, version: str, again: bool) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    if path.exists() and not again:
        kept: dict[str, Any] = json.loads(path.read_text())
        if kept["commit"] == version and not version.endswith("+"):
            return dict(kept["figures"])
    print(f"{name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    figures = CASES[name]()
    kept = {"commit": version, "machine": platform.platform(), "seconds": round(time.monotonic() - began, 1)}
    path.write_text(json.dumps({**kept, "figures": figures}, indent=1) + "\n")
    return figures


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

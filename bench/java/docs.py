"""Writes the comparison into docs/: its table and plots between two marks of performance.md."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.java.figures import Figure, Outcome
from bench.java.report import HEAD, row
from bench.java.state import State

PAGE = Path("docs/reference/performance.md")
BEGIN, END = "<!-- bench-java: begin -->", "<!-- bench-java: end -->"
RESULTS = Path("bench-results")


def write_docs(rows: Sequence[tuple[Figure, Outcome | None]], state: State, page: Path = PAGE) -> None:
    from bench.java.plots import draw  # matplotlib takes a second to load

    plots = draw(state.rounds, _scale_results(), page.parent)
    when = time.strftime("%Y-%m-%d")
    about = f"Buckram, sources {state.version}, {when}, {platform.machine()}, Python {platform.python_version()}."
    page.write_text(replaced(page.read_text(), section(rows, about, plots)))


def section(rows: Sequence[tuple[Figure, Outcome | None]], about: str, plots: dict[str, str]) -> str:
    """Markdown: the table, then the plots."""
    lines = [about, "", "| " + " | ".join(HEAD[:-1]) + " | |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(row(figure, found)) + " |" for figure, found in rows]
    for name, title in plots.items():
        lines += ["", f"![{title}]({name})"]
    return "\n".join(lines)


def replaced(text: str, between: str) -> str:
    """Return the page with the text between its marks replaced. Raises ValueError if it has no marks."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no marks {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{between}\n{END}{tail}"


def _scale_results() -> dict[str, dict[str, Any]]:
    """Return the results of the growth cases of `make bench`."""
    found = {}
    for path in sorted(RESULTS.glob("scale_*.json")):
        found[path.stem] = dict(json.loads(path.read_text())["figures"])
    return found

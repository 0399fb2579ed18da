"""The table at the terminal, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.java.figures import LOUD, Figure, Outcome
from bench.java.state import State


def number(value: float | None, unit: str) -> str:
    """Three digits that matter, thousands apart."""
    if value is None:
        return "-"
    shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{shown} {unit}".strip() if unit != "/s" else f"{shown}/s"


def limit(figure: Figure, value: float | None) -> str:
    if value is None:
        return "-"
    sign = "<=" if figure.less else ">="
    return f"{sign} {value:g} x" if figure.theirs else f"{sign} {value:g} {figure.unit}".strip()


def row(figure: Figure, found: Outcome | None) -> list[str]:
    """Cells: figure, ours, Apache's, ratio with range, must, aim, remark."""
    if found is None:
        return [figure.title, "-", "-", "not measured", limit(figure, figure.must), limit(figure, figure.aim), ""]
    ratio = ""
    if figure.theirs:
        ratio = f"{found.ratio:.2f}" + (f" ({found.low:.2f} to {found.high:.2f})" if found.rounds > 1 else "")
    elif found.rounds > 1:
        ratio = f"{found.low:.3g} to {found.high:.3g}"
    return [
        figure.title,
        number(found.ours, figure.unit),
        number(found.theirs, figure.unit),
        ratio,
        _verdict(limit(figure, figure.must), "met" if found.must_met else "MISSED"),
        _verdict(limit(figure, figure.aim), "met" if found.aim_met else "missed"),
        f"strangers {found.loud:.0%}" if found.loud > LOUD else "",
    ]


def _verdict(limit: str, verdict: str) -> str:
    return limit if limit == "-" else f"{limit} {verdict}"


HEAD = ("figure", "ours", "Apache", "ratio (range)", "must", "aim", "")


def show(rows: Sequence[tuple[Figure, Outcome | None]], version: str) -> None:
    table = Table(title=f"Buckram (sources {version}) and Apache BookKeeper", title_justify="left")
    for name in HEAD:
        table.add_column(name, justify="left" if name in ("figure", "") else "right")
    for figure, found in rows:
        table.add_row(*row(figure, found))
    Console(width=180).print(table)


def as_json(outcomes: Sequence[Outcome], state: State) -> dict[str, Any]:
    """{"figures": {NAME: {...}}, "must_missed": [...], "aim_missed": [...]}."""
    figures = {
        one.figure.name: {
            "ours": one.ours, "apache": one.theirs, "ratio": round(one.ratio, 4), "low": round(one.low, 4),
            "high": round(one.high, 4), "rounds": one.rounds, "must": one.figure.must, "aim": one.figure.aim,
            "must_met": one.must_met, "aim_met": one.aim_met, "foreign_share": one.loud,
        }
        for one in outcomes
    }  # fmt: skip
    return {
        "version": state.version,
        "figures": figures,
        "must_missed": [one.figure.name for one in outcomes if not one.must_met],
        "aim_missed": [one.figure.name for one in outcomes if not one.aim_met],
    }

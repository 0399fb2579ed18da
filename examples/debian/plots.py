"""Plots: bars in a terminal, and a PNG with the same and with what was written when things were killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from rich.console import Console

TERMINAL_WIDTH = 60
WIDTH, HEIGHT, MARGIN = 900, 320, 60
INK, GRID, BLUE, RED = "#222222", "#dddddd", "#3b6fb6", "#c0392b"


def bars(out: Console, title: str, rows: Sequence[tuple[int, int]]) -> None:
    out.print(f"\n [bold]{title}[/bold]")
    bar = bar_scale(max(count for _, count in rows))
    for name, count in rows:
        out.print(f"  {name} [blue]{bar(count)}[/blue] {count:,}")


def bar_scale(most: int) -> Callable[[int], str]:
    """Bars in eighths of a character, the longest TERMINAL_WIDTH wide."""
    eighths = " ▏▎▍▌▋▊▉"

    def bar(count: int) -> str:
        whole, part = divmod(round(count * TERMINAL_WIDTH * 8 / most), 8)
        return "█" * whole + (eighths[part] if part else "")

    return bar


def save(
    path: Path, years: Sequence[tuple[int, int]], seconds: Sequence[tuple[float, int]],
    events: Sequence[tuple[str, float]],
) -> None:  # fmt: skip
    """Two plots, one below the other; `events` are names and moments (seconds since 1970)."""
    picture = Image.new("RGB", (WIDTH, 2 * HEIGHT), "white")
    draw = ImageDraw.Draw(picture)
    if years:
        _plot(draw, 0, "changelog entries per year", [(float(y), n) for y, n in years], [], lambda x: f"{x:.0f}")
    if seconds:
        first = seconds[0][0]
        rows = [(at - first, count) for at, count in seconds]
        marks = [(name, at - first) for name, at in events]
        _plot(draw, HEIGHT, "packages written per second", rows, marks, lambda x: f"{x:.0f} s")
    picture.save(path)


def _plot(
    draw: ImageDraw.ImageDraw, top: int, title: str, rows: Sequence[tuple[float, int]],
    marks: Sequence[tuple[str, float]], label: Callable[[float], str],
) -> None:  # fmt: skip
    small, large = ImageFont.load_default(12), ImageFont.load_default(16)
    low, high = rows[0][0], max(rows[-1][0], *(at for _, at in marks), rows[0][0] + 1)
    most = max(count for _, count in rows)
    left, right, base, roof = MARGIN, WIDTH - MARGIN // 2, top + HEIGHT - 40, top + 50
    slot = (right - left) / (high - low + 1)

    def across(value: float) -> float:
        return left + (value - low) * slot

    draw.text((left, top + 12), title, INK, large)
    for part in range(5):
        y = base - (base - roof) * part / 4
        draw.line((left, y, right, y), GRID)
        draw.text((left - 8, y), f"{most * part / 4:,.0f}", INK, small, anchor="rm")
    for at, count in rows:
        x, y = across(at), base - (base - roof) * count / most
        draw.rectangle((x + slot * 0.1, min(y, base - 1), x + max(slot * 0.9, 1.0), base), BLUE)
    step = max(1, round((high - low) / 10))
    for number in range(int(high - low) // step + 1):
        value = low + number * step
        draw.text((across(value) + slot / 2, base + 6), label(value), INK, small, anchor="mt")
    for place, (name, at) in enumerate(marks):
        x = across(at) + slot / 2
        draw.line((x, roof - 6, x, base), RED)
        beside, anchor = (x - 4, "ra") if x > right - 100 else (x + 4, "la")
        draw.text((beside, roof - 8 + 14 * (place % 3)), name, RED, small, anchor=anchor)

"""The picture of an outlook, as SVG: what racks had in use, and where that leads."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from buckram.cli.planning.outlook import DAY_S, Outlook, Rack, thinned

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 420, 70, 170, 40, 50
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours that people with colour blindness can tell apart."""
MOST_DAYS = 730.0


def svg(found: Outlook) -> str:
    """Draw the use of each rack in percent of its capacity. Solid lines are the history, dashed ones the median from
    now on."""
    past = found.span_s / DAY_S
    ahead = min(MOST_DAYS, max((one.days for one in found.racks if one.days is not None), default=30.0) * 1.1 + 1)
    scale = _Scale(past, ahead)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12" role="img" aria-label="When racks are full">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">When racks are full</text>',
        *_axes(scale),
    ]
    for number, rack in enumerate(found.racks):
        parts += _rack(rack, scale, COLOURS[number % len(COLOURS)], number)
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Scale:
    """Days from now (the past is below 0) and parts of a rack, in the picture's units."""

    def __init__(self, past: float, ahead: float) -> None:
        self.past, self.ahead = past, ahead

    def x(self, days: float) -> float:
        return round(LEFT + (days + self.past) / (self.past + self.ahead) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, part: float) -> float:
        return round(HEIGHT - BOTTOM - min(part, 1.05) / 1.05 * (HEIGHT - TOP - BOTTOM), 1)


def _axes(scale: _Scale) -> Iterable[str]:
    right = WIDTH - RIGHT
    for percent in (0, 25, 50, 75, 100):
        y = scale.y(percent / 100)
        yield f'<line x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}" stroke="{"#999" if percent == 100 else "#ddd"}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{percent} %</text>'
    now = scale.x(0)
    yield f'<line x1="{now}" x2="{now}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#999"/>'
    for days in (0.0, scale.ahead / 2, scale.ahead):
        name = f"{days:.0f} days" if days else "now"
        yield f'<text x="{scale.x(days)}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{name}</text>'


def _rack(rack: Rack, scale: _Scale, colour: str, number: int) -> Iterable[str]:
    size = max(rack.usable_bytes, 1)
    newest = rack.points[-1].wall_s if rack.points else 0.0
    line = [(scale.x((one.wall_s - newest) / DAY_S), scale.y(one.used_bytes / size)) for one in thinned(rack.points)]
    now = rack.used_bytes / size
    if len(line) > 1:
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{_joined(line)}"/>'
    if rack.days is not None:
        until = min(rack.days, scale.ahead)
        then = now + (1 - now) * (until / rack.days if rack.days else 1)
        ahead = [(scale.x(0), scale.y(now)), (scale.x(until), scale.y(then))]
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="6 4"'
        yield f'<polyline {style} points="{_joined(ahead)}"/>'
    y = TOP + 10 + 36 * number
    said = "does not fill" if rack.days is None else f"full in {rack.days:.0f} days"
    yield f'<rect x="{WIDTH - RIGHT + 12}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
    yield f'<text x="{WIDTH - RIGHT + 28}" y="{y}">{escape(rack.rack[:22])}</text>'
    yield f'<text x="{WIDTH - RIGHT + 28}" y="{y + 15}" fill="#555">{said}</text>'


def _joined(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)

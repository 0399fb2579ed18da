"""Forecast of the time when racks are full, unchanged or after a change, and its picture as SVG.

Pure arithmetic; assumptions are part of the result. The growth of a rack is the median of the slopes between its
samples (`trend`), which one jump or one deletion does not move. Not here: the samples (`cli/planning/history.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

from buckram.cli.planning.history import Point, Sample, by_rack
from buckram.errors import InvalidArgument

DAY_S = 86_400.0
MOST_POINTS = 150
"""Maximum samples of which all pairs give slopes; more samples are thinned out evenly."""
LEAST_S = 3600.0
"""Minimum length of a history in seconds: a shorter one says nothing about days."""


# -- the growth of one rack -------------------------------------------------------------------------------


class Trend(NamedTuple):
    """Growth in bytes a day: the median of the slopes, and what nine of ten of them are above and below."""

    per_day: float
    low: float
    high: float


def trend(points: Sequence[Point]) -> Trend | None:
    """Return the trend of `points`, which are in the order of time; None if the history is too short."""
    if len(points) < 2 or points[-1].wall_s - points[0].wall_s < LEAST_S:
        return None
    chosen = thinned(points)
    gap = (chosen[-1].wall_s - chosen[0].wall_s) / 10  # neighbours tell of the moment, not of the trend
    slopes = sorted(
        (later.used_bytes - earlier.used_bytes) / (later.wall_s - earlier.wall_s) * DAY_S
        for place, earlier in enumerate(chosen)
        for later in chosen[place + 1 :]
        if later.wall_s - earlier.wall_s >= gap
    )
    middle = len(slopes) // 2
    median = slopes[middle] if len(slopes) % 2 else (slopes[middle - 1] + slopes[middle]) / 2
    tenth = len(slopes) // 10
    return Trend(median, slopes[tenth], slopes[-1 - tenth])


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> Sequence[Point]:
    """Return at most `most` points, evenly chosen, including the first and the last."""
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(place * step)] for place in range(most)]


# -- the outlook of all racks -----------------------------------------------------------------------------

FAR_DAYS = 36_500.0
"""Horizon of the outlook, days: what lies beyond counts as never."""


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """Planned change: added bookies, and the number of copies of data written from then on.

    `racks`: bookies to add by rack, which may be a new one; `bookie_bytes`: the size of each; `copies`: how many copies
    there will be for one that there is now (1.0: no change); `rebalance`: whether old copies are moved, too.
    """

    racks: Mapping[str, int] = field(default_factory=dict)
    bookie_bytes: int = 0
    copies: float = 1.0
    rebalance: bool = False


@dataclass(frozen=True, slots=True)
class Rack:
    """A rack, and when it is full. Days are None for never."""

    rack: str
    bookies: int
    total_bytes: int
    used_bytes: int
    usable_bytes: int
    """Bytes that the bookies take before they become read-only: all but their reserve."""
    per_day: float
    """Bytes, while no rack is full; low and high: what nine of ten stretches of the history are above and below."""
    low: float
    high: float
    days: float | None
    soonest_days: float | None
    latest_days: float | None
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Outlook:
    """All racks; `days` is when the last of them is full. `known` is False where the history is too short."""

    racks: tuple[Rack, ...]
    days: float | None
    first_days: float | None
    span_s: float
    known: bool
    assumed: tuple[str, ...]


def outlook(samples: Sequence[Sample], reserved_bytes: int, change: PlannedChange | None = None) -> Outlook:
    """Forecast when racks are full. `reserved_bytes`: free space of one bookie below which it is read-only. Raises
    InvalidArgument for an empty history."""
    points = by_rack(samples)
    if not points:
        raise InvalidArgument("the usage history is empty: let `buckram plan record --every 10m` run for a day or two")
    trends = {rack: trend(found) for rack, found in points.items()}
    known = all(one is not None for one in trends.values())
    newest = max(samples, key=lambda one: one.wall_s).bookies
    now = {rack: _Now(rack) for rack in points}
    for space in newest.values():
        one = now[space.rack]
        one.bookies += 1
        one.total += space.total_bytes
        one.used += space.used_bytes
    for rack, one in now.items():
        one.trend = trends[rack] or Trend(0.0, 0.0, 0.0)
    if change is not None:
        _apply(now, change)
    days = _fill(now, reserved_bytes, lambda one: one.trend.per_day)
    soonest = _fill(now, reserved_bytes, lambda one: one.trend.high)
    latest = _fill(now, reserved_bytes, lambda one: one.trend.low)
    racks = tuple(
        Rack(
            rack,
            one.bookies,
            one.total,
            one.used,
            one.usable(reserved_bytes),
            *one.trend,
            days[rack] if known else None,
            soonest[rack] if known else None,
            latest[rack] if known else None,
            tuple(points.get(rack, ())),
        )
        for rack, one in sorted(now.items())
    )
    times = [one.wall_s for one in samples]
    ends = [one.days for one in racks]
    return Outlook(
        racks,
        None if None in ends else max(one for one in ends if one is not None),
        min((one for one in ends if one is not None), default=None),
        max(times) - min(times),
        known,
        _assumed(change, reserved_bytes),
    )


class _Now:
    """A rack while it is reckoned with."""

    def __init__(self, rack: str) -> None:
        self.rack = rack
        self.bookies = self.total = self.used = 0
        self.trend = Trend(0.0, 0.0, 0.0)

    def usable(self, reserved: int) -> int:
        return max(0, self.total - reserved * self.bookies)


def _apply(now: dict[str, _Now], change: PlannedChange) -> None:
    for rack, count in change.racks.items():
        if count < 0 or (count and change.bookie_bytes <= 0):
            raise InvalidArgument(f"{count} bookies of {change.bookie_bytes} bytes in {rack}: both must be above 0")
        one = now.setdefault(rack, _Now(rack))
        one.bookies += count
        one.total += count * change.bookie_bytes
    bookies = sum(one.bookies for one in now.values())
    total = Trend(*(sum(one.trend[part] for one in now.values()) * change.copies for part in range(3)))
    used, room = sum(one.used for one in now.values()), sum(one.total for one in now.values())
    for one in now.values():
        if any(change.racks.values()):
            share = one.bookies / bookies
            one.trend = Trend(*(part * share for part in total))
        else:
            one.trend = Trend(*(part * change.copies for part in one.trend))
        if change.rebalance and room:
            one.used = round(used * one.total / room)


def _fill(now: Mapping[str, _Now], reserved: int, rate_of: Callable[[_Now], float]) -> dict[str, float | None]:
    """Return days until each rack is full. The load of a full one goes to the others, by their numbers of bookies."""
    left = {rack: float(one.usable(reserved) - one.used) for rack, one in now.items()}
    rates = {rack: rate_of(one) for rack, one in now.items()}
    found: dict[str, float | None] = dict.fromkeys(now)
    at = 0.0
    while rates:
        ends = {rack: max(0.0, left[rack]) / rate for rack, rate in rates.items() if rate > 0}
        if not ends:
            break
        rack = min(ends, key=lambda one: (ends[one], one))
        at += ends[rack]
        if at > FAR_DAYS:
            break
        found[rack] = at
        moved = rates.pop(rack)
        bookies = sum(now[one].bookies for one in rates)
        for other in rates:
            left[other] -= ends[rack] * rates[other]
            rates[other] += moved * now[other].bookies / bookies
    return found


def _assumed(change: PlannedChange | None, reserved_bytes: int) -> tuple[str, ...]:
    said = [
        "writes, retention and deletions continue as in the history",
        f"a bookie is full when {reserved_bytes} bytes are free ([store] reserved_bytes)",
        "when a rack is full, its writes go to the other racks, spread evenly over their bookies",
        "each bookie has a disk of its own",
        "the bookies of the newest sample stay, and no others return",
    ]
    if change is not None and any(change.racks.values()):
        said.append("new ledgers are spread evenly over all bookies, new ones included")
        said.append("old copies are rebalanced" if change.rebalance else "old copies stay where they are")
    if change is not None and change.copies != 1.0:
        said.append("existing data keep their copies, and are deleted by retention as before")
    return tuple(said)


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

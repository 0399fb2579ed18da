"""Directed schedules of wrong clocks (T1, T2). Each docstring says what a naive implementation would do wrong."""

from __future__ import annotations

import asyncio

from simulator.streams.bench import Bench, Scenario, bench_plan
from simulator.streams.clock_lives import clock_life
from simulator.streams.maintenance import JanitorActor
from simulator.streams.plan import StreamPlan

_DAY_US = 86_400_000_000
_NEAR_US = 60_000_000


def _true_us(b: Bench) -> int:
    """Return the time of a bookie's clock; in these schedules all of them are right within seconds."""
    return b.world.clock("b1").wall_us()


def _check_stamps(b: Bench) -> None:
    stamps = [seen.time for seen in b.history.known_records.values() if seen.time is not None]
    b.expect(bool(stamps), "no stamp was read")
    for stamp in stamps:
        b.report.check(
            "clocks",
            abs(stamp - _true_us(b)) < _NEAR_US,
            "a record is stamped {} s off",
            (stamp - _true_us(b)) // 1_000_000,
        )


async def _read(b: Bench) -> None:
    actor = await b.up("r1")
    reading = b.tail(actor, start="earliest")
    await b.until(lambda: reading.expected is not None and reading.expected >= b.history.top, "reading")


async def wrong_writer(b: Bench) -> None:
    """One writer's clock is eight days ahead, another's is set back while it writes: records are stamped with these."""
    b.world.clock("w1").put(8 * _DAY_US)
    first = await b.writer("w1")
    await b.append(first, 3)
    await b.roll(first)
    await b.append(first, 2)
    second = await b.writer("w2", takeover=True)
    await b.append(second, 2)
    b.world.clock("w2").put(-8 * _DAY_US)
    await b.append(second, 2)
    await _read(b)
    _check_stamps(b)
    b.world.clock("w1").put(0)
    b.world.clock("w2").put(0)


async def wrong_janitor(b: Bench) -> None:
    """A janitor's clock is eight days ahead from the start, another's is set ahead later, together with the bookies'
    for some rounds: records of a stream with a retention of one day are truncated."""
    recording = await b.writer("w1")
    await b.append(recording, 4)
    await b.roll(recording)
    await b.append(recording, 2)
    wrong, set_later = JanitorActor(b.stage, "j1"), JanitorActor(b.stage, "j2")
    for janitor in (wrong, set_later):
        assert await janitor.up(20)
    b.world.clock("j1").put(8 * _DAY_US)
    for _ in range(2):
        await _check_nothing_truncated(b, wrong, doubt=True)
    await _check_nothing_truncated(b, set_later, doubt=False)
    for host in ("j2", "b1", "b2", "b3"):
        b.world.clock(host).put(8 * _DAY_US)
    for _ in range(3):
        await _check_nothing_truncated(b, set_later, doubt=True)
        await asyncio.sleep(2.5)
    for host in ("j1", "j2", "b1", "b2", "b3"):
        b.world.clock(host).put(0)
    await asyncio.sleep(0.1)


async def _check_nothing_truncated(b: Bench, janitor: JanitorActor, *, doubt: bool) -> None:
    report = await janitor.inside(janitor.clean(), "clean")
    truncated = report.truncated_records
    b.report.check("clocks", truncated == 0, "{} records were truncated by a wrong clock", truncated)
    b.report.check(
        "clocks",
        bool(report.problems) == doubt,
        "the clocks are {}: {}",
        "wrong" if doubt else "right",
        report.problems,
    )


def _retention_of_a_day() -> StreamPlan:
    return bench_plan(retention_s=86_400.0)


WRONG_CLOCKS: dict[str, Scenario] = {
    "wrong-writer": Scenario(wrong_writer),
    "wrong-janitor": Scenario(wrong_janitor, _retention_of_a_day),
    "clock-life": Scenario(clock_life, _retention_of_a_day),
}

__all__ = ["WRONG_CLOCKS"]

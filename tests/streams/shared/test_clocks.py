"""Wrong clocks (T1, T2): the stamps of a writer, and deletions by age, when its clock and the bookies' disagree."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.streams.kit import eventually

from buckram.client.client import Client, connect
from buckram.core.streams.names import StreamName
from buckram.net.runtime import production_runtime
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.namespace import Namespace
from buckram.streams.shared.ledgers import list_intents
from buckram.streams.shared.metadata import StreamStore
from buckram.testing import Cluster, cluster

SECOND = 1_000_000
DAY = 86_400 * SECOND


class Clock:
    """The machine's wall time plus `ahead` microseconds."""

    def __init__(self, ahead: int = 0) -> None:
        self.ahead = ahead

    def wall_us(self) -> int:
        return time.time_ns() // 1000 + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(three_bookies: Cluster, clock: Clock) -> AsyncIterator[Client]:
    async with with_clock(three_bookies, clock) as connected:
        yield connected


@asynccontextmanager
async def with_clock(cluster: Cluster, clock: Clock) -> AsyncIterator[Client]:
    async with connect(cluster.uri, runtime=replace(production_runtime(), clock=clock)) as connected:
        yield connected


def near(time_us: int | None, clock: Clock) -> bool:
    return time_us is not None and abs(clock.wall_us() - time_us) < 30 * SECOND


async def stamps(ns: Namespace, stream: str = "s") -> list[int]:
    return [record.append_time for record in await _all(ns, stream)]


async def _all(ns: Namespace, stream: str) -> list[Any]:
    return [record async for record in ns.read(stream)]


@pytest.mark.parametrize("ahead", [8 * DAY, -8 * DAY])
async def test_a_writer_with_a_wrong_clock_stamps_with_the_median(
    client: Client, ns: Namespace, clock: Clock, ahead: int
) -> None:
    clock.ahead = ahead
    async with ns.writer("s") as writer:
        await writer.append_many([b"x"] * 10)
        row = await ns.segments("s").__anext__()
        assert near(row.created, Clock())
    found = await stamps(ns)
    assert len(found) == 10
    assert all(near(stamp, Clock()) for stamp in found)


async def test_a_clock_set_while_a_writer_is_open_does_not_move_its_stamps(
    client: Client, ns: Namespace, clock: Clock
) -> None:
    async with ns.writer("s") as writer:
        await writer.append(b"right")
        clock.ahead = 8 * DAY
        await writer.append(b"wrong")
        clock.ahead = 0
        await writer.append(b"right again")
    assert all(near(stamp, Clock()) for stamp in await stamps(ns))


async def test_one_bookie_with_a_wrong_clock_has_no_effect(
    client: Client, ns: Namespace, three_bookies: Cluster
) -> None:
    three_bookies._nodes[1].clock = Clock(8 * DAY)
    await three_bookies.restart(1)
    async with ns.writer("s") as writer:
        await writer.append(b"x")
    assert all(near(stamp, Clock()) for stamp in await stamps(ns))
    await eventually(lambda: _is_wrong(client, three_bookies.bookies[1]))
    assert await client.services.clocks.doubt() == ""


async def _is_wrong(client: Client, bookie: str) -> bool:
    await client.services.clocks.ask()
    return list(client.services.clocks.wrong()) == [bookie]


async def test_bulk_ledgers_are_stamped_with_the_median(client: Client, ns: Namespace, clock: Clock) -> None:
    clock.ahead = -8 * DAY
    await ns.create("s")
    bulk = await ns.bulk("s", application="job", version=1)
    ledger = await bulk.create_ledger()
    await ledger.append_many([b"x"] * 3)
    done = await bulk.publish([await ledger.close()])
    assert near(done.time, Clock())
    assert all(near(record.timestamp, Clock()) for record in await _all(ns, "s"))


async def test_a_janitor_with_a_wrong_clock_truncates_nothing(
    client: Client, ns: Namespace, three_bookies: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The records are seconds old, and the policy keeps a day."""
    await ns.create("s", retention_s=86_400)
    for _ in range(3):
        async with ns.writer("s") as writer:
            await writer.append_many([b"x"] * 10)
    wrong = Clock(8 * DAY)
    async with with_clock(three_bookies, wrong) as other:
        janitor = Janitor(other, JanitorSettings(grace_s=0))
        with caplog.at_level(logging.WARNING, "buckram.client"):
            for _ in range(2):
                report = await janitor.clean()
                assert (report.truncated_records, report.deleted_segments) == (0, 0)
                assert "own clock 20" in report.problems[0]
                assert "median of 3 bookies 20" in report.problems[0]
                assert "69120" in report.problems[0] or "69119" in report.problems[0]
        assert [record.message[:16] for record in caplog.records] == ["clocks are apart"]
        assert len(await stamps(ns)) == 30
        wrong.ahead = 0
        assert (await janitor.clean()).truncated_records == 0  # The clock was set since the last round.
        assert (await janitor.clean()).problems == []
    await ns.set_policy("s", retention_s=0.001)
    assert (await Janitor(client).clean()).truncated_records == 30


async def test_retention_by_size_and_cursors_needs_no_clock(ns: Namespace, three_bookies: Cluster) -> None:
    await ns.create("s", retention_bytes=0)
    async with ns.writer("s") as writer:
        await writer.append_many([b"x"] * 10)
    async with with_clock(three_bookies, Clock(8 * DAY)) as other:
        assert (await Janitor(other).clean()).truncated_records == 10


async def test_nothing_goes_by_age_in_the_round_after_all_clocks_were_set() -> None:
    """All clocks are set at once, so they agree, but the new time may be wrong everywhere."""
    clock = Clock()
    async with cluster(bookies=3, clock=clock) as c, with_clock(c, clock) as client:
        ns = client.namespace()
        await ns.create("s", retention_s=86_400)
        async with ns.writer("s") as writer:
            await writer.append_many([b"x"] * 10)
        janitor = Janitor(client, JanitorSettings(grace_s=0))
        assert (await janitor.clean()).problems == []
        clock.ahead = 8 * DAY
        report = await janitor.clean()
        assert report.truncated_records == 0
        assert "wall time was set 691200 s ahead since the last round" in report.problems[0]
        assert (await janitor.clean()).truncated_records == 10


async def test_a_wrong_clock_does_not_discard_ledgers_of_a_bulk_step(ns: Namespace, three_bookies: Cluster) -> None:
    await ns.create("s")
    bulk = await ns.bulk("s", application="job", version=1)
    ledger = await bulk.create_ledger()
    await ledger.append_many([b"x"] * 3)
    async with with_clock(three_bookies, Clock(8 * DAY)) as other:
        assert (await Janitor(other, JanitorSettings(grace_s=0)).clean()).discarded_ledgers == 0
        streams = StreamStore(other.services.store)
        head = (await streams.read(StreamName("shop", "s"))).head
        assert len(await list_intents(streams, head.uid)) == 1
    await bulk.publish([await ledger.close()])
    assert len(await _all(ns, "s")) == 3


async def test_the_command_line_shows_both_times() -> None:
    """Commands use the machine's clock, and the bookies are eight days behind it."""
    async with cluster(bookies=3, clock=Clock(-8 * DAY), metadata="sqlite") as c:
        code, out = await buckram("cluster", "check", "--json", "--metadata", c.uri)
        assert code == 1
        found = [one["found"] for one in json.loads(out)["problems"] if one["node"] == "clocks"]
        assert len(found) == 1
        assert "own clock 20" in found[0]
        assert "median of 3 bookies 20" in found[0]
        assert "s ahead" in found[0]
        code, out = await buckram("stream", "write", "s", "--json", "--metadata", c.uri, stdin=b"one\ntwo\n")
        assert code == 0, out
        async with with_clock(c, Clock(-8 * DAY)) as client:
            assert all(near(stamp, Clock(-8 * DAY)) for stamp in await stamps(client.namespace()))
        code, out = await buckram("stream", "truncate", "s", "--before-time", "1d", "--yes", "--metadata", c.uri)
        assert code == 2, out
        assert "median of 3 bookies" in out
        code, out = await buckram("namespace", "set", "default", "--set", "retention_s=1d", "--metadata", c.uri)
        assert code == 0, out
        code, out = await buckram("stream", "janitor", "--metadata", c.uri)
        assert code == 1, out
        assert "what goes by age: own clock" in out
        async with c.client() as client:
            assert len(await stamps(client.namespace())) == 2


async def buckram(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "buckram", *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate(stdin)
    assert process.returncode is not None
    return process.returncode, (out or errors).decode() if "--json" in arguments else (out + errors).decode()

"""Wrong clocks (T1, T2): the stamps of a writer, and deletions by age, when its clock and the bookies' disagree."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.support.clock import DAY, SECOND
from tests.support.clock import SettableClock as Clock
from tests.support.polling import eventually

from buckram.client.cluster import clocks as clocks_module
from buckram.cluster import Client, connect
from buckram.core.security.tokens import TokenRefused
from buckram.core.streams.names import StreamName
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.records.security_watcher import FollowedSecurity
from buckram.namespace import Namespace
from buckram.runtime.production import production_runtime
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.shared.ledgers import list_intents
from buckram.streams.shared.metadata import StreamStore
from buckram.testing import Cluster, cluster


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
        assert [record.message[:20] for record in caplog.records] == ["the time is in doubt"]
        assert len(await stamps(ns)) == 30
        wrong.ahead = 0
        assert (await janitor.clean()).problems == []  # The bookies agree with what the clock shows now.
    await ns.set_policy("s", retention_s=0.001)
    assert (await Janitor(client).clean()).truncated_records == 30


async def test_retention_by_size_and_cursors_needs_no_clock(ns: Namespace, three_bookies: Cluster) -> None:
    await ns.create("s", retention_bytes=0)
    async with ns.writer("s") as writer:
        await writer.append_many([b"x"] * 10)
    async with with_clock(three_bookies, Clock(8 * DAY)) as other:
        assert (await Janitor(other).clean()).truncated_records == 10


async def test_all_clocks_ahead_for_some_seconds_end_nothing_and_stamp_nothing() -> None:
    """All clocks are set at once, so they agree, but the new time may be wrong everywhere."""
    clock = Clock()
    async with cluster(bookies=3, clock=clock) as c, with_clock(c, clock) as client:
        ns = client.namespace()
        await ns.create("s", retention_s=86_400)
        async with ns.writer("s") as writer:
            await writer.append_many([b"x"] * 10)
        janitor = Janitor(client, JanitorSettings(grace_s=0))
        assert (await janitor.clean()).problems == []
        clock.ahead = 40 * DAY
        for _ in range(3):
            report = await janitor.clean()
            assert report.truncated_records == 0
            assert "wall time was set 3456000 s ahead to 20" in report.problems[0]
            assert "run steadily for 3" in report.problems[0]
        async with with_clock(c, clock) as late:  # it begins now, and the bookies tell it the time
            async with late.namespace().writer("s") as writer:
                await writer.append(b"y")
            assert "own clock 20" in (await Janitor(late, JanitorSettings(grace_s=0)).clean()).problems[0]
        clock.ahead = 0
        assert (await janitor.clean()).problems == []
        assert all(near(stamp, Clock()) for stamp in await stamps(ns))
        await ns.set_policy("s", retention_s=0.001)
        assert (await janitor.clean()).truncated_records == 11


async def test_a_clock_that_stays_ahead_is_believed_when_it_has_held_for_an_hour() -> None:
    clock = Clock()
    async with cluster(bookies=3, clock=clock) as c, with_clock(c, clock) as client:
        ns = client.namespace()
        await ns.create("s", retention_s=86_400)
        async with ns.writer("s") as writer:
            await writer.append_many([b"x"] * 10)
        janitor = Janitor(client, JanitorSettings(grace_s=0))
        clock.passed = 120 * SECOND
        await client.services.clocks.doubt()  # all look at their clocks before these are set
        clock.ahead = 8 * DAY
        assert (await janitor.clean()).truncated_records == 0
        clock.passed += 4 * 3600 * SECOND
        assert (await janitor.clean()).truncated_records == 0, "nobody saw it hold"
        await clock.hold(3590 * SECOND, client.services.clocks.doubt)
        assert (await janitor.clean()).truncated_records == 0
        clock.passed += 20 * SECOND
        assert (await janitor.clean()).truncated_records == 0  # first the bookies record what they came to believe
        await eventually(lambda: _is_certain(client))
        report = await janitor.clean()
        assert (report.problems, report.truncated_records) == ([], 10)


async def _is_certain(client: Client) -> bool:
    return not await client.services.clocks.doubt()


async def test_what_was_written_in_doubt_is_as_young_as_it_is_when_the_jump_is_believed() -> None:
    """As after a pause of the whole cluster that no clock of its machines counted."""
    clock = Clock()
    async with cluster(bookies=3, clock=clock) as c, with_clock(c, clock) as client:
        ns = client.namespace()
        await ns.create("s", retention_s=86_400)
        async with ns.writer("s") as writer:
            await writer.append_many([b"before"] * 10)
            janitor = Janitor(client, JanitorSettings(grace_s=0))
            clock.passed = 120 * SECOND
            await client.services.clocks.doubt()
            clock.ahead = 8 * DAY
            assert (await janitor.clean()).truncated_records == 0
            await writer.append_many([b"meanwhile"] * 5)
            await clock.hold(3610 * SECOND, client.services.clocks.doubt)
            await writer.append_many([b"after"] * 3)
        await eventually(lambda: _is_certain(client))
        assert (await janitor.clean()).truncated_records == 10
        clock.passed += DAY - 7200 * SECOND
        assert (await janitor.clean()).truncated_records == 0
        clock.passed += 10_900 * SECOND
        assert (await janitor.clean()).truncated_records == 8


async def test_a_stream_that_was_stamped_ahead_ages_right_when_clocks_are_right() -> None:
    """All clocks were 40 days ahead from the first start on, and were set right: stamps stay ahead for 40 days."""
    clock = Clock(40 * DAY)
    async with cluster(bookies=3, clock=clock) as c, with_clock(c, clock) as client:
        ns, janitor = client.namespace(), Janitor(client, JanitorSettings(grace_s=0, join_at=1000))
        await ns.create("s", retention_s=86_400)
        for count in (1, 2):
            async with ns.writer("s") as writer:
                await writer.append_many([b"ahead"] * count)
        clock.ahead = 0
        assert await client.services.clocks.doubt()
        await clock.hold(3700 * SECOND, client.services.clocks.doubt)
        await eventually(lambda: _is_certain(client))
        for count in (4, 8, 16):
            async with ns.writer("s") as writer:
                await writer.append_many([b"right"] * count)
            clock.passed += DAY // 2
        found = await stamps(ns)
        assert min(found) > clock.true_us() + 30 * DAY
        assert (await janitor.clean()).truncated_records == 3 + 4
        clock.passed += DAY // 3
        assert (await janitor.clean()).truncated_records == 0
        clock.passed += DAY // 6
        assert (await janitor.clean()).truncated_records == 8
        async with ns.writer("s") as writer:
            await writer.append(b"next")
        clock.passed += DAY + 60 * SECOND
        assert (await janitor.clean()).truncated_records == 16


async def test_a_client_that_nobody_asks_watches_its_clock_while_it_is_in_doubt(
    three_bookies: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where bookies tell no time, such as those of Apache, it comes to believe its clock by itself."""
    monkeypatch.setattr(clocks_module, "_WATCH_S", 0.01)
    for number in range(3):
        await three_bookies.stop(number)
    async with with_clock(three_bookies, clock) as client:
        clocks = client.services.clocks
        await clocks.ask()
        assert clocks._watch is None, "there is no doubt about its own clock"
        clock.ahead = 8 * DAY
        await clocks.ask()

        async def looked() -> None:
            since = clock.up_us()
            await eventually(lambda: _has_looked(client, since))

        await clock.hold(3590 * SECOND, looked)
        assert clocks._own.doubtful
        await clock.hold(20 * SECOND, looked)
        assert not clocks._own.doubtful
        assert clocks._watch is None
        clock.ahead = 16 * DAY
        await clocks.ask()
        watch = clocks._watch
    assert watch is not None
    assert watch.cancelled()


async def _has_looked(client: Client, since_us: int) -> bool:
    return client.services.clocks._own._read_at >= since_us


async def test_a_token_is_judged_by_all_that_the_time_may_be(client: Client, clock: Clock) -> None:
    security = SecurityStore(client.services.store)
    await security.prepare()
    now = clock.wall_us() / 1e6
    texts = [(await security.create_token("alice", (), now, now + age))[1] for age in (3600, 90 * 86_400)]
    followed = FollowedSecurity(client.services.store, client.services.clocks)
    await followed.start()
    try:
        short, long = (followed.verify(text) for text in texts)
        clock.ahead = 40 * DAY
        assert followed.verify(texts[1]) == long
        with pytest.raises(TokenRefused, match="expired"):
            followed.verify(texts[0])
        assert followed.why_over(short)
        clock.ahead, clock.passed = -40 * DAY, 2 * 3600 * SECOND
        with pytest.raises(TokenRefused):  # it stays expired, whatever the clock shows
            followed.verify(texts[0])
        with pytest.raises(TokenRefused, match="from the future"):
            followed.verify(texts[1])
        clock.ahead = 0
        assert followed.verify(texts[1]) == long
    finally:
        await followed.close()


async def test_nothing_has_ended_before_a_bookie_was_asked(three_bookies: Cluster, clock: Clock) -> None:
    clock.ahead = 40 * DAY
    async with with_clock(three_bookies, clock) as client:
        clocks = client.services.clocks
        assert not clocks.ended(clock.true_us() + DAY)
        assert not clocks.ended(clock.true_us() - DAY), "it has, and nobody knows yet"
        assert (clocks.moment().why, clocks.moment().earliest) == ("no bookie has been asked for its time yet", 0)
        await clocks.ensure()
        assert not clocks.ended(clock.true_us() + DAY)
        clock.ahead = 0
        await clocks.ask()
        assert clocks.ended(clock.true_us() - DAY)


async def test_an_expired_token_stays_expired_for_a_process_that_starts_with_a_clock_that_is_behind(
    three_bookies: Cluster, clock: Clock
) -> None:
    """It asks the bookies; where none is there, it goes by what they recorded."""
    async with three_bookies.client() as client:
        security = SecurityStore(client.services.store)
        await security.prepare()
        now = clock.wall_us() / 1e6
        text = (await security.create_token("alice", (), now - 20 * 86_400, now - 10 * 86_400))[1]
    clock.ahead = -15 * DAY
    for bookies in (3, 0):
        if not bookies:
            for number in range(3):
                await three_bookies.stop(number)
        async with with_clock(three_bookies, clock) as client:
            followed = FollowedSecurity(client.services.store, client.services.clocks)
            await followed.start()
            try:
                with pytest.raises(TokenRefused, match="expired"):
                    followed.verify(text)
            finally:
                await followed.close()


async def test_a_janitor_that_starts_ends_nothing_while_no_bookie_is_there(
    ns: Namespace, three_bookies: Cluster, clock: Clock
) -> None:
    """Truncating changes metadata alone, so that nothing else keeps it from going by its own clock."""
    await ns.create("s", retention_s=86_400)
    for _ in range(3):
        async with ns.writer("s") as writer:
            await writer.append_many([b"x"] * 10)
    for number in range(3):
        await three_bookies.stop(number)
    for ahead in (8 * DAY, 0):
        clock.ahead = ahead
        async with with_clock(three_bookies, clock) as other:
            report = await Janitor(other, JanitorSettings(grace_s=0, orphans=False)).clean()
            assert (report.truncated_records, report.problems[0].partition(": ")[2]) == (
                0,
                "no bookie tells its time",
            )


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
        found = [one["found"] for one in json.loads(out)["problems"] if one["node"] == "this machine"]
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

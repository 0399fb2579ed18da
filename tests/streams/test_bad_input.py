"""Bad arguments raise InvalidArgument, which names the value, before anything is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from buckram.cli.shared import values
from buckram.cli.stream.read import Form
from buckram.errors import InvalidArgument, OffsetOutOfRange
from buckram.namespace import Namespace
from buckram.serve.json_views.records import record_json
from buckram.streams.maintain.history.row_compare import first_difference
from buckram.streams.write import record_arguments as records
from buckram.types import MAX_TIME, MIN_TIME

NO_UTF8 = "\ud800"


async def done(attempt: Callable[[], Any]) -> None:
    result = attempt()
    await (result if inspect.isawaitable(result) else anext(result))


async def refused(attempts: dict[str, Callable[[], Any]]) -> None:
    """Check that each call raises InvalidArgument, at once or when awaited, with the key in its message."""
    for said, attempt in attempts.items():
        with pytest.raises(InvalidArgument) as caught:
            await done(attempt)
        assert said in str(caught.value), str(caught.value)


async def test_bad_records_are_refused(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        await refused(
            {
                "header '\\ud800'": lambda: w.append(b"", headers={NO_UTF8: b"x"}),
                "headers [1]": lambda: w.append(b"", headers=[1]),
                "headers 5": lambda: w.append(b"", headers=5),
                "names are str, values are bytes": lambda: w.append(b"", headers={"a": "b"}),
                "producer '\\ud800'": lambda: w.append(b"", producer=NO_UTF8, sequence=0),
                "producer 5": lambda: w.append(b"", producer=5, sequence=0),
                "needs both": lambda: w.append(b"", sequence=0),
                "sequence -1": lambda: w.append(b"", producer="p", sequence=-1),
                "not one int": lambda: w.append_many(5),
                "not one bytes": lambda: w.append_many(b"abc"),
                "keys are a sequence, not int": lambda: w.append_many([b""], keys=5),
                "2 keys for 1 values": lambda: w.append_many([b""], keys=[b"", b""]),
                "not str": lambda: w.append("x"),
                "timestamp 1.5": lambda: w.append(b"", timestamp=1.5),
                f"timestamp {2**70}": lambda: w.append(b"", timestamp=2**70),
                "txid -1": lambda: w.append(b"", txid=-1),
                "txid True": lambda: w.append(b"", txid=True),
            }
        )
        assert await w.append(b"fine") == 0


async def test_bad_offsets_and_times_of_readers_are_refused(ns: Namespace) -> None:
    async with ns.writer("s") as w:
        await w.append_many([b"1", b"2"])
    await refused(
        {
            "start 1.5": lambda: ns.read("s", start=1.5),
            "start None": lambda: ns.read("s", start=None),
            "start True": lambda: ns.read("s", start=True),
            "start -1": lambda: ns.read("s", start=-1),
            "start 'first'": lambda: ns.read("s", start="first"),
            "stop 1.5": lambda: ns.read("s", stop=1.5),
            "stop b'x'": lambda: ns.read("s", stop=b"x"),
            "time 1.5": lambda: ns.read("s", start_time=1.5),
            "time 'now'": lambda: ns.read("s", stop_time="now"),
            "start_txid -1": lambda: ns.read("s", start_txid=-1),
            "one of start": lambda: ns.read("s", start=1, start_time=1),
            "on_truncated 'x'": lambda: ns.read("s", on_truncated="x"),
            "name of a cursor must be a str": lambda: ns.read("s", cursor=5),
            "offset 1.5": lambda: ns.get("s", 1.5),
            "offset -1": lambda: ns.get("s", -1),
        }
    )
    reader = ns.read("s", cursor="c")
    await refused(
        {
            "seek(1.5)": lambda: reader.seek(1.5),
            "seek(-1)": lambda: reader.seek(-1),
            "commit(1.5)": lambda: reader.commit(1.5),
            "commit(-1)": lambda: reader.commit(-1),
            "commit(2)": lambda: reader.commit(2),
        }
    )
    for attempt in (lambda: reader.seek(3), lambda: ns.get("s", 3), lambda: ns.read("s", start=3).open()):
        with pytest.raises(OffsetOutOfRange, match=r"offset 3 is out of range: earliest is 0, the next .* is 2"):
            await attempt()
    await reader.seek(1)
    assert [record.value async for record in reader] == [b"2"]
    async with ns.read("s", follow=True) as follower:
        await follower.seek(100)


async def test_bad_values_for_the_head_are_refused(ns: Namespace) -> None:
    """A malformed head would make the stream unreadable."""
    async with ns.writer("s") as w:
        await w.append_many([b"1", b"2"])
    await refused(
        {
            "before=1.5": lambda: ns.truncate("s", before=1.5),
            "before='1'": lambda: ns.truncate("s", before="1"),
            "before=-1": lambda: ns.truncate("s", before=-1),
            "before=True": lambda: ns.truncate("s", before=True),
            "keep_bytes=-1": lambda: ns.truncate("s", keep_bytes=-1),
            "exactly one": lambda: ns.truncate("s"),
            "not 5": lambda: ns.writer("s", name=5),
            "200 bytes": lambda: ns.writer("s", name="x" * 1000),
            "not '\\ud800'": lambda: ns.writer("s", name=NO_UTF8),
            "linger_ms = 'x'": lambda: ns.writer("s", linger_ms="x"),
            "property 'a': 5": lambda: ns.set_properties("s", {"a": 5}),
            "property '\\ud800'": lambda: ns.create("t", properties={NO_UTF8: ""}),
            "not int": lambda: ns.create("t", properties=5),
            "roll_s = nan": lambda: ns.create("t", roll_s=float("nan")),
            "version 1.5": lambda: ns.bulk("s", application="a", version=1.5),
            "offset 1.5": lambda: ns.move_cursor("s", "c", 1.5),
        }
    )
    info = await ns.info("s")
    assert (info.earliest, info.end) == (0, 2)
    bulk = await ns.bulk("s", application="a", version=1)
    await refused({"5 is no SealedLedger": lambda: bulk.publish([5])})


async def test_bad_arguments_of_lists_are_refused(ns: Namespace) -> None:
    await ns.create("s")
    await refused(
        {
            "limit=0": lambda: ns.list(limit=0),
            "limit='x'": lambda: ns.list(limit="x"),
            "prefix=5": lambda: ns.list(prefix=5),
            "after=5": lambda: ns.list(after=5),
            "limit 0": lambda: ns.cursors("s", limit=0),
        }
    )


NANOSECONDS = 1_795_161_600_123_456_789


async def test_event_times_that_are_no_microseconds_are_refused(ns: Namespace) -> None:
    """What Python, Spark and SQL could not show later: nanoseconds since 1970, and times before the year 1."""
    said = (
        f"timestamp {NANOSECONDS}: is after the year 9999 (more than 253402300799999999): give microseconds since 1970"
    )
    await ns.create("bulk")
    ledger = await (await ns.bulk("bulk", application="a", version=0)).create_ledger()
    async with ns.writer("s") as w:
        for attempt in (
            lambda: w.append(b"", timestamp=NANOSECONDS),
            lambda: w.append_nowait(b"", timestamp=NANOSECONDS),
            lambda: w.append_many([b"", b""], timestamps=[0, NANOSECONDS]),
            lambda: ledger.append_many([b""], timestamps=[NANOSECONDS]),
        ):
            with pytest.raises(InvalidArgument) as caught:
                await done(attempt)
            assert said in str(caught.value)
            assert f"as nanoseconds it is {NANOSECONDS // 1000} microseconds" in str(caught.value)
        with pytest.raises(InvalidArgument, match=r"before the year 1 .*give microseconds"):
            await w.append(b"", timestamp=MIN_TIME - 1)
        for time in (MIN_TIME, MAX_TIME):
            await w.append(b"", timestamp=time)
    async with ns.read("s") as reader:
        times = [record.timestamp async for record in reader]
    assert times == [MIN_TIME, MAX_TIME]
    assert [values.iso(time)[:11] for time in times] == ["1-01-01T00:", "9999-12-31T"]


async def test_event_times_of_earlier_releases_are_printed_as_numbers(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_TIME", 2**62)  # as it was
    async with ns.writer("a") as a:
        offset = await a.append(b"x", timestamp=NANOSECONDS)
    record = await ns.get("a", offset)
    assert record_json(record)["timestamp_us"] == NANOSECONDS
    assert Form(False, False, None, True).show([record]) == b"%d us x\n" % NANOSECONDS
    times = [pa.record_batch({"timestamp": pa.array([time], pa.timestamp("us", "UTC"))}) for time in (0, NANOSECONDS)]
    found = first_difference(*times, ("timestamp",))
    assert found is not None
    assert (found.a, found.b) == ("1970-01-01 00:00:00+00:00", f"{NANOSECONDS} us")

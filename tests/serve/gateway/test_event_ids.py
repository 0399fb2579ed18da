"""Who follows a stream and comes again after it went back with its metadata is told so, and loses nothing else."""

from __future__ import annotations

import asyncio

import pytest
from tests.replication.kit import SPACE, append, numbered, pair, space
from tests.replication.restoring import backed_up, went_back
from tests.serve.gateway.kit import Api, Events, serving
from tests.support.polling import until

from buckram.serve.gateway.streams.tails import EventId, parse_id, suffix_of
from buckram.serve.http.problems import HttpProblem
from buckram.types import History

TAIL = f"/v2/namespaces/{SPACE}/streams/orders/tail"


def test_ids_are_offsets_until_the_metadata_were_restored() -> None:
    assert [suffix_of(History(epoch), 7) for epoch in (0, 1, 2)] == ["", "", "-2-7"]
    assert parse_id("120") == EventId(120)
    assert parse_id("120-2-7") == EventId(120, 2, 7)
    for bad in ("", "-1", "1-2", "1-2-3-4", "a", "1" * 20, "\u0661"):
        with pytest.raises(HttpProblem, match="needs the id that the last event had"):
            parse_id(bad)


async def test_a_follower_is_told_that_the_stream_went_back() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        made = await backed_up(both.of_a)
        await append(both.a, numbered(3, 6))
        async with serving(both.a.client) as gateway:
            events = await Events.of(gateway.url, f"{TAIL}?start=earliest")
            assert await events.offsets(6) == list(range(6))
            await events.close()
        async with went_back(both, made) as after:
            bookies = after.a.client.services.bookies
            await until(lambda: bool(bookies.bookies.writable), "the bookie does not believe the store")
            await append(after.a, [b"other %d" % number for number in range(5)])
            async with serving(after.a.client) as gateway:
                api = await Api.to(gateway.url)

                async def code(last: str) -> object:
                    async with asyncio.timeout(10):  # one that is not refused is followed without an end
                        return await api.code(f"GET {TAIL}", Last_Event_ID=last)

                # An offset alone was given before the restore; whether its record is still there, nobody knows.
                assert await code("4") == (409, "STREAM_WENT_BACK")
                assert await code("2") == (409, "STREAM_WENT_BACK")
                chosen = await Events.of(gateway.url, f"{TAIL}?start=earliest")
                ids = [(await chosen.next())["id"] for _ in range(8)]
                await chosen.close()
                times = [int(one.split("-")[2]) for one in ids]
                assert [one.rpartition("-")[0] for one in ids] == [f"{offset}-2" for offset in range(8)]
                again = await Events.of(gateway.url, TAIL, Last_Event_ID=ids[4])
                assert [(await again.next())["id"] for _ in range(3)] == ids[5:], "of this history: nothing is compared"
                await again.close()
                # Of an earlier one: the record is compared.
                same = await Events.of(gateway.url, TAIL, Last_Event_ID=f"1-1-{times[1]}")
                assert (await same.next())["id"] == ids[2]
                await same.close()
                assert await code(f"4-1-{times[4] - 1}") == (409, "STREAM_WENT_BACK")
                assert await code(f"40-1-{times[4]}") == (416, "OFFSET_OUT_OF_RANGE")
                await space(after.a).truncate("orders", before=3)
                assert await code(f"1-1-{times[1]}") == (409, "STREAM_WENT_BACK")
                await api.raw.close()

"""Wall clocks of whole processes that jump: all of them for seconds, one alone, one again and again, one at its start.

Bookies, a gateway, a janitor and a client are processes with a clock each. Nothing is ended before its age, nothing
that ended counts again, and when clocks are right ages are right within a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from tests.e2e.clocks_kit import BELIEVE_S, DAY_S, EVERYBODY, Site, ended, site_at, token
from tests.e2e.conftest import buckram
from tests.support.polling import eventually, until

from buckram.cluster import Client
from buckram.core.streams.metadata.head import HISTORY, LEDGER
from buckram.namespace import Namespace
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.shared_ledgers import holders

pytestmark = [pytest.mark.share(6, "clusters"), pytest.mark.asyncio(loop_scope="module")]
OBJECTS, UPLOADS = "/v2/namespaces/default/objects", "/v2/namespaces/default/uploads"
WITHIN_S = 60.0
"""By then ages are right when clocks are right."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder: Path = tmp_path_factory.mktemp("clocks")
    made = await asyncio.to_thread(Site, folder, *await site_at(folder))
    try:
        yield made
    finally:
        await asyncio.to_thread(made.close)


async def values(ns: Namespace, stream: str) -> list[bytes]:
    return [record.value async for record in ns.read(stream)]


async def filled(ns: Namespace, stream: str, count: int) -> None:
    for _ in range(count):
        async with ns.writer(stream) as writer:
            await writer.append_many([stream.encode()] * 4)


def names(site: Site) -> list[str]:
    return [one["object"].rpartition("/")[2] for one in site.done("GET", OBJECTS)["objects"]]


async def rounds(site: Site, count: int) -> None:
    """Wait until the janitor has made so many more rounds."""
    wanted = len(site.janitor.rounds) + count
    await until(lambda: len(site.janitor.rounds) >= wanted, "the janitor makes no rounds", 60.0)


def certain(site: Site) -> bool:
    """Whether the janitor's newest round was certain of the time."""
    return bool(site.janitor.rounds) and not site.janitor.rounds[-1]["problems"]


async def settled(site: Site) -> None:
    await rounds(site, 1)
    await until(lambda: certain(site), f"the time stays in doubt: {site.janitor.rounds[-1]}", 60.0)


def done_since(site: Site, begin: int) -> list[tuple[int, int, int]]:
    """What the janitor truncated, deleted and discarded since that round."""
    what = ("truncated_records", "deleted_segments", "discarded_ledgers")
    return [found for one in site.janitor.rounds[begin:] if any(found := tuple(one[name] for name in what))]


class Found(NamedTuple):
    """A stream's records, where its segments are and which ledgers or files they have, and who holds its ledgers."""

    records: int
    segments: list[tuple[str, int]]
    holders: list[list[str]]


class Shared:
    """Segments that went to history or go there by age, and segments that a stream and its fork hold. Nothing of them
    ends within 30 days."""

    STREAMS = ("moved", "moved-fork", "unmoved", "twin", "twin-fork")

    def __init__(self, ns: Namespace, client: Client, folder: Path) -> None:
        self._ns, self._store, self._folder = ns, StreamStore(client.services.store), folder

    async def make(self) -> None:
        ns, month, to = self._ns, 30 * DAY_S, str(self._folder)
        await ns.create("moved", offload_to=to, offload_after_s=0, retention_s=month)
        await ns.create("unmoved", offload_to=to, offload_after_s=month, retention_s=month)
        await ns.create("twin", retention_s=month)
        for stream in ("moved", "unmoved", "twin"):
            await filled(ns, stream, 2)
        await eventually(lambda: self.is_history("moved"), "nothing goes to history", WITHIN_S)
        for stream in ("moved", "twin"):
            await ns.fork_stream(stream, f"{stream}-fork")

    async def is_history(self, stream: str) -> bool:
        return [row.kind async for row in self._ns.segments(stream)] == [HISTORY] * 2

    async def found(self, *streams: str) -> dict[str, Found]:
        found: dict[str, Found] = {}
        for stream in streams or self.STREAMS:
            rows = [row async for row in self._ns.segments(stream)]
            held = [await holders(self._store, row.ledger) for row in rows if row.kind == LEDGER]
            found[stream] = Found(len(await values(self._ns, stream)), [(row.kind, row.ledger) for row in rows], held)
        return found

    async def everything(self) -> tuple[dict[str, Found], list[Path]]:
        """What all streams have, and the files of history."""
        return await self.found(), sorted(self._folder.rglob("*.parquet"))

    async def ends_when_it_is_old(self) -> None:
        """It is some seconds old, so it ends by an age of one second; what forks hold stays."""
        ns, (moved, twin) = self._ns, (await self.found("moved-fork", "twin-fork")).values()
        assert [len(names) for names in twin.holders] == [2, 2]
        for stream in ("moved", "twin"):
            await ns.set_policy(stream, retention_s=1)
        await ns.set_policy("unmoved", offload_after_s=1)

        async def ended() -> bool:
            gone = not await values(ns, "moved") and not await values(ns, "twin") and await self.is_history("unmoved")
            alone = (await self.found("twin-fork"))["twin-fork"].holders
            return gone and [len(names) for names in alone] == [1, 1]

        await eventually(ended, "what is old does not end", WITHIN_S)
        now = await self.found("moved-fork", "twin-fork", "unmoved")
        assert now["moved-fork"] == moved
        assert (now["twin-fork"].records, now["twin-fork"].segments) == (twin.records, twin.segments)
        assert [one.records for one in now.values()] == [8, 8, 8]


async def counted(site: Site) -> dict[str, int]:
    """How many ledgers and streams the usage of the namespace has, when it was counted."""

    async def count() -> bool:
        usage = await asyncio.to_thread(site.done, "GET", "/v2/usage")
        found.update({what: usage["namespaces"].get("default", {}).get(what, 0) for what in ("ledgers", "streams")})
        return bool(found["ledgers"])

    found: dict[str, int] = {}
    await eventually(count, "nothing is counted", WITHIN_S)
    return found


async def test_all_clocks_are_40_days_ahead_for_8_seconds(site: Site) -> None:
    async with site.connect() as client:
        await _all_ahead(site, client)


async def _all_ahead(site: Site, client: Client) -> None:
    ns, uri = client.namespace(), site.uri
    month, expired = await token(uri, -DAY_S, 30 * DAY_S), await token(uri, -20 * DAY_S, -10 * DAY_S)
    await ns.create("kept", retention_s=30 * DAY_S)
    await ns.create("cursored", retention_s=30 * DAY_S, retention_cursors=True)
    await ns.create("source", retention_s=30 * DAY_S)
    for stream in ("kept", "cursored", "source"):
        await filled(ns, stream, 2)
    await ns.move_cursor("cursored", "reader", 3)
    await ns.fork_stream("source", "fork", offset=6)
    await ns.delete("source")  # its segments are held by the fork alone
    step = await ns.bulk("kept", application="job", version=1)
    prepared = await step.create_ledger()
    await prepared.append_many([b"prepared"] * 3)
    site.done("PUT", f"{OBJECTS}/month?expires_s={30 * DAY_S}", b"month")
    upload = site.done("POST", f"{UPLOADS}/big")["upload"]
    part = site.done("PUT", f"{UPLOADS}/big?upload={upload}&part=0", b"part")
    assert part["bytes"] == 4
    shared = Shared(ns, client, site.folder / "history")
    await shared.make()
    before, usage = await shared.everything(), await counted(site)
    await settled(site)
    began = len(site.janitor.rounds)

    async with ns.writer("live") as writer:
        await writer.append(b"before")
        site.done("PUT", f"{OBJECTS}/brief?expires_s=15", b"brief")
        site.set_clocks(40 * DAY_S)
        until_s = time.monotonic() + 8
        assert site.ask("GET", OBJECTS, token=month).status == 401, "in doubt it has to count at both times"
        assert site.ask("GET", OBJECTS, token=expired).status == 401
        await writer.append(b"meanwhile")
        site.done("PUT", f"{OBJECTS}/meanwhile?expires_s=15", b"meanwhile")
        await ns.create("brief", retention_s=1)
        await filled(ns, "brief", 2)
        await rounds(site, 4)
        assert not certain(site)
        assert {"month", "brief", "meanwhile"} <= set(names(site))
        assert await shared.everything() == before
        await until(lambda: time.monotonic() >= until_s)
        site.set_clocks(0)
        back = time.monotonic()
        await writer.append(b"after")
    assert await values(ns, "live") == [b"before", b"meanwhile", b"after"]

    assert site.ask("GET", OBJECTS, token=month).status != 401
    assert site.ask("GET", OBJECTS, token=expired).status == 401
    assert [len(await values(ns, stream)) for stream in ("kept", "cursored", "fork")] == [8, 8, 6]
    assert [(one.name, one.offset) for one in await ns.cursors("cursored")] == [("reader", 3)]
    await step.publish([await prepared.close()])
    assert len(await values(ns, "kept")) == 11
    assert await shared.everything() == before
    for what, number in (await counted(site)).items():
        assert number >= usage[what], f"{what} have ended"
    done = site.done("POST", "/v2/namespaces/default/complete-upload/big", {"upload": upload, "parts": 1})
    assert done["bytes"] == 4

    async def aged() -> bool:
        return await values(ns, "brief") == [] and not {"brief", "meanwhile"} & set(names(site))

    await eventually(aged, "what is old does not end", WITHIN_S)
    assert time.monotonic() - back < WITHIN_S
    assert {"month", "big"} <= set(names(site))
    assert [len(await values(ns, stream)) for stream in ("kept", "cursored", "fork")] == [11, 8, 6]
    assert [found[0] for found in done_since(site, began) if found[0]] == [8], "only what was old"
    await shared.ends_when_it_is_old()


def found(site: Site, *words: str) -> dict[str, tuple[str, str]]:
    """The states of clocks that a command finds, by state and place: how bad it is, and why."""
    said = buckram(*words, "--json", uri=site.uri)
    rows = {f"{one['what']} {one['where']}": (one["severity"], one["why"]) for one in said.json["problems"]}
    assert said.code == any(severity == "error" for severity, _ in rows.values())
    return {name: row for name, row in rows.items() if name.startswith("clock")}


async def test_one_process_alone_is_ahead_or_behind(site: Site) -> None:
    # A clock that went away and came back a moment ago, and does so twice more, is one that is set again and again.
    await until(lambda: time.monotonic() - site.set_at > BELIEVE_S + 5, "clocks are set all the time", 2 * BELIEVE_S)
    async with site.connect() as client:
        ns, began = client.namespace(), len(site.janitor.rounds)
        await ns.create("one", retention_s=30 * DAY_S)
        await filled(ns, "one", 2)
        site.done("PUT", f"{OBJECTS}/one?expires_s={30 * DAY_S}", b"one")
        month, expired = await token(site.uri, -DAY_S, 30 * DAY_S), await token(site.uri, -20 * DAY_S, -10 * DAY_S)
        await settled(site)
        for ahead_s, who in ((40 * DAY_S, "janitor"), (40 * DAY_S, "gateway"), (-15 * DAY_S, "gateway")):
            site.set_clocks(ahead_s, [who])
            await rounds(site, 4)
            assert certain(site) is (who != "janitor")
            assert site.ask("GET", OBJECTS, token=expired).status == 401, "it stays expired"
            assert (site.ask("GET", OBJECTS, token=month).status == 401) is (who == "gateway")
            assert "one" in names(site)
            site.set_clocks(0, [who])
            await settled(site)
            assert site.ask("GET", OBJECTS, token=month).status != 401
        site.set_clocks(40 * DAY_S, ["b1"])
        await rounds(site, 4)
        assert certain(site), "two bookies outvote it"
        told = await asyncio.to_thread(found, site, "doctor")
        assert told["clock-off b1"] == ("error", f"{40 * DAY_S} s ahead the median of all clocks")
        site.set_clocks(0, ["b1"])
        assert len(await values(ns, "one")) == 8
        assert not [row for row in done_since(site, began) if row[0]]


async def test_a_process_that_starts_with_a_wrong_clock_goes_by_the_bookies(site: Site) -> None:
    expired, month = await token(site.uri, -20 * DAY_S, -10 * DAY_S), await token(site.uri, -DAY_S, 30 * DAY_S)
    for ahead_s in (-15 * DAY_S, 40 * DAY_S):
        site.set_clocks(ahead_s, ["late"])
        process, url = await asyncio.to_thread(site.started_gateway, "late")
        try:
            assert site.ask("GET", OBJECTS, token=expired, url=url).status == 401, "its first answer"
            assert site.ask("GET", OBJECTS, token=month, url=url).status == 401, "it counts at one of both times"
            site.set_clocks(0, ["late"])
            await until(lambda url=url: site.ask("GET", OBJECTS, token=month, url=url).status != 401, "in doubt", 45.0)
            assert site.ask("GET", OBJECTS, token=expired, url=url).status == 401
        finally:
            ended(process)
    bookie = site.bookies["b3"]
    await asyncio.to_thread(bookie.stop)
    site.set_clocks(40 * DAY_S, ["b3"])
    await asyncio.to_thread(bookie.start)
    await asyncio.to_thread(bookie.wait_ready)
    await rounds(site, 3)
    assert certain(site)
    site.set_clocks(0, ["b3"])


@pytest.mark.parametrize("who", [EVERYBODY, ("b2",)])
async def test_a_clock_that_flips_is_told_and_believed_again_when_it_was_steady(
    site: Site, who: tuple[str, ...]
) -> None:
    everybody = len(who) > 1
    await until(lambda: certain(site), "it begins in doubt", 2 * BELIEVE_S)
    for _ in range(4):
        for ahead_s in (40 * DAY_S, 0):
            site.set_clocks(ahead_s, who)
            await rounds(site, 2)
            await asyncio.to_thread(site.ask, "GET", "/v2/status")  # which asks every bookie for its time
    steady = time.monotonic()
    told = await asyncio.to_thread(found, site, "status")
    if everybody:
        assert [(name, row[0]) for name, row in told.items()] == [("clock-jump cluster", "error")]
        assert not certain(site)
    else:
        assert [(name, row[0]) for name, row in told.items()] == [("clock-doubted b2", "warning")]
        assert "is set again and again" in told["clock-doubted b2"][1]
        assert certain(site), "the others are certain"
    assert time.monotonic() - steady < BELIEVE_S, "too slow a machine for this test"

    async def steady_again() -> bool:
        return not await asyncio.to_thread(found, site, "status")

    await eventually(steady_again, "a steady clock is not believed", 2 * BELIEVE_S)
    assert time.monotonic() - steady >= BELIEVE_S - 5
    await settled(site)

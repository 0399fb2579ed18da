"""Clusters of as few bookies as there may be, and of three of which one is away: streams are written all the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.e2e.conftest import Up, buckram, gone
from tests.support.polling import eventually, wait_until

from buckram import connect
from buckram.launch.processes import BookieProcess

pytestmark = pytest.mark.share(10, "clusters")


@pytest.mark.parametrize("bookies", [1, 2])
def test_a_small_cluster_takes_streams_without_settings(tmp_path: Path, bookies: int) -> None:
    up = Up(tmp_path / "data", "--bookies", bookies)
    try:
        done = buckram("stream", "write", "s", uri=up.uri, stdin=b"a\nb\n")
        assert done.code == 0, done.err
        assert buckram("stream", "read", "s", uri=up.uri).out == "a\nb\n"
        made = buckram("namespace", "create", "shop", uri=up.uri)
        assert made.code == 0
        assert f"ensemble = {bookies}/{bookies}/{bookies}  (as few bookies as there are" in made.out
        assert buckram("stream", "write", "shop/s", uri=up.uri, stdin=b"a\n").code == 0
        assert buckram("db", "shell", "shop/bank", "CREATE TABLE t (a)", "--create", uri=up.uri).code == 0
        assert buckram("object", "put", "shop/a", __file__, uri=up.uri).code == 0
        wide = ("--force", "--set", "ensemble=3/3/2")
        assert buckram("namespace", "create", "wide", *wide, uri=up.uri).code == 0
        for refused in (
            buckram("stream", "write", "wide/s", uri=up.uri, stdin=b"a\n"),
            buckram("db", "shell", "wide/bank", "CREATE TABLE t (a)", "--create", uri=up.uri),
            buckram("object", "put", "wide/a", __file__, uri=up.uri),
        ):
            assert refused.code != 0
            fits = f"{bookies}/{bookies}/{bookies}"
            assert f"`buckram namespace set wide --set ensemble={fits}`" in refused.err
    finally:
        assert up.stop() == 0


def test_a_grown_cluster_uses_the_default_policy(tmp_path: Path) -> None:
    def ensemble(uri: str) -> str:
        return str(buckram("namespace", "show", "default", "--json", uri=uri).json["policy"]["ensemble"])

    for bookies, fits in ((1, "1/1/1"), (3, "3/3/2")):
        up = Up(tmp_path / "data", "--bookies", bookies)
        try:
            assert ensemble(up.uri) == fits
        finally:
            assert up.stop() == 0


async def test_writers_continue_while_one_of_three_bookies_is_away(tmp_path: Path) -> None:
    """While one bookie is killed, writers open, roll and take over streams; later each ledger is fully replicated."""
    up = Up(tmp_path / "data", "--bookies", 3, "--janitor", "never")
    lost = BookieProcess(up.uri, tmp_path / "data" / "bookie-1", bookie_id="bookie-1")
    try:
        async with connect(up.uri) as client:
            ns = client.namespace()
            before = await ns.writer("s")
            await before.append(b"0")
            os.kill(up.pids[0], signal.SIGKILL)
            wait_until(lambda: gone(up.pids[0]), "still there")
            await client.services.bookies.refresh()
            await before.append(b"1")
            assert await before.roll()
            await before.append(b"2")
            async with ns.writer("s", takeover=True) as taken, ns.writer("new") as fresh:
                await taken.append(b"3")
                await fresh.append(b"0")
                assert await taken.roll()
                await taken.append(b"4")
                assert taken.degraded
                shown = buckram("cluster", "check", "--json", uri=up.uri).json
                assert shown["under_replicated"] >= 4
                assert shown["away"] == ["bookie-1"]
                ledger = await anext(client.list())
                assert buckram("ledger", "show", ledger, "--json", uri=up.uri).json["away"] == ["bookie-1"]
                lost.start()

                async def whole() -> bool:
                    return not (taken.degraded or fresh.degraded or client.services.lagging)

                await eventually(whole, 30.0)
            await eventually(whole, 30.0)
            async for ledger_id in client.list():
                report = await client.repair(ledger_id)
                assert report.healthy, report
                assert report.entries_copied == 0, f"ledger {ledger_id} was not whole: {report}"
    finally:
        lost.stop()
        assert up.stop() == 0

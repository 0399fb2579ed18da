"""The janitor inside `buckram up`."""

from __future__ import annotations

import asyncio
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from tests.e2e.conftest import Up, buckram
from tests.support.polling import wait_until

from buckram.cli.up import background_threads as up_threads
from buckram.cluster import Client
from buckram.testing import ThreadedCluster


def test_up_runs_a_janitor(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--bookies", 3, "--janitor", "0.2s")
    try:
        buckram("stream", "create", "s", "--set", "retention_s=0", uri=up.uri)
        done = buckram("stream", "write", "s", uri=up.uri, stdin=b"a\nb\n")
        assert done.code == 0, done.err
        deadline = time.monotonic() + 60
        while buckram("stream", "show", "s", "--json", uri=up.uri).json["segments"]:
            assert time.monotonic() < deadline
        assert buckram("ledger", "list", "--ids", "--json", uri=up.uri).json["ledgers"] == []
    finally:
        assert up.stop() == 0
    assert up.said == "stopping 3 bookies; `buckram up` with the same --data starts them again\n"


def test_a_problem_is_printed_once_and_the_thread_ends_on_exit(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = ""
    with up_threads.janitor_thread(f"sqlite://{tmp_path}/metadata.db", 0.001) as janitor:  # There is no cluster.
        deadline = time.monotonic() + 30
        while "put off" not in said:
            assert time.monotonic() < deadline
            said += capfd.readouterr().err
        assert janitor._thread.is_alive()
    assert not janitor._thread.is_alive()
    assert (said + capfd.readouterr().err).count("put off") == 1
    with ThreadedCluster(bookies=1) as cluster, up_threads.janitor_thread(cluster.uri, 1) as janitor:
        pass
    assert not janitor._thread.is_alive()


@pytest.mark.parametrize("option", ["--metrics", "--http"])
def test_up_serves_metrics_and_health(tmp_path: Path, option: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    up = Up(tmp_path / "data", "--bookies", 1, option, f"127.0.0.1:{port}")
    try:
        assert [one["http"] for one in up.ready["bookies"]] == [f"127.0.0.1:{port}"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as page:
            assert page.read() == b"writable\n"
    finally:
        assert up.stop() == 0


def test_work_that_failed_with_anything_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_threads, "AGAIN_S", 0.02)
    begun: list[int] = []

    async def work(client: Client, thread: up_threads.ClusterThread) -> None:
        begun.append(len(begun))
        if len(begun) == 1:
            raise OSError(28, "No space left on device")
        await asyncio.Event().wait()

    with ThreadedCluster(bookies=1) as cluster, up_threads.ClusterThread("work", cluster.uri, work, otherwise="none"):
        wait_until(lambda: len(begun) == 2, "it was not begun anew")

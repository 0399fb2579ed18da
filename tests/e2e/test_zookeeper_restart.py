"""A bookie on ZooKeeper that was killed is back at once: its new process ends the session that the old one left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import buckram
from tests.e2e.zookeeper_kit import need_zookeeper

from buckram.errors import ChildFailed
from buckram.launch.processes import BookieProcess, stop_all
from buckram.launch.zookeeper_server import start_zookeeper

pytestmark = pytest.mark.share(10, "stores")

SOON_S = 5.0
"""Half of the session's time-out: a bookie that waited for the old session to expire would be later."""


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_zookeeper()
    with start_zookeeper(tmp_path_factory.mktemp("zookeeper"), sync=False) as server:
        uri = f"zk://{server.address}/ledgers"
        assert buckram("cluster", "init", uri=uri).code == 0
        yield uri


def test_a_killed_bookie_registers_again_before_its_session_expires(uri: str, tmp_path: Path) -> None:
    bookie = BookieProcess(uri, tmp_path / "b", bookie_id="phoenix")
    try:
        bookie.start()
        bookie.wait_ready()
        for _ in range(3):
            bookie.kill()
            bookie.start()
            bookie.wait_ready(SOON_S)
    finally:
        stop_all([bookie])


def test_a_copied_directory_does_not_end_the_session_of_a_live_bookie(uri: str, tmp_path: Path) -> None:
    bookie, copy = (BookieProcess(uri, tmp_path / name, bookie_id="twin") for name in ("original", "copy"))
    try:
        bookie.start()
        bookie.wait_ready()
        # It writes to its directory meanwhile.
        shutil.copytree(bookie.directory, copy.directory, ignore=shutil.ignore_patterns("*.new"))
        assert (copy.directory / "SESSION").exists()
        copy.start()
        with pytest.raises(ChildFailed):
            copy.wait_ready(SOON_S)
        listed = buckram("bookie", "list", "--json", uri=uri)
        assert ("twin", "writable") in [(one["id"], one["state"]) for one in listed.json["bookies"]]
        assert bookie.alive
    finally:
        stop_all([bookie, copy])

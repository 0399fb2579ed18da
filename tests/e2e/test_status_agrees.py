"""`status` never lets one believe that every copy is there where `ledger check --all` finds a lack: real processes.

Each look runs both and compares them (`agreement_kit.py:Place.look`), all the time until all is whole again.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.agreement_kit import place
from tests.e2e.conftest import environment

from buckram.cli.shared.exits import Exit
from buckram.errors import ChildFailed
from buckram.metadata.tree.key_operations import overwrite
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.uri import open_store

pytestmark = pytest.mark.share(10, "clusters")


def test_files_that_were_deleted_while_their_bookie_was_down(tmp_path: Path) -> None:
    with place(tmp_path) as site:
        site.write()
        site.heal(lost_bookie_delay_s=600)
        site.until_whole()
        site.bookies["b1"].stop()
        down = site.look()
        assert (down.status, down.check, "bookie-down" in down.found) == (Exit.FAILED, Exit.FAILED, True)
        for file in (tmp_path / "b1").glob("log-*"):
            file.unlink()
        site.start("b1")
        back = site.look()
        assert (back.status, back.check, "limbo" in back.found) == (Exit.FAILED, Exit.TRY_AGAIN, True)
        site.until_whole()


def test_a_bookie_that_hangs_while_a_ledger_is_written_and_closed(tmp_path: Path) -> None:
    with place(tmp_path) as site:
        site.write()
        site.heal(lost_bookie_delay_s=600)
        site.until_whole()
        site.bookies["b1"].signal(signal.SIGSTOP)
        silent = site.look()
        assert silent.status == Exit.FAILED
        assert silent.check in (Exit.TRY_AGAIN, Exit.FAILED), "it does not answer, or is not registered any more"
        assert silent.found & {"bookie-silent", "bookie-down"}
        site.write(entries=100, size=100_000)
        assert site.look().check != 0
        site.bookies["b1"].signal(signal.SIGCONT)
        site.until_whole()


def test_a_bookie_that_lost_its_disk_is_taken_out_and_comes_back_empty(tmp_path: Path) -> None:
    with place(tmp_path, 4) as site:
        for _ in range(3):
            site.write()
        site.heal(lost_bookie_delay_s=600)
        site.until_whole()
        site.bookies["b1"].stop()
        shutil.rmtree(tmp_path / "b1")
        with pytest.raises(ChildFailed):
            site.start("b1")
        lost = site.look()
        assert (lost.status, "bookie-down" in lost.found) == (Exit.FAILED, True)
        assert site.ask("bookie", "decommission", "b1")[0] == 0
        site.until_whole()
        site.start("b1")
        site.write(ensemble="4/4/2")
        site.until_whole()


DYING = """
import signal, sys
from buckram.sync import connect
with connect(sys.argv[1]) as client:
    writer = client.create(ensemble=(3, 3, 2))
    for _ in range(100):
        writer.append(b"x" * 100_000)
    print(writer.ledger_id, flush=True)
    signal.pause()
"""
"""A writer that is killed when it has said its ledger: more than what waits in the buffers of a connection."""


@pytest.mark.parametrize("hangs", [False, True])
def test_a_writer_that_died_and_left_its_ledger_open(tmp_path: Path, hangs: bool) -> None:
    """`hangs`: a bookie got only some of it, and nobody could note that."""
    with place(tmp_path) as site:
        site.heal(lost_bookie_delay_s=600)
        site.until_whole()
        if hangs:
            site.bookies["b1"].signal(signal.SIGSTOP)
        command = [sys.executable, "-c", DYING, site.uri]
        writer = subprocess.Popen(command, env=environment(None), stdout=subprocess.PIPE)
        assert writer.stdout is not None
        ledger = int(writer.stdout.readline())
        writer.kill()
        writer.wait()
        writer.stdout.close()
        site.bookies["b1"].signal(signal.SIGCONT)
        site.until(lambda said: said.check == 0, "what can still be written counts")
        recovered, _ = site.ask("ledger", "recover", ledger)
        assert recovered == 0
        site.look()
        site.until_whole()


def test_copies_that_nobody_makes(tmp_path: Path) -> None:
    with place(tmp_path) as site:
        site.write()
        site.heal(lost_bookie_delay_s=1)
        site.until_whole()
        assert site.ask("autorecovery", "disable")[0] == 0
        site.bookies["b1"].signal(signal.SIGSTOP)
        site.write(entries=100, size=100_000)
        site.bookies["b1"].signal(signal.SIGCONT)
        off = site.until(lambda said: said.check == Exit.FAILED, "it has what it was not sent")
        assert (off.status, "autorecovery-disabled" in off.found) == (Exit.FAILED, True)
        assert site.ask("autorecovery", "enable")[0] == 0
        site.until_whole()


def test_a_record_that_nobody_can_read(tmp_path: Path) -> None:
    """Only a long look reads all records; the auditor's own check of all copies has met this one."""
    with place(tmp_path) as site:
        site.write()
        asyncio.run(_damage(site.uri, site.write()))
        site.heal(lost_bookie_delay_s=600)
        site.until(lambda said: "auditor-missing" not in said.found, "no auditor")
        found = site.until(lambda said: said.status == 0, "something else is wrong")
        assert (found.check, "unverified" in found.found) == (Exit.FAILED, True)


async def _damage(uri: str, ledger: int) -> None:
    store = await open_store(uri)
    assert isinstance(store, TreeStore)
    try:
        await overwrite(store.keys, await store.ledgers.key(ledger), b"junk")
    finally:
        await store.close()

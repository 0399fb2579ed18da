"""The commands of the operators' pages end the trouble that each page is about, on a cluster of real processes.

`ssh` and `systemctl` are a script of this file: `ssh bookie-2 systemctl stop bookie` stops that bookie, for example.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.docs.test_pages import ROOT, SNIPPET
from tests.e2e.conftest import Up, buckram, environment, gone
from tests.support.polling import wait_until

from buckram.runtime.disk.faulty import DiskFaults

PAGES = ROOT / "docs" / "howto" / "operators"
LINES = b"".join(b"line %d\n" % number for number in range(2000))
WITHIN_S = 240

SSH = """#!/usr/bin/env bash
# ssh BOOKIE systemctl [stop|start|restart|disable --now|enable --now] bookie
set -euo pipefail
bookie=$1; verb=$3; pids={pids}
stop() {{
    pid=$(cat $pids/$bookie)
    kill -TERM $pid
    while [ -e /proc/$pid ] && ! grep -q '^State:.Z' /proc/$pid/status; do sleep 0.1; done
}}
start() {{
    setsid {python} -m buckram bookie run --metadata "$BUCKRAM_METADATA" --data {data}/$bookie --id $bookie \\
        --host 127.0.0.1 --port 0 < /dev/null > {data}/$bookie.again 2>&1 &
    echo $! > $pids/$bookie
}}
case $verb in
    stop|disable) stop ;;
    start|enable) start ;;
    restart) stop; start ;;
    *) echo "systemctl $verb?" >&2; exit 2 ;;
esac
"""


class Machines:
    """Bookies that heal themselves, each as if on a machine of its own, and ledgers of three copies."""

    def __init__(self, folder: Path, bookies: int = 4) -> None:
        self.folder, self.pids = folder, folder / "pids"
        self.pids.mkdir()
        self.up = Up(folder / "data", "--bookies", bookies, "--janitor", "never")
        for bookie in self.up.ready["bookies"]:
            (self.pids / bookie["id"]).write_text(str(bookie["pid"]))
        ssh = folder / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(SSH.format(pids=self.pids, python=sys.executable, data=self.up.directory))
        ssh.chmod(0o755)
        self.ledgers = [
            buckram("ledger", "write", "--close", uri=self.up.uri, stdin=LINES).json["ledger"] for _ in range(3)
        ]
        wait_until(
            lambda: bool(buckram("autorecovery", "status", "--json", uri=self.up.uri).json["auditor"]), "no auditor"
        )

    def kill(self, bookie: str) -> None:
        pid = int((self.pids / bookie).read_text())
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(pid), f"{bookie} still runs")
        wait_until(lambda: self.states()[bookie] == "down", f"{bookie} is still registered")

    def states(self) -> dict[str, str]:
        return {one["id"]: one["state"] for one in buckram("bookie", "list", "--json", uri=self.up.uri).json["bookies"]}

    def follow(self, page: str, *, machines: Sequence[str] = ()) -> str:
        """Run all commands of a page in one shell. Returns what they printed. `machines`: instead of the page's."""
        found = [
            textwrap.dedent(m["code"]) for m in SNIPPET.finditer((PAGES / page).read_text()) if m["language"] == "sh"
        ]
        assert found, f"{page} has no commands"
        if machines:
            found = [re.sub(r"(?<=for bookie in ).*(?=; do)", " ".join(machines), code) for code in found]
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(found)],
            env={**environment(self.up.uri), "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
        )
        assert done.returncode == 0, f"{page}: {done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        return done.stdout

    def check_whole(self) -> None:
        """Everything is well, and all that was written is there."""
        # `buckram up`, which heals, ends with the last of the bookies that it started itself.
        assert self.errors() <= {"auditor-missing"}
        for ledger in self.ledgers:
            assert buckram("ledger", "read", ledger, uri=self.up.uri).out.encode() == LINES

    def errors(self) -> set[str]:
        """The names of what is wrong."""
        found = buckram("status", "--json", uri=self.up.uri).json["problems"]
        return {one["what"] for one in found if one["severity"] == "error"}

    def close(self) -> None:
        for file in self.pids.iterdir():
            pid = int(file.read_text())
            if pid not in self.up.pids and not gone(pid):
                os.kill(pid, signal.SIGKILL)
        self.up.stop()


class Load:
    """A writer and a reader of one stream, as commands, while others work on the cluster."""

    def __init__(self, folder: Path, uri: str, *, lines_per_s: int = 200) -> None:
        self.read, self.acked = folder / "read", folder / "acked"
        self.written = 0
        """Lines that the writer got."""
        self._errors = folder / "errors"
        self._pause_s = 10 / lines_per_s
        self._over = threading.Event()
        command = [sys.executable, "-m", "buckram", "stream"]
        with self.read.open("wb") as read, self.acked.open("wb") as acked, self._errors.open("wb") as errors:
            self._writer = subprocess.Popen(
                [*command, "write", "load", "--acks"],
                stdin=subprocess.PIPE,
                stdout=acked,
                stderr=errors,
                env=environment(uri),
            )
            self._feeding = threading.Thread(target=self._feed)
            self._feeding.start()
            wait_until(lambda: self.acked.stat().st_size > 0, "nothing is acknowledged")
            self._reader = subprocess.Popen(
                [*command, "read", "load", "--follow"], stdout=read, stderr=errors, env=environment(uri)
            )

    def _feed(self) -> None:
        assert self._writer.stdin is not None
        with suppress(BrokenPipeError), self._writer.stdin as pipe:
            while not self._over.wait(self._pause_s):
                pipe.write(b"".join(b"record %d\n" % (self.written + n) for n in range(10)))
                pipe.flush()
                self.written += 10

    def stop(self) -> list[str]:
        """End both in order; what the reader printed."""
        self._over.set()
        self._feeding.join()
        code = self._writer.wait(WITHIN_S)
        assert code == 0, self._errors.read_text()
        wait_until(lambda: self.read.read_bytes().count(b"\n") >= self.written, "the reader is not at the end", 60)
        self._reader.send_signal(signal.SIGINT)
        self._reader.wait(60)
        assert "Traceback" not in self._errors.read_text()
        return self.read.read_text().splitlines()

    def close(self) -> None:
        self._over.set()
        for process in (self._writer, self._reader):
            process.kill()
            process.wait()
        self._feeding.join()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.close()


@pytest.mark.share(8)
def test_a_bookie_died(machines: Machines) -> None:
    machines.kill("bookie-2")
    said = machines.follow("a-bookie-died.md")
    assert "it is down: it has a cookie and is not registered" in said
    assert "bookie bookie-2 is out" in said
    assert sorted(machines.states()) == ["bookie-1", "bookie-3", "bookie-4"]
    machines.check_whole()


@pytest.mark.share(8)
def test_a_disk_fills(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of one bookie says that it is full, until it was collected."""
    faults = machines.folder / "faults.json"
    DiskFaults(1).save(faults)
    ssh = {**environment(machines.up.uri), "BUCKRAM_DISK": f"faults:{faults}"}
    subprocess.run([machines.folder / "bin" / "ssh", "bookie-2", "systemctl", "restart", "bookie"], env=ssh, check=True)
    wait_until(lambda: machines.states()["bookie-2"] == "writable", "not back")
    DiskFaults(2, full=True).save(faults)  # from now on: these faults leave no reserve with which one could start
    wait_until(lambda: machines.states()["bookie-2"] == "readonly", "not read-only")

    def make_room() -> None:
        def collected() -> bool:
            shown = buckram("bookie", "show", "bookie-2", "--json", uri=machines.up.uri)
            return shown.code == 0 and bool(shown.json["collections"])

        wait_until(collected, "not collected", WITHIN_S)
        DiskFaults(3).save(faults)

    room = threading.Thread(target=make_room)
    room.start()
    said = machines.follow("a-disk-fills.md")
    room.join()
    assert "error disk-full bookie-2" in said
    assert "bookie bookie-2: 0 ledgers deleted" in said
    machines.check_whole()


@pytest.mark.share(8)
def test_each_machine_is_restarted_in_turn(machines: Machines) -> None:
    before = {file.name: file.read_text() for file in machines.pids.iterdir()}
    said = machines.follow("restart-machines.md")
    after = {file.name: file.read_text() for file in machines.pids.iterdir()}
    assert all(before[bookie] != after[bookie] for bookie in before), "somebody was not restarted"
    assert re.search(r"3 ledgers: 3 healthy", said)
    assert set(machines.states().values()) == {"writable"}
    machines.check_whole()


@pytest.mark.share(8)
def test_each_machine_is_restarted_in_turn_under_load(tmp_path: Path) -> None:
    """Three bookies, so that every ledger is on all of them: the writer and the reader go on, and nothing is lost."""
    machines = Machines(tmp_path, bookies=3)
    load = Load(tmp_path, machines.up.uri)
    # `buckram up`, which heals, ends with the last of the bookies that it started itself.
    command = [sys.executable, "-m", "buckram", "autorecovery", "run"]
    healer = subprocess.Popen(command, env=environment(machines.up.uri), stdout=subprocess.DEVNULL)
    try:
        before = {file.name: file.read_text() for file in machines.pids.iterdir()}
        said = machines.follow("restart-machines.md", machines=sorted(before))
        after = {file.name: file.read_text() for file in machines.pids.iterdir()}
        assert all(before[bookie] != after[bookie] for bookie in before), "somebody was not restarted"
        read = load.stop()
        acked = [int(line) for line in load.acked.read_text().splitlines() if line.isdigit()]
        assert read == [f"record {n}" for n in range(load.written)], "what was written is read, once and in order"
        assert acked == sorted(acked)
        assert acked[-1] == load.written - 1
        assert re.search(r"[0-9]+ healthy", said), said
        wait_until(lambda: not machines.errors(), "some ledger lacks entries")
        machines.check_whole()
        checked = buckram("ledger", "check", "--all", uri=machines.up.uri)
        assert checked.code == 0, checked.out
    finally:
        load.close()
        healer.terminate()
        healer.wait()
        machines.close()


@pytest.mark.share(8)
def test_a_machine_is_taken_out(machines: Machines) -> None:
    said = machines.follow("take-a-machine-out.md")
    assert "no ledger names it any more" in said
    assert sorted(machines.states()) == ["bookie-1", "bookie-3", "bookie-4"]
    machines.check_whole()


@pytest.mark.share(8)
def test_the_cluster_grows(machines: Machines) -> None:
    machines.follow("grow-the-cluster.md")
    assert machines.states()["bookie-5"] == "writable"
    shown = buckram("ledger", "list", "--json", uri=machines.up.uri).json["ledgers"]
    assert any("bookie-5" in fragment["ensemble"] for one in shown for fragment in one["fragments"])
    machines.check_whole()


def test_every_page_is_followed() -> None:
    source = Path(__file__).read_text()
    for page in PAGES.glob("*.md"):
        assert f'follow("{page.name}")' in source

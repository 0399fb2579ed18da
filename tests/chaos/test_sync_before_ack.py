"""The system calls of a real bookie: no add is answered before the sync that covers it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.chaos.processes import BUCKRAM, BookieProcess, WriterProcess, environment, run

CALL = re.compile(r"^(?P<pid>\d+) +(?P<name>\w+)\((?P<fd>\d+)(?:<(?P<path>[^>]*)>)?(?P<rest>.*)$")
ACK = bytes.fromhex("000000180201000000000000")
WRITES = {"pwrite64", "pwritev", "pwritev2", "write", "writev"}
SYNCS = {"fdatasync", "fsync"}
SENT = re.compile(r", (?P<length>\d+)(?:, [^)\]]*)?\) += (?P<sent>-?\d+)")
"""The end of a call that sends one buffer: how long that is, and how much was taken."""


@dataclass
class Review:
    """The system calls in a trace. `early` are answers that were sent while a write was not synced."""

    unsynced: set[int] = field(default_factory=set)
    writes: int = 0
    syncs: int = 0
    answers: int = 0
    early: list[str] = field(default_factory=list)
    behind: set[int] = field(default_factory=set)
    """Sockets that did not take all: what is sent there next begins with what was decided before."""


def review(lines: list[str], data: str) -> Review:
    """Review a trace in order: an answer to an add may be sent only while no write to a log file awaits its sync.

    Calls that did not return yet ("<unfinished ...>") count when they resume, but answers when they begin: their
    content is decided then, and another thread may write the next entries before they return. The rest of what a
    socket did not take was decided earlier, so that it says nothing.
    """
    seen = Review()
    begun: dict[tuple[str, str], str] = {}
    for line in lines:
        whole = line
        if "<unfinished ...>" in line:
            found = CALL.match(line)
            if found:
                begun[found["pid"], found["name"]] = line.replace("<unfinished ...>", "")
            if not found or not _answers(found):
                continue
        resumed = re.match(r"^(\d+) +<\.\.\. (\w+) resumed>", line)
        if resumed:
            whole = begun.pop((resumed.group(1), resumed.group(2)), "")
        call = CALL.match(whole)
        if call is None:
            continue
        if resumed and _answers(call):
            _note_sent(seen, call, line)
            continue
        name, fd, path = call["name"], int(call["fd"]), call["path"] or ""
        if name in WRITES and path.startswith(f"{data}/log-") and "DSYNC" not in whole:
            seen.unsynced.add(fd)
            seen.writes += 1
        elif name in SYNCS:
            seen.unsynced.discard(fd)
            seen.syncs += 1
        elif _answers(call):
            count = whole.count(r"\0\0\0\30\2\1\0\0\0\0\0\0")
            seen.answers += count
            if count and seen.unsynced and fd not in seen.behind:
                seen.early.append(line[:200])
            _note_sent(seen, call, line)
    return seen


def _note_sent(seen: Review, call: re.Match[str], line: str) -> None:
    """Whether the socket took all, if the line says how the call ended."""
    ends = list(SENT.finditer(line))
    if ends:
        took_all = int(ends[-1]["sent"]) == int(ends[-1]["length"])
        (seen.behind.discard if took_all else seen.behind.add)(int(call["fd"]))


def _answers(call: re.Match[str]) -> bool:
    """Whether the call sends something to a peer."""
    path = call["path"] or ""
    return call["name"] in {"sendto", "sendmsg", "write", "writev"} and any(
        kind in path for kind in ("TCP", "UNIX", "socket")
    )


def test_review_finds_an_early_answer() -> None:
    ack = r'"\0\0\0\30\2\1\0\0\0\0\0\0\0\0\0\0\0\0\0\1"'
    write, sync = "7 pwritev(5</d/log-1>, [...], 1, 0) = 4096", "7 fdatasync(5</d/log-1>) = 0"
    answer = f"7 sendto(9<TCP:[1->2]>, {ack}, 28, 0, NULL, 0) = 28"
    assert review([write, sync, answer], "/d").early == []
    assert review([write, answer, sync], "/d").early
    begun, resumed = "8 fdatasync(5</d/log-1> <unfinished ...>", "8 <... fdatasync resumed>) = 0"
    assert review([write, begun, answer, resumed], "/d").early
    slow, left = f"7 write(9<UNIX-STREAM:[1->2]>, {ack} <unfinished ...>", "7 <... write resumed>, 28) = 28"
    assert review([write, sync, slow, write, left], "/d").early == []
    assert review([write, slow, sync, left], "/d").early
    assert review([write, sync, slow, left], "/d").answers == 1
    for short in (f"7 write(9<socket:[1]>, {ack}, 280) = 28", f"7 write(9<socket:[1]>, {ack}, 280) = -1 EAGAIN (Try)"):
        rest, later = f"7 write(9<socket:[1]>, {ack}, 252) = 252", f"7 write(9<socket:[1]>, {ack}, 28) = 28"
        assert review([write, sync, short, write, rest, sync, later], "/d").early == []
        assert review([write, sync, short, write, rest, later], "/d").early == [later]
    begins, takes = slow.replace("UNIX-STREAM:[1->2]", "socket:[1]"), "7 <... write resumed>, 280) = 28"
    assert review([write, sync, begins, takes, write, f"7 write(9<socket:[1]>, {ack}, 252) = 252"], "/d").early == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_no_add_is_answered_before_the_sync_that_covers_it(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path.resolve().as_posix().lstrip('/')}/metadata.db"
    servers = [BookieProcess(uri, tmp_path / f"bookie{n}") for n in range(2)]
    trace = tmp_path / "strace.out"
    data = tmp_path / "traced"
    traced = subprocess.Popen(
        ["strace", "-f", "-y", "-s", "65536", "-o", str(trace),
         "-e", "trace=pwrite64,pwritev,pwritev2,write,writev,fdatasync,fsync,sendto,sendmsg",
         *BUCKRAM, "bookie", "run", "--metadata", uri, "--data", str(data), "--port", "0", "--json"],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert traced.stdout is not None
    bookie_pid = int(json.loads(traced.stdout.readline())["pid"])
    try:
        for server in servers:
            server.start()
        writer = WriterProcess(uri, ["--ensemble", "3/3/3"], lambda n: b"%d" % n)
        writer.start(tmp_path / "writer.log")
        writer.wait_acked(3000)
        writer.finish()
        run(["ledger", "read", str(writer.ledger)], uri)
    finally:
        os.kill(bookie_pid, signal.SIGKILL)  # strace does not pass on the signals that it gets
        for server in servers:
            server.kill()
        traced.communicate(timeout=60)
    seen = review(trace.read_text(errors="replace").splitlines(), str(data))
    print(f"{seen.writes} writes, {seen.syncs} syncs, {seen.answers} add answers", file=sys.stderr)
    assert seen.answers > 3000, "the trace has too few answers"
    assert seen.writes > 3
    assert seen.syncs > 10
    assert seen.early == []

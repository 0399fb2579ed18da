"""Ctrl-C at many moments of a start: one line, exit code 130, and no word of Python's."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import click
import pytest

from buckram.cli.object.commands import _to_file
from buckram.cli.shared import options
from buckram.cli.shared.exits import line_of
from buckram.cli.shared.interrupt import Interrupted
from buckram.metadata.maintain.backup import Backup, write_file
from buckram.state.objects.objects import ObjectInfo

START = """
import os, signal, sys
at, calls = {at}, 0
def count(frame, event, argument):
    global calls
    calls += 1
    if calls == at:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["buckram", *{words!r}]
from buckram.cli import main
sys.setprofile(count)
main()
"""
"""The moments are counted in calls, so that a run at the same one is the same run."""
COMMANDS = (
    ["stream", "list", "--metadata", "sqlite:////missing/metadata.db"],
    ["status", "--json", "--metadata", "sqlite:////missing/metadata.db"],
    ["version"],
)
MOMENTS = (8, 60, 300, 3_000, 10_000, 30_000, 60_000, 100_000)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_ctrl_c_at_any_moment_of_a_start_ends_it_with_one_line(words: list[str]) -> None:
    cut = 0
    for at in MOMENTS:
        code = START.format(at=at, words=words)
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        said = f"{words} at call {at}: code {done.returncode}: {done.stderr}"
        for word in ("Traceback", "Exception ignored", "Warning", "never awaited"):
            assert word not in done.stderr, said
        if done.returncode == 130:
            cut += 1
            (line,) = done.stderr.splitlines()
            if "--json" in words:
                assert json.loads(line)["error"]["exit_code"] == 130, said
            else:
                assert line == "buckram: interrupted", said
        elif done.returncode == -signal.SIGINT:
            assert at < 1000, said
            assert done.stderr == "", said  # the first steps: a shell says 130
        else:
            assert done.returncode in (0, 2), said  # it had ended before
    assert cut >= 4


def test_a_file_that_was_cut_is_not_there_and_the_error_says_so(tmp_path: Path) -> None:
    async def cut(out: object) -> ObjectInfo:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="report is not written"):
        _to_file(tmp_path / "report", cut)
    assert list(tmp_path.iterdir()) == []
    assert line_of(Interrupted("file report is not written")) == "interrupted: file report is not written"


def test_a_backup_that_was_cut_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("buckram.metadata.maintain.backup.sync_file", cut)
    monkeypatch.setattr("buckram.metadata.maintain.backup._lines", lambda backup: [b"{}\n"])
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "backup", cast("Backup", None))
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_to_be_put_in_order_sees_an_interrupt() -> None:
    code = """
import os, signal
from buckram.cli.shared.interrupt import exit_at_once, interruptible
exit_at_once()
try:
    with interruptible():
        os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("in order", flush=True)
print("kept", end="")
os.kill(os.getpid(), signal.SIGINT)
print("never")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "in order\nkept", "buckram: interrupted\n")


def test_who_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    code = """
import os, signal
from buckram.cli.shared.interrupt import exit_at_once
signal.signal(signal.SIGINT, signal.SIG_IGN)
exit_at_once()
os.kill(os.getpid(), signal.SIGINT)
print("goes on")
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).stdout == b"goes on\n"


def test_a_cancellation_that_gets_lost_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_CANCELLED_WITHIN_S", 0.01)
    seen: list[int] = []

    async def deaf() -> None:
        asyncio.get_running_loop().call_later(0.01, signal.raise_signal, signal.SIGINT)
        while len(seen) < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append(len(seen))

    with pytest.raises(click.exceptions.Exit) as ended:
        options.watch_async(deaf())
    assert (ended.value.exit_code, seen) == (0, [0, 1, 2])

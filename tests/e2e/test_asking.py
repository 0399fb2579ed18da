"""Commands that lose data ask for confirmation, and are refused where there is no terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import buckram, environment

from buckram.cli.shared.exits import Exit

LOSSES = [
    ("ledger", "delete", 7),
    ("namespace", "delete", "shop"),
    ("stream", "delete", "orders"),
    ("stream", "end", "orders"),
    ("stream", "truncate", "orders", "--before", 3),
    ("stream", "cursor", "delete", "orders", "billing"),
]
HARMLESS = [("ledger", "recover", 7), ("ledger", "close", 7), ("stream", "seal", "orders", "--takeover")]


@pytest.mark.parametrize("words", LOSSES)
def test_data_loss_without_terminal_or_yes_is_refused(words: tuple[object, ...], tmp_path: Path) -> None:
    """There is no cluster: a command is refused before it looks for one."""
    done = buckram(*words, cwd=tmp_path, uri=f"sqlite://{tmp_path}/metadata.db")
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert "add --yes" in done.err
    assert " not " in done.err


@pytest.mark.parametrize("words", HARMLESS)
def test_commands_that_lose_nothing_need_no_yes(words: tuple[object, ...], tmp_path: Path) -> None:
    done = buckram(*words, cwd=tmp_path, uri=f"sqlite://{tmp_path}/metadata.db")
    assert "--yes" not in done.err
    assert "cluster" in done.err  # it went on and looked for one


@pytest.mark.parametrize("words", [LOSSES[2], HARMLESS[0]])
def test_answering_no_is_not_reported_as_an_interrupt(words: tuple[object, ...], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "buckram", *map(str, words)], stdin=theirs, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=environment(f"sqlite://{tmp_path}/metadata.db"), cwd=tmp_path,
        )  # fmt: skip
        os.write(ours, b"n\n")
        _, said = process.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == Exit.FAILED
    last = said.decode().splitlines()[-1]
    assert "stopped" not in last
    assert "is not deleted" in last or "is not recovered" in last

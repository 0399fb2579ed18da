"""A first start that dies before any change of a file is followed by one that succeeds: no directory is lost for that.

Each command that makes directories of its own is killed before each of its changes, and started again as it was.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.support.polling import wait_until
from tests.support.soak import some_of

DYING = Path(__file__).parent / "dying"
USUAL = 3
"""So many of the changes are a crash; soaks have all of them."""


def commands(folder: Path) -> dict[str, list[str]]:
    buckram = [sys.executable, "-m", "buckram"]
    return {
        "bookie run": [
            *buckram, "bookie", "run", "--metadata", f"sqlite://{folder}/outside/metadata.db",
            "--data", f"{folder}/data", "--port", "0", "--json",
        ],
        "up": [*buckram, "up", "--bookies", "1", "--data", f"{folder}/data", "--json"],
        "up --secure": [
            *buckram, "up", "--secure", "--bookies", "1", "--data", f"{folder}/data", "--no-gateway", "--json",
        ],
    }  # fmt: skip


def environment(folder: Path, at: int) -> dict[str, str]:
    added = {"PYTHONPATH": str(DYING), "BUCKRAM_DIE_IN": f"{folder}/data", "BUCKRAM_DIE_AT": str(at)}
    added["BUCKRAM_DIE_COUNT"] = f"{folder}/count"
    return {**{key: value for key, value in os.environ.items() if not key.startswith("BUCKRAM_")}, **added}


def started(command: list[str], folder: Path, at: int) -> tuple[int, str]:
    """Run until the ready line, and end it; returns the exit code and what it said. `at` 0: it does not die."""
    (folder / "count").unlink(missing_ok=True)
    with subprocess.Popen(
        command,
        env=environment(folder, at),
        stdout=subprocess.PIPE,
        stderr=(folder / "errors").open("w"),
        text=True,
        process_group=0,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line:
            json.loads(line)
            process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    return code, (folder / "errors").read_text()


def deaths(command: list[str], folder: Path) -> Sequence[int]:
    """The numbers of the changes before which a first start is to die."""
    code, said = started(command, folder, 0)
    assert code == 0, said
    return some_of(range(1, int((folder / "count").read_text()) + 1), USUAL)


@pytest.mark.parametrize("name", sorted(commands(Path())))
def test_a_first_start_that_died_is_begun_again(name: str, tmp_path: Path) -> None:
    first = tmp_path / "whole"
    first.mkdir()
    (first / "outside").mkdir()
    for at in deaths(commands(first)[name], first):
        folder = tmp_path / str(at)
        (folder / "outside").mkdir(parents=True)
        code, said = started(commands(folder)[name], folder, at)
        if int((folder / "count").read_text()) < at:
            assert code == 0, f"it ended by itself before change {at}: {said}"
            continue  # how many there are until all has ended differs a little
        wait_until(partial(nobody_lives, folder), "its processes live on")
        code, said = started(commands(folder)[name], folder, 0)
        assert code == 0, f"after a death before change {at}: {said}"


def nobody_lives(folder: Path) -> bool:
    """Whether no process has the folder in its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    return False
            except OSError:
                continue
    return True

"""Files that appear when they are whole, over what a process that died has left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from buckram.runtime.disk.whole_file import whole_file


def test_a_file_has_its_name_when_all_of_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with whole_file(path) as out:
        out.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_that_cannot_be_written_is_gone(tmp_path: Path) -> None:
    with pytest.raises(TypeError), whole_file(tmp_path / "a") as out:
        out.write("text")  # type: ignore[arg-type]  # it cannot be written
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from buckram.runtime.disk.whole_file import whole_file\n"
        "with whole_file(Path(sys.argv[1])) as out:\n"
        "    out.write(b'much more than the next one'); out.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", program, str(tmp_path / "a")]).returncode == -signal.SIGKILL
        assert len(os.listdir(tmp_path)) == 1, "one leftover, however often it dies"
    with whole_file(tmp_path / "a") as out:
        out.write(b"whole")
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["a"]


def test_two_do_not_write_the_same_file_at_once(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a") as out:
        out.write(b"first")
        with pytest.raises(BlockingIOError, match="another process is writing"), whole_file(tmp_path / "a"):
            pass
    assert (tmp_path / "a").read_bytes() == b"first"

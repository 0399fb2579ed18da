"""Bookies on one file system count its space once; whoever does not tell is counted by himself."""

from __future__ import annotations

import os
from pathlib import Path

from buckram.core.cluster.bookie_report import file_system_number, file_system_space
from buckram.runtime.disk.neighbours import identity_of


def test_directories_of_one_file_system_have_one_number(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, two = (file_system_number(identity_of(tmp_path / name)) for name in ("a", "b"))
    assert one == two != 0
    assert 0 < one < 1 << 63
    assert file_system_number(identity_of("/proc")) != one
    assert file_system_number("") == file_system_number("boot") == 0


def test_the_same_device_of_another_machine_is_another_file_system() -> None:
    device = os.stat("/").st_dev
    assert file_system_number(f"boot-1 {device} 2") == file_system_number(f"boot-1 {device} 99")
    assert file_system_number(f"boot-1 {device} 2") != file_system_number(f"boot-2 {device} 2")


def test_a_shared_file_system_counts_once() -> None:
    assert file_system_space([("a", 7, 50, 100), ("b", 7, 49, 100), ("c", 8, 10, 20)]) == (59, 120)
    assert file_system_space([("a", 0, 50, 100), ("b", 0, 50, 100)]) == (100, 200), (
        "nobody knows whether they share one"
    )
    assert file_system_space([("a", 0, None, None), ("b", 7, 5, 6)]) == (5, 6)
    assert file_system_space([]) == (0, 0)

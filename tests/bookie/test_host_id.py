"""The host that a bookie registers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from buckram.bookie.host_id import BOOT_ID, check_host_id, place_properties, running_host
from buckram.errors import ConfigError

ID = "5c1e9a40-7d3b-4f62-8f10-2b6f0c9d4e77"


def test_the_running_kernel_is_the_host(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text(f"{ID}\n")
    assert running_host(tmp_path / "boot_id") == "boot-5c1e9a407d3b"
    if BOOT_ID.exists():
        assert running_host() == running_host(BOOT_ID) != running_host(tmp_path / "boot_id")


@pytest.mark.parametrize("text", ["", "nonsense", "00000000-0000-0000-0000-000000000000", "\udcff"])
def test_without_an_id_of_the_kernel_it_is_the_machines_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_bytes(text.encode("utf-8", "surrogateescape"))
    name = socket.gethostname()
    wanted = "" if name.partition(".")[0] in ("", "localhost") else name
    assert running_host(tmp_path / "boot_id") == running_host(tmp_path / "none") == wanted


def test_a_name_is_taken_and_what_is_none_is_refused() -> None:
    assert check_host_id("node-7.example.org", "") == "node-7.example.org"
    assert check_host_id("node-7", "/eu/r1") == "node-7"
    assert check_host_id("h7", "/eu/a/r1/h7") == "h7"
    for wrong in ("a b", "a/b", "a=b", "x" * 201, "\x07"):
        with pytest.raises(ConfigError, match=r"host_id.*needs a name"):
            check_host_id(wrong, "")
    assert place_properties("/eu/r1", "node-7") == {"buckram.location": "/eu/r1", "buckram.host": "node-7"}
    assert place_properties("", "") == {}, "then what was found out stays"
    with pytest.raises(ConfigError, match=r"'node-7'.*says that it is 'h7': give one of the two"):
        check_host_id("node-7", "/eu/a/r1/h7")

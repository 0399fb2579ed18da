"""Profiles: stacks into stages and pictures, who listens at a port, and what the machine needs in any case."""

from __future__ import annotations

import os
import socket
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from buckram.cli.bench import profiling
from buckram.cli.bench.profiling import Profile, ProfileFailed, listeners

ADDS = "frame_adds (/x/src/buckram/core/wire/adds.py:183)"
LOOP = "run (/usr/lib/python3.11/asyncio/runners.py:118)"
COMMIT = "write (/x/src/buckram/bookie/storage/log/group_commit.py:9)"
DISK = "write (/x/src/buckram/disk/local.py:90)"


def test_stacks_are_read_and_added_up() -> None:
    text = f"{LOOP};{ADDS} 3\n{LOOP} 1\n{LOOP};{ADDS} 2\n\n"
    assert profiling.parse(text) == {(LOOP, ADDS): 5, (LOOP,): 1}
    with pytest.raises(ValueError, match="invalid literal"):
        profiling.parse("no count here")


@pytest.mark.parametrize(
    ("stack", "stage"),
    [
        ((LOOP,), profiling.OTHER),
        ((LOOP, ADDS), "checksums and frames"),
        ((LOOP, COMMIT, DISK), "commit: copy, write, sync"),
        ((COMMIT, "crc (google_crc32c/cext.py:1)"), "commit: copy, write, sync"),
        ((ADDS, COMMIT), "commit: copy, write, sync"),
        (("native",), profiling.OTHER),
    ],
)
def test_the_innermost_known_frame_decides(stack: tuple[str, ...], stage: str) -> None:
    assert profiling.stage_of(stack) == stage


def test_a_budget_adds_up_to_what_was_spent() -> None:
    found = profiling.budget({(LOOP, ADDS): 30, (LOOP,): 10, (COMMIT,): 60}, 5.0)
    assert found == {"commit: copy, write, sync": 3.0, "checksums and frames": 1.5, profiling.OTHER: 0.5}
    assert list(found) == ["commit: copy, write, sync", "checksums and frames", profiling.OTHER]
    assert "| **sum** | 5.000 |" in profiling.table([("client", found)])
    assert profiling.budget({}, 5.0) == {}


def test_every_stage_names_files_that_exist() -> None:
    package = Path(profiling.__file__).parents[2]
    outside = ("asyncio/futures.py", "bench/")
    for _, parts in profiling.STAGES:
        for part in parts:
            if part not in outside:
                assert list(package.glob(f"{part}*")), f"{part} is gone: put its successor into flame.STAGES"


def test_a_flame_graph_is_an_image_as_wide_as_its_samples() -> None:
    drawn = ET.fromstring(
        profiling.svg("<entries> & more", {"client": {(LOOP, ADDS): 3, (LOOP,): 1}, "b": {(COMMIT,): 4}})
    )
    ns = "{http://www.w3.org/2000/svg}"
    wide = {g.findtext(f"{ns}title"): float(g.find(f"{ns}rect").get("width", "")) for g in drawn.iter(f"{ns}g")}  # type: ignore[union-attr]
    assert wide[f"{ADDS} 37.50%"] == pytest.approx(0.375 * profiling.WIDTH, abs=0.1)
    assert wide["client 50.00%"] == wide["b 50.00%"] == profiling.WIDTH / 2


def test_a_listener_is_found_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listeners({port}) == {port: os.getpid()}
    assert listeners({port}) == {}


def test_the_floor_is_above_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "SECONDS", 0.02)
    found = profiling.measure(1024, tmp_path)
    assert all(value > 0 for value in found.values()), found
    assert found["checksum_us"] < 100


def test_a_process_that_nobody_can_look_into_is_named(tmp_path: Path) -> None:
    profile = Profile(tmp_path, {})
    profile.pids = {"bookie-1": 2**22 + 1}
    with pytest.raises((ProfileFailed, OSError)), profile.recording():
        pass

"""`buckram plan`: its words, and what it says to machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from buckram.cli.app import run
from buckram.cli.planning.history import Sample, Space
from buckram.testing import ThreadedCluster

TB, GB = 10**12, 10**9
SIZE = ["plan", "size", "--rate", "50MB", "--keep", "7d", "--bookie-size", "4TB", "--bookie-rate", "100MB"]


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert run([*words, "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def history(tmp_path: Path) -> str:
    """Ten days of two racks: 20 GB a day each, half full."""
    lines = [
        Sample(
            day * 86_400.0, {f"b{n}": Space(f"/r{n % 2}", TB, 500 * GB - 10 * GB * (day - 10)) for n in range(4)}
        ).encode()
        for day in range(11)
    ]
    path = tmp_path / "history"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


def test_days_until_full_and_a_picture(history: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "full.svg"
    words = ("plan", "full", "--history", history, "--reserve", "0", "--picture", str(picture))
    found = asked(capsys, *words)
    assert found["days_until_all_are_full"] == pytest.approx(50)
    assert [one["rack"] for one in found["racks"]] == ["/r0", "/r1"]
    assert found["racks"][0]["bytes_per_day"] == 20 * GB
    assert found["assumed"]
    assert picture.read_text().startswith("<svg")
    assert run([*words]) == 0
    said = capsys.readouterr().out
    assert "FULL IN DAYS" in said
    assert "assumed:" in said


def test_what_if(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "full", "--history", history, "--reserve", "0")
    assert asked(capsys, *words, "--copies", "4:2")["days_until_all_are_full"] == pytest.approx(100)
    more = asked(capsys, *words, "--add", "/r2=4", "--bookie-size", "2TB")
    assert [one["bookies"] for one in more["racks"]] == [2, 2, 4]
    assert more["racks"][0]["days_until_full"] == pytest.approx(100)


def test_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, *SIZE, "--racks", "3")
    assert (found["bookies"], found["problems"]) == (44, [])
    assert asked(capsys, *SIZE, "--lose", "2", code=1)["problems"]
    assert run(SIZE) == 0
    assert capsys.readouterr().out.startswith("30 bookies\n")


@pytest.mark.parametrize(
    "wrong",
    [
        ("--add", "/r1"),
        ("--add", "/r1=0", "--bookie-size", "1TB"),
        ("--add", "/r1=2"),
        ("--bookie-size", "1TB"),
        ("--rebalance",),
        ("--copies", "3"),
        ("--copies", "3:0"),
        ("--copies", "x:y"),
        ("--since", "long"),
    ],
)
def test_what_is_no_change_is_refused(wrong: tuple[str, ...], history: str) -> None:
    assert run(["plan", "full", "--history", history, *wrong]) == 2


def test_a_file_that_is_no_history_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history"
    path.write_text("nonsense\n")
    assert run(["plan", "full", "--history", str(path)]) == 1
    assert f"{path}, line 1" in capsys.readouterr().err
    assert run(["plan", "full", "--history", str(tmp_path / "none")]) == 1


def test_the_history_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadedCluster(bookies=3) as cluster:
        assert run(["plan", "full", "--metadata", cluster.uri]) == 2
        assert "the usage history is empty" in capsys.readouterr().err
        assert asked(capsys, "plan", "record", "--metadata", cluster.uri)["bookies"] == 3
        found = asked(capsys, "plan", "full", "--metadata", cluster.uri)
        assert (found["known"], found["racks"][0]["days_until_full"]) == (False, None)
        assert run(["plan", "full", "--metadata", cluster.uri]) == 0
        assert "too short" in capsys.readouterr().err

"""`buckram upgrade-check` on a cluster that is well, one that is not, and directories of both formats."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from buckram.cli.app import run
from buckram.core.cluster.problems import RELEASES
from buckram.testing import ThreadedCluster

OLD = Path(__file__).parents[2] / "formats" / "0.1" / "directory.tar.xz"


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert run(["upgrade-check", *words, "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_a_cluster_that_is_well_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadedCluster(bookies=2) as cluster:
        found = asked(capsys, "--metadata", cluster.uri)
        assert (found["ready"], found["problems"]) == (True, [])
        assert found["release"].startswith(RELEASES[-1])
        assert [one["release"] for one in found["bookies"]] == [found["release"]] * 2
        assert any("cluster backup" in note for note in found["notes"])
        cluster.stop(0)
        found = asked(capsys, "--metadata", cluster.uri, code=1)
        assert [one["where"] for one in found["problems"]] == [cluster.bookies[0]]
        assert run(["upgrade-check", "--metadata", cluster.uri]) == 1
        assert capsys.readouterr().out.startswith("NOT READY for release")


def test_directories_and_settings_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[bookie]\nportt = 1\n")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "superblock").write_bytes(b"nonsense")
    with ThreadedCluster(bookies=1) as cluster:
        found = asked(capsys, "--metadata", cluster.uri, "--data", str(tmp_path / "bookie"))
        assert found["directories"] == [{"directory": str(tmp_path / "bookie"), "format": 2, "written": 3}]
        assert "gets format 3 at the first start" in found["notes"][0]
        words = ("--data", str(tmp_path), "--data", str(damaged), "--config", str(wrong))
        found = asked(capsys, "--metadata", cluster.uri, *words, code=1)
        assert [(one["what"], one["where"]) for one in found["problems"]] == [
            ("settings", str(wrong)),
            ("directory", str(tmp_path)),
            ("directory", str(damaged)),
        ]


def test_a_cluster_that_cannot_be_reached_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "--metadata", f"sqlite://{tmp_path}/none.db", code=1)
    assert found["problems"][0]["what"] == "cluster"

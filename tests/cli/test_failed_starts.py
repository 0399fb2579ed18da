"""A start that fails leaves no directory, and no cluster, that it made."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from buckram.cli.app import run
from buckram.cli.up.cluster_directory import GATEWAY_URL, LOCK, only_one


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def bookie(tmp_path: Path, *options: object) -> int:
    uri = f"sqlite://{tmp_path / 'meta' / 'metadata.db'}"
    words = ["bookie", "run", "--data", tmp_path / "a" / "bookie", "--metadata", uri, "--port", 0, *options]
    return run([str(word) for word in words])


@pytest.mark.parametrize("option", ["--port", "--http", "--metrics"])
def test_a_port_in_use(tmp_path: Path, taken: int, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bookie(tmp_path, option, taken if option == "--port" else f"127.0.0.1:{taken}") != 0
    assert "in use" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("uri", ["sqlite:nowhere", "http://x", "sqlite:///proc/nowhere/metadata.db"])
def test_a_wrong_store(tmp_path: Path, uri: str) -> None:
    assert bookie(tmp_path, "--metadata", uri) != 0
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_was_there_stays(tmp_path: Path, taken: int) -> None:
    (tmp_path / "a" / "bookie").mkdir(parents=True)
    assert bookie(tmp_path, "--port", taken) != 0
    assert [one.name for one in tmp_path.rglob("*")] == ["a", "bookie"]


def test_a_cluster_that_was_there_stays(tmp_path: Path, taken: int) -> None:
    assert run(["cluster", "init", "--metadata", f"sqlite://{tmp_path / 'meta' / 'metadata.db'}"]) == 0
    assert bookie(tmp_path, "--port", taken) != 0
    assert (tmp_path / "meta" / "metadata.db").exists()
    assert not (tmp_path / "a").exists()


def test_a_file_in_place_of_the_directory_of_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run(["up", "--data", str(tmp_path / "file")]) == 2
    assert "is a file; see `buckram up --help`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [("--bookies", "0"), ("--disks", "/nowhere"), ("--metrics", "127.0.0.1:0"), ("--http", "127.0.0.1:65535")],
)
def test_up(tmp_path: Path, wrong: tuple[str, str]) -> None:
    assert run(["up", "--data", str(tmp_path / "a" / "cluster"), *wrong]) == 2
    assert list(tmp_path.iterdir()) == []


def test_up_where_one_runs_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with only_one(tmp_path):
        assert run(["up", "--data", str(tmp_path)]) == 2
        told = capsys.readouterr().err
        assert f"a `buckram up` (process {os.getpid()}) runs this cluster; use it, stop it" in told
        (tmp_path / GATEWAY_URL).write_text("http://127.0.0.1:8080\n")
        assert run(["up", "--data", str(tmp_path)]) == 2
        assert "with its gateway at http://127.0.0.1:8080;" in capsys.readouterr().err
        (tmp_path / LOCK).write_text("")  # of an older Buckram
        assert run(["up", "--data", str(tmp_path)]) == 2
        assert "a `buckram up` runs this cluster, with" in capsys.readouterr().err

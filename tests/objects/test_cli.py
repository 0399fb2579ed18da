"""`buckram object` as scripts use it: output, exit codes, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from buckram.cli.app import run as in_process
from buckram.cli.exits import Exit
from buckram.testing import ThreadedCluster

Run = Callable[..., str]


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with ThreadedCluster(bookies=3) as cluster:
        yield cluster.uri


@pytest.fixture
def run(uri: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `buckram object WORDS` in this process; returns what it printed."""
    monkeypatch.setenv("BUCKRAM_METADATA", uri)

    def run(*words: object, code: Exit = Exit.OK) -> str:
        assert in_process(["object", *map(str, words)]) == code, capfd.readouterr().err
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return said.out if code is Exit.OK else said.err

    return run


def test_an_object_goes_in_and_comes_out(run: Run, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"some bytes")
    info = json.loads(run("put", "default/a/b", source, "--meta", "author=ann", "--json"))
    assert (info["object"], info["bytes"], info["metadata"]) == ("default/a/b", 10, {"author": "ann"})
    assert info["digest"].startswith("sha256:")
    run("get", "default/a/b", target)
    assert target.read_bytes() == b"some bytes"
    assert sorted(tmp_path.iterdir()) == [source, target]
    assert run("get", "default/a/b", "--start", 5) == "bytes"
    assert "is an object and no directory" in run("put", "default/a/b/c", source, code=Exit.USAGE)
    assert "is there already" in run("put", "default/a/b", source, "--if-absent", code=Exit.REFUSED)
    run("copy", "default/a/b", "default/c")
    run("rename", "default/a", "default/z")
    assert [json.loads(line)["object"] for line in run("list", "default", "--json").splitlines()] == [
        "default/c",
        "default/z/b",
    ]
    run("delete", "default/c", "--yes")
    assert "does not exist" in run("get", "default/c", code=Exit.NOT_FOUND)


@pytest.mark.parametrize(
    "words",
    [
        ("get", "default"),
        ("get", "default/a//b"),
        ("copy", "a/b", "c/d"),
        ("put", "default/a", "/none", "--meta", "x"),
        ("put", "default/a", "/none", "--expires", "soon"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(run: Run, words: tuple[str, ...]) -> None:
    assert len(run(*words, code=Exit.USAGE).strip().splitlines()) <= 4

"""`buckram object` as scripts use it: output, exit codes, JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from buckram import TooManyUploads
from buckram.cli.app import run as in_process
from buckram.cli.shared.exits import Exit
from buckram.sync import connect
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


def test_a_directory_is_deleted_and_its_space_given_back(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(bytes(2_000_000))
    for name in ("d/a", "d/b"):
        run("put", f"default/{name}", source)
    assert "is a directory and no object" in run("get", "default/d", code=Exit.NOT_FOUND)
    assert "is a directory and no object" in run("delete", "default/d", "--yes", code=Exit.NOT_FOUND)
    assert json.loads(run("delete", "default/d", "--recursive", "--yes", "--json")) == {
        "object": "default/d",
        "deleted": True,
    }
    assert run("list", "default", "--prefix", "d/", "--json") == ""
    assert run("sweep", "default") == "default: deleted 0 ledgers\n"
    assert json.loads(run("sweep", "default", "--grace", "0s", "--json"))["ledgers_deleted"] >= 2
    assert "--grace" in run("sweep", "default", "--grace", "soon", code=Exit.USAGE)


def test_uploads_are_listed_given_up_and_limited(run: Run, uri: str) -> None:
    with connect(uri) as client, client.objects() as objects:
        client.namespaces.set("default", max_uploads=2)
        first, second = (objects.begin_upload(name) for name in ("up/one", "up/two"))
        objects.put_part(first, 0, b"12345")
        with pytest.raises(TooManyUploads, match=r"object default/three: 2 uploads .*\(max_uploads\).*=4`"):
            objects.begin_upload("three")
    listed = [json.loads(line) for line in run("uploads", "default", "--json").splitlines()]
    shown = [(one["upload"], one["object"], one["parts"], one["bytes"]) for one in listed]
    assert shown == [(first, "default/up/one", 1, 5), (second, "default/up/two", 0, 0)]
    assert str(second) in run("uploads", "default", "--prefix", "up/t").splitlines()[1]
    assert f"upload {second + 9} is not open" in run("abort", "default", second + 9, "--yes", code=Exit.NOT_FOUND)
    aborted = json.loads(run("abort", "default", first, second, "--yes", "--json"))
    assert aborted == {"namespace": "default", "aborted": [first, second]}
    assert run("uploads", "default", "--json") == ""
    with connect(uri) as client, client.objects() as objects:
        objects.abort_upload(objects.begin_upload("three"))
        client.namespaces.set("default", max_uploads=10_000)


def test_a_put_from_a_pipe_can_be_interrupted(run: Run, uri: str) -> None:
    command = [sys.executable, "-m", "buckram", "object", "put", "default/piped", "-"]
    putting = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert putting.stdin is not None
    putting.stdin.write(bytes(20_000_000))
    putting.stdin.flush()  # All of it was taken, but for what a pipe holds: now it waits for more.
    putting.send_signal(signal.SIGINT)
    assert putting.stderr is not None
    assert putting.stderr.read() == b"buckram: interrupted\n"
    putting.stdin.close()
    assert putting.wait() == Exit.INTERRUPTED
    putting.stderr.close()
    assert "does not exist" in run("get", "default/piped", code=Exit.NOT_FOUND)


def test_messages_name_the_value_the_limit_and_the_cure(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"six by")
    version = json.loads(run("put", "default/m", source, "--json"))["version"]
    said = run("put", "default/m", source, "--if-match", version + 9, code=Exit.REFUSED)
    assert f"has version {version}, and version {version + 9} was to be there" in said
    assert "leave --if-absent out" in run("put", "default/m", source, "--if-absent", code=Exit.REFUSED)
    assert "--start 7: object default/m has 6 bytes" in run("get", "default/m", "--start", 7, code=Exit.USAGE)
    assert "has 1025 bytes of UTF-8, and needs 1 to 1024" in run("get", "default/" + "x" * 1025, code=Exit.USAGE)
    assert "buckram object list default" in run("get", "default/none", code=Exit.NOT_FOUND)
    assert "--expires: seconds" in run("put", "default/m", source, "--expires", "99999d", code=Exit.USAGE)
    for target in (tmp_path, tmp_path / "none" / "file"):
        assert str(target) in run("get", "default/m", target, code=Exit.USAGE)
    assert sorted(tmp_path.iterdir()) == [source]


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


def test_a_name_whose_first_part_is_no_namespace(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"x")
    for words in (("put", "reports/x.pdf", source), ("get", "reports/x.pdf"), ("delete", "reports/x.pdf", "--yes")):
        told = run(*words, code=Exit.NOT_FOUND)
        assert "namespace reports: does not exist" in told
        assert "name it default/reports/x.pdf" in told
    assert "needs NAMESPACE/NAME, such as default/x.pdf" in run("get", "x.pdf", code=Exit.USAGE)
    assert "name it" not in run("list", "reports", code=Exit.NOT_FOUND)

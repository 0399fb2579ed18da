"""`buckram replicate` as scripts use it: output, exit codes, and a process that is killed at any moment."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import Ended, environment
from tests.support.polling import wait_until

import buckram
from buckram.cli.app import run as in_process
from buckram.cli.shared.exits import Exit
from buckram.sync import connect
from buckram.testing import ThreadedCluster

Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def uris() -> Iterator[tuple[str, str]]:
    with ThreadedCluster(bookies=1) as one, ThreadedCluster(bookies=1) as two:
        yield one.uri, two.uri


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `buckram WORDS` to its end in this process."""

    def run(*words: object) -> Ended:
        code = in_process([str(word) for word in words])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return Ended(code, said.out, said.err)

    return run


@pytest.fixture
def ok(run: Run) -> Run:
    def ok(*words: object) -> Ended:
        done = run(*words)
        assert done.code == 0, done.err
        return done

    return ok


def write(uri: str, stream: str, lines: bytes) -> None:
    command = [sys.executable, "-m", "buckram", "stream", "write", stream]
    subprocess.run(command, input=lines, env=environment(uri), check=True, capture_output=True, timeout=60)


def values(ok: Run, uri: str, stream: str) -> list[str]:
    return ok("stream", "read", stream, "--metadata", uri).out.splitlines()


def make(ok: Run, uris: tuple[str, str], namespace: str) -> None:
    for uri in uris:
        ok("namespace", "create", namespace, "--set", "ensemble=1/1/1", "--metadata", uri)


def test_the_shell_reads_a_mirror_of_a_database(uris: tuple[str, str], ok: Run, run: Run) -> None:
    a, b = uris
    make(ok, uris, "mirrored")
    shell = ("db", "shell", "mirrored/main")
    ok(*shell, "CREATE TABLE item (name)", "--create", "--metadata", a)
    ok(*shell, "INSERT INTO item VALUES ('one')", "--metadata", a)
    ok("replicate", "run", "--from", a, "--to", b, "mirrored", "--once")
    done = ok(*shell, "SELECT name FROM item", "--metadata", b)
    assert (done.out.split(), "is a mirror" in done.err) == (["name", "one"], True)
    refused = run(*shell, "DELETE FROM item", "--metadata", b)
    assert (refused.code, "promote mirrored" in refused.err) == (Exit.REFUSED, True)


def test_a_namespace_from_the_first_copy_to_the_change_of_sides_and_back(
    uris: tuple[str, str], ok: Run, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = uris
    make(ok, uris, "shop")
    write(a, "shop/orders", b"one\ntwo\n")
    done = ok("replicate", "run", "--from", a, "--to", b, "shop", "--once", "--json").json
    assert (done["records"], done["first_offset"], done["next_offset"], done["failed"]) == (2, 0, 2, 0)
    again = ok("job", "replicate", "--from", a, "--to", b, "shop", "--json").json
    assert (again["records"], again["next_offset"]) == (0, 2)

    write(a, "shop/orders", b"three\n")
    linked = ok("replicate", "status", "--on", b, "--json").json["namespaces"]
    (shown,) = [one for one in linked if one["namespace"] == "shop"]
    assert (shown["namespace"], shown["state"], shown["lag_records"]) == ("shop", "mirror", 1)
    assert shown["streams"][0]["stream"] == "shop/orders"
    assert "shop/orders" in ok("replicate", "status", "shop", "--on", a).out
    monkeypatch.setenv("BUCKRAM_TOKEN", "secret")
    for more, reached in (((), False), (("--other", a), True)):
        found = ok("replicate", "status", "shop", "--on", b, "--json", *more)
        assert [one["other_reached"] for one in found.json["namespaces"]] == [reached]
        assert ("--other" in found.err) != reached
    monkeypatch.delenv("BUCKRAM_TOKEN")

    refused = run("replicate", "promote", "shop", "--on", b)
    assert (refused.code, "is alive" in refused.err) == (Exit.REFUSED, True)
    assert run("replicate", "promote", "shop", "--on", b, "--force").code == Exit.USAGE  # It may lose: --yes.
    promoted = ok("replicate", "promote", "shop", "--on", b, "--force", "--yes", "--json").json
    (one,) = promoted["streams"]
    assert (one["copied"], one["source_end"], one["missing"], one["unknown_beyond"]) == (2, 3, 1, False)
    write(b, "shop/orders", b"other three\n")
    assert run("stream", "seal", "shop/orders", "--metadata", a).code == Exit.REFUSED

    refused = run("replicate", "run", "--from", b, "--to", a, "shop", "--once")
    assert (refused.code, "reconcile" in refused.err) == (Exit.REFUSED, True)
    looked = ok("replicate", "reconcile", "shop", "--on", a, "--dry-run", "--json").json
    assert looked["streams"] == [
        {"stream": "shop/orders", "records": 1, "first_offset": 2, "last_offset": 2, "kept": "shop/orders.kept-1"}
    ]
    assert run("replicate", "reconcile", "shop", "--on", a).code == Exit.USAGE
    assert "kept in shop/orders.kept-1" in ok("replicate", "reconcile", "shop", "--on", a, "--yes").out
    ok("replicate", "run", "--from", b, "--to", a, "shop", "--once")
    assert values(ok, a, "shop/orders") == ["one", "two", "other three"]
    assert values(ok, a, "shop/orders.kept-1") == ["three"]


def test_a_process_that_is_killed_again_and_again_copies_each_record_once(uris: tuple[str, str], ok: Run) -> None:
    a, b = uris
    make(ok, uris, "killed")
    lines = [f"{number:06d} {'x' * 200}" for number in range(30_000)]
    write(a, "killed/s", "\n".join(lines).encode() + b"\n")
    words = ["replicate", "run", "--from", a, "--to", b, "killed", "--rate", "3MB", "--json"]
    reached = 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-m", "buckram", *words], env=environment(None), stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["pid"] == process.pid
        before = reached

        def moved(before: int = before) -> bool:
            nonlocal reached
            reached = copied(ok, b)
            return reached > before

        try:
            wait_until(moved, 30)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
    assert reached > 0
    ok("replicate", "run", "--from", a, "--to", b, "killed", "--once")
    assert values(ok, b, "killed/s") == lines


def copied(ok: Run, uri: str) -> int:
    shown: dict[str, Any] = ok("replicate", "status", "killed", "--on", uri, "--json").json
    return sum(one["copied"] for one in shown["namespaces"][0]["streams"])


@pytest.mark.share(2)
def test_a_process_that_is_killed_again_and_again_mirrors_objects_and_databases(
    uris: tuple[str, str], ok: Run, tmp_path: Path
) -> None:
    a, b = uris
    make(ok, uris, "all")
    for number in range(30):
        (tmp_path / f"{number:02d}").write_bytes(random.Random(number).randbytes(150_000 * (number % 9)))
    with connect(a) as client, client.objects("all") as objects:
        for file in sorted(tmp_path.iterdir()):
            objects.put(f"d/{file.name}", file.read_bytes(), metadata={"name": file.name})
    asyncio.run(insert(a, 20))
    words = ["replicate", "run", "--from", a, "--to", b, "all", "--rate", "8MB", "--json"]
    reached = -1
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "buckram", *words], env=environment(None), stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["pid"] == process.pid
        try:
            wait_until(lambda before=reached: len(mirrored(b, tmp_path)) > before, 60)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        reached = len(mirrored(b, tmp_path))
    ok("replicate", "run", "--from", a, "--to", b, "all", "--once")
    assert mirrored(b, tmp_path) == sorted(file.name for file in tmp_path.iterdir())
    promoted = ok("replicate", "promote", "all", "--on", b, "--force", "--yes", "--json").json
    assert [(one["stream"], one["missing"]) for one in promoted["streams"]] == [("all/main", 0)]
    assert (promoted["objects"]["missing"], promoted["objects"]["undeleted"]) == (0, 0)
    assert asyncio.run(rows(b)) == [(20, 190)]


async def insert(uri: str, count: int) -> None:
    async with buckram.connect(uri) as client, client.namespace("all").database("main") as database:
        await database.lead()
        await database.execute("CREATE TABLE item (number INTEGER)")
        for number in range(count):
            await database.execute("INSERT INTO item VALUES (?)", (number,))


async def rows(uri: str) -> list[tuple[object, ...]]:
    async with buckram.connect(uri) as client, client.namespace("all").database("main", create=False) as database:
        await database.lead()
        found = await database.query("SELECT count(*), sum(number) FROM item")
        return list(found.rows)


def mirrored(uri: str, folder: Path) -> list[str]:
    """The objects that a mirror has, each with the bytes and the metadata of the source's."""
    found: list[str] = []
    with connect(uri) as client:
        if not client.namespace("all").exists("buckram.objects"):
            return []
        with client.objects("all") as objects:
            for info in objects.list():
                file = folder / info.name.removeprefix("d/")
                assert info.metadata == {"name": file.name}
                assert objects.get(info.name) == file.read_bytes()
                found.append(file.name)
    return found


def test_bad_input_names_what_is_wrong(uris: tuple[str, str], run: Run, ok: Run) -> None:
    a, b = uris
    cases: list[tuple[tuple[str, ...], Exit, str]] = [
        (("run", "--from", a, "--to", a, "default", "--once"), Exit.REFUSED, "the same cluster"),
        (("run", "--from", a, "--to", b, "nowhere", "--once"), Exit.NOT_FOUND, "nowhere"),
        (("run", "--from", a, "--to", b, "default/nothing", "--once"), Exit.NOT_FOUND, "default/nothing"),
        (("run", "--from", a, "--to", b, "default", "--once", "--rate", "fast"), Exit.USAGE, "--rate 'fast'"),
        (("run", "--from", a, "--to", b, "--once"), Exit.USAGE, "NAMESPACE"),
        (("status", "nowhere", "--on", b), Exit.NOT_FOUND, "nowhere"),
        (("status", "default", "--on", b), Exit.REFUSED, "not replicated"),
        (("promote", "default", "--on", b), Exit.REFUSED, "nothing to promote"),
        (("reconcile", "default", "--on", b, "--yes"), Exit.REFUSED, "nothing to reconcile"),
    ]
    for words, code, says in cases:
        done = run("replicate", *words)
        assert (done.code, says in done.err) == (code, True), (words, done)

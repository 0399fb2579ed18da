"""`buckram stream` and `buckram namespace` as scripts use them: output, exit codes, JSON."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import Ended, environment
from tests.e2e.conftest import buckram as spawned
from tests.support.polling import wait_until

from buckram.cli.app import run as in_process
from buckram.cli.shared.exits import Exit
from buckram.serve.json_views.records import JsonLines, PlainLines
from buckram.testing import ThreadedCluster

Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with ThreadedCluster(bookies=3) as cluster:
        yield cluster.uri


@pytest.fixture
def run(uri: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `buckram WORDS` to its end in this process, as starting another takes most of a short command's time."""
    monkeypatch.setenv("BUCKRAM_METADATA", uri)

    def run(*words: object, stdin: bytes = b"") -> Ended:
        kept = os.dup(0)
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            os.dup2(given.fileno(), 0)
            try:
                code = in_process([str(word) for word in words])
            finally:
                os.dup2(kept, 0)
                os.close(kept)
        said = capfd.readouterr()
        return Ended(code, said.out, said.err)

    return run


@pytest.fixture
def ok(run: Run) -> Run:
    def ok(*words: object, stdin: bytes = b"") -> Ended:
        done = run(*words, stdin=stdin)
        assert done.code == 0, done.err
        return done

    return ok


def rows(done: Ended) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


def test_written_lines_are_read_back(ok: Run, run: Run) -> None:
    done = ok("stream", "write", "lines", stdin=b"a\n\nb b\nlast without an end")
    assert done.json == {"stream": "default/lines", "records": 4, "first_offset": 0, "last_offset": 3}
    assert ok("stream", "read", "default/lines").out == "a\n\nb b\nlast without an end\n"
    more = ok("stream", "write", "lines", stdin=b"more\n").json
    assert (more["first_offset"], more["last_offset"]) == (4, 4)
    assert ok("stream", "write", "lines").json["first_offset"] is None


def test_a_log_is_no_stream_to_be_deleted_and_lists_say_so(ok: Run, run: Run) -> None:
    for create in (("namespace", "create", "logs"), ("stream", "create", "logs/orders"), ("db", "create", "logs/main")):
        ok(*create)
    shown = {row["stream"]: row["purpose"] for row in ok("stream", "list", "logs", "--long", "--json").json["streams"]}
    assert shown == {"logs/main": "database", "logs/orders": "records"}
    assert [line.split()[:2] for line in ok("stream", "list", "logs", "--long").out.splitlines()] == [
        ["STREAM", "PURPOSE"],
        ["logs/main", "database"],
        ["logs/orders", "records"],
    ]
    assert "purpose database" in ok("stream", "show", "logs/main").out
    refused = (
        ("delete", "logs/main", "--yes"),
        ("delete", "logs/main", "--force", "--yes"),
        ("delete", "logs/main", "--purpose", "machine", "--yes"),
        ("delete", "logs/orders", "--purpose", "database", "--yes"),
        ("truncate", "logs/main", "--before", 0, "--yes"),
        ("truncate", "logs/main", "--before-cursors", "--yes"),
        ("end", "logs/main", "--yes"),
        ("seal", "logs/main"),
        ("write", "logs/main"),
        ("fork", "logs/main", "logs/copy"),
    )
    for words in refused:
        done = run("stream", *words, stdin=b"x\n")
        assert (done.code, "Traceback" in done.err) == (Exit.USAGE, False), (words, done.err)
    assert "`buckram db drop logs/main` deletes the database" in run("stream", "delete", "logs/main", "--yes").err
    unknown = run("stream", "delete", "logs/main", "--purpose", "all", "--yes")
    assert (unknown.code, "needs one of records, machine" in unknown.err) == (Exit.USAGE, True)
    assert "logs/main, which is the log of a database" in run("namespace", "delete", "logs", "--yes").err
    ok("db", "drop", "logs/main", "--yes")
    ok("stream", "delete", "logs/orders", "--yes")
    ok("namespace", "delete", "logs", "--yes")


def test_json_lines_round_trip(ok: Run, run: Run) -> None:
    given = [
        {"value": "plain"}, {"value": None, "key": "gone"}, {"value_base64": base64.b64encode(b"\xff\x00").decode()},
        {"value": "", "headers": {"h": "text"}, "headers_base64": {"b": "/w=="}, "timestamp_us": 5, "txid": 7},
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, given)).encode() + b"\n\n"
    assert ok("stream", "write", "js", "--jsonl", stdin=text).json["records"] == 4
    found = rows(ok("stream", "read", "js", "--json"))
    assert [row["offset"] for row in found] == [0, 1, 2, 3]
    assert {"offset", "timestamp_us", "append_time_us", "key_base64", "value_base64"} == set(found[0])
    assert [row["value_base64"] for row in found] == ["cGxhaW4=", None, "/wA=", ""]
    assert found[1]["key_base64"] == "Z29uZQ=="
    assert (found[3]["timestamp_us"], found[3]["txid"]) == (5, 7)
    assert (found[3]["headers"], found[3]["headers_base64"]) == ({"h": "text"}, {"b": "/w=="})
    copied = ok("stream", "read", "js", "--json").out.encode()
    ok("stream", "write", "copy", "--jsonl", stdin=copied)
    again = rows(ok("stream", "read", "copy", "--json"))
    stable = [{k: v for k, v in row.items() if k != "append_time_us"} for row in found]
    assert [{k: v for k, v in row.items() if k != "append_time_us"} for row in again] == stable


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"nonsense", "not JSON"), (b"[]", "not an object"), (b"{}", "neither value"), (b'{"value":1}', "no text"),
        (b'{"value":"x","foo":1}', "foo"), (b'{"value_base64":"?"}', "value_base64"), (b"[" * 100_000, "not JSON"),
        (b'{"value":"x","txid":-1}', "txid"), (b'{"value":"x","timestamp_us":"1"}', "timestamp_us"),
        (b'{"value":"x","headers":[1]}', "headers"), (b'{"value":"x","value_base64":"eA=="}', "one of them"),
        (b'{"value":"xxx","key":"12345"}', "limit is 7"), (b'{"value":"\\ud800"}', "UTF-8"),
        (b'{"value":"x","headers_base64":{"a":3}}', "headers_base64"), (b"\xff", "not JSON"),
    ],
)  # fmt: skip
def test_a_bad_json_line_is_named_and_those_before_it_are_kept(line: bytes, says: str) -> None:
    rows, bad = JsonLines().parse([b'{"value":"good"}', b"", line, b'{"value":"x"}'], 10, 7)
    assert rows.arguments() == {"values": [b"good"]}
    assert bad is not None
    assert bad.line == 12
    assert "line 12 " in str(bad)
    assert says in str(bad)


def test_plain_lines_at_the_size_limit() -> None:
    rows, bad = PlainLines(b"=").parse([b"a=bcd", b"abcde", b"abcdef"], 1, 5)
    assert rows.arguments() == {"values": [b"bcd", b"abcde"], "keys": [b"a", None]}
    assert bad is not None
    assert bad.line == 3


def test_lines_before_a_bad_line_are_written(uri: str) -> None:
    done = spawned("stream", "write", "bad", "--jsonl", uri=uri, stdin=b'{"value":"good"}\n[]\n{"value":"x"}\n')
    assert (done.code, done.json["records"]) == (Exit.USAGE, 1)
    assert "line 2 " in done.err
    done = spawned("stream", "write", "bad", uri=uri, stdin=b"a\nb\n" + bytes(9_000_000) + b"\nc\n")
    assert (done.code, done.json["records"]) == (Exit.USAGE, 2)
    assert "line 3 " in done.err
    assert spawned("stream", "read", "bad", uri=uri).out == "good\na\nb\n"


def test_read_options_for_keys_times_and_parts(ok: Run, run: Run) -> None:
    ok("stream", "write", "keys", "--key-separator", "=", stdin=b"a=1\nno key\nb=2=3\n")
    assert ok("stream", "read", "keys", "--key-separator", ":").out == "a:1\n:no key\nb:2=3\n"
    assert ok("stream", "read", "keys", "--raw").out == "1no key2=3"
    timed = ok("stream", "read", "keys", "--times", "-n", 1).out
    assert timed[4] == "-"
    assert timed.endswith("Z 1\n")
    assert ok("stream", "read", "keys", "--start", 1, "--stop", 2).out == "no key\n"
    assert ok("stream", "read", "keys", "--since", "1h", "-n", 2).out == "1\nno key\n"
    assert ok("stream", "read", "keys", "--until", "1h").out == ""
    assert ok("stream", "tail", "keys", "-n", 1).out == "2=3\n"
    assert ok("stream", "tail", "keys", "--since", "2000-01-01").out == "1\nno key\n2=3\n"


def test_a_retry_of_a_producer_is_stored_once(ok: Run, run: Run) -> None:
    for _ in range(2):
        done = ok("stream", "write", "once", "--producer", "p1", stdin=b"a\nb\n")
    assert done.json["records"] == 0
    ok("stream", "write", "once", "--producer", "p1", "--sequence", 1, stdin=b"b\nc\n")
    assert ok("stream", "read", "once").out == "a\nb\nc\n"


def test_cursor_commands(ok: Run, run: Run) -> None:
    ok("stream", "write", "cur", stdin=b"a\nb\nc\n")
    read = ("stream", "read", "cur", "--cursor", "c1", "--commit")
    assert ok(*read, "-n", 2).out == "a\nb\n"
    (found,) = ok("stream", "cursor", "list", "cur", "--json").json["cursors"]
    assert (found["cursor"], found["offset"], found["lag"]) == ("c1", 2, 1)
    assert ok(*read).out == "c\n"
    assert ok(*read).out == ""
    assert run("stream", "cursor", "set", "cur", "c1", 1).code == Exit.REFUSED
    assert run("stream", "cursor", "set", "cur", "c2", 9).code == Exit.NOT_FOUND
    assert "c1" in ok("stream", "cursor", "list", "cur").out
    ok("stream", "cursor", "delete", "cur", "c1", "--yes")
    assert run("stream", "cursor", "delete", "cur", "c1", "--yes").code == Exit.NOT_FOUND
    assert run("stream", "read", "cur", "--commit").code == Exit.USAGE


def test_commands_from_creation_to_deletion(ok: Run, run: Run) -> None:
    ok("namespace", "create", "shop", "--set", "retention_s=7d", "--set", "ensemble=2/2/2")
    assert run("namespace", "create", "shop").code == Exit.REFUSED
    made = ok("stream", "create", "shop/orders", "--property", "a=b", "--set", "roll_bytes=1MiB", "--json")
    assert made.json["policy"]["retention_s"] == 604_800
    assert made.json["policy"]["ensemble"] == "2/2/2"
    assert made.json["overrides"] == {"roll_bytes": 1_048_576}
    assert run("stream", "create", "shop/orders").code == Exit.REFUSED
    ok("stream", "write", "shop/orders", "--no-create", stdin=b"1\n2\n3\n")
    assert ok("stream", "list", "shop").out == "shop/orders\n"
    assert "shop/orders" in ok("stream", "list", "--json").json["streams"]
    (long,) = ok("stream", "list", "shop", "--long", "--json").json["streams"]
    assert (long["stream"], long["earliest"], long["end"], long["records"]) == ("shop/orders", 0, 3, 3)
    change = ("--set", "roll_bytes=none", "--property", "c=d", "--remove-property", "a")
    ok("stream", "set", "shop/orders", *change)
    shown = ok("stream", "show", "shop/orders", "--segments", "--json").json
    assert (shown["properties"], shown["overrides"]) == ({"c": "d"}, {})
    assert [segment["records"] for segment in shown["segment_list"]] == [3]
    assert "c = d" in ok("stream", "show", "shop/orders").out

    refused = run("ledger", "delete", shown["segment_list"][0]["ledger"], "--yes")
    assert (refused.code, "shop/orders" in refused.err) == (Exit.REFUSED, True)
    assert ok("stream", "truncate", "shop/orders", "--before", 2, "--yes", "--json").json["earliest"] == 2
    gone = run("stream", "read", "shop/orders", "--start", 0)
    assert gone.code == Exit.NOT_FOUND
    assert "earliest is now 2" in gone.err
    assert ok("stream", "read", "shop/orders").out == "3\n"
    beyond = run("stream", "truncate", "shop/orders", "--before", 9, "--yes")
    assert beyond.code == Exit.NOT_FOUND
    assert "2" in beyond.err
    assert "3" in beyond.err

    ended = ok("stream", "end", "shop/orders", "--yes", "--json").json
    assert (ended["end"], ended["ended"]) == (3, True)
    assert run("stream", "write", "shop/orders", stdin=b"x\n").code == Exit.REFUSED
    assert ok("stream", "read", "shop/orders", "-f").out == "3\n"
    assert run("namespace", "delete", "shop", "--yes").code == Exit.REFUSED
    ok("stream", "delete", "shop/orders", "--yes")
    assert run("stream", "show", "shop/orders").code == Exit.NOT_FOUND
    ok("namespace", "delete", "shop", "--yes")
    assert run("namespace", "show", "shop").code == Exit.NOT_FOUND


def test_namespace_commands(ok: Run, run: Run) -> None:
    ok("namespace", "create", "n1")
    ok("namespace", "set", "n1", "--set", "retention_bytes=10GiB", "--set", "compression=none")
    shown = ok("namespace", "show", "n1", "--json").json
    assert shown["overrides"] == {"retention_bytes": 10 * 1024**3, "compression": "none"}
    ok("namespace", "set", "n1", "--set", "retention_bytes=none")
    assert "retention_bytes = none\n" in ok("namespace", "show", "n1").out
    assert {"default", "n1"} <= set(ok("namespace", "list", "--json").json["namespaces"])
    assert ok("namespace", "list", "--prefix", "n").out == "n1\n"


def test_create_refuses_bad_settings(ok: Run, run: Run) -> None:
    large = run("stream", "create", "wide", "--set", "ensemble=9/9/9")
    assert (large.code, "has 3" in large.err, "--force" in large.err) == (Exit.USAGE, True, True)
    assert run("stream", "show", "wide").code == Exit.NOT_FOUND
    ok("stream", "create", "wide", "--set", "ensemble=9/9/9", "--force")
    for command in (("namespace", "create", "n9"), ("namespace", "set", "default")):
        wide = run(*command, "--set", "ensemble=9/9/9")
        assert (wide.code, "has 3" in wide.err, "--force" in wide.err) == (Exit.USAGE, True, True)
    assert run("namespace", "show", "n9").code == Exit.NOT_FOUND
    ok("namespace", "create", "n9", "--set", "ensemble=9/9/9", "--force")
    blank = run("stream", "create", "two words")
    assert (blank.code, "two-words" in blank.err) == (Exit.USAGE, True)
    typed = run("stream", "write", "two words", stdin=b"a\n")
    assert (typed.code, "two-words" in typed.err) == (Exit.USAGE, True)
    ok("stream", "create", "two words", "--force")
    ok("stream", "write", "two words", stdin=b"a\n")


def test_names_and_keys_are_completed(uri: str, ok: Run) -> None:
    ok("namespace", "create", "compl")
    ok("stream", "create", "compl/one")
    ok("stream", "create", "complete")

    def completed(*words: str) -> list[str]:
        """A completion that takes longer than a person waits says nothing, as on a busy machine: it is asked again."""
        found: list[str] = []

        def answered() -> bool:
            found[:] = completed_in_time(*words)
            return found not in ([], [""])

        wait_until(answered, f"nothing completes {words}")
        return found

    def completed_in_time(*words: str) -> list[str]:
        asked = {"_BUCKRAM_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        done = subprocess.run(
            [sys.executable, "-m", "buckram"], env={**environment(uri), **asked}, capture_output=True, check=False
        )
        return [line.partition(",")[2] for line in done.stdout.decode().splitlines()]

    assert completed("buckram", "stream", "read", "compl") == ["complete", "compl/"]
    assert completed("buckram", "stream", "read", "compl/") == ["compl/one"]
    assert completed("buckram", "namespace", "show", "comp") == ["compl"]
    assert len(completed("buckram", "bookie", "show", "b")) >= 3
    assert completed("buckram", "stream", "create", "x", "--set", "roll") == ["roll_bytes=", "roll_s="]


def test_output_without_json_is_for_people(uri: str, ok: Run, run: Run) -> None:
    ok("stream", "write", "said", stdin=b"a\nb\n")
    shown = ok("stream", "show", "said").out
    assert "1 segment," in shown
    assert "roll_bytes=1GiB" in shown
    assert "roll_s=1d" in shown
    ledger = ok("stream", "show", "said", "--segments", "--json").json["segment_list"][0]["ledger"]
    assert "buckram stream read default/said" in ok("ledger", "show", ledger).out
    assert "buckram stream read default/said" in ok("ledger", "read", ledger).err
    ok("stream", "cursor", "set", "said", "c", 2)
    back = run("stream", "cursor", "set", "said", "c", 1)
    assert (back.code, "another reader" in back.err) == (Exit.REFUSED, False)
    assert "cursor delete default/said c" in back.err


def test_an_open_stream_shows_its_last_append_and_repair_advises_to_seal(uri: str, ok: Run, run: Run) -> None:
    dead = Child(uri, "stream", "write", "still", "--acks")
    dead.give(b"a\nb\n")
    while dead.line() != "1":
        pass

    def shown() -> dict[str, Any]:
        return ok("stream", "show", "still", "--segments", "--json").json

    # Acknowledged records become readable with the next LAC; until then the time of the last one is unknown.
    wait_until(lambda: shown()["end"] == 2, "two records readable")
    assert shown()["last_append_time_us"] is not None
    dead.process.kill()
    dead.end()
    said = run("ledger", "repair", shown()["segment_list"][-1]["ledger"]).err
    assert "`buckram stream seal default/still`" in said


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("stream", "read", "missing"), Exit.NOT_FOUND),
        (("stream", "write", "missing", "--no-create"), Exit.NOT_FOUND),
        (("stream", "create", "nowhere/s"), Exit.NOT_FOUND),
        (("stream", "create", "a/b/c"), Exit.USAGE),
        (("stream", "create", "x\ny"), Exit.USAGE),
        (("stream", "create", "x", "--set", "foo=1"), Exit.USAGE),
        (("stream", "create", "x", "--set", "roll_s=soon"), Exit.USAGE),
        (("stream", "create", "x", "--set", "roll_bytes=1"), Exit.USAGE),
        (("stream", "create", "x", "--property", "nothing"), Exit.USAGE),
        (("stream", "truncate", "x", "--yes"), Exit.USAGE),
        (("stream", "truncate", "x", "--before", 1, "--keep-bytes", "1"), Exit.USAGE),
        (("stream", "truncate", "missing", "--before", 1, "--yes"), Exit.NOT_FOUND),
        (("stream", "read", "missing", "--start", "soon"), Exit.USAGE),
        (("stream", "read", "missing", "--since", "yesterday"), Exit.USAGE),
        (("stream", "write", "x", "--jsonl", "--key-separator", "="), Exit.USAGE),
        (("stream", "write", "x", "--takeover", "--wait"), Exit.USAGE),
        (("namespace", "delete", "default", "--yes"), Exit.USAGE),
    ],
)
def test_wrong_arguments(run: Run, words: tuple[object, ...], code: Exit) -> None:
    done = run(*words)
    assert (done.code, done.out) == (code, "")
    assert len(done.err.splitlines()) == 1


class Child:
    """A `buckram` command in a process of its own, which runs until it is stopped."""

    def __init__(self, uri: str, *words: object) -> None:
        command = [sys.executable, "-m", "buckram", *map(str, words)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(uri)
        )

    def give(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def end(self, number: int | None = None) -> tuple[int, str, str]:
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out.decode(), err.decode()


def test_a_writer_is_taken_over_and_a_reader_follows(uri: str, ok: Run, run: Run) -> None:
    first = Child(uri, "stream", "write", "live", "--acks", "--as", "old")
    first.give(b"a\n")
    assert first.line() == "0"
    reader = Child(uri, "stream", "tail", "-f", "live")
    assert reader.line() == "a"
    there = run("stream", "write", "live", stdin=b"x\n")
    assert there.code == Exit.TRY_AGAIN
    assert "'old'" in there.err
    assert ok("stream", "write", "live", "--takeover", stdin=b"b\n").json["first_offset"] == 1
    code, out, err = first.end()
    assert code == Exit.REFUSED, err
    assert json.loads(out.splitlines()[-1])["records"] == 1
    assert reader.line() == "b"
    last = Child(uri, "stream", "write", "live", "--acks")
    last.give(b"c\n")
    assert last.line() == "2"
    assert reader.line() == "c"
    code, out, _ = last.end(signal.SIGTERM)
    assert (code, json.loads(out.splitlines()[-1])["last_offset"]) == (0, 2)
    assert reader.end(signal.SIGINT)[0] == 0


def test_janitor_and_orphans(uri: str, ok: Run) -> None:
    ok("stream", "create", "old", "--set", "retention_s=0")
    ok("stream", "write", "old", stdin=b"a\n")
    dead = Child(uri, "stream", "write", "dead", "--acks")
    dead.give(b"a\n")
    assert dead.line() == "0"
    os.kill(dead.process.pid, signal.SIGKILL)
    dead.end()
    report = ok("stream", "janitor", "--grace", "0s", "--wait", "0.5s", "--json").json
    assert (report["truncated_records"], report["deleted_segments"], report["problems"]) == (1, 1, [])
    assert ok("stream", "orphans", "--json").json == {"orphans": [], "deleted": []}
    assert ok("stream", "seal", "dead", "--json").json["end"] == 1
    assert ok("stream", "orphans", "--delete", "--yes", "--json").json["deleted"] == []
    running = Child(uri, "stream", "janitor", "--every", "0.1s", "--grace", "0s", "--json")
    assert [json.loads(running.line())["problems"] for _ in range(3)] == [[], [], []]
    assert running.end(signal.SIGTERM)[0] == 0


def test_offload_and_check(ok: Run, run: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for number in range(3):
        ok("stream", "write", "oldlines", stdin=b"%d\n" % number)
    done = json.loads(ok("stream", "offload", "oldlines", "--to", tmp_path, "--before", "2", "--json").out)
    assert (done["segments"], done["records"], done["kept"], done["put_off"]) == (2, 2, 0, 0)
    assert done["location"].startswith(f"{tmp_path}/default/oldlines/")
    shown = json.loads(ok("stream", "show", "oldlines", "--segments", "--json").out)
    assert [row["tier"] for row in shown["segment_list"]] == ["history", "history", "bookies"]
    assert (shown["tier"]["history"]["records"], shown["tier"]["bookies"]["segments"]) == (2, 1)
    assert f"history at {done['location']}" in ok("stream", "show", "oldlines", "--segments").out
    assert ok("stream", "read", "oldlines").out == "0\n1\n2\n"
    checked = json.loads(ok("stream", "check", "oldlines", "--adopt", "--json").out)
    assert (checked["problems"], checked["adopted"]) == ([], [])
    for file in tmp_path.rglob("*.parquet"):
        file.write_bytes(b"other bytes")
    wrong = run("stream", "check", "oldlines")
    assert wrong.code == Exit.FAILED
    assert "other bytes" in wrong.out
    assert run("stream", "offload", "oldlines").code == Exit.USAGE
    assert run("stream", "offload", "oldlines", "--to", "here").code == Exit.USAGE


def test_an_operator_follows_a_tenants_policy_to_listed_places_only(
    ok: Run, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    ok("namespace", "create", "meters")
    ok("stream", "create", "meters/policed", "--set", f"offload_to={tmp_path}/far")
    for number in range(3):
        ok("stream", "write", "meters/policed", stdin=b"%d\n" % number)
    offload = ("stream", "offload", "meters/policed", "--json")
    granted = ("--principal", "token:tenant", "--permission", "append", "meters")
    assert json.loads(ok(*offload, "--before", "1").out)["segments"] == 1, "nobody else sets policies"
    ok("acl", "grant", *granted)
    try:
        refused = run(*offload, "--before", "2")
        assert refused.code == Exit.USAGE
        assert f"--to {tmp_path}/far" in refused.err
        monkeypatch.setenv("BUCKRAM_JANITOR_OFFLOAD_PLACES", f"meters={tmp_path}/near")
        assert run(*offload, "--before", "2").code == Exit.USAGE
        monkeypatch.setenv("BUCKRAM_JANITOR_OFFLOAD_PLACES", f"meters={tmp_path}/far")
        assert json.loads(ok(*offload, "--before", "2").out)["segments"] == 1
    finally:
        ok("acl", "revoke", *granted)


def test_export_verify_and_import(ok: Run, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyiceberg")
    monkeypatch.chdir(tmp_path)
    ok("stream", "write", "goods", stdin=b"a\nb\n")
    done = json.loads(ok("stream", "export", "goods", "--to", "lake", "--json").out)
    assert (done["segments"], done["records"], done["first_offset"], done["next_offset"]) == (1, 2, 0, 2)
    assert done["location"].startswith(f"{tmp_path}/lake/default/goods/")
    assert Path(done["table"]).is_dir()
    assert "0 segments exported" in ok("stream", "export", "goods", "--to", tmp_path / "lake", "--prune").out
    assert run("stream", "export", "goods", "--to", "lake", "--rate", "fast").code == Exit.USAGE
    assert run("stream", "export", "nogoods", "--to", "lake").code == Exit.NOT_FOUND

    found = json.loads(ok("stream", "verify", "goods", "./lake", "--json").out)
    assert (found["equal"], found["records"], found["difference"]) == (True, 2, None)
    assert run("stream", "verify", "goods", "./lake", "--other-metadata", "memory:x").code == Exit.USAGE
    assert run("stream", "verify", "goods", f"{tmp_path}/nothing").code == Exit.USAGE

    again = ok("stream", "import", "goods2", "--from", done["location"], "--format", "parquet")
    assert "1 file of" in again.out
    told = json.loads(ok("stream", "import", "goods2", "--from", done["location"], "--format", "parquet", "--json").out)
    assert (told["records"], told["known"], told["next_offset"]) == (0, 1, 2)
    assert ok("stream", "read", "goods2").out == "a\nb\n"
    assert (
        ok("stream", "import", "goods3", "--from", done["location"], "--format", "parquet", "--key", "value").code == 0
    )
    differs = run("stream", "verify", "goods", "goods3")
    assert differs.code == Exit.FAILED
    assert "differ first at offset 0: column key: None and 'a'" in differs.out
    (tmp_path / "bad.csv").write_text("value\na,b\n")
    bad = run("stream", "import", "goods4", "--from", "bad.csv", "--format", "csv")
    assert (bad.code, f"{tmp_path}/bad.csv, line 2" in bad.err) == (Exit.FAILED, True)
    assert run("stream", "import", "goods4", "--from", "nothing", "--format", "csv").code == Exit.USAGE


def test_a_waiting_writer_names_the_present_one(uri: str, ok: Run) -> None:
    first = Child(uri, "stream", "write", "turns", "--acks", "--as", "alice")
    first.give(b"a\n")
    assert first.line() == "0"
    second = Child(uri, "stream", "write", "turns", "--wait")
    assert second.process.stderr is not None
    assert "waiting until writer 'alice' has gone" in second.process.stderr.readline().decode()
    second.give(b"b\n")
    assert first.end()[0] == 0
    code, out, _ = second.end()
    assert (code, json.loads(out)["first_offset"]) == (0, 1)
    assert ok("stream", "read", "turns").out == "a\nb\n"


def test_fork(run: Run, ok: Run) -> None:
    ok("stream", "write", "trunk", stdin=b"".join(b"%d\n" % n for n in range(8)))
    ok("stream", "write", "trunk", stdin=b"8\n9\n")
    made = json.loads(ok("stream", "fork", "trunk", "branch", "--at", "9", "--json").out)
    assert made["source"] == "default/trunk"
    assert made["stream"] == "default/branch"
    assert (made["offset"], made["earliest"], made["shared_segments"], made["producers"]) == (9, 0, 1, True)
    assert ok("stream", "read", "branch").out.split() == [str(n) for n in range(9)]
    shown = json.loads(ok("stream", "show", "branch", "--json").out)
    assert shown["fork"] == {"source": "default/trunk", "offset": 9}
    assert "fork of default/trunk at offset 9" in ok("stream", "show", "branch").out
    assert "1 segment shared" in ok("stream", "fork", "trunk", "twig", "--at", "8").out
    ok("stream", "fork", "trunk", "before", "--at", "1h")
    assert ok("stream", "read", "before").out == ""
    assert run("stream", "fork", "trunk", "branch").code == Exit.REFUSED
    assert run("stream", "fork", "trunk", "other", "--at", "11").code == Exit.NOT_FOUND
    assert run("stream", "fork", "trunk", "other", "--at", "soon").code == Exit.USAGE
    assert run("stream", "fork", "nothing", "other").code == Exit.NOT_FOUND

"""The command line against a running cluster: results, JSON keys, exit codes, and errors of one line."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.conftest import DEADLINE_S, Up, buckram, environment

pytestmark = pytest.mark.share(3)


def write(up: Up, lines: list[bytes], *options: object) -> int:
    done = buckram("ledger", "write", *options, uri=up.uri, stdin=b"".join(line + b"\n" for line in lines))
    assert done.code == 0, done.err
    first = json.loads(done.out.splitlines()[0])
    assert list(first) == ["ledger"]
    assert done.json == {"ledger": first["ledger"], "entries": len(lines), "last_entry": len(lines) - 1}
    ledger = first["ledger"]
    assert isinstance(ledger, int)
    return ledger


def test_lines_are_written_as_entries_and_read_back(up: Up) -> None:
    lines = [b"one", b"", b"\xff\x00bytes", b"x" * 100_000, b"last"]
    ledger = write(up, lines, "--close")
    done = subprocess.run(
        [sys.executable, "-m", "buckram", "ledger", "read", str(ledger)],
        env=environment(up.uri), capture_output=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.stdout == b"".join(line + b"\n" for line in lines)
    part = buckram("ledger", "read", ledger, "--first", 1, "--last", 2, "--json", uri=up.uri)
    got = [json.loads(line) for line in part.out.splitlines()]
    assert [(e["entry"], base64.b64decode(e["payload_base64"])) for e in got] == [(1, b""), (2, b"\xff\x00bytes")]
    assert buckram("ledger", "read", ledger, "--first", 4, "--raw", uri=up.uri).out == "last"


def test_a_last_line_without_newline_is_an_entry(up: Up) -> None:
    done = buckram("ledger", "write", "--close", uri=up.uri, stdin=b"a\nb")
    assert done.json["entries"] == 2


def test_empty_input_makes_an_empty_ledger(up: Up) -> None:
    done = buckram("ledger", "write", "--close", uri=up.uri)
    assert done.json["entries"] == 0
    assert done.json["last_entry"] == -1
    assert buckram("ledger", "read", done.json["ledger"], uri=up.uri).out == ""


def test_show_list_and_metadata(up: Up) -> None:
    ledger = write(up, [b"abc"] * 10, "--close", "--ensemble", "3/2/2", "--meta", "owner=me", "--digest", "mac")
    shown = buckram("ledger", "show", ledger, "--json", uri=up.uri).json
    ids = {bookie["id"] for bookie in up.ready["bookies"]}
    assert shown["state"] == "closed"
    assert (shown["last_entry"], shown["length"]) == (9, 30)
    assert (shown["ensemble_size"], shown["write_quorum"], shown["ack_quorum"]) == (3, 2, 2)
    assert shown["custom_metadata"] == {"owner": "me"}
    assert len(bytes.fromhex(shown["birth"])) == 16
    assert [f["first_entry"] for f in shown["fragments"]] == [0]
    assert set(shown["fragments"][0]["ensemble"]) == ids
    listed = buckram("ledger", "list", "--json", uri=up.uri).json["ledgers"]
    assert shown in listed
    raw = buckram("metadata", "show", ledger, "--json", uri=up.uri).json
    assert raw["format_version"] == 3
    assert "owner = me" in buckram("ledger", "show", ledger, uri=up.uri).out


def test_create_leaves_a_ledger_open_and_recover_closes_it(up: Up) -> None:
    shape = ["--ensemble", 3, "--write-quorum", 3, "--ack-quorum", 2]
    ledger = buckram("ledger", "create", *shape, "--json", uri=up.uri).json["ledger"]
    shown = buckram("ledger", "show", ledger, "--json", uri=up.uri).json
    assert (shown["state"], shown["last_entry"]) == ("open", None)
    closed = buckram("ledger", "close", ledger, "--yes", "--json", uri=up.uri).json
    assert (closed["state"], closed["last_entry"], closed["length"]) == ("closed", -1, 0)


def test_a_ledger_left_open_is_readable_to_its_end(up: Up) -> None:
    ledger = write(up, [b"a", b"b", b"c"])
    assert buckram("ledger", "read", ledger, uri=up.uri).out == "a\nb\nc\n"
    recovered = buckram("ledger", "recover", ledger, "--yes", "--json", uri=up.uri).json
    assert recovered["last_entry"] == 2


def test_a_deleted_ledger_is_not_found(up: Up) -> None:
    ledger = write(up, [b"a"])
    assert buckram("ledger", "delete", ledger, "--yes", "--json", uri=up.uri).json["deleted"] is True
    gone = buckram("ledger", "show", ledger, uri=up.uri)
    assert gone.code == 3
    assert str(ledger) in gone.err
    assert len(gone.err.strip().splitlines()) == 1


MEMORY = ["write buffer", "tail cache", "read cache", "index", "footers", "ledger records", "connections", "pulls"]


def test_bookies_are_listed_and_show_entries_and_memory(up: Up) -> None:
    ledger = write(up, [b"abc", b"def"], "--close")
    listed = buckram("bookie", "list", "--json", uri=up.uri).json["bookies"]
    assert [(b["id"], b["state"]) for b in listed] == [(b["id"], "writable") for b in up.ready["bookies"]]
    bookie = listed[0]["id"]
    held = buckram("bookie", "entries", bookie, "--ledger", ledger, "--json", uri=up.uri).json
    assert held == {"ledger": ledger, "entries": [0, 1]}
    entry = buckram("bookie", "read", bookie, "--ledger", ledger, "--entry", 1, "--json", uri=up.uri).json
    assert base64.b64decode(entry["payload_base64"]) == b"def"
    shown = buckram("bookie", "show", bookie, "--json", uri=up.uri).json
    assert shown["total_bytes"] >= shown["free_bytes"] > 0
    memory = shown["memory"]
    assert list(memory) == MEMORY
    assert memory["tail cache"]["bytes"] > 0
    assert all(use["bytes"] <= use["limit_bytes"] for use in memory.values() if use["limit_bytes"] is not None)
    for name in MEMORY:
        assert f"\n{name} " in buckram("bookie", "show", bookie, uri=up.uri).out
    assert buckram("bookie", "show", "nobody", uri=up.uri).code == 3
    assert buckram("bookie", "read", bookie, "--ledger", ledger, "--entry", 7, uri=up.uri).code == 3


def test_repair_of_a_healthy_ledger_does_nothing(up: Up) -> None:
    ledger = write(up, [b"abc"] * 5, "--close")
    report = buckram("ledger", "repair", ledger, "--json", uri=up.uri)
    assert report.code == 0
    assert (report.json["entries_copied"], report.json["healthy"]) == (0, True)


def test_recover_needs_the_password_of_the_ledger(up: Up) -> None:
    ledger = write(up, [b"secret"], "--password", "right")
    wrong = buckram("ledger", "recover", ledger, "--yes", "--password", "wrong", uri=up.uri)
    assert wrong.code == 5
    assert buckram("ledger", "show", ledger, "--json", uri=up.uri).json["state"] == "open"
    assert buckram("ledger", "recover", ledger, "--yes", "--password", "right", uri=up.uri).code == 0
    assert buckram("ledger", "read", ledger, "--password", "right", uri=up.uri).out == "secret\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["ledger", "create", "--ensemble", "2/3/2"], 2, "2/3/2"),
        (["ledger", "create", "--ensemble", "x"], 2, "x"),
        (["ledger", "create", "--ensemble", "3/2/3"], 2, "3/2/3"),
        (["ledger", "create", "--ensemble", "9"], 4, "9 bookies"),
        (["ledger", "create", "--meta", "novalue"], 2, "novalue"),
        (["ledger", "read", "999999999"], 3, "999999999"),
        (["ledger", "read", "999999999", "--nonsense"], 2, "nonsense"),
        (["metadata", "show", "999999999"], 3, "999999999"),
        (["bookie", "entries", "nobody", "--ledger", "1"], 3, "nobody"),
        (["bench", "read", "--ledger", "999999999"], 3, "999999999"),
    ],
)
def test_errors_name_the_value_and_have_a_code(up: Up, words: list[str], code: int, said: str) -> None:
    done = buckram(*words, uri=up.uri)
    assert done.code == code, done.err
    assert said in done.err
    assert done.out == ""


def test_an_entry_beyond_the_end_is_not_found(up: Up) -> None:
    ledger = write(up, [b"a", b"b"], "--close")
    done = buckram("ledger", "read", ledger, "--first", 1, "--last", 5, uri=up.uri)
    assert done.code == 3
    assert "entry 2" in done.err


def test_without_a_cluster_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    done = buckram("ledger", "list", cwd=tmp_path)
    assert done.code == 2
    assert "buckram up" in done.err
    assert "BUCKRAM_METADATA" in done.err


@pytest.mark.parametrize("uri", ["zk://localhost:2181/", "sqlite://relative.db", "nonsense:x"])
def test_a_bad_uri_is_a_usage_error(uri: str) -> None:
    done = buckram("ledger", "list", "--metadata", uri)
    assert done.code == 2
    assert uri in done.err


def test_config_shows_each_setting_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text("[bookie]\nport = 4000\nmax_connections = 7\n")
    done = buckram("bookie", "config", "--config", file, "--port", 5000, "--json")
    settings = {(s["section"], s["key"]): (s["value"], s["source"]) for s in done.json["settings"]}
    assert settings["bookie", "port"] == (5000, "argument")
    assert settings["bookie", "max_connections"] == (7, "file")
    assert settings["store", "segment_bytes"][1] == "default"
    file.write_text("[bookie]\nprot = 4000\n")
    wrong = buckram("bookie", "config", "--config", file)
    assert wrong.code == 2
    assert "'prot'" in wrong.err


def test_cluster_init_is_idempotent(tmp_path: Path) -> None:
    uri = f"sqlite://{tmp_path / 'metadata.db'}"
    made = [buckram("cluster", "init", "--metadata", uri, "--json").json["instance_id"] for _ in range(2)]
    assert made[0] == made[1]


def test_sigterm_after_the_end_of_the_input_still_closes(up: Up) -> None:
    command = [sys.executable, "-m", "buckram", "ledger", "write", "--acks"]
    slow = {**environment(up.uri), "BUCKRAM_CLIENT_IDLE_LAC_MS": "0"}  # the entry never becomes readable by itself
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=slow)
    assert writer.stdin is not None
    assert writer.stdout is not None
    ledger = json.loads(writer.stdout.readline())["ledger"]
    writer.stdin.write(b"line\n")
    writer.stdin.close()
    assert writer.stdout.readline() == b"0\n"  # nothing more is read; it waits until readers can see the entry
    writer.send_signal(signal.SIGTERM)
    assert json.loads(writer.stdout.read().splitlines()[-1])["entries"] == 1
    assert writer.wait(DEADLINE_S) == 0
    assert buckram("ledger", "show", ledger, "--json", uri=up.uri).json["state"] == "closed"


def test_acks_advance_and_sigterm_closes(up: Up) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-m", "buckram", "ledger", "write", "--acks"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(up.uri),
    )  # fmt: skip
    assert writer.stdin is not None
    assert writer.stdout is not None
    ledger = json.loads(writer.stdout.readline())["ledger"]
    seen = []
    for number in range(3):
        writer.stdin.write(b"line %d\n" % number)
        writer.stdin.flush()
        seen.append(json.loads(writer.stdout.readline()))
    assert seen == [0, 1, 2]
    writer.send_signal(signal.SIGTERM)
    out, _ = writer.communicate(timeout=DEADLINE_S)
    assert writer.returncode == 0
    assert json.loads(out.splitlines()[-1]) == {"ledger": ledger, "entries": 3, "last_entry": 2}
    assert buckram("ledger", "show", ledger, "--json", uri=up.uri).json["state"] == "closed"


def test_a_live_writer_is_fenced_by_recover_and_says_so(up: Up) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-m", "buckram", "ledger", "write", "--acks"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(up.uri),
    )  # fmt: skip
    assert writer.stdin is not None
    assert writer.stdout is not None
    ledger = json.loads(writer.stdout.readline())["ledger"]
    writer.stdin.write(b"kept\n")
    writer.stdin.flush()
    assert json.loads(writer.stdout.readline()) == 0
    assert buckram("ledger", "recover", ledger, "--yes", uri=up.uri).code == 0
    _, err = writer.communicate(b"refused\n", timeout=DEADLINE_S)
    assert writer.returncode == 5
    assert b"fenced" in err or b"closed" in err
    assert b"Traceback" not in err
    assert buckram("ledger", "read", ledger, uri=up.uri).out == "kept\n"


def test_tail_follows_until_the_ledger_is_closed(up: Up) -> None:
    ledger = buckram("ledger", "create", "--json", uri=up.uri).json["ledger"]
    command = [sys.executable, "-m", "buckram", "ledger", "tail", str(ledger)]
    tail = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(up.uri))
    assert buckram("ledger", "close", ledger, "--yes", uri=up.uri).code == 0
    out, _ = tail.communicate(timeout=DEADLINE_S)
    assert (tail.returncode, out) == (0, b"")


def test_a_closed_output_pipe_is_no_error(up: Up) -> None:
    ledger = write(up, [b"line %d" % n for n in range(50_000)], "--close")
    reader = subprocess.Popen(
        [sys.executable, "-m", "buckram", "ledger", "read", str(ledger)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(up.uri),
    )  # fmt: skip
    assert reader.stdout is not None
    reader.stdout.readline()
    reader.stdout.close()
    assert reader.stderr is not None
    assert reader.stderr.read() == b""
    assert reader.wait(DEADLINE_S) == 141


def test_bench_write_and_read_print_their_json_keys(up: Up) -> None:
    full = buckram("bench", "write", "--ledgers", 2, "--seconds", 0.5, "--json", uri=up.uri).json
    keys = {"adds_per_s", "mb_per_s", "p50_ms", "p99_ms", "p999_ms", "client_cpu_us_per_add", "acked", "errors"}
    assert keys <= set(full)
    assert full["errors"] == 0
    assert 0 < full["p50_ms"] <= full["p99_ms"] <= full["p999_ms"]
    paced = buckram("bench", "write", "--rate", 500, "--seconds", 1, "--json", uri=up.uri).json
    assert paced["acked"] == 500
    for extra in ([], ["--random", "--count", 100], ["--batch", 10]):
        read = buckram("bench", "read", "--ledger", full["ledgers"][0], *extra, "--json", uri=up.uri).json
        assert {"entries_per_s", "mb_per_s", "p50_ms", "p99_ms"} <= set(read)
        assert read["entries_per_s"] > 0
        assert read["mb_per_s"] == pytest.approx(read["entries_per_s"] * 1024 / 1e6, rel=0.01, abs=0.06)


def test_bench_over_protocol_3(up: Up) -> None:
    done = buckram("bench", "write", "--protocol", 3, "--seconds", 0.5, "--json", uri=up.uri).json
    assert (done["errors"], done["acked"] > 0) == (0, True)


def test_200_000_lines_are_written_within_30_seconds(up: Up) -> None:
    """Not a benchmark: far slower than this means that something is done per line that must not be."""
    began = time.monotonic()
    write(up, [b"%d" % n for n in range(200_000)], "--close")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("end", [b"", b"\nlater\n"])
def test_a_line_over_the_limit_is_named_and_the_ledger_closed(up: Up, end: bytes) -> None:
    done = buckram("ledger", "write", uri=up.uri, stdin=b"one\ntwo\n" + b"x" * 6_000_000 + end)
    assert done.code == 5
    assert "line 3 of the input" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert (done.json["entries"], done.json["last_entry"]) == (2, 1)
    shown = buckram("ledger", "show", done.json["ledger"], "--json", uri=up.uri).json
    assert (shown["state"], shown["last_entry"]) == ("closed", 1)


def test_output_that_cannot_be_written_is_named(up: Up) -> None:
    for words in (["ledger", "list"], ["ledger", "list", "--json"], ["bookie", "config"]):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "buckram", *words],
                stdout=full, stderr=subprocess.PIPE, env=environment(up.uri), timeout=DEADLINE_S,
            )  # fmt: skip
        assert done.returncode == 1
        said = done.stderr.decode().splitlines()
        assert len(said) == 1
        assert "standard output: No space left" in said[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ledger", "read"], "`buckram ledger read --help`"),
        (["--nonsense"], "'--nonsense'"),
        (["bookie", "config", "--port", "70000"], "70000"),
        (["bookie", "config", "--metrics", "foo"], "HOST:PORT"),
    ],
)
def test_usage_errors_take_one_line(words: list[str], said: str) -> None:
    done = buckram(*words)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert said in done.err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_works_with_a_standard_file_closed(up: Up, closed: str) -> None:
    """The first socket would get its number, and libuv does not close one below 3."""
    command = f'echo one | "{sys.executable}" -m buckram ledger write --close {closed}'
    done = subprocess.run(
        ["bash", "-c", command], env=environment(up.uri), capture_output=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_sizes_and_times_out_of_range_are_refused(up: Up) -> None:
    for words in (
        ["bench", "write", "--seconds", 1, "--size", 10**11],
        ["namespace", "set", "default", "--set", f"retention_bytes={'9' * 400}"],
        ["namespace", "set", "default", "--set", f"retention_s={'9' * 400}"],
        ["stream", "read", "s", "--since", f"{'9' * 400}w"],
    ):
        done = buckram(*words, uri=up.uri)
        assert done.code == 2, (words, done.err)
        assert "limit" in done.err or "at most" in done.err
        assert len(done.err) < 300
    done = buckram("stream", "create", "s", "--set", "roll_bytes=99999999999999999999999", uri=up.uri)
    assert "roll_bytes = 99999999999999999999999" in done.err  # as it was given


@pytest.mark.parametrize(
    "words",
    [
        ["top", "--every", "0.1s"],
        ["status", "--watch", "--every", "0.1s", "--json"],
        ["stream", "tail", "-f", "followed"],
        ["stream", "read", "-f", "followed", "--json"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_ctrl_c_is_the_normal_end_of_what_follows(up: Up, words: list[str]) -> None:
    assert buckram("stream", "write", "followed", uri=up.uri, stdin=b"one\n").code == 0
    command = [sys.executable, "-m", "buckram", *words]
    with subprocess.Popen(command, env=environment(up.uri), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=DEADLINE_S)[1]
    assert (process.returncode, said) == (0, b"")

"""How values, tables and errors look at the command line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from buckram.cli.app import run
from buckram.cli.shared import values
from buckram.cli.shared.exits import Exit, exit_code_of, line_of
from buckram.cli.shared.output import Degraded, counted, table, transfer
from buckram.cli.stream.read import Form
from buckram.cli.up.commands import _pages
from buckram.core.streams.records.batch import Record
from buckram.errors import ClusterNotInitialised, ConfigError, InvalidArgument, OffsetTruncated, WriterExists
from buckram.serve.json_views.records import record_json


def test_one_is_singular() -> None:
    said = [counted(1, "segment"), counted(2, "segment"), counted(1, "entry"), counted(0, "entry")]
    assert said == ["1 segment", "2 segments", "1 entry", "0 entries"]


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("roll_bytes", 1024**3, "1GiB"),
        ("roll_bytes", 4097, "4097"),
        ("retention_bytes", 0, "0"),
        ("roll_s", 86_400.0, "1d"),
        ("roll_s", 5400.0, "90m"),
        ("roll_s", 0.5, "0.5s"),
        ("retention_s", None, "none"),
        ("retention_cursors", True, "yes"),
        ("max_producers", 10_000, "10000"),
        ("ensemble", "3/3/2", "3/3/2"),
    ],
)
def test_policy_is_shown_as_it_is_typed(key: str, value: object, shown: str) -> None:
    assert values.shown_setting(key, value) == shown
    if value is not None:
        assert values.policy((f"{key}={shown}",)) == {key: value}


def test_numbers_stand_right_beside_empty_cells(capsys: pytest.CaptureFixture[str]) -> None:
    table(("LEDGER", "LAST", "STATE"), [(1, "", "open"), (22, 105, "closed")])
    assert capsys.readouterr().out.splitlines() == ["LEDGER  LAST  STATE", "     1        open", "    22   105  closed"]


def test_errors_name_options_not_arguments() -> None:
    assert line_of(OffsetTruncated("a/b", 1, 7)).endswith("read from there, or with --skip-truncated")
    said = line_of(WriterExists("a/b", "bob", 0))
    assert "(--wait)" in said
    assert "(--takeover; its next append" in said
    assert "True" not in said


def test_no_cluster_and_no_named_cluster_end_alike() -> None:
    assert exit_code_of(ClusterNotInitialised("x")) == exit_code_of(ConfigError("x")) == Exit.USAGE


class _Writer:
    degraded = False
    degraded_reason = ""


def test_degraded_is_said_once_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    writer, said = _Writer(), Degraded()
    for reason in ("", "bookie-1 is away", "bookie-1 is away", "", "bookie-2 is away"):
        writer.degraded, writer.degraded_reason = bool(reason), reason
        said.look(writer)
    assert capsys.readouterr().err.splitlines() == ["degraded: bookie-1 is away", "degraded: bookie-2 is away"]


def _plain(count: int) -> list[Record]:
    return [Record(n, b"value %d" % n, None if n % 3 else b"k\xff", (), n, n + 1, None) for n in range(count)]


def test_json_lines_are_those_of_the_json_module() -> None:
    others = [
        Record(1, None, b"", (), 5, 6, None),
        Record(2, b"\xff", None, (("h", b"v"), ("b", b"\xff")), 5, 6, 9),
        Record(3, b"", None, (), 5, 6, None, "p", 4),
    ]
    rows = [*_plain(10), *others]
    expected = b"".join(json.dumps(record_json(row)).encode() + b"\n" for row in rows)
    assert Form(True, False, None, False).show(rows) == expected


def test_json_lines_cost_a_fraction_of_the_json_module() -> None:
    rows, form = _plain(20_000), Form(True, False, None, False)

    def cost(fast: bool) -> float:
        begun = time.thread_time()
        if fast:
            form.show(rows)
        else:
            b"".join(json.dumps(record_json(row)).encode() + b"\n" for row in rows)
        return time.thread_time() - begun

    assert min(cost(True) for _ in range(5)) < 0.5 * min(cost(False) for _ in range(5))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _shown(monkeypatch: pytest.MonkeyPatch, *, typing: bool, **options: int) -> str:
    screen = _Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdin", _Terminal() if typing else io.StringIO())
    with transfer("records", **options) as bar:
        assert bar.shown is not typing
        bar.advance(5, 500)
    return screen.getvalue()


def test_bar_knows_size_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _shown(monkeypatch, typing=False, total=1000)
    for part in ("0.5/1.0 kB", "5 records", "/s", ":--"):
        assert part in shown
    assert "5/10" in _shown(monkeypatch, typing=False, count=10)


def test_no_bar_while_somebody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shown(monkeypatch, typing=True, total=1000) == ""


def test_size_of_input_is_what_is_left_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"12345\n789\n")
    code = "import os; from buckram.cli.shared.output import input_size; os.read(0, 6); print(input_size())"
    with (tmp_path / "in").open("rb") as file:
        assert subprocess.run([sys.executable, "-c", code], stdin=file, capture_output=True).stdout == b"4\n"
    assert subprocess.run([sys.executable, "-c", code], input=b"123456", capture_output=True).stdout == b"None\n"


def test_version_says_whether_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert "compiled: " in capsys.readouterr().out


def test_metrics_of_up_need_a_port_for_each_bookie() -> None:
    assert _pages("--metrics", "127.0.0.1:9100", 2) == {1: "127.0.0.1:9100", 2: "127.0.0.1:9101"}
    with pytest.raises(InvalidArgument, match="needs a port from 1 to 65533"):
        _pages("--metrics", "127.0.0.1:0", 2)

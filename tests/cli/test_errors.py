"""Errors of every kind under `--json`: one JSON object on standard error, and nothing on standard output."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

from buckram import errors
from buckram.cli.app import app, run
from buckram.cli.shared.exits import Exit, exit_code_of
from buckram.cli.shared.interrupt import Interrupted
from buckram.cli.shared.options import json_option
from buckram.cli.shared.stdout import OutputLost
from buckram.serve.http.problems import HttpProblem

KEYS = {"kind", "message", "exit_code", "retryable"}


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = run(words)
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    (error,) = json.loads(line).values()
    assert set(error) >= KEYS
    assert error["exit_code"] == code
    return code, error


@pytest.mark.parametrize(
    ("words", "do"),
    [
        (["--json", "nonsense"], "buckram --help"),
        (["nonsense", "--json"], "buckram --help"),
        (["stream", "nonsense", "--json"], "buckram stream --help"),
        (["stream", "list", "--json", "--nonsense"], "buckram stream list --help"),
        (["stream", "show", "--json"], "buckram stream show --help"),
        (["ledger", "read", "x", "--json"], "buckram ledger read --help"),
        (["bench", "write", "--json", "--seconds", "0"], "buckram bench write --help"),
        (["stream", "list", "--json", "--metadata"], None),  # click does not know there whose option it is
    ],
)
def test_wrong_use(words: list[str], do: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = told(words, capsys)
    assert (code, error["kind"], error["retryable"], error.get("do")) == (2, "Usage", False, do)
    assert run([word for word in words if word != "--json"]) == 2
    assert capsys.readouterr().err == f"buckram: {error['message']}\n" or "--json" in words[:1]


RAISED: list[tuple[BaseException, int, str, bool]] = [
    (errors.InvalidArgument("x y"), 2, "InvalidArgument", False),
    (errors.NoSuchLedger(7), 3, "NoSuchLedger", False),
    (errors.LedgerFenced(7), 5, "LedgerFenced", False),
    (errors.MetadataUnavailable("away"), 4, "MetadataUnavailable", True),
    (OSError(28, "No space left on device", "f"), 1, "OSError", False),
    (ZeroDivisionError("x"), 70, "ZeroDivisionError", False),
    (Interrupted("file f is not written"), 130, "Interrupted", True),
    (KeyboardInterrupt(), 130, "Interrupted", True),
    (click.Abort(), 130, "Aborted", True),
    (HttpProblem(404, "GONE", "database x/y: does not exist"), 3, "HttpProblem", False),
    (HttpProblem(503, "AWAY", "nobody leads"), 4, "HttpProblem", True),
]


@pytest.mark.parametrize(("error", "code", "kind", "retryable"), RAISED, ids=lambda value: str(value)[:30])
def test_what_a_command_raises(
    error: BaseException,
    code: int,
    kind: str,
    retryable: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.command("probe")
    @json_option
    def probe(as_json: bool) -> None:
        raise error

    monkeypatch.setattr(app, "get_command", lambda ctx, name: probe)
    found, shown = told(["probe", "--json"], capsys)
    assert (found, shown["kind"], shown["retryable"]) == (code, kind, retryable)
    assert run(["probe"]) == code
    assert capsys.readouterr().err == f"buckram: {shown['message']}\n"


def test_lost_output_has_a_code() -> None:
    assert exit_code_of(OutputLost("x")) is Exit.FAILED


def test_json_behind_two_dashes_is_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ledger", "read", "--", "--json"]) == 2
    assert capsys.readouterr().err.startswith("buckram: ")

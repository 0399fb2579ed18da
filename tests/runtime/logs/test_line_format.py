"""Lines of a log, for people and for machines."""

from __future__ import annotations

import json

import pytest

from buckram.runtime.logs.line_format import LONGEST_MESSAGE, LONGEST_TRACE, Line, as_json, as_text, without_secrets

LINE = Line(1_767_323_045.678, "WARNING", "buckram.store", "ledger 7: it waits", {"ledger": 7, "request": "http-1"})


def test_text() -> None:
    assert as_text(LINE) == "2026-01-02 03:04:05,678 WARNING buckram.store: ledger 7: it waits [request http-1]"


def test_json() -> None:
    assert json.loads(as_json(LINE)) == {
        "time": "2026-01-02T03:04:05.678Z",
        "level": "warning",
        "logger": "buckram.store",
        "message": "ledger 7: it waits",
        "ledger": 7,
        "request": "http-1",
    }


def test_a_peer_cannot_write_lines_of_its_own() -> None:
    forged = LINE._replace(message="hello\n2026-01-02 ERROR all is lost\x1b[31m", fields={"request": "a\nb"})
    assert as_text(forged).count("\n") == 0
    assert "\x1b" not in as_text(forged)
    assert as_json(forged).count("\n") == 0
    assert "\n" in as_text(LINE._replace(trace="Traceback\n  line")), "a traceback has its lines"


def test_lines_end() -> None:
    long = LINE._replace(message="m" * 100_000, trace="t" * 100_000)
    assert "(100000 characters)" in as_text(long)
    assert len(as_json(long)) < LONGEST_MESSAGE + LONGEST_TRACE + 500


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("zk://user:hunter22@host:2181/ledgers", "hunter22"),
        ("sent Authorization: Bearer abcdefghijkl", "abcdefghijkl"),
        ("token eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl is old", "eyJzdWIiOiJ4In0"),
        ("password=hunter22, user=x", "hunter22"),
        ("BUCKRAM_TOKEN: a, token: hunter22", "hunter22"),
    ],
)
def test_secrets_are_hidden(text: str, hidden: str) -> None:
    assert hidden not in without_secrets(text)
    assert "***" in without_secrets(text)
    assert hidden not in as_text(LINE._replace(message=text)) + as_json(LINE._replace(trace=text))


def test_what_is_no_secret_stays() -> None:
    text = "ledger 7: a wrong password was given by zk://host:2181/ledgers; the token expired"
    assert without_secrets(text) == text

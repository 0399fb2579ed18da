"""From a call of `log.warning` to a line."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from buckram.runtime.logs.process_log import LineHandler, about_request


class Bench:
    """A logger of its own whose lines are kept."""

    def __init__(self, format: str = "json", limit: int = 3) -> None:
        self.lines: list[str] = []
        self.now = 0.0
        self.handler = LineHandler(self.lines.append, format, limit, clock=lambda: self.now)
        self.log = logging.Logger("buckram.test")
        self.log.addHandler(self.handler)

    @property
    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


def test_fields_of_the_process_the_line_and_the_request() -> None:
    bench = Bench()
    bench.handler.process_fields["bookie"] = "b-1"
    with about_request("r-1"):
        bench.log.warning("ledger %d: no metadata", 7)
    bench.log.warning("bookie %s is lost", "b-2")
    bench.log.warning("it stands", extra={"request": "10.0.0.1:5#17"})
    first, second, third = bench.said
    assert (first["bookie"], first["ledger"], first["request"]) == ("b-1", 7, "r-1")
    assert second["bookie"] == "b-2"
    assert "request" not in second
    assert third["request"] == "10.0.0.1:5#17"
    assert first["process"] > 0


def test_repeated_lines_are_counted() -> None:
    bench = Bench(limit=3)
    for number in range(10):
        bench.log.info("ledger %d: deleted here", number)
    bench.log.info("something else")
    assert len(bench.lines) == 4
    bench.now = 61.0
    bench.log.info("ledger %d: deleted here", 10)
    assert len(bench.lines) == 6
    left_out, newest = bench.said[4:]
    assert (left_out["left_out"], left_out["level"]) == (7, "info")
    assert "like 'ledger %d: deleted here'" in left_out["message"]
    assert newest["ledger"] == 10


def test_the_end_says_what_was_left_out() -> None:
    bench = Bench(limit=1)
    for _ in range(3):
        bench.log.error("again")
    bench.handler.say_rest(0.0)
    assert bench.said[-1]["left_out"] == 2


def test_a_traceback_is_one_field() -> None:
    bench = Bench()
    try:
        raise ValueError("a reason")
    except ValueError:
        bench.log.exception("it failed")
    assert bench.said[0]["trace"].endswith("ValueError: a reason")


def test_a_line_that_cannot_be_made_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench("text")
    template = "%d of %d"
    bench.log.warning(template, 1)
    assert bench.lines == []
    assert "not enough arguments" in capsys.readouterr().err
    bench.log.warning("it goes on")
    assert bench.lines[0].endswith("WARNING buckram.test: it goes on")

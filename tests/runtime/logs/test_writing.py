"""Whoever logs never waits for whoever reads the log."""

from __future__ import annotations

import io
import os
import threading

from tests.support.polling import wait_until

from buckram.runtime.logs.process_log import LineWriter


class Gate(io.StringIO):
    """Takes nothing until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.reached = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        self.open.wait(30)
        return super().write(text)


def test_lines_are_written_in_order_before_the_end() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream)
    for number in range(100):
        writer.put(f"line {number}")
    writer.close()
    writer.close()
    assert stream.getvalue() == "".join(f"line {number}\n" for number in range(100))


def test_a_reader_that_stands_still_costs_lines_and_no_time() -> None:
    stream = Gate()
    writer = LineWriter(stream, most=10)
    writer.put("first")
    assert stream.reached.wait(30)
    for number in range(50):
        writer.put(f"line {number}")
    writer.close(seconds=0.05)  # gives up
    stream.open.set()
    wait_until(lambda: "left out" in stream.getvalue(), "nothing tells of the lines that were lost")
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["first", "line 0"]
    assert "(40 lines before this one were left out" in stream.getvalue()


def test_a_reader_that_left_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LineWriter(os.fdopen(writing, "w"))
    writer.put("a")
    writer.put("b")
    writer.close()
    assert not writer._thread.is_alive()

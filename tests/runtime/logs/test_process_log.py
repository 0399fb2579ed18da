"""The log of a process, while it runs and at its end.

Lines know the request that they belong to.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading

import pytest

from buckram.config import LogConfig
from buckram.errors import ConfigError
from buckram.runtime.logs.process_log import REQUEST, about_request, logging_to

log = logging.getLogger("buckram.test")


def test_it_is_on_while_the_context_lasts() -> None:
    stream = io.StringIO()
    before = logging.getLogger().handlers[:], logging.getLogger().level
    with logging_to(stream, LogConfig(format="json"), {}) as running:
        running.name_process(bookie="b-1")
        log.info("hello")
        log.debug("not this")
        running.configure(LogConfig(level="debug"))
        log.debug("but this")
    log.error("nor this")
    said = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(one["message"], one["bookie"]) for one in said] == [("hello", "b-1"), ("but this", "b-1")]
    assert (logging.getLogger().handlers, logging.getLogger().level) == before


@pytest.mark.parametrize(
    ("config", "environment", "default", "level"),
    [
        (LogConfig(), {}, "warning", logging.WARNING),
        (LogConfig(), {"BUCKRAM_DEBUG": "1"}, "warning", logging.DEBUG),
        (LogConfig(level="error"), {"BUCKRAM_DEBUG": "1"}, "warning", logging.ERROR),
    ],
)
def test_which_level_counts(config: LogConfig, environment: dict[str, str], default: str, level: int) -> None:
    with logging_to(io.StringIO(), config, environment, default):
        assert logging.getLogger().level == level


def test_a_level_that_is_none_is_refused_before_anything_changes() -> None:
    before = logging.getLogger().handlers[:]
    with pytest.raises(ConfigError, match=r"\[log\] level = 'loud'"), logging_to(io.StringIO(), LogConfig("loud"), {}):
        pass
    assert logging.getLogger().handlers == before


def test_what_was_left_out_is_the_last_line() -> None:
    stream = io.StringIO()
    with logging_to(stream, LogConfig(lines_per_minute=1), {}):
        for _ in range(5):
            log.warning("again and again")
    assert "4 more lines were left out that are like 'again and again'" in stream.getvalue().splitlines()[-1]


@pytest.mark.parametrize(("format", "lines"), [("json", 1), ("text", 0)])
def test_json_says_why_a_process_ends(format: str, lines: int) -> None:
    stream = io.StringIO()
    with pytest.raises(OSError, match="disk"), logging_to(stream, LogConfig(format=format), {}):
        raise OSError("the disk failed")
    assert stream.getvalue().count("the process ends: the disk failed") == lines


def test_an_id_of_the_sender_is_kept_where_it_is_a_word() -> None:
    with about_request("abc-1") as name:
        assert name == REQUEST.get() == "abc-1"
    assert REQUEST.get() == ""


def test_others_get_one_of_our_own() -> None:
    for bad in ("", "two words", "x" * 65, "a\nb"):
        with about_request(bad) as name:
            assert name.startswith("http-")
    with about_request() as one, about_request() as other:
        assert one != other


async def test_it_follows_a_question_to_another_loop() -> None:
    """As from the thread that serves HTTP to the bookie's loop."""

    async def asked() -> str:
        return REQUEST.get()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with about_request("abc-2"):
            assert await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked(), loop)) == "abc-2"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

"""Turns the log of a process on, for as long as a context lasts. Used by commands that run for long.

Its handler limits repeated lines, finds the fields and formats the line. A thread writes the lines, so that logging
never waits for a pipe or a disk. Levels can be changed while the process runs. The request that a line belongs to is a
context variable that follows tasks and calls on other loops. Not here: the form of a line
(`runtime/logs/line_format.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TextIO

from buckram.config import LogConfig
from buckram.runtime.logs.line_format import LeftOut, Levels, Line, Repeats, as_json, as_text, fields, parse_levels

REQUEST: ContextVar[str] = ContextVar("buckram_request", default="")
_GOOD = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_numbers = itertools.count(1)


@contextmanager
def about_request(asked: str = "") -> Iterator[str]:
    """Mark log lines of the block as being about one request; yield its id. `asked` is the id that its sender gave,
    used if it is a short word."""
    name = asked if _GOOD.fullmatch(asked) else f"http-{next(_numbers)}"
    before = REQUEST.set(name)
    try:
        yield name
    finally:
        REQUEST.reset(before)


log = logging.getLogger("buckram.log")

DEBUG_VARIABLE = "BUCKRAM_DEBUG"


class Log:
    """The log that runs."""

    def __init__(self, handler: LineHandler, default: str) -> None:
        self._handler, self._default = handler, default

    def name_process(self, **fields: int | str) -> None:
        """Fields of every line from now on."""
        self._handler.process_fields.update(fields)

    def configure(self, config: LogConfig) -> None:
        """Put the levels of a configuration into force that was read again. ConfigError changes nothing."""
        set_levels(config.level or self._default, "[log] level")


@contextmanager
def logging_to(
    stream: TextIO, config: LogConfig, environment: Mapping[str, str], default: str = "info"
) -> Iterator[Log]:
    """Send log lines to `stream` during the block, in the place of all earlier handlers.

    `default` is the level if the configuration names none; BUCKRAM_DEBUG makes it debug. Raises ConfigError for an
    unknown level.
    """
    root = logging.getLogger()
    before, level_before = root.handlers[:], root.level
    log_default = "debug" if environment.get(DEBUG_VARIABLE) else default
    set_levels(config.level or log_default, "[log] level")
    writer = LineWriter(stream)
    handler = LineHandler(writer.put, config.format, config.lines_per_minute)
    root.handlers = [handler]
    try:
        yield Log(handler, log_default)
    except Exception as error:
        if config.format == "json":  # for people the command line says it by itself
            log.error("the process ends: %s", error)
        raise
    finally:
        root.handlers = before
        handler.say_rest(time.time())
        handler.close()
        writer.close()
        set_levels("warning")
        root.setLevel(level_before)


# -- the handler ----------------------------------------------------------------------------------------------

Kind = tuple[str, int, str]
"""Logger, level and the text without its values: one place in the program."""


class LineHandler(logging.Handler):
    """Hands finished lines to `put`, which must not wait."""

    def __init__(
        self,
        put: Callable[[str], None],
        format: str,
        lines_per_minute: int,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__()
        self._put, self._clock = put, clock
        self._as_line = as_json if format == "json" else as_text
        self._repeats: Repeats[Kind] = Repeats(lines_per_minute)
        self.process_fields: dict[str, int | str] = {"process": os.getpid()}
        """Fields added to every line, such as the bookie's id; a line's own field of the same name takes precedence."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            now = self._clock()
            for left_out in self._repeats.ended(now):
                self._say_left_out(left_out, record.created)
            if self._repeats.passes((record.name, record.levelno, str(record.msg)), now):
                self._put(self._as_line(self._line(record)))
        except Exception:  # a line with the wrong number of values, for example
            self.handleError(record)

    def say_rest(self, wall_s: float) -> None:
        """Report the suppressed lines of windows that are still open. Called at the end of the process."""
        for left_out in self._repeats.rest():
            self._say_left_out(left_out, wall_s)

    def _line(self, record: logging.LogRecord) -> Line:
        found = {**self.process_fields, **fields(str(record.msg), record.args)}
        request = getattr(record, "request", None) or REQUEST.get()
        if request:
            found["request"] = str(request)[:64]
        trace = ""
        if record.exc_info and record.exc_info[1] is not None:
            trace = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        return Line(record.created, record.levelname, record.name, record.getMessage(), found, trace)

    def _say_left_out(self, left_out: LeftOut[Kind], wall_s: float) -> None:
        name, level, text = left_out.kind
        said = f"{left_out.lines} more lines were left out that are like {text!r}"
        found = {**self.process_fields, "left_out": left_out.lines}
        self._put(self._as_line(Line(wall_s, logging.getLevelName(level), name, said, found)))


# -- the thread that writes -----------------------------------------------------------------------------------

MOST_LINES = 1000
"""Maximum lines in memory; the length of each is limited, too (runtime/logs/line_format.py)."""

CLOSE_S = 2.0


class LineWriter:
    """Writer of lines in order. When the reader of the stream is too slow, lines are dropped, and their number is
    written."""

    def __init__(self, stream: TextIO, most: int = MOST_LINES) -> None:
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(most)
        self._lost = 0
        self._closed = False
        self._thread = threading.Thread(target=self._main, name="log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Queue a line without waiting, from any thread; drop it if the queue is full."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._lost += 1

    def close(self, seconds: float = CLOSE_S) -> None:
        """Write the waiting lines; gives up after `seconds`."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=seconds)
        self._thread.join(seconds)

    def _main(self) -> None:
        while (line := self._lines.get()) is not None:
            lost, self._lost = self._lost, 0
            if lost:
                line = f"{line}\n({lost} lines before this one were left out: the reader of this log is too slow)"
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, and nowhere to say so
                self._stream.write(f"{line}\n")
                self._stream.flush()


# -- levels in force ------------------------------------------------------------------------------------------

_rooms: dict[str, int] = {}
"""The loggers that were given levels of their own."""


def set_levels(text: str, what: str = "level") -> Levels:
    """Put levels such as `info buckram.net=debug` into force, for all threads. ConfigError changes nothing."""
    wanted = parse_levels(text, what)
    logging.getLogger().setLevel(wanted.base)
    for name in _rooms.keys() - wanted.rooms.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in wanted.rooms.items():
        logging.getLogger(name).setLevel(level)
    _rooms.clear()
    _rooms.update(wanted.rooms)
    return wanted


def levels() -> Levels:
    """Return the levels in force; a level without a name is rounded down to the next named one."""
    base = logging.getLogger().level
    return Levels(max(10, min(40, base // 10 * 10)), dict(_rooms))

"""The handler of a process's log: it limits repeated lines, finds the fields and formats the line."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable
from time import monotonic

from buckram.runtime.logs.line_fields import fields
from buckram.runtime.logs.line_format import Line, as_json, as_text
from buckram.runtime.logs.repeats import LeftOut, Repeats
from buckram.runtime.logs.request_id import REQUEST

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

"""Standard output whose failures can be told from those of any other file."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from buckram.errors import BuckramError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputLost(BuckramError):
    """Standard output takes no more, so what was printed is incomplete."""


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputLost(
                f"standard output: {error.strerror}: what was printed is incomplete; send it where there is room"
            ) from None


def open_standard_files() -> None:
    """A process that was started with one of them closed gets /dev/null there: else the first file or socket that it
    opens has that number, and libuv aborts when it closes one below 3. sys.stdout stays None. First of all calls."""
    number = 0
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def name_output() -> None:
    """From now on printing raises OutputLost where it raised an OSError without a name. For a process's main only."""
    old = sys.stdout
    if old is None:  # started with standard output closed
        return
    old.flush()
    raw = _Output(old.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=old.encoding, errors=old.errors, line_buffering=raw.isatty()
    )


def silence_output() -> None:
    """Keep Python from failing at its last flush, with words of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

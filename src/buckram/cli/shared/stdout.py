"""Standard output and standard error: failures with a name, any character in any encoding, terminals kept safe.

What goes to a terminal has its control characters escaped, because records, keys and names are written by others, and
a terminal obeys them. What goes to a file or a pipe is exact.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_CLEAR = "\x1b[2J\x1b[H"
_OBEYED = re.compile(
    # C0 but tab and line feed, DEL, C1; signs that turn the direction of writing or end lines; halves of characters.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_ERRORS = "buckram-printable"


class OutputLost(Exception):
    """Standard output cannot be written any more, so the printed result is incomplete."""


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputLost(
                f"standard output: {error.strerror}: the output is incomplete; send it to a place with free space"
            ) from None


class Screen(io.TextIOWrapper):
    """A terminal: what would make it do something is shown instead."""

    def write(self, text: str, /) -> int:
        super().write(visible(text))
        return len(text)

    def obey(self, text: str) -> int:
        """Write what the terminal shall do: our own control characters."""
        return super().write(text)


class Obeyed:
    """A Screen that passes control characters, for trusted writers such as a progress bar."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.write = screen.obey

    def __getattr__(self, name: str) -> Any:
        return getattr(self._screen, name)


class Payload:
    """Where bytes of records, entries and objects are written: as they are, or escaped where a terminal is."""

    def __init__(self, *, raw: bool = False) -> None:
        """`raw`: as they are, also to a terminal."""
        sys.stdout.flush()  # what was printed as text comes before
        self._screen = None if raw or not isinstance(sys.stdout, Screen) else sys.stdout
        self._text = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: bytes) -> None:
        if self._screen is None:
            sys.stdout.buffer.write(data)
        else:
            self._screen.write(self._text.decode(data))

    def flush(self) -> None:
        sys.stdout.flush()


def visible(text: str) -> str:
    """Return the text with escapes, such as \\x1b, in the place of control characters."""
    return _OBEYED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("ascii", "backslashreplace").decode() if found[0] > "\x7f" else f"\\x{ord(found[0]):02x}"


def clear_screen() -> None:
    """Begin a new screen, where there is one."""
    if isinstance(sys.stdout, Screen):
        sys.stdout.obey(_CLEAR)


def obeyed(stream: IO[str]) -> IO[str]:
    """Return the stream that writes control characters unescaped."""
    return Obeyed(stream) if isinstance(stream, Screen) else stream  # type: ignore[return-value]


def open_standard_files() -> None:
    """Open /dev/null in the place of standard files that are closed: else the first file or socket that the process
    opens gets that number, and libuv aborts when it closes one below 3. sys.stdout stays None. First of all calls."""
    number = 0
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def name_output() -> None:
    """Replace standard output and error: printing then raises OutputLost instead of an OSError without a name, and
    escapes what the encoding lacks and what a terminal would obey. For a process's main only."""
    codecs.register_error(_ERRORS, _printable)
    old = sys.stdout
    if old is not None:  # started with standard output closed
        old.flush()
        raw = _Output(old.fileno(), "wb", closefd=False)
        form = Screen if raw.isatty() else io.TextIOWrapper
        sys.stdout = form(io.BufferedWriter(raw), encoding=old.encoding, errors=_ERRORS, line_buffering=raw.isatty())
    if sys.stderr.isatty():
        said = sys.stderr
        file = io.FileIO(said.fileno(), "wb", closefd=False)
        sys.stderr = Screen(io.BufferedWriter(file), encoding=said.encoding, errors=_ERRORS, line_buffering=True)


def _printable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write undecodable input bytes, such as those of a name on the command line, unchanged; escape the rest."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = error.object[error.start : error.end]
    return b"".join(
        bytes((ord(one) - 0xDC00,)) if "\udc80" <= one <= "\udcff" else one.encode("ascii", "backslashreplace")
        for one in part
    ), error.end


def silence_output() -> None:
    """Keep Python from failing at its last flush, with words of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

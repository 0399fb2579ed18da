"""The trace of a life: a rolling hash of all events, and the last few thousand of them as text.

Two runs of one seed are equal if their hashes are. Times are virtual seconds.
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import Protocol

_MASK = (1 << 64) - 1
_PRIME = 1099511628211


class Echo(Protocol):
    """Gets each line of a trace when it is recorded."""

    def __call__(self, line: str, /) -> object: ...


class Trace:
    """The events of one life. `echo` gets each line immediately, as for the option --trace."""

    def __init__(self, echo: Echo | None = None, keep: int = 4000) -> None:
        self._hash = 14695981039346656037
        self._echo = echo
        self.lines: deque[str] = deque(maxlen=keep)
        self.events = 0
        self.now = 0.0

    def mix(self, number: int) -> None:
        """Add a decision of the scheduler to the hash. It is no line of text, because there are tens of thousands."""
        self._hash = ((self._hash ^ number) * _PRIME) & _MASK

    def mix_bytes(self, data: bytes | bytearray | memoryview) -> None:
        self.mix(zlib.crc32(data))

    def note(self, who: str, what: str) -> None:
        """Record an event of `who` at the present virtual time."""
        line = f"{self.now:11.6f} {who:<9} {what}"
        self.events += 1
        self.mix(zlib.crc32(line.encode()))
        self.lines.append(line)
        if self._echo is not None:
            self._echo(line)

    @property
    def digest(self) -> str:
        return f"{self._hash:016x}"

"""What happened in a life, in order: a rolling hash of every event and the last few thousand as readable lines.

Two runs of one seed are the same run if their hashes agree. Nothing here decides anything; times are virtual seconds.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable

_MASK = (1 << 64) - 1
_PRIME = 1099511628211


class Trace:
    """Events of one life. `echo` gets each line at once (the command's --trace)."""

    def __init__(self, echo: Callable[[str], None] | None = None, keep: int = 4000) -> None:
        self._hash = 14695981039346656037
        self._echo = echo
        self.lines: deque[str] = deque(maxlen=keep)
        self.events = 0
        self.now = 0.0

    def mix(self, number: int) -> None:
        """Fold a scheduler decision into the hash; no line, because there are tens of thousands."""
        self._hash = ((self._hash ^ number) * _PRIME) & _MASK

    def mix_bytes(self, data: bytes | bytearray | memoryview) -> None:
        self.mix(zlib.crc32(data))

    def note(self, who: str, what: str) -> None:
        """One event of `who` at the present virtual time."""
        line = f"{self.now:11.6f} {who:<9} {what}"
        self.events += 1
        self.mix(zlib.crc32(line.encode()))
        self.lines.append(line)
        if self._echo is not None:
            self._echo(line)

    @property
    def digest(self) -> str:
        return f"{self._hash:016x}"

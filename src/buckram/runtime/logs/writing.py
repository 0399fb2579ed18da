"""A thread that writes lines, so that logging never waits for a pipe or a disk."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TextIO

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
                line = f"{line}\n({lost} lines before this one were left out: whoever reads this log is too slow)"
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, and nowhere to say so
                self._stream.write(f"{line}\n")
                self._stream.flush()

"""A traced append: one value for it and its steps to bookies.

Nearly all spans are of this kind, so the append itself only records a few numbers; the bytes are made by the sending
thread (`runtime/telemetry/otlp.py`). Not here: other spans, and which appends are traced
(`runtime/telemetry/spans.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from buckram.runtime.telemetry.otlp import append_bytes
from buckram.types import BookieId, EntryId, LedgerId

ID_BYTES = 8
_STEP_ID_MASK = (1 << 8 * ID_BYTES) - 1


class OtelAppend:
    """A traced append. `number` is the id of its own span as an integer; those of its steps are the next ones.
    `parent`: the id of the step around it, b"" for none; `is_remote`: that one is of another process. Times in
    nanoseconds UTC, 0 for what has not ended; `ends` and `errors` of steps by the place of their bookie."""

    __slots__ = (
        "_ended",
        "_open",
        "began_ns",
        "bookies",
        "ended_ns",
        "ends",
        "entries",
        "entry",
        "error",
        "errors",
        "is_remote",
        "ledger",
        "number",
        "parent",
        "sent_ns",
        "size",
        "trace",
    )

    def __init__(
        self,
        ended: OnAppendEnded,
        trace: bytes,
        number: int,
        parent: bytes,
        is_remote: bool,
        ledger: LedgerId,
        entry: EntryId,
        entries: int,
        size: int,
    ) -> None:
        self._ended, self._open = ended, 1
        self.trace, self.number, self.parent, self.is_remote = trace, number, parent, is_remote
        self.ledger, self.entry, self.entries, self.size = ledger, entry, entries, size
        self.bookies: Sequence[BookieId] = ()
        self.ends: list[int] = []
        self.errors: dict[int, str] = {}
        self.error = ""
        self.sent_ns = self.ended_ns = 0
        self.began_ns = time.time_ns()

    @property
    def spans(self) -> int:
        """Return the number of spans: the append's own and one for each bookie."""
        return 1 + len(self.bookies)

    def step_id(self, place: int) -> bytes:
        """Return the id of the step to a bookie."""
        return (self.number + 1 + place & _STEP_ID_MASK).to_bytes(ID_BYTES, "big")

    def encoded(self) -> bytes:
        """Its spans, as a request to a collector has them."""
        return append_bytes(self)

    def sent(self, bookies: Sequence[BookieId]) -> list[bytes]:
        self.bookies, self.ends = bookies, [0] * len(bookies)
        self._open += len(bookies)
        self.sent_ns = time.time_ns()
        trace = self.trace
        return [trace + self.step_id(place) for place in range(len(bookies))]

    def answered(self, place: int, error: str = "") -> None:
        if not self.ends[place]:
            self.ends[place] = time.time_ns()
            if error:
                self.errors[place] = error
            self._close_one()

    def end(self, error: str = "") -> None:
        if not self.ended_ns:
            self.error, self.ended_ns = error, time.time_ns()
            self._close_one()

    def _close_one(self) -> None:
        self._open -= 1
        if not self._open:
            self._ended(self)


OnAppendEnded: TypeAlias = Callable[[OtelAppend], None]
"""Takes an append that has ended with all of its steps. Neither waits nor raises."""


__all__ = ["ID_BYTES", "OnAppendEnded", "OtelAppend"]

"""An outbox that follows some appends for OpenTelemetry, where the runtime has traces; others have no part of it.

Of each turn's appends the first one may be followed, and stands for those behind it; a share of them is a share of
turns, because following costs as much as a turn of few appends. It is a step `buckram.append`, and in it a step for
each bookie that gets the entry, from sending to its answer. A packet goes before the add to bookies that trace, and
their steps are within these.
Not here: what a trace is made with (`runtime/telemetry/spans.py`), the bookie's side
(`bookie/service/entries/traced_adds.py`).
"""

from __future__ import annotations

from typing import Any

from buckram.client.write.outbox import Outbox, OutboxOwner
from buckram.core.ledgers.append import AppendWindow
from buckram.core.wire.v2 import trace_add
from buckram.errors import BuckramError
from buckram.seams import AppendSpan, Traces
from buckram.types import BookieId, EntryId, LedgerId, Slot


class TracedOutbox(Outbox):
    """Made in place of an Outbox, with the same arguments behind `traces`."""

    def __init__(self, traces: Traces, window: AppendWindow, *parts: Any, **settings: Any) -> None:
        super().__init__(window, *parts, **settings)
        self._traces, self._within = traces, traces.within
        self._skip = traces.gap()
        """Number of turns that are left out before the next one that begins a trace, if its program has none."""
        self._span: AppendSpan | None = None
        """Span of an append of this turn; None if none is followed."""
        self._entry: EntryId = 0
        """The last entry of that append."""
        self.on_turn = self._turn_begins

    def _turn_begins(self, first: EntryId, count: int, size: int) -> None:
        # One look for the appends of a turn, so that the others cost nothing.
        if self._skip and not self._within():
            self._skip -= 1
        elif self._span is None:
            self._look(first, count, size)

    def _look(self, first: EntryId, count: int, size: int) -> None:
        chosen = not self._skip
        self._skip = self._traces.gap() if chosen else self._skip - 1
        self._span = self._traces.append(self._window.ledger_id, first, count, size, chosen=chosen)
        self._entry = first + count - 1

    def clear(self) -> None:
        super().clear()
        span, self._span = self._span, None
        if span is not None:
            span.end("the writer ended before it was sent")

    def _send_run(self, first: EntryId, bodies: list[bytes], length: int) -> int:
        span, entry = self._span, self._entry
        if span is None or not first <= entry < first + len(bodies):
            return super()._send_run(first, bodies, length)
        self._span = None
        owner = self._owner
        self._owner = _Followed(owner, self._window, span, entry, self._begin_steps(span, entry))
        try:
            return super()._send_run(first, bodies, length)
        finally:
            self._owner = owner

    def _begin_steps(self, span: AppendSpan, entry: EntryId) -> dict[Slot, int]:
        """Begin a step for each bookie that gets the entry, told to those that trace; by slots the places of these."""
        window = self._window
        ensemble, write_set = window.ensemble, window.quorum.write_set(entry)
        size = window.quorum.ensemble_size
        targets = [(load.lane, slot) for load, slot in self._targets if slot % size in write_set]
        contexts = span.sent([ensemble[slot % size] for _, slot in targets])
        for (lane, _), context in zip(targets, contexts, strict=True):
            lane.precede(trace_add(window.ledger_id, entry, context))
        return {slot: place for place, (_, slot) in enumerate(targets)}


class _Followed:
    """The sink of one run: its writer, which is told first, and the steps of one entry of the run."""

    def __init__(
        self, owner: OutboxOwner, window: AppendWindow, span: AppendSpan, entry: EntryId, places: dict[Slot, int]
    ) -> None:
        self.name: tuple[LedgerId, bytes] | None = owner.name
        self._owner, self._window, self._span = owner, window, span
        self._entry, self._places = entry, places

    def acked(self, slot: Slot, bookie_id: BookieId, first: EntryId, last: EntryId) -> None:
        self._owner.acked(slot, bookie_id, first, last)
        if first <= self._entry <= last:
            self._answered(slot, "")

    def add_failed(self, slot: Slot, bookie_id: BookieId, first: EntryId, last: EntryId, error: BuckramError) -> None:
        self._owner.add_failed(slot, bookie_id, first, last, error)
        if first <= self._entry <= last:
            self._answered(slot, str(error))

    def on_unusable(self, error: BaseException) -> None:
        self._owner.on_unusable(error)

    def on_writable(self) -> None:
        self._owner.on_writable()

    def _answered(self, slot: Slot, error: str) -> None:
        place = self._places.pop(slot, None)
        if place is not None:
            self._span.answered(place, error)
        if self._window.pending_head >= self._entry:
            self._span.end()
        elif not self._places:
            self._span.end("it is not acknowledged by those bookies alone")

"""The hot path of adds where some are followed for OpenTelemetry: one look more for each run, none for an entry.

A packet says before an add that it is part of a trace (`core/wire/v2.py:traced_add`). The step that is made of it lasts
from that packet until the add is durable, or is refused. Not here: who sends the packet (`client/write/tracing.py`).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from buckram.bookie.service.connections.long_poll import LongPolls
from buckram.bookie.service.connections.memory_budget import Budget
from buckram.bookie.service.connections.session import Session
from buckram.bookie.service.entries.adds import AddPath
from buckram.bookie.service.entries.admission import Admission
from buckram.bookie.storage.store import Store
from buckram.core.wire.adds import AddRun
from buckram.core.wire.server_protocol import Traced
from buckram.errors import Code
from buckram.seams import Span, Stats, Traces
from buckram.types import EntryId, LedgerId

STEP = "buckram.bookie.add"


class _Expected(NamedTuple):
    ledger_id: LedgerId
    entry: EntryId
    span: Span


class TracedAdds(AddPath):
    """AddPath that follows, on each connection, the add that was last announced as part of a trace."""

    def __init__(
        self, traces: Traces, store: Store, polls: LongPolls, budget: Budget, stats: Stats, admission: Admission
    ) -> None:
        super().__init__(store, polls, budget, stats, admission)
        self._traces = traces
        self._expected: dict[Session, _Expected] = {}

    def expect(self, session: Session, traced: Traced) -> None:
        """Remember that the add of an entry comes next. An add that was expected before, and did not come, is given
        up."""
        self.forget(session)
        about = {"buckram.ledger": traced.ledger_id, "buckram.entry": traced.entry}
        span = self._traces.continued(STEP, traced.context, about)
        if span is not None:
            self._expected[session] = _Expected(traced.ledger_id, traced.entry, span)

    def forget(self, session: Session) -> None:
        """Give up the add that a connection announced, if there is one: end its step with an error."""
        expected = self._expected.pop(session, None)
        if expected is not None:
            expected.span.end("the add did not arrive")

    def _comes_alone(self, session: Session) -> bool:
        """Return whether the connection has announced an add: it has a span as a run."""
        return session in self._expected

    def _insert(self, session: Session, run: AddRun) -> None:
        span = self._span_of(session, run) if self._expected else None
        super()._insert(session, run)
        if span is not None and self._expected.pop(session, None) is not None:  # it was not refused
            span.note("buckram.entries", run.count)
            self._store.after_durable(partial(_durable, span))

    def refuse(self, session: Session, run: AddRun, code: Code) -> None:
        span = self._span_of(session, run) if self._expected else None
        super().refuse(session, run, code)
        if span is not None:
            del self._expected[session]
            span.end(code.name)

    def _span_of(self, session: Session, run: AddRun) -> Span | None:
        """Return the span of the expected add if the run contains it, else None."""
        expected = self._expected.get(session)
        if expected is None or expected.ledger_id != run.ledger_id or not run.first <= expected.entry <= run.last:
            return None
        return expected.span


def _durable(span: Span, error: OSError | None) -> None:
    span.end("" if error is None else f"the log failed: {error}")

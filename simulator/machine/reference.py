"""Reference: an independent fold of the log, with the facts of each offset and each command.

It knows the bytes of records and nothing of `core/machine/fold.py` and `core/machine/sessions.py`, whose bugs it must
find. Not here: comparing replicas with it (`rules.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from buckram.core.machine import records
from buckram.core.machine.records import CommandRecord
from buckram.core.machine.value_encoding import decode_value
from buckram.errors import CommandRefused
from simulator.machine.state import Book

REFUSED = "refused"


@dataclass(slots=True)
class Executed:
    """The result of a command's first application, and its offset."""

    ident: str
    offset: int
    result: Any


@dataclass(slots=True)
class Session:
    """One session of the log: which sequences were applied, and the lowest that may still come."""

    lowest: int = 0
    done: dict[int, Executed] = field(default_factory=dict)


class Reference:
    """The fold of all records that any replica has applied."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.states: list[bytes] = []
        """The serialised state after each record."""
        self.book = Book()
        self.executed: dict[str, Executed] = {}
        self.sessions: dict[int, Session] = {}
        self.twice: list[str] = []
        """Commands that the log applies a second time."""
        self.repeated: dict[int, Executed] = {}
        """Offsets of repeated commands that were known already."""
        self.unknown_at: list[int] = []
        """The offsets of commands that old versions do not know."""

    @property
    def end(self) -> int:
        return len(self.values)

    def state_before(self, offset: int) -> bytes:
        """Return the state of a replica that has applied everything below the offset."""
        return self.states[offset - 1] if offset else Book().snapshot()

    def append(self, value: bytes) -> None:
        """Apply the next record of the log."""
        offset, record = self.end, records.decode(value)
        self.values.append(value)
        if isinstance(record, CommandRecord):
            self._command(offset, record)
        elif isinstance(record, records.PlainRecord) and record.kind == records.SESSION:
            self.sessions[offset] = Session()
        self.states.append(self.book.snapshot())

    def _command(self, offset: int, record: CommandRecord) -> None:
        session, command = self.sessions.get(record.session), decode_value(record.payload)
        if session is None or record.sequence < session.lowest:
            return  # Commands of an unknown session or below its lowest sequence are not executed.
        if record.sequence in session.done:
            self.repeated[offset] = session.done[record.sequence]
            return
        session.lowest = max(session.lowest, record.lowest)
        if command[1] == "append2":
            self.unknown_at.append(offset)
        ident = command[0]
        if ident in self.executed:
            self.twice.append(ident)
        try:
            result = self.book.apply(command)
        except CommandRefused:
            result = REFUSED
        self.executed[ident] = session.done[record.sequence] = Executed(ident, offset, result)


__all__ = ["REFUSED", "Executed", "Reference"]

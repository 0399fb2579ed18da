"""Fold: the state of one replica as a pure function of its log: records in, outcomes out.

It applies records in order, keeps the sessions, the time of the log and the digests. The rules R1 to R12 are in
docs/explanation/machines-design.md. `LogTime` is the time of the log as a leader gives it to its records. It goes on
with the clock while the time is certain; while it is in doubt, it goes on by what passed since, so that nothing that
the state keeps ends by a time that may be wrong. A log that is ahead goes back as soon as the time is certain: the
leader writes a record that says so.

Not here: where records come from (`state/machine/freshness.py`, `state/machine/leader.py`).
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from buckram.core.cluster.believed_time import Moment
from buckram.core.cluster.wall_time import APART_US
from buckram.core.machine import records
from buckram.core.machine.records import CommandRecord, DigestRecord
from buckram.core.machine.sessions import Forgotten, Outcome, SessionTable
from buckram.core.machine.snapshot_format import SnapshotHeader
from buckram.errors import CommandRefused, ReplicaDiverged, ReplicaStopped, UnknownCommand, check
from buckram.types import Offset

_REMEMBERED_MARKS = 16

_CHAIN = struct.Struct(">QQ?")

_NO_CHAIN = bytes(16)


class LogEntry(NamedTuple):
    """A command as the log has it: its offset, the time of the log in microseconds UTC, and its bytes."""

    offset: Offset
    time_us: int
    payload: bytes


class Replicated(Protocol):
    """State that a log keeps equal on every replica. All methods are called on the event loop, between two records."""

    def apply_entry(self, entry: LogEntry) -> bytes:
        """Apply one command and return its result as bytes. It must depend on the state and the entry alone.

        CommandRefused, before anything was changed, is a result, too. Any other error stops the replica.
        """
        ...

    def snapshot(self) -> Iterable[bytes]:
        """Return the present state in pieces, maybe Prepared. It is consumed while later commands are applied."""
        ...

    def fault(self, chunks: Sequence[bytes]) -> str:
        """Return why these chunks cannot be a snapshot of this state; empty if they may be one. Called in any
        thread.
        """
        ...

    def room(self) -> Awaitable[object] | None:
        """Return None if another command can be applied now; else an awaitable that ends, without any command, when one
        can.
        """
        ...

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the state by that of a snapshot, or by the empty one if there are no chunks."""
        ...

    def digest(self) -> bytes:
        """Return a digest of the present state, the same on every replica with this state."""
        ...


@runtime_checkable
class KeepsTimes(Protocol):
    """A state that keeps times of the log, and ends something by its age."""

    def set_back(self, time_us: int) -> None:
        """Go back to this time: the time of the log was ahead. Like `apply_entry` it depends on the log alone."""
        ...


@runtime_checkable
class Prepared(Protocol):
    """Pieces of a snapshot that another thread prepares. They hold something until they are closed."""

    def ready(self) -> Awaitable[object]:
        """Return an awaitable to be awaited before the first piece is requested."""
        ...

    def close(self) -> None:
        """Release what the pieces hold: no more are requested. Idempotent."""
        ...


class Applied(NamedTuple):
    """Effect of a record: its kind, and of a command its outcome, or the reason why that is not known."""

    kind: int
    outcome: Outcome | Forgotten | None = None


class Fold:
    """One replica's state. `apply` takes the records in order; `machine` names the machine in errors."""

    def __init__(self, machine: str, state: Replicated) -> None:
        self.machine, self.state = machine, state
        self.reset()

    def reset(self) -> None:
        """Begin again at offset 0 with the empty state."""
        self.state.restore(())
        self._begin(SnapshotHeader(0, 0, 0, 0, 0, _NO_CHAIN.hex()), SessionTable())

    def restore(self, header: SnapshotHeader, sessions: bytes, chunks: Iterable[bytes]) -> None:
        """Replace everything by a snapshot. Raises ValueError for a malformed session table, and errors of the state's
        restore.
        """
        table = SessionTable.decode(sessions)
        self.state.restore(chunks)
        self._begin(header, table)

    def _begin(self, header: SnapshotHeader, table: SessionTable) -> None:
        self.applied = header.offset
        """Offset of the next record."""
        self.commands, self.log_bytes = header.commands, header.log_bytes
        """Number of commands applied, and bytes of all records, since the machine began."""
        self.time_us = header.time_us
        """Time of the log, microseconds UTC. Only a record of kind TIME sets it back."""
        self.mark_commands = header.mark_commands
        """Number of commands at the last mark."""
        self.sessions = table
        self.stopped: ReplicaStopped | None = None
        self.agreed: int | None = None
        """Offset of the last mark at which the digest was equal to the leader's."""
        self._chain = bytes.fromhex(header.chain)
        self._marks: OrderedDict[int, bytes] = OrderedDict()

    def header(self) -> SnapshotHeader:
        """Return the header of a snapshot of this moment."""
        return SnapshotHeader(
            self.applied, self.commands, self.log_bytes, self.time_us, self.mark_commands, self._chain.hex()
        )

    def digest(self) -> bytes:
        """Return a digest of the state and of every outcome so far, 16 bytes."""
        found = hashlib.sha256(self._chain)
        found.update(self.state.digest())
        return found.digest()[:16]

    def _digest_at(self, mark: int) -> bytes:
        try:
            return self.digest()
        except Exception as error:
            raise ReplicaStopped(self.machine, mark, f"the digest of its state failed with {error!r}") from error

    def marked(self, mark: int) -> bytes | None:
        """Return the digest that this replica had at a mark; None once it is forgotten."""
        return self._marks.get(mark)

    def apply(self, offset: Offset, value: bytes | None) -> Applied:
        """Apply the next record. Raises ReplicaStopped, now and ever after, if that is not possible (R10)."""
        try:
            record = records.decode(value)
        except UnknownCommand as error:
            self._go_on(offset)
            raise self._unknown(offset, error) from error
        if isinstance(record, CommandRecord):
            return Applied(records.COMMAND, self.command(offset, record, len(value or b"")))
        self._go_on(offset)
        try:
            done = self._apply(offset, record)
        except ReplicaStopped as error:
            self.stopped = error
            raise
        self.applied = offset + 1
        self.log_bytes += len(value or b"")
        return done

    def command(self, offset: Offset, record: CommandRecord, size: int) -> Outcome | Forgotten:
        """Apply a command that was read already, or written by this process; `size` is that of its record."""
        if self.stopped is not None or offset != self.applied:
            self._go_on(offset)
        if record.time_us > self.time_us:
            self.time_us = record.time_us
        try:
            outcome = self._command(offset, record)
        except ReplicaStopped as error:
            self.stopped = error
            raise
        except UnknownCommand as error:
            raise self._unknown(offset, error) from error
        self.applied = offset + 1
        self.log_bytes += size
        return outcome

    def _go_on(self, offset: Offset) -> None:
        """Raise if this is not the next record, or nothing can be applied any more."""
        if self.stopped is not None:
            raise self.stopped
        if offset != self.applied:  # The text is not built for each record.
            check(False, "R1", f"machine {self.machine}: record {offset}, applied is {self.applied}")

    def _unknown(self, offset: Offset, error: UnknownCommand) -> ReplicaStopped:
        self.stopped = ReplicaStopped(
            self.machine, offset, f"it does not know the command ({error}); update the program and open it again"
        )
        return self.stopped

    def _apply(self, offset: Offset, record: records.PlainRecord | DigestRecord) -> Applied:
        if isinstance(record, DigestRecord):
            self._compare(offset, record)
            return Applied(records.DIGEST)
        if record.kind == records.TIME:
            self._set_back(record.time_us)
            return Applied(records.TIME)
        self.time_us = max(self.time_us, record.time_us)
        if record.kind == records.SESSION:
            self.sessions.open(offset, self.time_us, self.commands)
        elif record.kind == records.MARK:
            self.mark_commands = self.commands
            self._marks[offset] = self._digest_at(offset)
            if len(self._marks) > _REMEMBERED_MARKS:
                self._marks.popitem(last=False)
        return Applied(record.kind)

    def _set_back(self, time_us: int) -> None:
        """Go back to this time if it is earlier: the clock of the log was ahead. What was stamped later counts as of
        now.
        """
        if time_us >= self.time_us:
            return
        self.time_us = time_us
        self.sessions.set_back(time_us)
        if isinstance(self.state, KeepsTimes):
            self.state.set_back(time_us)

    def _command(self, offset: Offset, record: CommandRecord) -> Outcome | Forgotten:
        """Apply a command unless it was applied before (R3); return the outcome of the first time (R4)."""
        session, sequence = record.session, record.sequence
        known = self.sessions.known(session, sequence)
        if known is not None:
            return known
        try:
            outcome = Outcome(self.state.apply_entry(LogEntry(offset, self.time_us, record.payload)))
        except CommandRefused as refusal:
            outcome = Outcome(str(refusal).encode(errors="replace"), refused=True)
        except UnknownCommand:
            raise
        except Exception as error:
            raise ReplicaStopped(
                self.machine,
                offset,
                f"apply() failed with {error!r}: the state may be half changed, so no further command is "
                "applied. Raise CommandRefused for a command that the state does not allow; correct apply() and "
                "open the machine again",
            ) from error
        self.commands += 1
        self.sessions.store(session, sequence, record.lowest, outcome, self.time_us, self.commands)
        step = self._chain + _CHAIN.pack(session, sequence, outcome.refused) + outcome.result
        self._chain = hashlib.blake2b(step, digest_size=16).digest()
        return outcome

    def _compare(self, offset: Offset, record: DigestRecord) -> None:
        """Compare the leader's digest with this replica's, if this replica applied the mark (R11)."""
        own = self._marks.pop(record.mark, None)
        if own is None:
            return
        if own != record.digest:
            raise ReplicaDiverged(self.machine, record.mark, self.agreed, own.hex(), record.digest.hex())
        self.agreed = record.mark


# -- the time that a leader gives to records ------------------------------------------------------------------


class LogTime:
    """Time of the log, of which `last` is that of the newest record, microseconds UTC."""

    def __init__(self, last: int) -> None:
        self.last = last
        self._doubt: tuple[int, int] | None = None
        """Time of the log and monotonic time at which the doubt began; None while there is none."""

    def goes_back(self, moment: Moment) -> bool:
        """Return whether the log is ahead of a time that is certain, so that a record has to set it back first."""
        return not moment.why and self.last - moment.best > APART_US

    def set_back(self, moment: Moment) -> int:
        """Go back to the time that is certain, and return it."""
        self.last, self._doubt = moment.best, None
        return self.last

    def next(self, moment: Moment, mono: int) -> int:
        """Return the time of the next record; `mono` is monotonic time, in microseconds."""
        if not moment.why:
            self._doubt = None
            self.last = max(self.last, moment.best)
            return self.last
        if self._doubt is None:
            self._doubt = self.last, mono
        began, since = self._doubt
        passed = min(began + mono - since, max(moment.best, began))
        known = moment.best if moment.bounded and moment.best - moment.low <= APART_US else 0
        self.last = max(self.last, passed, known)
        return self.last

"""Sessions of commands, both sides: results by session and sequence, so that each command is applied once; and tokens.

`SessionTable` is part of every replica's state: what it drops and when follows from the log alone (rules R3, R4 and R12
of docs/explanation/machines-design.md). `Sequences` is a caller's side: it issues sequences and knows which of them may
still be repeated. A token is written LOG:SESSION:SEQUENCE, so that a program can keep it and repeat its command after a
crash; LOG is the unique id of the machine's log, because another machine of the same name has sessions of the same
numbers.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from buckram.errors import InvalidArgument

MAX_SESSIONS = 10_000

MAX_SEQUENCES = 4096
"""Maximum span of sequences whose results a session keeps, counted back from the highest one."""

MAX_RESULT_BYTES = 16 * 1024 * 1024

SILENT_US = 24 * 3600 * 1_000_000

SILENT_COMMANDS = 10_000
"""Number of commands of others after which, together with SILENT_US, a silent session is dropped."""

# These are part of the format: replicas that differ in them would differ in their state.

_HEAD = struct.Struct(">QQQQI")

_ROW = struct.Struct(">QBI")

_DONE, _REFUSED, _DROPPED = 0, 1, 2


class Outcome(NamedTuple):
    """Outcome of a command: the encoded result, or the text of a refusal."""

    result: bytes
    refused: bool = False


class Forgotten(NamedTuple):
    """Reason why it is not known whether the command was applied before."""

    message: str


@dataclass(slots=True)
class _Session:
    lowest: int = 0
    time_us: int = 0
    commands: int = 0
    """Number of commands that the machine had applied at this session's last command."""
    results: dict[int, Outcome | None] = field(default_factory=dict)
    """Outcomes by sequence; None for one whose result was dropped for room."""


class SessionTable:
    """Sessions in the order of their last commands. `commands` and `time_us` are those of the log."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def result_bytes(self) -> int:
        """Return the bytes of all results kept."""
        return self._bytes

    def open(self, session: int, time_us: int, commands: int) -> None:
        """Begin a session. The one that was silent the longest is dropped if there are too many."""
        self._sessions[session] = _Session(time_us=time_us, commands=commands)
        self._expire(time_us, commands)

    def known(self, session: int, sequence: int) -> Outcome | Forgotten | None:
        """Return the outcome of a command, why it is not known any more, or None if the command was never applied."""
        found = self._sessions.get(session)
        if found is None:
            return Forgotten("its session is not kept any more (it was silent for a day), or never was")
        if sequence in found.results:
            outcome = found.results[sequence]
            return outcome or Forgotten("it was executed, and its result is not kept any more")
        if sequence < found.lowest:
            return Forgotten("it was given up by its caller, or its result was fetched already")
        return None

    def store(self, session: int, sequence: int, lowest: int, outcome: Outcome, time_us: int, commands: int) -> None:
        """Keep the outcome of a command that `known` did not know."""
        found = self._sessions[session]
        found.results[sequence] = outcome
        self._bytes += len(outcome.result)
        found.time_us, found.commands = time_us, commands
        self._sessions.move_to_end(session)
        if lowest <= sequence - MAX_SEQUENCES:
            lowest = sequence - MAX_SEQUENCES + 1
        if lowest > found.lowest:
            found.lowest = lowest
            # Sequences are stored nearly in order: one that came late goes when it is at the front.
            results = found.results
            while (old := next(iter(results), lowest)) < lowest:
                self._drop(results.pop(old))
        if self._bytes > MAX_RESULT_BYTES:
            self._shrink()

    def set_back(self, time_us: int) -> None:
        """Move times of sessions after this one back to it: the time of the log was set back."""
        for session in self._sessions.values():
            session.time_us = min(session.time_us, time_us)

    def _drop(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._bytes -= len(outcome.result)

    def _shrink(self) -> None:
        """Drop results, of the sessions that were silent the longest first, until an eighth of the limit is free."""
        for session in self._sessions.values():
            for sequence, outcome in session.results.items():
                if outcome is not None:
                    self._drop(outcome)
                    session.results[sequence] = None
                if self._bytes <= MAX_RESULT_BYTES * 7 // 8:
                    return

    def _expire(self, time_us: int, commands: int) -> None:
        while self._sessions:
            oldest, session = next(iter(self._sessions.items()))
            silent = commands - session.commands >= SILENT_COMMANDS and time_us - session.time_us >= SILENT_US
            if not silent and len(self._sessions) <= MAX_SESSIONS:
                return
            del self._sessions[oldest]
            for outcome in session.results.values():
                self._drop(outcome)

    # -- snapshots ----------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the whole table as bytes, for a snapshot."""
        parts: list[bytes] = []
        for number, session in self._sessions.items():
            parts.append(_HEAD.pack(number, session.lowest, session.time_us, session.commands, len(session.results)))
            for sequence, outcome in session.results.items():
                if outcome is None:
                    parts.append(_ROW.pack(sequence, _DROPPED, 0))
                else:
                    parts.append(_ROW.pack(sequence, _REFUSED if outcome.refused else _DONE, len(outcome.result)))
                    parts.append(outcome.result)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> SessionTable:
        """Parse a table. Raises ValueError for bytes that `encode` did not make."""
        table, at = cls(), 0
        try:
            while at < len(data):
                number, lowest, time_us, commands, count = _HEAD.unpack_from(data, at)
                at += _HEAD.size
                session = table._sessions[number] = _Session(lowest, time_us, commands)
                for _ in range(count):
                    sequence, state, size = _ROW.unpack_from(data, at)
                    at += _ROW.size
                    if at + size > len(data):
                        raise ValueError("the session table is cut")
                    session.results[sequence] = (
                        None if state == _DROPPED else Outcome(data[at : at + size], state == _REFUSED)
                    )
                    at += size
                    table._bytes += size
        except struct.error as error:
            raise ValueError(f"the session table is cut ({error})") from None
        return table


# -- a caller's side ------------------------------------------------------------------------------------------

_FORM = re.compile(r"([0-9a-f]{16}):([0-9]{1,19}):([0-9]{1,19})", re.ASCII)


class CommandToken(NamedTuple):
    """The identity of one command of one machine."""

    session: int
    sequence: int

    def text(self, log: str) -> str:
        """Return the token as text, for a program to keep; `log` is the uid of the machine's log."""
        return f"{log}:{self.session}:{self.sequence}"


def parse_token(text: str) -> tuple[str, CommandToken]:
    """Return the uid of the log and the token. Raises InvalidArgument."""
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    token = CommandToken(int(found[2]), int(found[3])) if found is not None else None
    if found is None or token is None or max(token) >= 2**63:
        raise InvalidArgument(f"token {text!r}: needs LOG:SESSION:SEQUENCE, as m.token() and CommandUnknown give it")
    return found[1], token


class Sequences:
    """The sequences of one session, which was opened in the log as `session`."""

    def __init__(self, session: int) -> None:
        self.session = session
        self.lowest = 0
        """Lowest sequence whose result the replicas must keep."""
        self._next = 0
        self._wanted: dict[int, None] = {}
        """Sequences that were issued and whose outcome the caller does not have, in order."""

    def take(self) -> CommandToken:
        """Return the next token. Its result is kept until `done`, or until very many later ones were taken."""
        sequence = self._next
        self._next = sequence + 1
        self._wanted[sequence] = None
        if sequence - self.lowest >= MAX_SEQUENCES // 2:
            self._end(self.lowest)
        return CommandToken(self.session, sequence)

    def done(self, token: CommandToken) -> None:
        """Note that the caller has the outcome, or does not want it any more."""
        session, sequence = token
        if session == self.session:
            self._end(sequence)

    def _end(self, sequence: int) -> None:
        self._wanted.pop(sequence, None)
        if sequence == self.lowest:
            # The dictionary passes over all that left its front, so it is asked only when the lowest one has gone.
            self.lowest = next(iter(self._wanted), self._next)

"""The bytes of a machine's log records: a fixed header, then what each kind carries.

Not here: what a record does (`core/machine/fold.py`), commands and results as bytes (`core/machine/value_encoding.py`).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from buckram.errors import UnknownCommand

FORMAT = 1
COMMAND, SESSION, NOOP, MARK, DIGEST, TIME = 1, 2, 3, 4, 5, 6
"""Kinds of records. TIME: the time of the log was ahead, and goes back to that of this record."""
_HEADER = struct.Struct(">BBQ")
_COMMAND = struct.Struct(">BBQQQQ")
_DIGEST = struct.Struct(">BBQQ")
COMMAND_OVERHEAD = _COMMAND.size
"""Bytes of a command's record beside its payload."""
_KINDS = (COMMAND, SESSION, NOOP, MARK, DIGEST, TIME)


class CommandRecord(NamedTuple):
    """A command under a session's sequence; `lowest` is the lowest sequence that the caller may still repeat."""

    time_us: int
    session: int
    sequence: int
    lowest: int
    payload: bytes


class PlainRecord(NamedTuple):
    """A record of kind SESSION, NOOP, MARK or TIME."""

    kind: int
    time_us: int


class DigestRecord(NamedTuple):
    """The leader's digest of its state at the mark with the offset `mark`."""

    time_us: int
    mark: int
    digest: bytes


LogRecord = CommandRecord | PlainRecord | DigestRecord


def encode_command(record: CommandRecord) -> bytes:
    time_us, session, sequence, lowest, payload = record
    return _COMMAND.pack(FORMAT, COMMAND, time_us, session, sequence, lowest) + payload


def encode_plain(kind: int, time_us: int) -> bytes:
    return _HEADER.pack(FORMAT, kind, time_us)


def encode_digest(time_us: int, mark: int, digest: bytes) -> bytes:
    return _DIGEST.pack(FORMAT, DIGEST, time_us, mark) + digest


def decode(value: bytes | None) -> LogRecord:
    """Parse a record. Raises UnknownCommand for a format or kind that this version does not know."""
    if value is None or len(value) < _HEADER.size:
        raise UnknownCommand(f"a record of {len(value or b'')} bytes is none of a machine")
    version, kind, time_us = _HEADER.unpack_from(value)
    if version != FORMAT or kind not in _KINDS:
        raise UnknownCommand(
            f"a record of format {version}, kind {kind}; this version of buckram knows format {FORMAT}: update it"
        )
    try:
        if kind == COMMAND:
            _, _, _, session, sequence, lowest = _COMMAND.unpack_from(value)
            return CommandRecord(time_us, session, sequence, lowest, value[COMMAND_OVERHEAD:])
        if kind == DIGEST:
            return DigestRecord(time_us, _DIGEST.unpack_from(value)[3], value[_DIGEST.size :])
    except struct.error as error:
        raise UnknownCommand(f"a record of kind {kind} is cut: {error}") from None
    return PlainRecord(kind, time_us)

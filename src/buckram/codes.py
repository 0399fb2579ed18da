"""The status codes of a bookie's answers on both wires: no other module has a table of its own."""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """Status of a bookie's answer, by its v3 number (docs/reference/protocol.md, error codes)."""

    OK = 0
    NO_LEDGER = 402
    NO_ENTRY = 403
    BAD_REQUEST = 404
    IO_ERROR = 501
    UNAUTHORIZED = 502
    BAD_VERSION = 503
    FENCED = 504
    READ_ONLY = 505
    TOO_MANY_REQUESTS = 506
    UNKNOWN_LEDGER_STATE = 507
    QUOTA_EXCEEDED = 590
    """Code of Buckram's own, for clients that announced that they know it (core/wire/introduction.py)."""

    @property
    def v2(self) -> int:
        """Return the number on the v2 wire. 507 becomes 101: Apache's v2 client dies on 107."""
        return _V2_OF[self]

    @classmethod
    def from_v2(cls, number: int) -> Code:
        """Return the code of any number; an unlisted one is an I/O error: unknown, never negative."""
        return _OF_V2.get(number, cls.IO_ERROR)

    @classmethod
    def from_v3(cls, number: int) -> Code:
        try:
            return cls(number)
        except ValueError:
            return cls.IO_ERROR

    @property
    def explicit_negative(self) -> bool:
        """Return whether the code is evidence of absence: NO_LEDGER and NO_ENTRY only."""
        return self is Code.NO_LEDGER or self is Code.NO_ENTRY


_V2_OF = {
    Code.OK: 0,
    Code.NO_LEDGER: 1,
    Code.NO_ENTRY: 2,
    Code.BAD_REQUEST: 100,
    Code.IO_ERROR: 101,
    Code.UNAUTHORIZED: 102,
    Code.BAD_VERSION: 103,
    Code.FENCED: 104,
    Code.READ_ONLY: 105,
    Code.TOO_MANY_REQUESTS: 106,
    Code.UNKNOWN_LEDGER_STATE: 101,
    Code.QUOTA_EXCEEDED: 190,
}
_OF_V2 = {number: code for code, number in _V2_OF.items() if code is not Code.UNKNOWN_LEDGER_STATE} | {
    107: Code.UNKNOWN_LEDGER_STATE,
}

"""The one error tree: typed fields, `retryable`, and the wire's status codes.

Every error names the value, the limit and what to do. `retryable` means: the same call may
succeed later without any change by the caller. Decoding of codes lives here, so that no other
module has a table of its own.
"""

from __future__ import annotations

import enum
from typing import ClassVar, NoReturn

__all__ = [
    "AccessRefused",
    "AlreadyRegistered",
    "BookieIOError",
    "BookieReadOnly",
    "BookieTooBusy",
    "BookieUnavailable",
    "BuckramError",
    "BufferFull",
    "ClusterNotInitialised",
    "Code",
    "ConfigError",
    "CorruptStore",
    "DigestMismatch",
    "DuplicateEntry",
    "EntryTooLarge",
    "ForkedClient",
    "HandleClosed",
    "InvalidArgument",
    "InvariantViolation",
    "KeyExists",
    "KeyNotEmpty",
    "LedgerClosed",
    "LedgerError",
    "LedgerExists",
    "LedgerFenced",
    "LedgerIdsExhausted",
    "MalformedRecord",
    "MetadataError",
    "MetadataUnavailable",
    "NoSuchEntry",
    "NoSuchKey",
    "NoSuchLedger",
    "NotEnoughBookies",
    "ProtocolError",
    "ReadFailed",
    "RecoveryFailed",
    "RequestTimeout",
    "Unauthorized",
    "UnknownLedgerState",
    "ValueTooLarge",
    "VersionConflict",
    "WriteFailed",
    "WrongCluster",
    "WrongCookie",
    "WrongLedgerManager",
    "check",
    "invariant_failed",
]


class Code(enum.IntEnum):
    """Status of a bookie's answer, by its v3 number (docs/protocol.md, error codes)."""

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

    @property
    def v2(self) -> int:
        """The number on the v2 wire. 507 becomes 101: Apache's v2 client dies on 107."""
        return _V2_OF[self]

    @classmethod
    def from_v2(cls, number: int) -> Code:
        """Any number is accepted; an unlisted one is an I/O error: unknown, never negative."""
        return _OF_V2.get(number, cls.IO_ERROR)

    @classmethod
    def from_v3(cls, number: int) -> Code:
        try:
            return cls(number)
        except ValueError:
            return cls.IO_ERROR

    @property
    def explicit_negative(self) -> bool:
        """The only answers that are evidence of absence."""
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
}
_OF_V2 = {number: code for code, number in _V2_OF.items() if code is not Code.UNKNOWN_LEDGER_STATE} | {
    107: Code.UNKNOWN_LEDGER_STATE,
}


class BuckramError(Exception):
    """Base of every error that Buckram raises on purpose."""

    retryable: ClassVar[bool] = False


class InvariantViolation(BuckramError):
    """A rule that must never break did break: a bug. Never retried, never swallowed."""


def invariant_failed(rule: str, detail: str) -> NoReturn:
    raise InvariantViolation(f"{rule}: {detail}")


def check(condition: bool, rule: str, detail: str = "") -> None:
    """Assert an invariant by its id in docs/protocol.md; stays on under python -O."""
    if not condition:
        invariant_failed(rule, detail)


class InvalidArgument(BuckramError, ValueError):
    """An argument outside its limits: names the value, the limit and what to do."""


class ConfigError(BuckramError):
    """A configuration key that is unknown or has a bad value."""


class ForkedClient(BuckramError):
    """A client was used in a forked child; connect again there."""


class BufferFull(BuckramError):
    """The byte limit of unacknowledged appends is reached; try again when some are acknowledged."""

    retryable = True

    def __init__(self, pending_bytes: int, limit_bytes: int, message: str = "") -> None:
        super().__init__(
            message
            or f"{pending_bytes} bytes are not yet acknowledged, the limit is {limit_bytes}: "
            "await flush() or use append(), which waits"
        )
        self.pending_bytes, self.limit_bytes = pending_bytes, limit_bytes


class HandleClosed(BuckramError):
    """The client, writer or reader was closed by this program."""


class LedgerError(BuckramError):
    """An error of one ledger."""

    def __init__(self, ledger_id: int, message: str) -> None:
        super().__init__(f"ledger {ledger_id}: {message}")
        self.ledger_id = ledger_id


class NoSuchLedger(LedgerError):
    def __init__(self, ledger_id: int) -> None:
        super().__init__(
            ledger_id, "does not exist (never created, or deleted); `buckram ledger list` shows those that do"
        )


class LedgerExists(LedgerError):
    def __init__(self, ledger_id: int) -> None:
        super().__init__(ledger_id, "exists already; choose another id or let the store choose")


class LedgerClosed(LedgerError):
    """The ledger is closed; this entry was not and will not be written by this handle."""


class LedgerFenced(LedgerError):
    """Somebody recovers or has recovered this ledger. An append that failed so may or may not be in it."""

    def __init__(
        self, ledger_id: int, message: str = "fenced: another client recovers or has recovered it; open a new ledger"
    ) -> None:
        super().__init__(ledger_id, message)


class NoSuchEntry(LedgerError):
    """Every replica said explicitly that it does not hold the entry, or it lies beyond the last one."""

    def __init__(self, ledger_id: int, entry_id: int, message: str = "no replica holds it") -> None:
        super().__init__(ledger_id, f"entry {entry_id}: {message}")
        self.entry_id = entry_id


class DuplicateEntry(LedgerError):
    """An explicit entry id that is already confirmed or pending."""

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(ledger_id, f"entry id {entry_id} is already written or pending; choose a new id")
        self.entry_id = entry_id


class EntryTooLarge(LedgerError):
    def __init__(self, ledger_id: int, size: int, limit: int) -> None:
        super().__init__(ledger_id, f"an entry of {size} bytes is over the limit of {limit} bytes; split it")
        self.size, self.limit = size, limit


class DigestMismatch(LedgerError):
    """Bytes that fail their digest or carry foreign ids: says nothing of whether the entry exists."""

    retryable = True


class ReadFailed(LedgerError):
    """No replica gave a good copy and not all said no: unknown, so it may succeed later."""

    retryable = True


class WriteFailed(LedgerError):
    """The writer gave up. An append that failed so may or may not be in the ledger."""


class RecoveryFailed(LedgerError):
    """Recovery could not decide; the ledger stays IN_RECOVERY and a later recovery goes on."""

    retryable = True


class NotEnoughBookies(BuckramError):
    retryable = True

    def __init__(self, needed: int, available: int, message: str = "") -> None:
        super().__init__(
            message
            or f"{needed} bookies are needed, {available} are usable: start more bookies or ask for a smaller ensemble"
        )
        self.needed, self.available = needed, available


class BookieError(BuckramError):
    """An answer of one bookie, or none."""

    retryable = True
    code: ClassVar[Code] = Code.IO_ERROR

    def __init__(self, bookie: str, message: str) -> None:
        super().__init__(f"bookie {bookie}: {message}")
        self.bookie = bookie


class BookieUnavailable(BookieError):
    """No connection: refused, reset, or not registered."""


class RequestTimeout(BookieError):
    """No answer in time; the request may or may not have taken effect."""


class BookieIOError(BookieError):
    pass


class BookieReadOnly(BookieError):
    code = Code.READ_ONLY


class BookieTooBusy(BookieError):
    code = Code.TOO_MANY_REQUESTS


class UnknownLedgerState(BookieError):
    """The bookie may have lost data of this ledger, so it says neither yes nor no (limbo)."""

    code = Code.UNKNOWN_LEDGER_STATE


class ProtocolError(BookieError):
    """The peer broke the wire protocol; the connection is closed."""

    code = Code.BAD_REQUEST


class Unauthorized(BuckramError):
    """Wrong password, or not authenticated. Nothing was fenced or written."""


class MetadataError(BuckramError):
    """An error of the metadata store."""


class MetadataUnavailable(MetadataError):
    """The store did not answer; a mutation may or may not have happened: read before deciding."""

    retryable = True


class VersionConflict(MetadataError):
    """Somebody changed the key since the version named was read."""

    retryable = True

    def __init__(self, key: str, expected: int) -> None:
        super().__init__(f"{key}: version {expected} is no longer current; read it again")
        self.key, self.expected = key, expected


class NoSuchBookie(MetadataError):
    def __init__(self, bookie_id: str) -> None:
        super().__init__(f"bookie {bookie_id}: not known to the cluster; `buckram bookie list` shows those that are")
        self.bookie_id = bookie_id


class NoSuchKey(MetadataError):
    def __init__(self, key: str) -> None:
        super().__init__(f"{key}: no such key")
        self.key = key


class KeyExists(MetadataError):
    def __init__(self, key: str) -> None:
        super().__init__(f"{key}: exists already")
        self.key = key


class KeyNotEmpty(MetadataError):
    def __init__(self, key: str) -> None:
        super().__init__(f"{key}: has children; delete those first")
        self.key = key


class MalformedRecord(MetadataError):
    """Bytes of the metadata store (or a cookie file) that do not parse or break the format's rules."""


class ClusterNotInitialised(MetadataError):
    """Nothing was ever set up at this metadata URI."""

    def __init__(self, uri: str) -> None:
        super().__init__(
            f"no cluster at {uri}: start one with `buckram up`, or prepare it with "
            f"`buckram cluster init --metadata {uri}`"
        )
        self.uri = uri


class WrongCluster(MetadataError):
    """The metadata store holds another cluster than before, or something that is not a cluster of ours alone."""


class WrongLedgerManager(ConfigError, MetadataError):
    """The metadata URI asks for another ledger manager than the cluster has."""


class LedgerIdsExhausted(MetadataError):
    """The cluster's ledger manager has no ids left to give."""


class AlreadyRegistered(MetadataError):
    """Another live process is registered under this bookie id."""

    retryable = True

    def __init__(self, bookie_id: str, waited_s: float) -> None:
        super().__init__(
            f"bookie {bookie_id} is registered by another live process (waited {waited_s:g} s for it to end): "
            "stop that one or choose another --id"
        )
        self.bookie_id = bookie_id


class AccessRefused(MetadataError):
    """The access list of a node (or of its parent) keeps this session out. Nothing was changed."""

    def __init__(self, key: str, found: str) -> None:
        super().__init__(
            f"{key}: {found}; use the credentials that the cluster's other processes use, or have the node's access "
            "list changed"
        )
        self.key, self.found = key, found


class ValueTooLarge(MetadataError):
    def __init__(self, key: str, size: int, limit: int) -> None:
        super().__init__(f"{key}: {size} bytes are over the limit of {limit}; store less in one key")
        self.key, self.size, self.limit = key, size, limit


class WrongCookie(BuckramError):
    """This directory belongs to another bookie or cluster, or its data is gone."""


class CorruptStore(BuckramError):
    """A bookie's files fail their checks or have a newer format."""

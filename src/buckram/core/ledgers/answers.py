"""The three answer classes, and what a heap of answers adds up to.

Every answer of a bookie to a read or a fence is exactly one of Positive (OK and the digest holds),
Negative (no such entry, no such ledger, and nothing else) and Unknown (all the rest: no answer, refusals,
I/O errors, limbo, digest mismatch, codes never heard of). Only Negative is evidence of absence: turning an
unknown into a negative is how acknowledged entries got lost (docs/reference/protocol.md, 0 and 8.1 row 10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeAlias, TypeVar

from buckram.core.ledgers.quorum import Quorum
from buckram.core.wire.messages import Reply
from buckram.errors import (
    BookieError,
    BookieIOError,
    BookieReadOnly,
    BookieTooBusy,
    BookieUnavailable,
    BuckramError,
    Code,
    DigestMismatch,
    HandleClosed,
    NoSuchEntry,
    ProtocolError,
    ReadFailed,
    Unauthorized,
    UnknownLedgerState,
    check,
)
from buckram.types import BookieId, EntryId, LedgerId, Position

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Positive(Generic[T]):
    """OK, and the contents were verified."""

    value: T


@dataclass(frozen=True, slots=True)
class Negative:
    """The bookie says that it does not hold it: NO_ENTRY or NO_LEDGER."""

    code: Code

    def __post_init__(self) -> None:
        check(self.code.explicit_negative, "F6", f"{self.code.name} is no evidence of absence")


@dataclass(frozen=True, slots=True)
class Unknown:
    """Neither yes nor no."""

    error: BuckramError

    @property
    def damaged(self) -> bool:
        """The bookie said OK but its bytes fail the digest: it has carried out the request (a fence!) all the same."""
        return isinstance(self.error, DigestMismatch)


Failure: TypeAlias = Negative | Unknown
Answer: TypeAlias = Positive[T] | Negative | Unknown


def bookie_error(bookie: BookieId, code: Code) -> BuckramError:
    """The error for a status other than OK and the explicit negatives."""
    match code:
        case Code.UNAUTHORIZED:
            return Unauthorized(f"bookie {bookie} refused: wrong password")
        case Code.UNKNOWN_LEDGER_STATE:
            return UnknownLedgerState(bookie, "may have lost data of this ledger, so it says neither yes nor no")
        case Code.READ_ONLY:
            return BookieReadOnly(bookie, "is read-only")
        case Code.TOO_MANY_REQUESTS:
            return BookieTooBusy(bookie, "has too many requests")
        case Code.BAD_REQUEST | Code.BAD_VERSION:
            return ProtocolError(bookie, f"does not accept the request ({code.name})")
        case _:
            return BookieIOError(bookie, f"answered {code.name}")


def classify(bookie: BookieId, reply: Reply | BuckramError, verify: Callable[[], T]) -> Answer[T]:
    """The class of one reply. `verify` opens its contents and is called for OK only.

    It raises DigestMismatch for bytes that fail (unknown, 4.5) or a BookieError, which is unknown as well.
    """
    if isinstance(reply, BuckramError):
        return Unknown(reply)
    if reply.code is Code.OK:
        try:
            return Positive(verify())
        except (DigestMismatch, BookieError) as error:
            return Unknown(error)
    if reply.code.explicit_negative:
        return Negative(reply.code)
    return Unknown(bookie_error(bookie, reply.code))


class FailureFold:
    """Which of several failures of one entry is reported (4.4, S18).

    Negative only if every failure was negative; otherwise the first unknown, where "not reachable" yields to
    any other unknown.
    """

    __slots__ = ("result",)

    def __init__(self) -> None:
        self.result: Failure | None = None

    def add(self, failure: Failure) -> None:
        so_far = self.result
        weak = not isinstance(so_far, Unknown) or (
            isinstance(so_far.error, BookieUnavailable) and isinstance(failure, Unknown)
        )
        if weak:
            self.result = failure


def raise_failure(ledger_id: LedgerId, entry_id: EntryId, failure: Failure) -> NoReturn:
    """The error of a read whose replicas all failed: NoSuchEntry, Unauthorized, HandleClosed or ReadFailed."""
    if isinstance(failure, Negative):
        raise NoSuchEntry(ledger_id, entry_id)
    if isinstance(failure.error, Unauthorized | HandleClosed):
        raise failure.error
    raise ReadFailed(ledger_id, f"entry {entry_id}: no replica gave a good copy: {failure.error}") from failure.error


class CoverageTally:
    """Who has answered, by ensemble position, and whether what is unknown could still hide an acknowledgement (1.3)."""

    def __init__(self, quorum: Quorum) -> None:
        self.quorum = quorum
        self.known: dict[int, None] = {}
        self.answered: dict[int, None] = {}

    def add(self, position: Position, answer: Answer[T]) -> None:
        """Count one answer. Damaged content counts as known: the request was carried out (4.5)."""
        self.answered[position] = None
        if not isinstance(answer, Unknown) or answer.damaged:
            self.known[position] = None

    @property
    def covered(self) -> bool:
        return self.quorum.covered(self.known)

    @property
    def complete(self) -> bool:
        """Everybody answered, so coverage can no longer change."""
        return len(self.answered) == self.quorum.ensemble_size

"""The three classes of answers, and what several answers prove together.

Every answer of a bookie to a read or a fence is exactly one of Positive (OK and the digest holds),
Negative (no such entry, no such ledger, and nothing else) and Unknown (all the rest: no answer, refusals,
I/O errors, limbo, digest mismatch, unknown codes). Only Negative is evidence of absence: turning an
unknown into a negative is how acknowledged entries got lost (docs/reference/protocol.md, 0 and 8.1 row 10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NoReturn, Protocol, TypeAlias, TypeVar

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
    LoginRequired,
    NoSuchEntry,
    ProtocolError,
    QuotaExceeded,
    ReadFailed,
    Unauthorized,
    UnknownLedgerState,
    check,
)
from buckram.types import BookieId, EntryId, LedgerId, Position

T = TypeVar("T")
E = TypeVar("E", bound=BuckramError)
Opened_co = TypeVar("Opened_co", covariant=True)


class Verify(Protocol[Opened_co]):
    """Opens the contents of a reply. Raises DigestMismatch or BookieError if they do not fit the request."""

    def __call__(self) -> Opened_co: ...


@dataclass(frozen=True, slots=True)
class Positive(Generic[T]):
    """OK, and the contents were verified."""

    value: T


@dataclass(frozen=True, slots=True)
class Negative:
    """The bookie does not hold the requested entry or ledger: NO_ENTRY or NO_LEDGER."""

    code: Code

    def __post_init__(self) -> None:
        check(self.code.explicit_negative, "F6", f"{self.code.name} is no evidence of absence")


@dataclass(frozen=True, slots=True)
class Unknown:
    """An answer, or a lack of one, that proves neither presence nor absence."""

    error: BuckramError

    @property
    def damaged(self) -> bool:
        """Return whether the reply was OK but its bytes fail the digest: the request, maybe a fence, was carried
        out.
        """
        return isinstance(self.error, DigestMismatch)


Failure: TypeAlias = Negative | Unknown
Answer: TypeAlias = Positive[T] | Negative | Unknown


def bookie_error(bookie: BookieId, code: Code) -> BuckramError:
    """Return the error for a code other than OK and the explicit negatives."""
    match code:
        case Code.UNAUTHORIZED:
            return Unauthorized(f"bookie {bookie} refused: wrong password")
        case Code.UNKNOWN_LEDGER_STATE:
            return UnknownLedgerState(bookie, "may have lost data of this ledger, so it neither confirms nor denies")
        case Code.QUOTA_EXCEEDED:
            return QuotaExceeded("of this ledger", "stored_bytes")
        case Code.READ_ONLY:
            return BookieReadOnly(bookie, "is read-only")
        case Code.TOO_MANY_REQUESTS:
            return BookieTooBusy(bookie, "has too many requests")
        case Code.BAD_REQUEST | Code.BAD_VERSION:
            return ProtocolError(bookie, f"does not accept the request ({code.name})")
        case _:
            return BookieIOError(bookie, f"answered {code.name}")


def classify(bookie: BookieId, reply: Reply | BuckramError, verify: Verify[T]) -> Answer[T]:
    """Return the class of one reply. `verify` opens its contents and is called for OK only.

    The answer is unknown if `verify` raises DigestMismatch, for bytes that fail (4.5), or a BookieError.
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


def lasting(so_far: E | None, error: E) -> E:
    """Return which of two failures of a request to several bookies is reported: the later one, but LoginRequired only
    if no bookie failed otherwise. Others may answer later; a login never comes by itself.
    """
    return error if so_far is None or not isinstance(error, LoginRequired) else so_far


class FailureFold:
    """Chooses which of several failures of one entry is reported (4.4, S18).

    It is negative only if every failure was negative; otherwise it is the first unknown one, preferably another than
    "not reachable". LoginRequired is reported only if every replica gave it (`lasting`).
    """

    __slots__ = ("result",)

    def __init__(self) -> None:
        self.result: Failure | None = None

    def add(self, failure: Failure) -> None:
        so_far = self.result
        if isinstance(so_far, Unknown) and isinstance(failure, Unknown) and isinstance(failure.error, LoginRequired):
            return
        weak = not isinstance(so_far, Unknown) or (
            isinstance(so_far.error, BookieUnavailable) and isinstance(failure, Unknown)
        )
        if weak:
            self.result = failure


def raise_failure(ledger_id: LedgerId, entry_id: EntryId, failure: Failure) -> NoReturn:
    """Raise the error of a read whose replicas all failed: NoSuchEntry, Unauthorized, LoginRequired, HandleClosed or
    ReadFailed.
    """
    if isinstance(failure, Negative):
        raise NoSuchEntry(ledger_id, entry_id)
    if isinstance(failure.error, Unauthorized | LoginRequired | HandleClosed):
        raise failure.error
    raise ReadFailed(ledger_id, f"entry {entry_id}: no replica gave a good copy: {failure.error}") from failure.error


class CoverageTally:
    """The positions that have answered, and whether the unknown ones may still hold an acknowledged entry (1.3)."""

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
        """Return whether all positions have answered, so that coverage can no longer change."""
        return len(self.answered) == self.quorum.ensemble_size

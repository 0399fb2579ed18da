from collections.abc import Sequence

import pytest

from buckram.core.ledgers.answers import (
    CoverageTally,
    Failure,
    FailureFold,
    Negative,
    Positive,
    Unknown,
    bookie_error,
    classify,
    lasting,
    raise_failure,
)
from buckram.core.ledgers.quorum import Quorum
from buckram.core.wire.messages import ErrorReply, ReadReply
from buckram.errors import (
    BookieIOError,
    BookieUnavailable,
    Code,
    DigestMismatch,
    InvariantViolation,
    LoginRequired,
    NoSuchEntry,
    ReadFailed,
    RequestTimeout,
    Unauthorized,
)

GONE = Unknown(BookieUnavailable("b", "refused"))
LOGIN = Unknown(LoginRequired("b", "asks for a login"))
SLOW = Unknown(RequestTimeout("b", "no answer"))
NO_ENTRY, NO_LEDGER = Negative(Code.NO_ENTRY), Negative(Code.NO_LEDGER)


def damaged() -> bytes:
    raise DigestMismatch(1, "changed")


@pytest.mark.parametrize("code", list(Code))
def test_only_the_two_negatives_are_evidence_of_absence(code: Code) -> None:
    answer = classify("b", ReadReply(code, 1, 0, b"x"), lambda: b"x")
    if code is Code.OK:
        assert answer == Positive(b"x")
    elif code in (Code.NO_ENTRY, Code.NO_LEDGER):
        assert answer == Negative(code)
    else:
        assert isinstance(answer, Unknown)
        assert not answer.damaged


def test_a_digest_mismatch_is_unknown_but_the_bookie_has_obeyed() -> None:
    answer = classify("b", ReadReply(Code.OK, 1, 0, b"x"), damaged)
    assert isinstance(answer, Unknown)
    assert answer.damaged


def test_no_answer_and_bare_envelopes_are_unknown() -> None:
    assert classify("b", RequestTimeout("b", "late"), damaged) != NO_ENTRY
    answer = classify("b", ErrorReply(Code.UNAUTHORIZED), damaged)
    assert isinstance(answer, Unknown)
    assert isinstance(answer.error, Unauthorized)


@pytest.mark.parametrize("code", [c for c in Code if not c.explicit_negative])
def test_a_negative_cannot_be_made_of_anything_else(code: Code) -> None:
    with pytest.raises(InvariantViolation):
        Negative(code)


@pytest.mark.parametrize(
    ("failures", "reported"),
    [
        ([NO_ENTRY, NO_LEDGER], NO_LEDGER),
        ([NO_ENTRY, SLOW, NO_ENTRY], SLOW),
        ([SLOW, NO_ENTRY, NO_LEDGER], SLOW),
        ([GONE, NO_ENTRY], GONE),
        ([GONE, SLOW, NO_ENTRY], SLOW),
        ([SLOW, GONE], SLOW),
        ([NO_ENTRY, GONE, NO_ENTRY], GONE),
    ],
)
def test_which_failure_is_reported(failures: list[Negative | Unknown], reported: Negative | Unknown) -> None:
    fold = FailureFold()
    for failure in failures:
        fold.add(failure)
    assert fold.result == reported


@pytest.mark.parametrize(
    "failures",
    [(GONE, LOGIN), (LOGIN, GONE), (LOGIN, NO_ENTRY, SLOW), (NO_ENTRY, GONE, LOGIN), (LOGIN, LOGIN, GONE)],
)
def test_a_login_that_one_bookie_asks_for_ends_nothing_that_others_may_answer(
    failures: Sequence[Failure],
) -> None:
    fold, so_far = FailureFold(), None
    for failure in failures:
        fold.add(failure)
        so_far = lasting(so_far, failure.error) if isinstance(failure, Unknown) else so_far
    assert fold.result is not None
    with pytest.raises(ReadFailed):
        raise_failure(7, 3, fold.result)
    assert not isinstance(so_far, LoginRequired)


def test_a_login_that_all_bookies_ask_for_is_reported_at_once() -> None:
    fold = FailureFold()
    for failure in (NO_ENTRY, LOGIN, LOGIN):
        fold.add(failure)
    assert fold.result is LOGIN
    assert lasting(lasting(None, LOGIN.error), LOGIN.error) is LOGIN.error
    with pytest.raises(LoginRequired):
        raise_failure(7, 3, LOGIN)
    assert not LOGIN.error.retryable


def test_errors_of_a_failed_read() -> None:
    with pytest.raises(NoSuchEntry):
        raise_failure(7, 3, NO_LEDGER)
    with pytest.raises(ReadFailed, match="entry 3"):
        raise_failure(7, 3, SLOW)
    with pytest.raises(Unauthorized):
        raise_failure(7, 3, Unknown(bookie_error("b", Code.UNAUTHORIZED)))


def test_coverage_counts_negatives_and_damage_but_not_silence() -> None:
    tally = CoverageTally(Quorum(3, 3, 2))
    tally.add(0, NO_LEDGER)
    tally.add(1, SLOW)
    before = tally.covered, tally.complete
    tally.add(2, Unknown(DigestMismatch(1, "changed")))
    assert (before, (tally.covered, tally.complete)) == ((False, False), (True, True))


def test_coverage_is_by_windows_not_by_number() -> None:
    adjacent, spread = CoverageTally(Quorum(4, 2, 2)), CoverageTally(Quorum(4, 2, 2))
    for position in (0, 1):
        adjacent.add(position, Positive(1))
    for position in (0, 2):
        spread.add(position, Positive(1))
    assert not adjacent.covered
    assert spread.covered


def test_an_unlisted_code_is_an_io_error() -> None:
    assert isinstance(bookie_error("b", Code.from_v2(4711)), BookieIOError)

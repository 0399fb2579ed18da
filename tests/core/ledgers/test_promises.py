"""Promises: what a verified header says of entries that others deny."""

import pytest

from buckram.core.ledgers.recovery import Promises
from buckram.errors import RecoveryFailed
from buckram.types import Entry


def entry(entry_id: int, lac: int) -> Entry:
    return Entry(1, entry_id, b"p", lac, 1)


def test_nothing_was_promised() -> None:
    promises = Promises(1)
    promises.check_end(-1)
    promises.entry("a", entry(7, -1))
    assert not promises.broken_by(-1)


def test_an_entry_above_the_end_promises_its_lac_and_not_itself() -> None:
    promises = Promises(1)
    promises.entry("a", entry(9, 4))
    promises.check_end(4)
    assert promises.broken_by(3)


def test_the_error_names_bookie_entry_and_promise() -> None:
    promises = Promises(5)
    promises.entry("b1", entry(9, 4))
    promises.entry("b2", entry(3, 2))
    with pytest.raises(RecoveryFailed, match=r"entry 4 does not exist.*header of entry 9 from bookie b1.*up to 4"):
        promises.check_end(3)


def test_a_sealed_lac_counts() -> None:
    promises = Promises(5)
    promises.entry("b1", entry(3, 2))
    promises.sealed_lac("b2", 3)
    with pytest.raises(RecoveryFailed, match="sealed LAC from bookie b2"):
        promises.check_end(2)
    promises.check_end(3)

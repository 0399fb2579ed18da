"""Pages: what differs between two, and the digest of all."""

from __future__ import annotations

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.db.digest import (
    EMPTY_PAGE,
    LOCK_PAGE,
    ZERO_PAGE,
    differences,
    page_hash,
    patched,
    replaced,
)

_CHANGES = st.lists(st.tuples(st.integers(0, 4095), st.binary(min_size=1, max_size=300)), max_size=8)


def _page(changes: list[tuple[int, bytes]], of: bytes = ZERO_PAGE) -> bytes:
    page = bytearray(of)
    for at, data in changes:
        page[at : at + len(data)] = data[: 4096 - at]
    return bytes(page)


@given(_CHANGES, _CHANGES)
def test_differences_make_the_new_page_also_when_applied_twice(
    first: list[tuple[int, bytes]], more: list[tuple[int, bytes]]
) -> None:
    old = _page(first)
    new = _page(more, old)
    ranges = differences(old, new)
    assert patched(old, ranges) == new
    assert patched(new, ranges) == new
    assert patched(ZERO_PAGE, differences(ZERO_PAGE, new)) == new
    assert sum(len(data) for _, data in ranges) <= 4096


def test_a_small_change_costs_little_and_no_change_nothing() -> None:
    old = bytes(range(256)) * 16
    assert differences(old, old) == []
    assert differences(old, _page([(1000, b"xyz")], old)) == [(1000, b"xyz")]


def test_a_range_beyond_the_page_is_refused() -> None:
    with pytest.raises(ValueError, match="4096"):
        patched(ZERO_PAGE, [(4090, b"1234567")])


def test_the_digest_depends_on_every_page_and_its_place() -> None:
    one, two = _page([(0, b"one")]), _page([(0, b"two")])
    digest = replaced(replaced(0, 0, page_hash(1, one)), 0, page_hash(2, two))
    swapped = replaced(replaced(0, 0, page_hash(1, two)), 0, page_hash(2, one))
    assert digest != swapped
    assert replaced(digest, page_hash(2, two), 0) == page_hash(1, one)
    assert page_hash(LOCK_PAGE, one) == 0


def test_the_empty_database_is_one_for_sqlite() -> None:
    connection = apsw.Connection(":memory:")
    connection.deserialize("main", EMPTY_PAGE[:18] + b"\1\1" + EMPTY_PAGE[20:])
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("SELECT count(*) FROM sqlite_schema").fetchall() == [(0,)]

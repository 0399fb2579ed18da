"""Which watches a change of a node takes out of the table."""

from __future__ import annotations

import pytest

from buckram.metadata.zookeeper.session import Change, WatchTable


def value() -> None: ...
def listing() -> None: ...


@pytest.mark.parametrize(("change", "told", "left"), [
    (Change.CREATED, [value], [listing]), (Change.CHANGED, [value], [listing]), (Change.CHILD, [listing], [value]),
    (Change.DELETED, [value, listing], []),
])  # fmt: skip
def test_a_change_tells_those_whom_it_concerns_once(change: Change, told: list[object], left: list[object]) -> None:
    table = WatchTable()
    table.add("/a", value, children=False)
    table.add("/a", listing, children=True)
    assert table.take("/b", change) == []
    assert table.take("/a", change) == told
    assert table.take("/a", change) == []
    assert table.take_all() == left
    assert table.take_all() == []

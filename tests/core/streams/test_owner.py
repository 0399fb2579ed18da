"""Whose a ledger, or a directory of history, is."""

from __future__ import annotations

from buckram.core.streams.external.history import directory_of, is_directory_of
from buckram.core.streams.names import StreamId, StreamName, is_made_for, owner_mark

NAME = StreamName("shop", "orders")
HERE = StreamId(NAME, "a1")


def test_whose_a_ledger_is() -> None:
    mark = owner_mark(NAME, "a1", "segment")
    assert is_made_for(mark, HERE)
    assert is_made_for(mark, StreamId(None, "a1"))
    assert not is_made_for(mark, StreamId(NAME, "a2"))
    assert not is_made_for(mark, StreamId(None, "a2"))
    assert not is_made_for(mark, StreamId(StreamName("shop", "other"), "a1"))
    assert not is_made_for({}, HERE)
    assert not is_made_for({}, StreamId(None, ""))


def test_whose_a_directory_of_history_is() -> None:
    for location in ("/mnt/history", "s3://bucket/history/", ""):
        directory = directory_of(location, NAME, "a1")
        assert is_directory_of(directory, HERE)
        assert is_directory_of(directory, StreamId(None, "a1"))
        for other in (StreamId(NAME, "a2"), StreamId(None, "1"), StreamId(StreamName("shop", "rders"), "a1")):
            assert not is_directory_of(directory, other)
        assert not is_directory_of(f"{directory}/..", HERE)

"""The pure parts of streams: the window over a roll, the producers' table, names, policies."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.streams.ack_window import StreamWindow
from buckram.core.streams.names import StreamName, check_name, stream_name
from buckram.core.streams.policy import DEFAULTS, check_overrides, merged
from buckram.core.streams.records.batch import Batch, decode
from buckram.core.streams.records.producers import MAX_FORGOTTEN, ProducerTable
from buckram.core.streams.records.record_format import Columns, encode
from buckram.errors import (
    InvalidArgument,
    InvariantViolation,
    MalformedBatch,
    OutOfOrderSequence,
    ProducerForgotten,
    WriterExists,
)

# -- the window -------------------------------------------------------------------------------------------


def test_nothing_is_released_before_the_segment_is_listed() -> None:
    window = StreamWindow(10)
    first = window.begin()
    assert window.take(5) == 10
    assert not window.acked(first, 15)
    assert window.released == 10
    assert window.listed(first)
    assert window.released == 15


def test_a_successor_waits_for_its_predecessor_and_its_listing() -> None:
    window = StreamWindow(0)
    old = window.begin()
    window.listed(old)
    window.take(4)
    new = window.begin()
    window.take(3)
    assert not window.acked(new, 7), "sent, acknowledged by its ledger, but not listed"
    with pytest.raises(InvariantViolation, match="M9"):
        window.listed(new)
    assert window.acked(old, 4)
    assert window.released == 4
    assert window.listed(new)
    assert window.released == 7


@given(st.integers(0, 2**32))
def test_released_never_passes_what_is_stored_and_listed(seed: int) -> None:
    rng = random.Random(seed)
    window = StreamWindow(0)
    old, new = window.begin(), None
    for _ in range(60):
        before, choice = window.released, rng.randrange(6)
        if choice == 0:
            window.take(rng.randint(1, 5))
        elif choice == 1:
            target = rng.choice([segment for segment in (old, new) if segment])
            window.acked(target, rng.randint(target.acked, target.sent))
        elif choice == 2 and new is None and old.listed:
            new = window.begin()
        elif choice == 3 and not old.listed:
            window.listed(old)
        elif choice == 4 and new is not None and old.acked == old.sent:
            window.listed(new)
            old, new = new, None
        elif choice == 5 and rng.random() < 0.3:
            end = rng.randint(old.acked, old.sent)
            window.cut(old, end)
            new = window.begin()
            assert (window.next_offset, new.base, old.acked) == (end, end, end)
        assert before <= window.released <= (old.acked if old.listed else old.base)


# -- producers --------------------------------------------------------------------------------------------


def test_a_retry_is_known_and_a_new_record_is_not() -> None:
    table = ProducerTable()
    assert table.fresh("s", "p", 0, 3) == 0
    table.stored("p", 2, 100, 1)
    assert [table.fresh("s", "p", first, 2) for first in (0, 1, 2, 3)] == [2, 2, 1, 0]
    assert table.last("p") == (2, 100, 1)


def test_a_gap_in_a_producers_sequences_is_refused() -> None:
    table = ProducerTable()
    with pytest.raises(OutOfOrderSequence, match=r"sequence 4, the next one is 0; .*start=4"):
        table.fresh("s", "p", 4, 1)
    assert table.fresh("s", "p", 4, 3, start=4) == 0
    table.stored("p", 6, 100, 1, 4)
    with pytest.raises(OutOfOrderSequence, match=r"sequence 8, the next one is 7; .*start="):
        table.fresh("s", "p", 8, 1)
    with pytest.raises(OutOfOrderSequence, match="start= is only for a producer id that the stream never had"):
        table.fresh("s", "p", 9, 1, start=9)
    again = ProducerTable.decode(table.encode())
    assert again.fresh("s", "p", 4, 5, start=4) == 3
    with pytest.raises(OutOfOrderSequence, match="began with start=4") as refused:
        again.fresh("s", "p", 3, 2)
    assert (refused.value.sequence, refused.value.expected) == (3, 7)
    again.expire(now=100, most=0, keep_us=0)
    with pytest.raises(ProducerForgotten):
        again.fresh("s", "p", 7, 1, start=7)


def test_what_is_forgotten_is_refused_and_never_stored_twice() -> None:
    table = ProducerTable()
    for i in range(5):
        table.stored(f"p{i}", 0, i, i)
    table.expire(now=100, most=3, keep_us=1000)
    assert len(table) == 3
    with pytest.raises(ProducerForgotten, match="forgotten"):
        table.fresh("s", "p0", 0, 1)
    table.expire(now=100, most=3, keep_us=97)
    assert [table.last(f"p{i}") is not None for i in range(5)] == [False, False, False, True, True]
    with pytest.raises(OutOfOrderSequence, match="begins at sequence 0"):
        table.fresh("s", "new", 4, 1)


def test_a_full_memory_of_the_forgotten_refuses_the_unknown() -> None:
    table = ProducerTable()
    for i in range(MAX_FORGOTTEN + 1):
        table.stored(f"p{i}", 0, i, i)
    table.expire(now=0, most=0, keep_us=0)
    with pytest.raises(ProducerForgotten, match="may have been one of them"):
        table.fresh("s", "never seen", 0, 1)
    again = ProducerTable.decode(table.encode())
    with pytest.raises(ProducerForgotten):
        again.fresh("s", "p7", 0, 1)


def test_a_snapshot_and_a_replay_give_the_same_table() -> None:
    table = ProducerTable()
    table.stored("a", 5, 50, 500)
    table.stored("ä", 2**62, 51, 501)
    again = ProducerTable.decode(table.encode())
    assert (again.last("a"), again.last("ä")) == ((5, 50, 500), (2**62, 51, 501))
    columns = Columns([b"", b"", b""], producers=["a", None, "b"], sequences=[6, 0, 0])
    found = decode(encode(columns, first=2, append_time=600)[0], 50)
    assert isinstance(found, Batch)
    again.replay(found)
    assert (again.last("a"), again.last("b")) == ((6, 52, 600), (0, 54, 600))
    with pytest.raises(MalformedBatch):
        ProducerTable.decode(table.encode()[:-8])
    with pytest.raises(MalformedBatch):
        ProducerTable.decode(b"\xff" * 64)


# -- names, policies, errors ------------------------------------------------------------------------------


def test_names() -> None:
    assert stream_name("orders") == StreamName("default", "orders")
    assert stream_name("shop/orders") == StreamName("shop", "orders") == stream_name("orders", "shop")
    assert check_name("stream", "übung 1") == "übung 1"
    with pytest.raises(InvalidArgument, match="bare name"):
        stream_name("shop/orders", "other")
    for bad, why in (
        ("", "empty"), ("a/b/c", "separator"), ("a\n", "control"), (" a", "blank"), (".", "dot"), ("x" * 201, "201"),
        ("a\ue000", r"U\+E000, which ZooKeeper"), ("a\x00b", "U.0000, a control"),
        ("a\u200b", "ZERO WIDTH SPACE.* control"),
        ("a😀", r"U\+1F600 \(GRINNING FACE\), and ZooKeeper.* beyond U\+FFFF"), ("a\ud800", "U.D800, one half"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match=why):
            stream_name(bad)
    with pytest.raises(InvalidArgument, match="must be a str"):
        stream_name(7)  # type: ignore[arg-type]


def test_policies() -> None:
    assert merged() == DEFAULTS
    assert merged({"roll_s": 5.0}, {"ensemble": "1/1/1"}).quorum.ensemble_size == 1
    assert check_overrides({"ensemble": 3, "retention_s": None, "roll_bytes": 4096}) == {
        "ensemble": "3/3/2", "retention_s": None, "roll_bytes": 4096,
    }  # fmt: skip
    for bad in (
        {"what": 1}, {"roll_bytes": 1}, {"roll_bytes": 1.5}, {"compression": "gzip"}, {"digest": "md5"},
        {"retention_s": -1}, {"retention_cursors": 1}, {"roll_s": None}, {"ensemble": "2/3/1"}, {"max_producers": True},
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            check_overrides(bad)


def test_errors_say_when() -> None:
    assert "since 2024-02-29 12:34:56 UTC" in str(WriterExists("a/b", "x", 1_709_210_096_000_000))
    assert "since 1970-01-01 00:00:00 UTC" in str(WriterExists("a/b", "x", 0))

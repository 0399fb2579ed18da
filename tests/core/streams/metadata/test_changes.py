"""The legal changes of a stream's head, and its JSON."""

from __future__ import annotations

import pytest

from buckram.core.streams.metadata.changes import (
    HeadStep,
    LiveMoved,
    check_head,
    check_step,
    claimed,
    configured,
    deleted,
    is_dead,
    published,
    released,
    rolled,
    sealed,
    swept,
    trimmed,
    truncated,
)
from buckram.core.streams.metadata.head import (
    PAGE_SEGMENTS,
    Head,
    Page,
    Summary,
    WriterInfo,
    decode_head,
    decode_page,
    encode_head,
    encode_page,
)
from buckram.core.streams.records.record_format import NO_SNAPSHOT, NO_TXID
from buckram.errors import (
    InvariantViolation,
    MalformedRecord,
    NoSuchStream,
    OffsetOutOfRange,
    OpenSegment,
    StaleTransaction,
    StreamEnded,
    WriterLost,
)

ME, YOU = WriterInfo("me", "1", 10), WriterInfo("you", "2", 20)


def summary(records: int, *, append: int = 1000, txid: int = NO_TXID, snapshot: int = NO_SNAPSHOT) -> Summary:
    return Summary(records, records, records * 10, append, append, append, append, txid, snapshot)


def apply(head: Head, step: HeadStep | None) -> Head:
    assert step is not None
    check_step("s", head, step.head)
    assert decode_head("k", encode_head(step.head)) == step.head
    return step.head


def claim(head: Head | None = None, who: WriterInfo = ME) -> Head:
    head = head or Head("u", 1)
    return apply(head, claimed("s", head, who))


def roll(head: Head, ledger: int, old: Summary | None = None) -> Head:
    present = head.open_segment
    sealing = None if present is None or old is None else (present.ledger, old)
    base = head.end + (old.records if old else 0)
    return apply(head, rolled("s", head, head.epoch, sealing, ledger, base, 2000))


def test_a_writer_lists_rolls_and_closes() -> None:
    head = roll(claim(), 7)
    assert head.open_segment is not None
    assert head.open_segment.base == 0
    head = roll(head, 8, summary(5, txid=3))
    assert [(row.ledger, row.base, row.sealed) for row in head.tail] == [(7, 0, True), (8, 5, False)]
    assert (head.end, head.last_txid) == (5, 3)
    head = apply(head, released("s", head, "1", (8, summary(2))))
    assert (head.end, head.writer, head.open_segment) == (7, None, None)
    assert head.tail[1].summary is not None
    assert head.tail[1].summary.last_txid == 3, "a row carries the txid before on"


def test_a_change_that_was_made_is_recognised() -> None:
    head = roll(claim(), 7)
    assert claimed("s", head, ME) is None
    assert rolled("s", head, 1, None, 7, 0, 9) is None
    head = apply(head, sealed("s", head, 1, 7, summary(1)))
    assert sealed("s", head, 1, 7, summary(1)) is None
    head = apply(head, released("s", head, "1", None))
    assert released("s", head, "1", None) is None


def test_an_older_epoch_changes_nothing() -> None:
    head = roll(claim(), 7)
    later = claim(head, YOU)
    with pytest.raises(WriterLost, match="'you' took it over"):
        rolled("s", later, head.epoch, (7, summary(3)), 8, 3, 9)
    with pytest.raises(WriterLost):
        sealed("s", later, head.epoch, 7, summary(3))
    assert released("s", later, "1", (7, summary(3))) is None, "closing a lost writer is no error by itself"
    with pytest.raises(WriterLost):
        released("s", later, "1", (7, summary(3)), end=True)


def test_a_roll_behind_another_segment_is_refused() -> None:
    head = roll(claim(), 7)
    with pytest.raises(WriterLost, match="not this writer's"):
        rolled("s", head, 1, None, 9, 0, 1)
    with pytest.raises(InvariantViolation, match="M9"):
        rolled("s", head, 1, (7, summary(3)), 9, 99, 1)


def test_an_empty_segment_leaves_the_list() -> None:
    head = roll(claim(), 7)
    head = apply(head, sealed("s", head, 1, 7, summary(0)))
    assert (head.tail, head.garbage, head.next_number) == ((), (7,), 0)
    assert swept(head, [9]) is None
    assert apply(head, swept(head, [7])).garbage == ()


def test_an_ended_stream_takes_nothing() -> None:
    head = roll(claim(), 7)
    head = apply(head, released("s", head, "1", (7, summary(4)), end=True))
    with pytest.raises(StreamEnded, match="offset 4"):
        claimed("s", head, YOU)
    with pytest.raises(StreamEnded):
        published("s", head, [], "app", 1, 1)


def test_a_stream_that_is_deleted_refuses_everything() -> None:
    head = claim()
    gone = apply(head, deleted("s", head))
    assert deleted("s", gone) is None
    for attempt in (
        lambda: claimed("s", gone, YOU), lambda: truncated("s", gone, 0, 0), lambda: configured("s", gone, {}, None),
        lambda: rolled("s", gone, 1, None, 1, 0, 0), lambda: published("s", gone, [], "a", 1, 1),
        lambda: trimmed("s", gone, 1),
    ):  # fmt: skip
        with pytest.raises(NoSuchStream, match="being deleted"):
            attempt()


def test_truncation_only_goes_up_and_never_beyond_what_is_known() -> None:
    head = roll(roll(claim(), 7), 8, summary(10))
    head = apply(head, truncated("s", head, 4, 10))
    assert head.earliest == 4
    assert truncated("s", head, 3, 10) is None
    with pytest.raises(OffsetOutOfRange, match="earliest is 4"):
        truncated("s", head, 15, 14)
    assert apply(head, truncated("s", head, 13, 14)).earliest == 13, "in the open segment"


def test_dead_segments_go_and_the_producers_table_stays() -> None:
    head = roll(roll(claim(), 7), 8, summary(10, snapshot=3))
    head = roll(head, 9, summary(10))
    head = apply(head, truncated("s", head, 20, 20))
    assert head.producers == 0
    assert [is_dead(head, row) for row in head.tail] == [False, True, False]
    with pytest.raises(InvariantViolation):
        trimmed("s", head, 2)
    table = head.tail[0]
    early = apply(head, trimmed("s", head, 2, table))
    assert (early.table, [row.number for row in early.tail]) == (table, [2])
    late = roll(early, 10, summary(1, snapshot=5))
    assert (late.producers, late.table, late.garbage) == (2, None, (7,)), "another segment has the table now"
    head = roll(head, 10, summary(1, snapshot=5))
    assert [is_dead(head, row) for row in head.tail] == [True, True, False, False]
    with pytest.raises(InvariantViolation):
        trimmed("s", head, 3)
    moved = apply(head, trimmed("s", head, 2, table))
    assert (moved.table, moved.garbage) == (None, (7,)), "it was needed when it was looked at, and is no more"
    head = apply(head, trimmed("s", head, 2))
    assert (head.first, [row.number for row in head.tail]) == (2, [2, 3])
    assert trimmed("s", head, 2) is None


def test_a_bulk_step_gets_offsets_and_is_recorded_once() -> None:
    head = Head("u", 1)
    head = apply(head, published("s", head, [(5, summary(3)), (6, summary(4))], "app", 1, 5000))
    assert [(row.base, row.end) for row in head.tail] == [(0, 3), (3, 7)]
    assert head.transactions["app"][:3] == (1, 0, 7)
    assert published("s", head, [(7, summary(3))], "app", 1, 5000) is None
    with pytest.raises(StaleTransaction, match="version 1"):
        published("s", head, [], "app", 0, 5000)
    head = apply(head, published("s", head, [(8, summary(1, append=1))], "app", 2, 4000))
    assert head.tail[-1].summary is not None
    assert head.tail[-1].summary.first_append == 5000, "append time never goes back"


def test_a_bulk_step_and_a_live_writer() -> None:
    idle = claim()
    with pytest.raises(OpenSegment, match="'me'"):
        published("s", idle, [(5, summary(3))], "app", 1, 1)
    after = apply(idle, published("s", idle, [(5, summary(3))], "app", 1, 1, seal_live=True))
    with pytest.raises(WriterLost):
        rolled("s", after, idle.epoch, None, 9, 0, 1)
    live = roll(idle, 7)
    with pytest.raises(OpenSegment):
        published("s", live, [(5, summary(3))], "app", 1, 1)
    with pytest.raises(LiveMoved):
        published("s", live, [(5, summary(3))], "app", 1, 1, seal_live=True, live=(6, summary(1)))
    done = apply(live, published("s", live, [(5, summary(3))], "app", 1, 1, seal_live=True, live=(7, summary(2))))
    assert [(row.ledger, row.base) for row in done.tail] == [(7, 0), (5, 2)]
    assert done.transactions["app"][1:3] == (2, 5)
    assert done.writer is None


def test_pages_hold_what_the_head_gives_away() -> None:
    head, pages = claim(), {}
    for number in range(3 * PAGE_SEGMENTS + 5):
        old = summary(2) if number else None
        present = head.open_segment
        step = rolled("s", head, 1, (present.ledger, old) if present and old else None, number, 2 * number, 1)
        assert step is not None
        for page in step.pages:
            assert decode_page("k", encode_page(page)) == page
            pages[page.number] = page
        head = step.head
        assert len(head.tail) < 2 * PAGE_SEGMENTS
        if number % 50 == 0 or step.pages:
            check_head("s", head)
            assert len(encode_head(head)) < 100_000
    rows = [row for page in pages.values() for row in page.segments] + list(head.tail)
    assert [row.number for row in rows] == list(range(3 * PAGE_SEGMENTS + 5))
    assert [row.base for row in rows] == [2 * row.number for row in rows]
    assert set(pages) == set(range(head.paged // PAGE_SEGMENTS))


def test_rules_of_a_head_find_what_is_wrong() -> None:
    head = roll(roll(claim(), 7), 8, summary(10))
    first, second = head.tail
    check_head("s", head)
    for wrong in (
        Head("u", 1, tail=(second, second), next_number=2),
        Head("u", 1, tail=(first,), next_number=1, end=9),
        Head("u", 1, earliest=1),
        Head("u", 1, tail=(second,), next_number=2, end=10, ended=True),
    ):
        with pytest.raises(InvariantViolation):
            check_head("s", wrong)
    with pytest.raises(InvariantViolation, match="earliest went back"):
        check_step("s", Head("u", 1, earliest=2, end=5), Head("u", 1, end=5))


def test_what_does_not_parse_names_the_key() -> None:
    for data in (b"", b"[]", b"{}", b'{"format":2}', encode_head(Head("u", 1)).replace(b'"epoch":0', b'"epoch":"0"')):
        with pytest.raises(MalformedRecord, match="/some/key"):
            decode_head("/some/key", data)
        with pytest.raises(MalformedRecord, match="/some/key"):
            decode_page("/some/key", data)
    assert decode_page("k", encode_page(Page(3, ()))) == Page(3, ())

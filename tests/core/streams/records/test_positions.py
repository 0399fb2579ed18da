"""What has become of a position in a stream that somebody remembers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from buckram.core.streams.metadata.changes import marked
from buckram.core.streams.metadata.head import Head, Mirror, decode_head, encode_head
from buckram.core.streams.metadata.mirrors import MIRROR
from buckram.core.streams.records.batch import Record
from buckram.core.streams.records.positions import (
    PositionMark,
    PositionVerdict,
    PresentStream,
    SeenRecord,
    compare,
    mark_of,
    record_digest,
    seen,
)
from buckram.errors import MirrorStream
from buckram.types import History

FIRST, RESTORED = History(1, "first"), History(2, "second")
RECORD = Record(9, b"v", b"k", (("h", b"1"),), 5, 70, 3, "p", 4)
MARK = mark_of(10, seen(RECORD), FIRST)
NOW = PresentStream(0, 20, False, 20, 90, RESTORED, seen(RECORD))


def test_a_digest_has_every_field_of_a_record() -> None:
    others: list[Record] = [
        RECORD._replace(offset=8),
        RECORD._replace(value=None),
        RECORD._replace(value=b""),
        RECORD._replace(value=b"vk", key=b""),
        RECORD._replace(key=None),
        RECORD._replace(headers=()),
        RECORD._replace(headers=(("h", b"2"),)),
        RECORD._replace(timestamp=6),
        RECORD._replace(append_time=71),
        RECORD._replace(txid=None),
        RECORD._replace(producer="q"),
        RECORD._replace(sequence=5),
    ]
    assert len({record_digest(one) for one in (RECORD, *others)}) == len(others) + 1
    assert record_digest(RECORD) == record_digest(RECORD._replace(headers=[("h", b"1")]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (NOW, PositionVerdict.SAME),
        (NOW._replace(before=SeenRecord(70, "another")), PositionVerdict.DIFFERS),
        (NOW._replace(before=SeenRecord(71, MARK.digest)), PositionVerdict.DIFFERS),
        (NOW._replace(end=9, sealed_end=9, before=None), PositionVerdict.SHORTER),
        (NOW._replace(end=9, sealed_end=9, before=None, history=FIRST), PositionVerdict.SHORTER),
        # A writer has more than is readable yet; after a restore it is nobody's.
        (NOW._replace(end=9, sealed_end=5, live=True, before=None, history=FIRST), PositionVerdict.SAME),
        (NOW._replace(end=9, sealed_end=5, live=True, before=None), PositionVerdict.SHORTER),
        # The record was truncated: the time of the last one that was sealed, the snapshot there, or the history.
        (NOW._replace(earliest=10, end=10, sealed_end=10, last_append=70, before=None), PositionVerdict.SAME),
        (NOW._replace(earliest=10, end=10, sealed_end=10, last_append=71, before=None), PositionVerdict.DIFFERS),
        (NOW._replace(earliest=10, before=None, proven=True), PositionVerdict.SAME),
        (NOW._replace(earliest=10, before=None), PositionVerdict.UNKNOWN),
        (NOW._replace(earliest=10, before=None, history=FIRST), PositionVerdict.SAME),
        (NOW._replace(earliest=10, before=None, history=History(7, "first")), PositionVerdict.SAME),  # They were moved.
    ],
)
def test_a_position_is_compared_with_what_is_there(now: PresentStream, verdict: PositionVerdict) -> None:
    assert compare(MARK, now) is verdict


def test_of_a_mirror_of_an_older_release_nothing_is_assumed() -> None:
    mark = PositionMark(10, 70, "", -1, "")
    assert compare(mark, NOW) is PositionVerdict.SAME  # Its own retention took the record; the time is known.
    assert compare(mark, NOW._replace(before=SeenRecord(71, "x"))) is PositionVerdict.DIFFERS
    assert compare(mark, NOW._replace(earliest=10, before=None)) is PositionVerdict.UNKNOWN
    assert compare(mark, NOW._replace(earliest=10, before=None, history=History())) is PositionVerdict.UNKNOWN


def test_a_cluster_of_an_older_release_gets_its_first_history_without_a_restore() -> None:
    mark = mark_of(10, seen(RECORD), History())
    assert compare(mark, NOW._replace(earliest=10, before=None, history=FIRST)) is PositionVerdict.SAME
    assert compare(mark, NOW._replace(earliest=10, before=None, history=RESTORED)) is PositionVerdict.UNKNOWN


def test_where_nothing_was_copied_nothing_can_differ() -> None:
    assert compare(mark_of(10, None, FIRST), NOW._replace(before=SeenRecord(3, "x"))) is PositionVerdict.SAME


def test_a_mirror_remembers_its_position_until_it_is_promoted() -> None:
    head = Head("uid", 0, mirror=Mirror(MIRROR, "c", "source"))
    assert decode_head("k", encode_head(head)).mark is None
    step = marked("n/s", head, "source", MARK)
    assert step is not None
    assert decode_head("k", encode_head(step.head)) == step.head == replace(head, mark=MARK)
    assert marked("n/s", step.head, "source", MARK) is None
    promoted = replace(head, mirror=Mirror("promoted", "c", "source"))
    with pytest.raises(MirrorStream):
        marked("n/s", promoted, "source", MARK)

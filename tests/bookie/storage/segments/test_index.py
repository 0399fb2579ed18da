"""The index of a segment in memory against a plain dictionary, and its way into a footer and back."""

from __future__ import annotations

import itertools
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.soak import soak

from buckram.bookie.storage.segments.file_cache import PageCache
from buckram.bookie.storage.segments.index import FooterBuilder, LedgerIndex, SegmentIndex, find_run
from buckram.bookie.storage.segments.segments import Footer, Segment
from buckram.core.storage.ledger_state import StoredLedgerState
from buckram.core.storage.segment_format import EVEN, PAGE, RUN_RECORD, open_trailer

Adds = list[tuple[int, int, bool]]
"""First entry, count, whether its frames are said to have one size (all have)."""
adds = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8), st.booleans()), max_size=30)
FRAME = 100


def filled(ledger: int, runs: Adds) -> tuple[LedgerIndex, dict[int, int]]:
    """A ledger_index and, per entry, where the frame of its newest copy begins."""
    ledger_index = LedgerIndex(1, StoredLedgerState(ledger, b"k" * 20))
    newest: dict[int, int] = {}
    for number, (first, count, even) in enumerate(runs):
        ledger_index.insert(first, count, number * 10_000, count * FRAME, even=even)
        ledger_index.bytes += count * FRAME
        newest.update({first + skip: number * 10_000 + skip * FRAME for skip in range(count)})
    return ledger_index, newest


def copy_of(place: tuple[int, int, int, int, int], entry: int) -> int:
    first, _, skip, offset, _ = place
    return offset + ((0 if skip == EVEN else skip) + entry - first) * FRAME


@given(adds)
@settings(max_examples=soak(300, 100))
def test_a_slot_knows_the_newest_copy_of_each_entry(runs: Adds) -> None:
    ledger_index, newest = filled(1, runs)
    for entry in range(-1, 52):
        place = ledger_index.find(entry)
        assert (None if place is None else copy_of(place, entry)) == newest.get(entry)
        if place is not None:
            end = ledger_index.overlaid(entry + 1, place[0] + place[1])
            assert all(copy_of(place, later) == newest[later] for later in range(entry, end))
    for low in range(0, 50, 3):
        for high in (low + 1, low + 10, 60):
            assert ledger_index.first_in(low, high) == min(
                (entry for entry in newest if low <= entry < high), default=high
            )


@given(adds)
@settings(max_examples=soak(300, 100))
def test_its_runs_are_ascending_and_disjoint(runs: Adds) -> None:
    ledger_index, newest = filled(1, runs)
    places = list(ledger_index.places())
    assert all(one[0] + one[1] <= other[0] for one, other in itertools.pairwise(places))
    flat = {entry: copy_of(place, entry) for place in places for entry in range(place[0], place[0] + place[1])}
    assert flat == newest
    assert all(place[4] == place[1] * FRAME for place in places if place[2] == EVEN)
    merged = ledger_index.merged()
    for entry in newest:
        place = find_run(merged, len(merged) // RUN_RECORD.size, entry)
        assert place is not None
        assert copy_of(place, entry) == newest[entry]


class Bytes:
    """A file that holds one footer."""

    name = "footer"

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._start = data, start

    def size(self) -> int:
        return self._start + len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset - self._start : offset - self._start + length]

    def close(self) -> None:
        pass


@given(st.dictionaries(st.integers(0, 2**63 - 1), adds, max_size=12), st.integers(0, 500))
@settings(max_examples=soak(60, 20), deadline=None)
def test_a_footer_gives_back_what_went_in(ledgers: dict[int, Adds], others: int) -> None:
    builder = FooterBuilder(5, 6)
    content = {ledger: filled(ledger, runs) for ledger, runs in ledgers.items()}
    for other in range(others):
        content[3 + 7 * other] = filled(3 + 7 * other, [(other % 9, 2, True)])
    for ledger in sorted(content):
        ledger_index, _ = content[ledger]
        builder.add(ledger, ledger_index.merged(), ledger_index.bytes, ledger_index.epoch)
        builder.add_state(ledger_index.state)
    parts: list[bytes] = []
    for _ in builder.lay_out(10_000, 64 * 1024, parts):
        pass
    data = b"".join(parts)
    trailer = open_trailer(data[-PAGE:], 5, 6)
    assert trailer is not None
    assert trailer.footer_at % PAGE == 0
    assert trailer.footer_at >= 10_000
    assert trailer.footer_at + len(data) >= 64 * 1024
    file = Bytes(data, trailer.footer_at)
    segment, unsealed = Segment(5, "footer"), Segment(5, "log")
    footer = segment.footer = Footer(trailer, lambda: file, PageCache(3))
    unsealed.index = SegmentIndex()
    for ledger, (ledger_index, newest) in content.items():
        assert footer.find_state(ledger) == ledger_index.state
        assert list(segment.places(ledger, 0)) == list(ledger_index.places())
        assert list(segment.places(ledger, 1)) == []
        unsealed.index.ledgers[ledger] = ledger_index
        for entry, one in product([*newest, -1, 100], (segment, unsealed)):
            for last in (entry, entry + 6, entry + 100):
                found = one.find(ledger, entry, last, 0)
                if found is None:
                    assert entry not in newest
                    continue
                places, end = found
                assert entry < end
                assert EVEN not in [place[2] for place in places]
                if all(even for _, _, even in ledgers.get(ledger, ())) and not ledger_index.overlay:
                    assert places[0][0] == entry
                    assert sum(place[4] for place in places) == FRAME * (end - entry) <= FRAME * (last + 1 - entry)
                for wanted in range(entry, end):
                    place = next(run for run in places if run[0] <= wanted < run[0] + run[1])
                    assert copy_of(place, wanted) == newest[wanted]
        for low in (0, 7, 30):
            assert segment.first_in(ledger, 0, low, low + 9) == ledger_index.first_in(low, low + 9)
    for absent in (1, 2, 4, 2**62 + 1):
        if absent not in content:
            assert footer.find(absent) is None
            assert footer.find_state(absent) is None
    assert [state.ledger_id for state in footer.states(10)] == [ledger for ledger in sorted(content) if ledger > 10]
    assert [one.ledger for one in footer.directory()] == [ledger for ledger in sorted(content) if content[ledger][1]]

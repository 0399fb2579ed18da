import pytest

from buckram.core.ledgers.answers import Answer, Negative, Positive, Unknown
from buckram.core.ledgers.recovery import Fencing, ForwardRead, WriteBack
from buckram.errors import BookieUnavailable, Code, DigestMismatch, InvariantViolation, RecoveryFailed, Unauthorized
from buckram.types import Entry, Fragment, LedgerMetadata, LedgerState

NO = Negative(Code.NO_ENTRY)
LOST = Unknown(BookieUnavailable("x", "refused"))
ABC = ("a", "b", "c")


def metadata(e: int = 3, qw: int = 3, qa: int = 2, *, first: int = 0) -> LedgerMetadata:
    members = tuple("abcdefg"[:e])
    fragments = (Fragment(0, members),) if first == 0 else (Fragment(0, members[::-1]), Fragment(first, members))
    return LedgerMetadata(e, qw, qa, fragments, LedgerState.IN_RECOVERY)


def entry(entry_id: int, lac: int = -1) -> Entry:
    return Entry(1, entry_id, b"p%d" % entry_id, lac, 100 + entry_id)


def found(entry_id: int, lac: int = -1) -> Answer[Entry]:
    return Positive(entry(entry_id, lac))


class TestFencing:
    def test_starts_at_the_largest_lac_of_a_covering_set(self) -> None:
        fencing = Fencing(1, metadata())
        assert not fencing.answered(0, found(5, 3))
        assert fencing.answered(2, found(6, 4))
        assert fencing.start == 4

    def test_never_starts_below_the_last_fragment(self) -> None:
        fencing = Fencing(1, metadata(first=10))
        fencing.answered(0, NO)
        assert fencing.answered(1, NO)
        assert fencing.start == 9

    def test_damaged_answers_fence_but_tell_no_lac(self) -> None:
        fencing = Fencing(1, metadata())
        fencing.answered(0, Unknown(DigestMismatch(1, "changed")))
        assert fencing.answered(1, found(2, 1))
        assert fencing.start == 1

    def test_silence_is_no_coverage(self) -> None:
        fencing = Fencing(1, metadata())
        fencing.answered(0, LOST)
        fencing.answered(1, NO)
        with pytest.raises(RecoveryFailed, match="fenced"):
            fencing.answered(2, LOST)

    def test_the_same_bookie_counts_once(self) -> None:
        fencing = Fencing(1, metadata())
        fencing.answered(0, NO)
        assert not fencing.answered(0, NO)

    def test_a_wrong_password_ends_it(self) -> None:
        with pytest.raises(Unauthorized):
            Fencing(1, metadata()).answered(0, Unknown(Unauthorized("no")))


class TestForwardRead:
    def test_reads_ahead_and_takes_in_order_up_to_the_first_absent_entry(self) -> None:
        reads = ForwardRead(1, metadata(), -1)
        assert reads.next_reads(3) == [0, 1, 2]
        assert reads.next_reads(3) == []
        reads.decided(1, found(1))
        assert reads.take() == []
        reads.decided(0, found(0))
        assert reads.take() == [entry(0), entry(1)]
        assert reads.next_reads(3) == [3, 4]
        reads.decided(3, found(3))
        reads.decided(2, NO)
        assert reads.take() == []
        assert reads.finished
        assert reads.next_reads(9) == []

    def test_an_undecided_entry_behind_an_absent_one_does_not_matter(self) -> None:
        reads = ForwardRead(1, metadata(), -1)
        reads.next_reads(2)
        reads.decided(1, LOST)
        reads.decided(0, NO)
        assert reads.take() == []
        assert reads.finished

    def test_an_undecided_entry_ends_the_attempt_after_what_is_certain(self) -> None:
        reads = ForwardRead(1, metadata(), 4)
        reads.next_reads(3)
        reads.decided(6, LOST)
        reads.decided(5, found(5))
        assert reads.take() == [entry(5)]
        with pytest.raises(RecoveryFailed, match="entry 6"):
            reads.take()

    def test_asks_only_the_frozen_write_set(self) -> None:
        reads = ForwardRead(1, metadata(5, 3, 2), -1)
        race = reads.race(4, {"e": 1})
        assert list(race.start()) == ["a"]
        assert sorted(race.answered("a", NO)) == ["b", "e"]

    def test_refuses_to_start_below_the_fragment(self) -> None:
        with pytest.raises(InvariantViolation, match="F9"):
            ForwardRead(1, metadata(first=10), 3)


class TestWriteBack:
    def test_acknowledges_in_order_at_the_ack_quorum_with_a_frozen_lac(self) -> None:
        back = WriteBack(1, metadata(), 6)
        sends = back.add([entry(7), entry(8)])
        assert [(s.position, s.bookie, len(s.entries)) for s in sends] == [(0, "a", 2), (1, "b", 2), (2, "c", 2)]
        back.acked(0, "a", 8, 8)
        back.acked(1, "b", 8, 8)
        assert back.head == 6
        back.acked(0, "a", 7, 7)
        back.acked(2, "c", 7, 7)
        assert back.head == 8
        assert back.frozen_lac == 6
        assert back.pending == 0
        assert back.fragments == {}
        assert back.last_recovered == entry(8)

    def test_a_failed_member_is_replaced_privately_from_the_head_on(self) -> None:
        back = WriteBack(1, metadata(), 1)
        back.add([entry(2), entry(3)])
        back.acked(0, "a", 2, 3)
        back.acked(2, "c", 2, 2)
        back.add_failed(0, "a")
        assert back.to_replace == {0: "a"}
        sends = back.replaced({0: "d"})
        assert back.fragments == {3: ("d", "b", "c")}
        assert [(s.bookie, [e.entry_id for e in s.entries]) for s in sends] == [("d", [3])]
        back.acked(0, "a", 3, 3)
        back.acked(2, "c", 3, 3)
        assert back.head == 2
        back.acked(0, "d", 3, 3)
        assert back.head == 3

    def test_without_replacement_it_goes_on_with_the_ack_quorum(self) -> None:
        back = WriteBack(1, metadata(), -1)
        back.add([entry(0)])
        back.add_failed(1, "b")
        assert back.replaced({}) == []
        assert back.to_replace == {}
        assert [s.bookie for s in back.add([entry(1)])] == ["a", "c"]
        back.acked(0, "a", 0, 1)
        back.acked(2, "c", 0, 1)
        assert back.head == 1
        assert back.fragments == {}

    def test_too_few_members_end_the_attempt(self) -> None:
        back = WriteBack(1, metadata(), -1)
        back.add([entry(0)])
        back.add_failed(1, "b")
        back.replaced({})
        back.add_failed(2, "c")
        assert back.to_replace == {2: "c"}
        with pytest.raises(RecoveryFailed, match="2 are needed"):
            back.replaced({})

    def test_an_entry_that_comes_later_meets_the_same_limit(self) -> None:
        back = WriteBack(1, metadata(4, 2, 2), -1)
        back.add([entry(0)])
        back.add_failed(2, "c")
        back.replaced({})
        with pytest.raises(RecoveryFailed, match="entry 1"):
            back.add([entry(1)])

    def test_a_failed_bookie_never_comes_back(self) -> None:
        back = WriteBack(1, metadata(), -1)
        back.add([entry(0)])
        back.add_failed(0, "a")
        back.replaced({0: "d"})
        back.add_failed(0, "d")
        with pytest.raises(InvariantViolation):
            back.replaced({0: "a"})

    def test_striped_entries_go_to_their_own_members(self) -> None:
        back = WriteBack(1, metadata(3, 2, 2), -1)
        sends = back.add([entry(0), entry(1), entry(2)])
        assert {s.bookie: [e.entry_id for e in s.entries] for s in sends} == {"a": [0, 2], "b": [0, 1], "c": [1, 2]}

    def test_gaps_are_a_bug(self) -> None:
        with pytest.raises(InvariantViolation, match="R5"):
            WriteBack(1, metadata(), -1).add([entry(1)])


class TestCopiesInFencingAnswers:
    def test_they_win_over_denials_like_others(self) -> None:
        reads = ForwardRead(1, metadata(), -1)
        reads.shown(entry(0))
        assert reads.next_reads(2) == [0, 1]
        reads.decided(0, NO)
        assert reads.take() == [entry(0)]
        reads.shown(entry(2))
        reads.decided(1, NO)
        assert reads.take() == []
        assert (reads.finished, reads.end) == (True, 0)
        reads.shown(entry(1))
        assert reads.take() == []

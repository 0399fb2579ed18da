import pytest

from buckram.core.ledgers.answers import Negative, Positive, Unknown
from buckram.core.ledgers.reading import Race, Span, Strategy, readable_until, span_of, spans
from buckram.errors import BookieUnavailable, Code, DigestMismatch, InvalidArgument
from buckram.types import Fragment, LedgerMetadata, LedgerState

NO = Negative(Code.NO_ENTRY)
LOST = Unknown(BookieUnavailable("x", "refused"))
BAD = Unknown(DigestMismatch(1, "changed"))
ABC = ("a", "b", "c")


def metadata(*fragments: Fragment, last: int | None = None) -> LedgerMetadata:
    state = LedgerState.OPEN if last is None else LedgerState.CLOSED
    return LedgerMetadata(3, 3, 2, fragments, state, last, None if last is None else 0)


def test_sequential_goes_on_to_the_next_replica_until_one_is_good() -> None:
    race: Race[int] = Race(ABC)
    assert list(race.start()) == ["a"]
    assert list(race.answered("a", NO)) == ["b"]
    assert list(race.answered("b", BAD)) == ["c"]
    assert list(race.answered("c", Positive(5))) == []
    assert race.outcome == Positive(5)
    assert race.winner == "c"


def test_absent_only_if_every_replica_says_so() -> None:
    race: Race[int] = Race(ABC)
    race.start()
    race.answered("a", NO)
    race.answered("b", LOST)
    race.answered("c", NO)
    assert race.outcome == LOST
    race = Race(ABC)
    race.start()
    for bookie in ABC:
        race.answered(bookie, NO)
    assert race.outcome == NO


def test_the_timer_asks_one_more_and_an_error_of_a_hedged_read_waits_for_the_other() -> None:
    race: Race[int] = Race(ABC)
    race.start()
    assert list(race.hedge()) == ["b"]
    assert list(race.answered("b", NO)) == []
    before = race.can_hedge
    assert list(race.answered("a", LOST)) == ["c"]
    assert (before, race.can_hedge) == (True, False)
    assert list(race.hedge()) == []


def test_those_beaten_by_a_hedge_are_slow_those_that_failed_are_not() -> None:
    race: Race[int] = Race(ABC)
    race.start()
    race.hedge()
    race.hedge()
    race.answered("b", LOST)
    race.answered("c", Positive(1))
    assert list(race.beaten()) == ["a"]


def test_late_and_repeated_answers_change_nothing() -> None:
    race: Race[int] = Race(ABC)
    race.start()
    race.hedge()
    race.answered("b", Positive(1))
    race.answered("a", Positive(2))
    race.answered("a", LOST)
    assert race.outcome == Positive(1)
    race = Race(ABC, enough_negatives=2)
    race.start()
    race.hedge()
    race.answered("a", NO)
    race.answered("a", NO)
    assert race.outcome is None


def test_parallel_asks_all_and_fails_when_all_have() -> None:
    race: Race[int] = Race(ABC, Strategy.PARALLEL)
    assert list(race.start()) == ["a", "b", "c"]
    for bookie in ABC:
        assert list(race.answered(bookie, LOST)) == []
    assert race.outcome == LOST


def test_widening_asks_all_the_rest_at_the_first_doubt() -> None:
    race: Race[int] = Race(ABC, Strategy.WIDENING, enough_negatives=2)
    assert list(race.start()) == ["a"]
    assert list(race.answered("a", NO)) == ["b", "c"]
    race.answered("c", BAD)
    assert race.outcome is None
    race.answered("b", NO)
    assert race.outcome == NO


def test_enough_negatives_do_not_outvote_a_good_copy_that_came_first() -> None:
    race: Race[int] = Race(ABC, Strategy.PARALLEL, enough_negatives=2)
    race.start()
    race.answered("a", NO)
    race.answered("b", Positive(9))
    race.answered("c", NO)
    assert race.outcome == Positive(9)


def test_ranges_are_cut_at_fragment_borders() -> None:
    md = metadata(Fragment(0, ABC), Fragment(4, ("a", "b", "d")), Fragment(10, ("e", "b", "d")), last=20)
    assert list(spans(md, 2, 12)) == [
        Span(ABC, 2, 3),
        Span(("a", "b", "d"), 4, 9),
        Span(("e", "b", "d"), 10, 12),
    ]
    assert list(spans(md, 5, 4)) == []
    with pytest.raises(InvalidArgument):
        span_of(md, -1, 3)


def test_how_far_a_normal_read_may_go() -> None:
    assert readable_until(metadata(Fragment(0, ABC)), -1) == -1
    assert readable_until(metadata(Fragment(0, ABC), Fragment(7, ABC)), -1) == 6
    assert readable_until(metadata(Fragment(0, ABC), Fragment(7, ABC)), 9) == 9
    assert readable_until(metadata(Fragment(0, ABC), Fragment(7, ABC), last=6), 9) == 6

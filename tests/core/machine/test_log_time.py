"""The time of a log: what its leader stamps while the time is certain, in doubt, or behind the log."""

from buckram.core.cluster.believed_time import Moment
from buckram.core.machine.fold import LogTime

SECOND = 1_000_000
DAY = 86_400 * SECOND
NOON = 1_795_176_000_000_000


def certain(time: int) -> Moment:
    return Moment(time, time, time)


def test_it_follows_a_time_that_is_certain_and_never_goes_back_by_itself() -> None:
    log = LogTime(NOON)
    assert log.next(certain(NOON + 5), 0) == NOON + 5
    assert log.next(certain(NOON + 3), 1) == NOON + 5
    assert not log.goes_back(certain(NOON))


def test_a_log_that_is_ahead_goes_back_to_a_time_that_is_certain() -> None:
    log = LogTime(NOON + 40 * DAY)
    assert not log.goes_back(Moment(NOON, NOON + 40 * DAY, NOON, "set"))
    assert log.goes_back(certain(NOON))
    assert log.set_back(certain(NOON)) == NOON
    assert log.next(certain(NOON + 1), 0) == NOON + 1


def test_in_doubt_it_goes_on_with_the_line_that_was_certain() -> None:
    log = LogTime(NOON - DAY)  # nothing happened for a day
    assert log.next(Moment(NOON, NOON + 40 * DAY, NOON, "set ahead"), 0) == NOON
    behind = LogTime(NOON - DAY)
    assert behind.next(Moment(NOON - 40 * DAY, NOON, NOON, "set back"), 0) == NOON - DAY


def test_in_doubt_about_what_passed_before_it_goes_on_by_what_passes() -> None:
    log = LogTime(NOON)
    later = NOON + 40 * DAY
    assert log.next(Moment(NOON, later, later, "began in doubt"), 0) == NOON
    assert log.next(Moment(later, later, later, "others doubt", bounded=False), 5 * SECOND) == NOON + 5 * SECOND
    assert log.next(certain(later), 6 * SECOND) == later

"""The judgement about a wall clock: what it believes, when, and what it lets go on meanwhile."""

import random

import pytest

from buckram.core.cluster.believed_time import (
    HOLD_US,
    RECORD_US,
    SEEN_LEAST_US,
    SEEN_US,
    UNSTEADY_AFTER,
    BelievedTime,
    advanced,
    agreeing,
    middle,
)

SECOND = 1_000_000
DAY = 86_400 * SECOND
NOON = 1_795_176_000_000_000


class Process:
    """A process with both clocks; `ahead` is by how much its wall clock is wrong."""

    def __init__(self, ahead: int = 0) -> None:
        self.judge, self.true, self.mono, self.ahead = BelievedTime(), NOON, 5 * SECOND, ahead
        self.judge.observe(self.wall, self.mono)

    @property
    def wall(self) -> int:
        return self.true + self.ahead

    def pass_us(self, passed: int, step: int = 10 * SECOND) -> None:
        """Time passes, and the clocks are looked at."""
        for _ in range(0, passed, step):
            self.true, self.mono = self.true + step, self.mono + step
            self.judge.observe(self.wall, self.mono)

    @property
    def certain(self) -> int | None:
        return self.judge.moment(self.wall, self.mono).certain

    @property
    def best(self) -> int:
        return self.judge.best(self.wall, self.mono)


@pytest.mark.parametrize("by", [40 * DAY, -40 * DAY, 2 * 60 * SECOND])
def test_a_jump_for_some_seconds_is_never_believed(by: int) -> None:
    process = Process()
    process.pass_us(60 * SECOND)
    process.ahead = by
    process.pass_us(8 * SECOND, step=SECOND)
    moment = process.judge.moment(process.wall, process.mono)
    assert moment.certain is None
    assert (moment.low, moment.high) == (min(process.true, process.wall), max(process.true, process.wall))
    assert process.best == process.true
    process.ahead = 0
    assert process.certain == process.true


@pytest.mark.parametrize("by", [40 * DAY, -40 * DAY])
def test_a_jump_is_believed_when_it_has_held(by: int) -> None:
    process = Process()
    process.ahead = by
    process.pass_us(HOLD_US - 10 * SECOND)
    assert process.certain is None
    process.pass_us(20 * SECOND)
    assert process.certain == process.wall
    assert process.judge.believed_jumps == 1


@pytest.mark.parametrize("by", [40 * DAY, -40 * DAY])
def test_a_jump_that_nobody_saw_to_hold_is_not_believed(by: int) -> None:
    """The process was suspended, or was not asked; the clock may have been right in between, and set again."""
    process = Process()
    process.ahead = by
    process.pass_us(3 * HOLD_US, step=3 * HOLD_US)
    assert process.certain is None, "the first reading of the new time, hours after the last of the old one"
    for _ in range(5):
        process.pass_us(2 * HOLD_US, step=2 * HOLD_US)
        assert process.certain is None, "it shows the same again, and what it showed in between is not known"
    assert "run steadily for 3600 s more" in process.judge.moment(process.wall, process.mono).why
    assert process.best == process.true, "what is written down goes on"
    process.pass_us(HOLD_US - SEEN_US, step=SEEN_US)
    assert process.certain is None
    process.pass_us(SEEN_US, step=SEEN_US)
    assert process.certain == process.wall
    assert process.judge.believed_jumps == 1


def test_a_flip_there_and_back_that_nobody_saw_does_not_count_as_time_that_held() -> None:
    process = Process()
    process.ahead = 40 * DAY
    process.pass_us(HOLD_US // 2)
    process.true, process.mono = process.true + HOLD_US, process.mono + HOLD_US  # it was right for most of that hour
    process.pass_us(HOLD_US // 2)
    assert process.certain is None
    process.ahead = 0
    assert process.certain == process.true, "it is back on its line, so it is right at once"


@pytest.mark.parametrize("step", [SEEN_US, 2 * HOLD_US, 30 * DAY])
def test_a_process_that_reads_no_clock_for_long_does_not_doubt_a_right_one(step: int) -> None:
    process = Process()
    for drift in (0, 20 * SECOND, -20 * SECOND):
        process.true, process.mono = process.true + step, process.mono + step
        process.ahead += drift
        assert process.certain == process.wall
    assert process.judge.believed_jumps == 0


def slept(process: Process, us: int) -> None:
    """The machine slept: its wall clock went on, and its monotonic clock stood still."""
    process.true += us


def test_a_machine_that_slept_is_believed_when_it_held_or_when_others_agree() -> None:
    process = Process()
    process.pass_us(600 * SECOND)
    slept(process, 8 * HOLD_US)
    assert process.certain is None
    process.pass_us(HOLD_US - 60 * SECOND, step=60 * SECOND)
    assert process.certain is None
    process.pass_us(60 * SECOND, step=60 * SECOND)
    assert process.certain == process.true
    slept(process, 8 * HOLD_US)
    process.pass_us(2 * HOLD_US, step=2 * HOLD_US)
    assert process.certain is None, "it held, and nobody saw it"
    process.judge.told(process.true - 5, process.true + 5, process.wall, process.mono)
    assert process.certain == process.true


def test_a_clock_that_leaps_again_and_again_has_to_hold_since_the_last_of_them() -> None:
    """Such as a machine that sleeps for ten minutes of every twenty."""
    process = Process()
    for _ in range(12):
        slept(process, 600 * SECOND)
        process.pass_us(600 * SECOND, step=60 * SECOND)
        assert process.certain is None
    process.pass_us(HOLD_US - 540 * SECOND, step=60 * SECOND)  # it was first read 60 s after the last of them
    assert process.certain == process.true


def test_a_clock_that_flipped_has_to_be_seen_steady() -> None:
    process = Process()
    flip(process, 40 * DAY, UNSTEADY_AFTER)
    for _ in range(3):
        process.pass_us(2 * HOLD_US, step=2 * HOLD_US)
        assert process.certain is None, "it is on its line whenever it is read, as it was in between the flips"
    process.pass_us(HOLD_US, step=SEEN_US)
    assert process.certain == process.true


@pytest.mark.parametrize(("hold", "seen"), [(30, 60), (600, 150), (3600, 900), (86_400, 900)])
def test_how_far_apart_readings_may_be(hold: int, seen: int) -> None:
    assert SEEN_LEAST_US <= BelievedTime(hold * SECOND).seen_us == seen * SECOND <= SEEN_US


def test_a_jump_must_hold_without_a_break() -> None:
    process = Process()
    for _ in range(3):
        process.ahead = 40 * DAY
        process.pass_us(HOLD_US // 2)
        process.ahead = 0
        process.pass_us(10 * SECOND)
    process.ahead = 40 * DAY
    process.pass_us(HOLD_US // 2)
    process.ahead = 41 * DAY
    process.pass_us(HOLD_US // 2 + 20 * SECOND)
    assert process.certain is None


def test_a_clock_that_runs_slow_or_is_set_little_by_little_is_not_followed_for_long() -> None:
    """It moves by less than a minute between two looks, and by hours in an hour."""
    process = Process()
    for _ in range(2 * 360):
        process.ahead += 30 * SECOND
        process.pass_us(10 * SECOND)
    assert process.certain is None
    assert abs(process.best - process.true) < 70 * SECOND
    drifting = Process()
    for _ in range(24 * 360):  # a minute in a day: an ordinary bad clock
        drifting.ahead += 7_000
        drifting.pass_us(10 * SECOND)
    assert drifting.certain == drifting.wall


def test_others_who_are_certain_decide_at_once() -> None:
    """A machine that slept: its wall clock is right, and its monotonic clock stood still."""
    process = Process()
    process.true += 3 * 3600 * SECOND
    assert process.certain is None
    process.judge.told(process.true - 5, process.true + 5, process.wall, process.mono)
    assert process.certain == process.true


def test_while_others_say_otherwise_a_time_is_not_believed_however_long_it_holds() -> None:
    process = Process()
    process.ahead = 40 * DAY
    for _ in range(30):
        process.pass_us(600 * SECOND)
        process.judge.told(process.true, process.true, process.wall, process.mono)
        assert process.certain is None
    assert "other bookies are certain of another time" in process.judge.moment(process.wall, process.mono).why
    process.pass_us(2 * HOLD_US)  # nobody says anything any more
    assert process.certain == process.wall


def test_an_operator_decides_for_clocks_that_show_what_was_accepted() -> None:
    process = Process()
    process.ahead = 40 * DAY
    assert not process.judge.accept(process.true, process.wall, process.mono)
    assert process.certain is None
    assert process.judge.accept(process.wall - 20 * SECOND, process.wall, process.mono)
    assert process.certain == process.wall
    assert not process.judge.accept(process.wall, process.wall, process.mono)


@pytest.mark.parametrize("away", [0, RECORD_US, 40 * DAY, -40 * DAY])
def test_a_start_is_compared_with_what_was_recorded(away: int) -> None:
    judge = BelievedTime()
    judge.begin(NOON, NOON + away, 0)
    moment = judge.moment(NOON + away, 0)
    if 0 <= away <= RECORD_US:
        assert moment.certain == NOON + away
        return
    assert moment.certain is None
    assert moment.best == moment.high == max(NOON, NOON + away)
    assert moment.low == min(NOON, NOON + away)
    for passed in range(0, HOLD_US, 600 * SECOND):
        assert judge.moment(NOON + away + passed, passed).certain is None
    assert judge.moment(NOON + away + HOLD_US, HOLD_US).certain == NOON + away + HOLD_US


def test_a_start_on_the_same_boot_knows_how_long_it_was_away() -> None:
    judge = BelievedTime()
    judge.continued(NOON + 3600 * SECOND, NOON + 3600 * SECOND, 0)
    assert judge.moment(NOON + 3600 * SECOND, 0).certain == NOON + 3600 * SECOND
    judge = BelievedTime()
    judge.continued(NOON, NOON + 40 * DAY, 0)
    moment = judge.moment(NOON + 40 * DAY, 0)
    assert (moment.certain, moment.best) == (None, NOON)


def test_what_others_recorded() -> None:
    assert not agreeing({}, NOON)
    assert agreeing({"a": NOON - RECORD_US, "b": NOON, "c": NOON - DAY}, NOON)
    assert not agreeing({"a": NOON, "c": NOON - DAY}, NOON)
    assert advanced({"a": 5, "b": 5, "new": 5}, {"a": 4, "b": 5}) == {"a": 5}
    assert middle([]) is None
    assert middle([3, 1]) == (1, 3)
    assert middle([3, 1, 2]) == (2, 2)


def flip(process: Process, by: int, times: int) -> None:
    for _ in range(times):
        process.ahead = by
        process.pass_us(10 * SECOND)
        process.ahead = 0
        process.pass_us(10 * SECOND)


@pytest.mark.parametrize("by", [40 * DAY, -40 * DAY])
def test_a_clock_that_flips_is_in_doubt_until_it_has_been_steady(by: int) -> None:
    process = Process()
    flip(process, by, UNSTEADY_AFTER - 1)
    assert process.certain == process.true, "it was wrong for some seconds, twice"
    flip(process, by, 5)
    moment = process.judge.moment(process.wall, process.mono)
    assert moment.certain is None
    assert moment.best == process.true
    assert (moment.low, moment.high) == (min(process.true, process.true + by), max(process.true, process.true + by))
    assert "is set again and again" in moment.why
    process.pass_us(HOLD_US - 20 * SECOND)
    assert process.certain is None
    process.pass_us(20 * SECOND)
    assert process.certain == process.true
    flip(process, by, 1)
    assert process.certain == process.true, "what was long ago counts no more"


def test_a_clock_that_flips_now_and_then_is_no_unsteady_one() -> None:
    process = Process()
    for _ in range(6):
        flip(process, 40 * DAY, 1)
        process.pass_us(HOLD_US // 2)
    assert process.certain == process.true


def test_all_times_that_a_flipping_clock_has_shown_count_while_it_is_in_doubt() -> None:
    process = Process()
    for by in (2 * DAY, -3 * DAY, DAY, 5 * DAY, DAY):
        flip(process, by, 1)
    moment = process.judge.moment(process.wall, process.mono)
    assert (moment.low, moment.high) == (process.true - 3 * DAY, process.true + 5 * DAY)


def test_others_do_not_end_the_doubt_about_a_flipping_clock_and_an_operator_does() -> None:
    process = Process()
    flip(process, 40 * DAY, UNSTEADY_AFTER)
    process.judge.told(process.true, process.true, process.wall, process.mono)
    assert process.certain is None
    assert not process.judge.accept(process.true + 40 * DAY, process.wall, process.mono)
    assert process.judge.accept(process.true, process.wall, process.mono)
    assert process.certain == process.true
    assert process.judge.jumps == (), "the clock is on the line that it was on"


@pytest.mark.parametrize("seed", range(40))
def test_whatever_was_a_clock_that_is_steady_is_believed_again_by_itself(seed: int) -> None:
    """Others may have said anything meanwhile; in the end they agree, or say nothing."""
    rng, process = random.Random(seed), Process()
    for _ in range(rng.randint(1, 60)):
        process.ahead = rng.choice((0, 0, 40, -40, 41, rng.randint(-50, 50))) * DAY
        process.pass_us(rng.choice((10, 60, 1200, 4000)) * SECOND, step=rng.choice((10, 200)) * SECOND)
        if rng.random() < 0.3:
            told = process.true + rng.choice((0, 0, 1, -40)) * DAY
            process.judge.told(told, told, process.wall, process.mono)
    agree = rng.random() < 0.5
    for _ in range(HOLD_US // (20 * SECOND) + 2):
        process.pass_us(20 * SECOND)
        if agree:
            process.judge.told(process.wall, process.wall, process.wall, process.mono)
    assert process.certain == process.wall, f"seed {seed}"

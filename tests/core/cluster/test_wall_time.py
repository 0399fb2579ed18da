from buckram.core.cluster.wall_time import APART_US, WallClocks, between, shown

DAY = 86_400_000_000
NOON = 1_795_176_000_000_000


def observed(*ahead: int, own: int = 0) -> WallClocks:
    """Return clocks of bookies so far ahead of noon, observed at monotonic time 1000 s; ours is `own` ahead."""
    clocks = WallClocks()
    for number, by in enumerate(ahead):
        clocks.observe(f"b{number}", NOON + by, 1_000_000_000, NOON + own)
    return clocks


def test_without_observations_the_own_clock_is_used() -> None:
    clocks = observed(0 - NOON)
    assert clocks.best(NOON, 5) == NOON
    assert clocks.reading(NOON, 5) is None
    assert not clocks.jumped(NOON, 5)


def test_a_clock_within_a_minute_is_its_own() -> None:
    clocks = observed(0, 10, 20)
    for own in (NOON, NOON + APART_US, NOON - APART_US + 10):
        assert clocks.best(own, 1_000_000_000) == own
        reading = clocks.reading(own, 1_000_000_000)
        assert reading is not None
        assert not reading.apart
        assert reading.best == own


def test_a_clock_that_is_days_off_gives_way_to_the_median() -> None:
    clocks = observed(0, 3, -DAY)
    later = 1_002_000_000  # two seconds
    for own in (NOON + 8 * DAY, NOON - 8 * DAY):
        assert clocks.best(own, later) == NOON + 2_000_000
        reading = clocks.reading(own, later)
        assert reading is not None
        assert reading.apart
        assert reading.best == NOON + 2_000_000
    assert "691198 s ahead" in str(clocks.reading(NOON + 8 * DAY, later))
    assert "2026-11-20T12:00:02Z" in str(clocks.reading(NOON + 8 * DAY, later))


def test_of_two_bookies_ours_says_who_is_right_but_nothing_goes_by_age() -> None:
    clocks = observed(0, 8 * DAY)
    assert clocks.best(NOON + 5, 1_000_000_000) == NOON + 5
    assert clocks.best(NOON - 8 * DAY, 1_000_000_000) == NOON
    reading = clocks.reading(NOON + 5, 1_000_000_000)
    assert reading is not None
    assert reading.apart
    assert reading.median == NOON + 8 * DAY


def test_the_bookie_that_is_wrong_is_named() -> None:
    assert observed(0, 3, 8 * DAY).wrong(NOON, 1_000_000_000) == {"b2": 8 * DAY}
    assert observed(0, 3, 8).wrong(NOON + 8 * DAY, 1_000_000_000) == {}
    assert between(8 * DAY) == "691200 s ahead"
    assert between(-DAY) == "86400 s behind"


def test_an_observation_much_older_than_the_newest_is_dropped() -> None:
    clocks = observed(8 * DAY, 8 * DAY, 8 * DAY)
    clocks.observe("b1", NOON + 600_000_000, 1_600_000_000, NOON + 600_000_000)
    assert clocks.best(NOON + 600_000_000, 1_600_000_000) == NOON + 600_000_000
    assert "b0" not in clocks
    clocks.keep({})
    assert clocks.reading(NOON, 0) is None


def test_a_clock_that_was_set_is_noticed() -> None:
    clocks = observed(0, 0, 0)
    assert not clocks.jumped(NOON + 5_000_000, 1_005_000_000)
    assert clocks.jumped(NOON + 5_000_000 + DAY, 1_005_000_000)
    assert clocks.jumped(NOON + 5_000_000 - DAY, 1_005_000_000)


def test_bookies_that_judge_the_time_say_whether_they_are_certain() -> None:
    clocks = WallClocks()
    for number, (by, certain) in enumerate(((0, True), (3, True), (8 * DAY, False))):
        clocks.observe(f"b{number}", NOON + by, 0, NOON, certain=certain)
    assert clocks.sure(0) == (NOON, NOON + 3)
    assert clocks.doubting == 0
    clocks.observe("b0", NOON, 0, NOON, certain=False)
    assert clocks.sure(0) is None
    assert clocks.doubting == 2
    clocks.observe("b0", NOON, 0, NOON)  # of an earlier release: it just reads its clock
    assert clocks.sure(0) is None
    assert clocks.doubting == 0


def test_what_is_no_date_is_a_number() -> None:
    assert shown(-5) == "-5 us"
    assert shown(2**62) == f"{2**62} us"

"""What a bookie believes the time to be: at its start, while clocks jump, by the word of others and of an operator."""

from __future__ import annotations

import pytest
from tests.support.bookie_kit import memory_metadata
from tests.support.clock import DAY, SECOND, SettableClock

from buckram.bookie.trust.timekeeper import Timekeeper
from buckram.core.cluster.believed_time import UNSTEADY_AFTER, Jump, Recorded, agreed_jumps, held_back
from buckram.core.wire.introduction import DOUBTS_TIME, JUDGES_TIME
from buckram.metadata.records.recorded_time import read_times, remove_time, write_accepted, write_time
from buckram.metadata.tree.memory import MemoryTree
from buckram.runtime.process.stats import NullStats
from buckram.types import BookieAddress, BookieInfo

HOUR = 3600 * SECOND


class Machine(SettableClock):
    """The clock of one machine, on which a bookie may be started again; `boots` is changed by a reboot."""

    boots = "boot-1"

    def boot(self) -> str:
        return self.boots


class Place:
    """A cluster of timekeepers, each with a clock of its own, that go on by one true time."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.clocks: dict[str, Machine] = {}
        self.keepers: dict[str, Timekeeper] = {}

    async def start(self, bookie: str, *, ahead: int | None = None) -> Timekeeper:
        if bookie not in self.clocks:
            clock = self.clocks[bookie] = Machine()
            clock.passed = max(one.passed for one in self.clocks.values())
            await (await memory_metadata(self.tree)).register(
                BookieInfo(bookie, BookieAddress("127.0.0.1", 3181)), readonly=False
            )
        if ahead is not None:
            self.clocks[bookie].ahead = ahead
        keeper = Timekeeper(self.clocks[bookie], await memory_metadata(self.tree), 3600, NullStats())
        await keeper.prepare(bookie)
        self.keepers[bookie] = keeper
        await keeper.look()
        return keeper

    async def pass_us(self, passed: int, *, step: int = 60 * SECOND) -> None:
        for _ in range(0, passed, step):
            for clock in self.clocks.values():
                clock.passed += step
            for keeper in self.keepers.values():
                await keeper.look()

    def reboot(self) -> None:
        for clock in self.clocks.values():
            clock.boots += "1"

    def set_all(self, ahead: int) -> None:
        for clock in self.clocks.values():
            clock.ahead = ahead

    def certain(self, bookie: str) -> bool:
        """Whether the bookie is certain of the true time."""
        moment = self.keepers[bookie].moment()
        return moment.certain is not None and abs(moment.certain - self.clocks[bookie].true_us()) < 5 * SECOND


@pytest.fixture
async def three() -> Place:
    place = Place()
    for bookie in ("a", "b", "c"):
        await place.start(bookie)
    return place


async def test_bookies_that_start_for_the_first_time_are_certain(three: Place) -> None:
    assert all(map(three.certain, three.keepers))
    told, features = three.keepers["a"].told()
    assert features == JUDGES_TIME
    assert abs(told - three.clocks["a"].wall_us()) < 5 * SECOND


async def test_all_clocks_ahead_for_some_seconds(three: Place) -> None:
    await three.pass_us(10 * 60 * SECOND)
    three.set_all(40 * DAY)
    await three.pass_us(8 * SECOND, step=SECOND)
    for keeper in three.keepers.values():
        told, features = keeper.told()
        assert features == JUDGES_TIME | DOUBTS_TIME
        assert abs(told - three.clocks["a"].true_us()) < 5 * SECOND
    assert not three.certain("a")
    three.set_all(0)
    assert all(map(three.certain, three.keepers))


async def test_one_that_starts_while_all_clocks_are_ahead_does_not_believe_its_clock(three: Place) -> None:
    """A new bookie, one that comes back on the same boot, and one that comes back after a reboot."""
    await three.pass_us(10 * 60 * SECOND)
    del three.keepers["b"], three.keepers["c"]
    three.set_all(40 * DAY)
    three.clocks["c"].boots = "boot-2"
    for bookie in ("b", "c", "d"):
        keeper = await three.start(bookie, ahead=40 * DAY)
        moment = keeper.moment()
        assert moment.certain is None
        assert moment.low <= three.clocks["a"].true_us() + 5 * SECOND
        assert moment.high >= three.clocks["a"].wall_us() - 5 * SECOND
    three.set_all(0)
    await three.pass_us(60 * SECOND)
    assert all(map(three.certain, three.keepers))


async def test_a_bookie_that_was_down_for_long_is_certain_at_once_where_others_are(three: Place) -> None:
    await three.pass_us(10 * 60 * SECOND)
    del three.keepers["c"]
    await three.pass_us(DAY, step=HOUR)
    await three.pass_us(120 * SECOND)
    three.clocks["c"].boots = "boot-2"
    await three.start("c")
    assert three.certain("c")


@pytest.mark.parametrize("rebooted", [False, True])
async def test_a_cluster_that_was_off_for_days_is_in_doubt_for_an_hour_unless_machines_were_on(
    three: Place, rebooted: bool
) -> None:
    await three.pass_us(10 * 60 * SECOND)
    three.keepers.clear()
    await three.pass_us(40 * DAY, step=10 * DAY)
    if rebooted:
        three.reboot()
    for bookie in three.clocks:
        await three.start(bookie)
        assert three.certain(bookie) != rebooted
        assert abs(three.keepers[bookie].told()[0] - three.clocks[bookie].true_us()) < 5 * SECOND
    await three.pass_us(HOUR - 120 * SECOND)
    assert three.certain("a") != rebooted
    await three.pass_us(240 * SECOND)
    assert all(map(three.certain, three.keepers))


async def test_a_machine_that_slept_while_no_clock_counted_it_is_right_again_when_others_say_so(three: Place) -> None:
    await three.pass_us(10 * 60 * SECOND)
    sleeper, clock = three.keepers.pop("b"), three.clocks.pop("b")
    await three.pass_us(HOUR)
    clock.ahead = HOUR  # its wall clock was set by its network, its monotonic clock stood still
    assert sleeper.moment().certain is None
    await sleeper.look()
    moment = sleeper.moment()
    assert moment.certain is not None
    assert abs(moment.certain - three.clocks["a"].true_us()) < 5 * SECOND


async def test_a_single_clock_that_is_wrong_is_never_believed_while_others_are_there(three: Place) -> None:
    await three.pass_us(10 * 60 * SECOND)
    three.clocks["b"].ahead = 40 * DAY
    await three.pass_us(3 * HOUR)
    assert "other bookies are certain of another time" in three.keepers["b"].moment().why
    assert three.certain("a")
    assert three.certain("c")


async def test_a_jump_of_all_is_believed_after_an_hour_and_recorded(three: Place) -> None:
    await three.pass_us(10 * 60 * SECOND)
    began = three.clocks["a"].true_us()
    three.set_all(40 * DAY)
    await three.pass_us(HOUR + 120 * SECOND)
    assert all(keeper.moment().certain for keeper in three.keepers.values())
    [jump] = agreed_jumps((await read_times(await memory_metadata(three.tree))).values())
    assert abs(jump.begin - began) < 120 * SECOND
    assert abs(jump.end - began - HOUR) < 180 * SECOND
    assert abs(jump.by - 40 * DAY) < 5 * SECOND
    await three.start("a")
    await three.pass_us(120 * SECOND)
    assert len(agreed_jumps((await read_times(await memory_metadata(three.tree))).values())) == 1


async def test_bookies_that_were_suspended_while_all_clocks_were_ahead_have_not_seen_that_it_held(three: Place) -> None:
    await three.pass_us(10 * 60 * SECOND)
    await three.pass_us(2 * HOUR, step=2 * HOUR)
    assert all(map(three.certain, three.keepers)), "they were suspended, and their clocks are right"
    three.set_all(40 * DAY)
    for _ in range(3):
        await three.pass_us(2 * HOUR, step=2 * HOUR)
        assert all(keeper.moment().certain is None for keeper in three.keepers.values())
    await three.start("a")
    assert not three.certain("a"), "nor does it believe its clock because it was started anew"
    await three.pass_us(HOUR + 120 * SECOND)
    assert all(keeper.moment().certain for keeper in three.keepers.values())


async def test_bookies_that_come_later_know_of_a_jump_and_those_that_are_gone_have_no_say(three: Place) -> None:
    """Else the jump would be forgotten when most of the bookies are others."""
    await three.pass_us(10 * 60 * SECOND)
    store = await memory_metadata(three.tree)
    gone = ("x", "y", "z", "w")
    for name in gone:
        await write_time(store, name, Recorded(three.clocks["a"].true_us()))
    three.set_all(40 * DAY)
    await three.pass_us(HOUR + 120 * SECOND)
    [jump] = agreed_jumps((await read_times(store)).values())
    for bookie in ("d", "e", "f", "g"):
        await three.start(bookie, ahead=40 * DAY)
    assert three.certain("d") is three.certain("a")
    assert [one.like(jump) for one in agreed_jumps((await read_times(store)).values())] == [True]
    for name in gone:
        await remove_time(store, name)
    await remove_time(store, "x")
    assert sorted(await read_times(store)) == ["a", "b", "c", "d", "e", "f", "g"]


async def test_a_bookie_whose_clock_flips_is_in_doubt_and_says_so_until_it_was_steady_for_an_hour(three: Place) -> None:
    await three.pass_us(10 * 60 * SECOND)
    for _ in range(UNSTEADY_AFTER):
        for ahead in (40 * DAY, 0):
            three.clocks["b"].ahead = ahead
            await three.pass_us(15 * SECOND, step=15 * SECOND)
    assert "is set again and again" in three.keepers["b"].moment().why
    assert three.keepers["b"].told()[1] == JUDGES_TIME | DOUBTS_TIME
    assert three.certain("a")
    assert three.certain("c")
    await three.pass_us(HOUR - 120 * SECOND)
    assert not three.certain("b")
    await three.pass_us(180 * SECOND)
    assert three.certain("b")


async def test_an_operator_accepts_the_time(three: Place) -> None:
    await three.pass_us(10 * 60 * SECOND)
    operator = await memory_metadata(three.tree)
    three.set_all(-40 * DAY)
    await three.pass_us(60 * SECOND)
    await write_accepted(operator, three.clocks["a"].true_us())  # the operator's clock shows another time
    await three.pass_us(60 * SECOND)
    assert all(keeper.moment().certain is None for keeper in three.keepers.values())
    await write_accepted(operator, three.clocks["a"].wall_us())
    await three.pass_us(15 * SECOND, step=15 * SECOND)
    assert all(keeper.moment().certain for keeper in three.keepers.values())


async def test_records_that_cannot_be_read_are_left_out() -> None:
    store = await memory_metadata()
    await write_time(store, "a", Recorded(5, "boot", 7, (Jump(1, 2, 3),)))
    for name, value in (("b", b"{"), ("c", b'{"us": "x"}'), ("d", b'{"us": 5, "jumps": [[1, 2]]}'), ("e", b"[]")):
        await store.keys.create(f"{store.own}/times/{name}", value)
    assert await read_times(store) == {"a": Recorded(5, "boot", 7, (Jump(1, 2, 3),))}


def test_what_was_stamped_before_a_jump_is_held_back_until_all_of_it_is_old() -> None:
    jumps = [Jump(1000, 1060, 500)]
    assert [held_back(cutoff, jumps, DAY) for cutoff in (900, 1000, 1001, 1060, 1560, 1561)] == [
        900, 1000, 1000, 1000, 1000, 1561,
    ]  # fmt: skip
    chain = [Jump(1000, 1060, 500), Jump(1550, 1600, 100)]
    assert held_back(1690, chain, DAY) == 1000
    believer = Recorded(5, jumps=(Jump(1, 2, 3),))
    assert agreed_jumps([believer, Recorded(5), Recorded(5)]) == ()
    assert agreed_jumps([believer, Recorded(1), Recorded(1)]) == (Jump(1, 2, 3),), "those two were gone by then"
    assert held_back(1690, [Jump(1000, 1060, 40 * DAY)], DAY) == 1690, "nobody believes that one any more"

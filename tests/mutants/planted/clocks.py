"""Bugs of what a process believes the time to be, and of who has a say in it."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_JUDGED = "tests/core/cluster/test_believed_time.py"
_KEPT = "tests/bookie/trust/test_timekeeper.py"
_ASKED = "tests/streams/shared/test_clocks.py"

MUTANTS = (
    TestMutant(
        "unseen-time-has-held",
        "a time that two readings show an hour apart is believed, although nobody read the clock in between",
        edited(("buckram.core.cluster.believed_time:BelievedTime._seen", "max(since, self._watched)", "since")),
        (
            f"{_JUDGED}::test_a_jump_that_nobody_saw_to_hold_is_not_believed",
            f"{_JUDGED}::test_a_clock_that_flipped_has_to_be_seen_steady",
        ),
    ),
    TestMutant(
        "flipping-clock-is-certain",
        "a clock that is set again and again is certain whenever it is on its line",
        edited(
            (
                "buckram.core.cluster.believed_time:BelievedTime._steady",
                "len(self._away) >= UNSTEADY_AFTER",
                "False",
            )
        ),
        (f"{_JUDGED}::test_a_clock_that_flips_is_in_doubt_until_it_has_been_steady",),
    ),
    TestMutant(
        "flipping-clock-is-never-believed",
        "a clock that was set again and again stays in doubt until an operator says so",
        edited(
            (
                "buckram.core.cluster.believed_time:BelievedTime._steady",
                "if self._seen(self._away[-1][0], mono) >= self.hold_us",
                "if False",
            )
        ),
        (f"{_JUDGED}::test_a_clock_that_flips_is_in_doubt_until_it_has_been_steady",),
    ),
    TestMutant(
        "unasked-clock-is-certain",
        "a client goes by its own clock before it has asked a bookie",
        edited(("buckram.client.cluster.clocks:Clocks._why_untold", "if not self._was_asked", "if False")),
        (f"{_ASKED}::test_nothing_has_ended_before_a_bookie_was_asked",),
    ),
    TestMutant(
        "no-bookie-is-no-doubt",
        "a process goes by its own clock while no bookie answers",
        edited(("buckram.client.cluster.clocks:Clocks.ask", "await self._middle_of_recorded()", "None")),
        (
            f"{_ASKED}::test_an_expired_token_stays_expired_for_a_process_that_starts_with_a_clock_that_is_behind",
            f"{_ASKED}::test_a_janitor_that_starts_ends_nothing_while_no_bookie_is_there",
        ),
    ),
    TestMutant(
        "doubt-is-not-watched",
        "a client in doubt reads its clock only when it is asked for the time, so it never sees that a time holds",
        edited(("buckram.client.cluster.clocks:Clocks._look_again", "if self._own.doubtful", "if False")),
        (f"{_ASKED}::test_a_client_that_nobody_asks_watches_its_clock_while_it_is_in_doubt",),
    ),
    TestMutant(
        "records-of-steps-end-by-the-latest-time",
        "a driver whose clock is ahead forgets which steps the sink of a database has written",
        edited(("buckram.spark.databases.table_sink:DatabaseStep._notes", "now.earliest", "now.high")),
        ("tests/spark/test_db.py::test_records_that_count_once_are_forgotten_only_when_they_are_old_for_certain",),
        slow=True,
    ),
    TestMutant(
        "jump-is-forgotten-by-new-bookies",
        "a bookie that comes later knows of no jump, so that most of the bookies soon know of none",
        edited(
            (
                "buckram.bookie.trust.timekeeper:Timekeeper.prepare",
                "agreed_jumps(times.values()) if mine is None",
                "() if mine is None",
            )
        ),
        (f"{_KEPT}::test_bookies_that_come_later_know_of_a_jump_and_those_that_are_gone_have_no_say",),
    ),
)

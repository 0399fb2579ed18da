"""Bugs of who is who over time: looks that are left out, generations that are not compared."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_AT_THE_BOOKIE = "tests/bookie/test_incarnations.py"
_TABLE = "tests/core/cluster/test_cookie.py::test_who_it_is"

MUTANTS = (
    TestMutant(
        "registers-without-a-look",
        "a bookie whose session was lost registers again without looking whether it was replaced",
        edited(
            (
                "buckram.bookie.registration:Registration._register",
                "if not self._withdrawn and not await self._trust.confirm():",
                "if False:",
            ),
            ("buckram.bookie.registration:Registration._register", "when=self._trust.unchanged()", "when=()"),
        ),
        (f"{_AT_THE_BOOKIE}::test_a_lost_session_is_looked_into_before_it_registers_again",),
    ),
    TestMutant(
        "registers-on-an-old-look",
        "what changed between the look and the registration does not keep a bookie from registering",
        edited(("buckram.bookie.registration:Registration._register", "when=self._trust.unchanged()", "when=()")),
        (f"{_AT_THE_BOOKIE}::test_what_changes_between_the_look_and_the_registration_keeps_it_from_registering",),
    ),
    TestMutant(
        "generation-not-compared",
        "a bookie does not know which of two incarnations is the later one",
        edited(
            (
                "buckram.core.cluster.cookie:_rank",
                "(statement.epoch, statement.generation)",
                "(statement.epoch, 0)",
            )
        ),
        (_TABLE,),
    ),
    TestMutant(
        "restore-does-not-count",
        "an incarnation that an accepted restore let in gives way to one that the restore lost",
        edited(
            (
                "buckram.core.cluster.cookie:_rank",
                "(statement.epoch, statement.generation)",
                "(0, statement.generation)",
            )
        ),
        (_TABLE,),
    ),
    TestMutant(
        "answers-after-standing-still",
        "a process that was stopped for long answers what waited, before it looks",
        edited(("buckram.bookie.service.connections.session:Session._goes_on", "self._pulse.missed()", "pass")),
        (f"{_AT_THE_BOOKIE}::test_after_standing_still_nothing_is_answered_before_a_look",),
    ),
    TestMutant(
        "replaced-bookie-writes-its-key",
        "a bookie that was replaced names itself in the witness key when it stops",
        edited(("buckram.bookie.trust.witness:Witness._look_and_publish", "if self.out:", "if False:")),
        (f"{_AT_THE_BOOKIE}::test_one_that_is_replaced_while_it_runs_serves_nothing_more_on_old_connections_neither",),
    ),
    TestMutant(
        "unfinished-start-passes",
        "a directory whose first start was cut off passes for the one that took the id over since",
        edited(
            (
                "buckram.bookie.trust.cookie:_check_unfinished",
                "if found is not None and found.value.incarnation != claimed.incarnation:",
                "if False:",
            ),
        ),
        (f"{_AT_THE_BOOKIE}::test_a_first_start_that_was_cut_off_does_not_pass_for_one_that_followed_it",),
    ),
)

"""Bugs of machines that lives in the simulator reach too seldom."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_WAITING = "tests/state/machine/test_waiting.py"
_LEASE = "tests/streams/write/test_lease.py"

MUTANTS = (
    TestMutant(
        "ended-leader-is-asked",
        "a leader that has ended takes what it will never answer",
        edited(("buckram.state.machine.leader:Leader._check_leading", "if self.ended.done():", "if False:")),
        (f"{_WAITING}::test_nothing_waits_for_a_leader_that_has_ended",),
    ),
    TestMutant(
        "forgotten-by-a-deposed-leader",
        "a leader says by itself that nothing is known of a command, and another one leads by then",
        edited(
            (
                "buckram.state.machine.replica:Replica.execute",
                "if not isinstance(result, Outcome):",
                "if result is None:",
            )
        ),
        (f"{_WAITING}::test_a_deposed_leader_does_not_say_that_a_command_is_forgotten",),
    ),
    TestMutant(
        "room-is-lost",
        "room that was given to a command that does not use it goes to nobody",
        edited(("buckram.state.machine.leader:Leader.room", "self._loop.call_soon(self._give_room)", "pass")),
        (f"{_WAITING}::test_room_that_a_command_does_not_use_goes_to_the_next",),
    ),
    TestMutant(
        "lease-left-behind",
        "whoever gives a lease up does not wait for the request that may be about to take it",
        edited(("buckram.streams.write.lease:Lease.close", "if self._sending is not None:", "if False:")),
        (f"{_LEASE}::test_a_lease_that_is_given_up_while_it_is_taken_is_free_afterwards",),
    ),
)

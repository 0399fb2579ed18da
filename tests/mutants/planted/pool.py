"""Bugs of connections: reconnects, requests that wait for a bookie, responses."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

ENDPOINT, POOL, CONNECTION = (
    "buckram.runtime.net.pool:_Endpoint",
    "buckram.runtime.net.pool:BookiePool",
    "buckram.runtime.net.connection:Connection",
)
TROUBLE = "tests/runtime/net/test_pool_trouble.py"
IDENTITY = "tests/runtime/net/test_introductions.py"
AGAIN = f"{IDENTITY}::test_what_waits_for_a_bookie_does_not_go_to_one_that_was_born_again"
MET = f"{IDENTITY}::test_waiting_adds_go_to_the_last_incarnation_if_none_is_registered"
WAITING = "tests/runtime/net/test_pool_waiting.py"
MOVED = f"{TROUBLE}::test_a_bookie_that_moved"
GONE = f"{IDENTITY}::test_an_open_connection_of_who_is_no_longer_there_acknowledges_nothing"

MUTANTS = (
    TestMutant(
        "pool-other-forgotten",
        "the end of an abandoned connection drops its successor",
        edited((f"{POOL}._on_lost", "if endpoint.connection is connection:", "if True:")),
        (MOVED,),
    ),
    TestMutant(
        "pool-ended-stays",
        "a connection that ended is kept for its bookie",
        edited((f"{POOL}._on_lost", "endpoint.connection = None", "pass")),
        (f"{TROUBLE}::test_a_lost_connection_fails_everything_once_and_is_made_again",),
    ),
    TestMutant(
        "pool-bytes-stay",
        "bytes that waited for a connection count as waiting for ever",
        edited((f"{ENDPOINT}.connected", "self._waiting, [], 0", "self._waiting, [], self._waiting_bytes")),
        ("tests/runtime/net/test_pool.py::test_adds_of_a_lane_are_acknowledged",),
    ),
    TestMutant(
        "connection-left-cuts",
        "an abandoned connection is closed although responses are outstanding",
        edited((f"{CONNECTION}.retire", "if self._protocol.idle:", "if True:")),
        (MOVED,),
    ),
    TestMutant(
        "pool-waiting-reversed",
        "requests that waited for a connection are sent in another order",
        edited((f"{ENDPOINT}.connected", "for send, meant in waiting:", "for send, meant in reversed(waiting):")),
        (f"{WAITING}::test_what_waited_for_a_connection_leaves_in_its_order",),
    ),
    TestMutant(
        "pool-moved-is-no-loss",
        "a bookie that moved counts as the same process until all its responses have arrived",
        edited((f"{ENDPOINT}._examined", "self.losses += 1", "pass")),
        (f"{WAITING}::test_moved_bookie_counts_as_lost_while_the_old_connection_has_answers",),
    ),
    TestMutant(
        "pool-send-to-new-incarnation",
        "a queued send goes to a new incarnation of the bookie",
        edited((f"{ENDPOINT}.connected", "outcome.check_incarnation(meant)", "pass")),
        (AGAIN,),
    ),
    TestMutant(
        "pool-request-to-new-incarnation",
        "a request that waited for a connection goes to a new incarnation of the bookie",
        edited((f"{POOL}.call", "connection.check_incarnation(meant)", "pass")),
        (AGAIN,),
    ),
    TestMutant(
        "pool-met-forgotten",
        "the last incarnation is forgotten with the connection",
        edited((f"{ENDPOINT}.meant", " or self._met", "")),
        (MET,),
    ),
    TestMutant(
        "pool-unregistered-stays",
        "a connection is kept when its id no longer resolves",
        edited(
            (
                f"{ENDPOINT}._examined",
                "if address is None:",
                "if address is None:\n        return connection\n    if False:",
            )
        ),
        (GONE,),
    ),
    TestMutant(
        "follower-ends-for-good",
        "who follows something ends with the first error that nobody expected",
        edited(
            ("buckram.runtime.process.tasks:TaskScope.keep", 'self._report(f"{self._name}:{name}", error)', "raise")
        ),
        ("tests/runtime/net/test_parts.py::test_what_follows_something_begins_anew_when_it_failed",),
    ),
    TestMutant(
        "shelf-keeps-failures",
        "what could not be opened once is never opened again while it is asked for",
        edited(("buckram.runtime.process.handle_cache:HandleCache._taken", "if place.failed:", "if False:")),
        ("tests/state/db/test_opening.py::test_an_opening_that_failed_with_anything_is_tried_anew",),
    ),
)

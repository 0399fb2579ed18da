"""Bugs of the connection to ZooKeeper: the order of results, lost sessions, interrupted requests."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

MUTANTS = (
    TestMutant(
        "zookeeper-follow-late",
        "results are delivered after later changes of their node",
        edited(
            (
                "buckram.metadata.zookeeper.kazoo_link:KazooLink._drain",
                "self._arrived.popleft()",
                "self._arrived.pop()",
            )
        ),
        (
            "tests/metadata/zookeeper/test_failover.py::test_a_watch_that_was_set_before_the_loop_heard_of_the_next_connection",
        ),
        slow=True,
    ),
    TestMutant(
        "zookeeper-exists-no-node",
        "a watch of exists on an absent node is not kept",
        edited(
            (
                "buckram.metadata.zookeeper.kazoo_session:KazooSession._answered",
                "if request.watch is not None:",
                "if request.watch is not None and result.value is not None:",
            )
        ),
        ("tests/metadata/zookeeper/test_failover.py::test_what_a_watcher_raises_stops_nothing",),
    ),
    TestMutant(
        "zookeeper-lost-silent",
        "the loss of a session during a disconnection is not reported",
        edited(
            (
                "buckram.metadata.zookeeper.kazoo_session:KazooSession._reconnected",
                "if before and before != session:",
                "if False:",
            )
        ),
        (
            "tests/metadata/zookeeper/test_session.py::test_unreadable_answer_ends_the_connection_and_not_the_session_object",
        ),
    ),
    TestMutant(
        "zookeeper-watches-kept",
        "watches of the old connection are kept for the new one",
        edited(
            (
                "buckram.metadata.zookeeper.kazoo_session:KazooSession._reconnected",
                "for notify in self._watches.take_all():",
                "for notify in []:",
            )
        ),
        ("tests/metadata/zookeeper/test_session.py::test_watches_survive_a_broken_connection",),
        slow=True,
    ),
    TestMutant(
        "watch-delete-children",
        "deletion of a node does not fire watches on its list",
        edited(
            (
                "buckram.metadata.zookeeper.session:WatchTable.take",
                "(Change.CHILD, Change.DELETED)",
                "(Change.CHILD,)",
            )
        ),
        ("tests/metadata/test_watch_table.py::test_a_change_tells_those_whom_it_concerns_once",),
    ),
    TestMutant(
        "zookeeper-write-again",
        "a write whose connection ended is sent again",
        edited(
            (
                "buckram.metadata.zookeeper.kazoo_session:KazooSession._cut_off",
                "if request.kind in READS and not request.future.done():",
                "if not request.future.done():",
            )
        ),
        ("tests/metadata/zookeeper/test_session.py::test_reads_are_sent_again_and_mutations_never",),
    ),
    TestMutant(
        "zookeeper-session-any",
        "an operation for a session is sent in the next one",
        edited(
            (
                "buckram.metadata.zookeeper.kazoo_session:KazooSession._send",
                ("if request.session and request.session != (self._link.client.client_id or (0,))[0]:"),
                "if False:",
            )
        ),
        ("tests/metadata/zookeeper/test_failover.py::test_what_is_bound_to_a_session_is_not_touched_by_the_next_one",),
    ),
)

"""SQLite's own code: watches, sessions, commits."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

WORKER, TREE = "buckram.metadata.sqlite:_Worker", "buckram.metadata.sqlite_tree:SqliteTree"
INTERLEAVED = (
    "tests/metadata/test_sqlite_interleavings.py::test_stores_on_one_file_agree_with_the_model_and_miss_no_change",
)
STOPPED = (
    "tests/metadata/test_sqlite_processes.py::test_a_process_that_was_stopped_inside_a_change_stops_no_reads_and_is_named",
)

MUTANTS = (
    TestMutant(
        "sqlite-second-watch",
        "who watched before takes over the state that a later reader saw",
        edited((f"{WORKER}._arm", "if armed != token:", "if False:")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-token-after-names",
        "the state of a listing is taken after its names",
        edited((f"{TREE}.children", "rows], token", 'rows], self.token(("children", parent))')),
        INTERLEAVED,
        slow=True,
    ),
    TestMutant(
        "sqlite-list-not-touched",
        "an own change fires no watch on the list that it changes",
        edited((f"{TREE}._touch", 'self.touched["children", parent] = None', "pass")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-own-change-unseen",
        "own changes wait for a poll, which looks for those of others",
        edited((f"{WORKER}._fire_touched", "for place in places:", "for place in ():")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-row-is-life",
        "a session whose file was taken away lives as long as it has its row",
        edited((f"{TREE}._notice_lost_session", "row is None or not self._lock.intact()", "row is None")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-never-lost",
        "a session that others buried goes on",
        edited((f"{TREE}._notice_lost_session", "if row is None or not self._lock.intact():", "if False:")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-writes-when-lost",
        "a write does not look whether its session has ended",
        edited((f"{TREE}._write_all", "self._notice_lost_session()", "pass")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-not-buried",
        "what a dead session left is in the way of writes",
        edited((f"{TREE}._write_all", "self._bury(session)", "pass")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-dead-listed",
        "keys of dead sessions are listed until somebody writes",
        edited((f"{TREE}.children", "if not self._is_live(session)]", "if False]")),
        INTERLEAVED,
        slow=True,
    ),
    TestMutant(
        "sqlite-older-version",
        "a change takes every version that is not ahead",
        edited((f"{TREE}._apply", "if version != op.version:", "if version < op.version:")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-first-hears",
        "of a commit that failed the first writer hears, the others take it for done",
        edited((f"{WORKER}._do_writes", "[error] * len(writes)", "[error] + [[0]] * (len(writes) - 1)")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-reads-behind-writes",
        "reads wait behind a change that waits for another process",
        edited(
            (
                f"{TREE}._begin",
                "PRAGMA busy_timeout={int(wait_s * 1000)}",
                "PRAGMA busy_timeout={int(self._busy_timeout_s * 1000)}",
            )
        ),
        STOPPED,
    ),
    TestMutant(
        "sqlite-nobody-named",
        "who waits in vain does not hear who is in the way",
        edited(
            (
                "buckram.metadata.sqlite_holder:held_by",
                "if found and found[0] > 0 else None",
                "if found and found[0] < 0 else None",
            )
        ),
        STOPPED,
    ),
)

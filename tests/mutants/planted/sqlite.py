"""Bugs of the metadata store on SQLite: watches, sessions, commits."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

WORKER, TREE = "buckram.metadata.sqlite:_Worker", "buckram.metadata.sqlite_tree:SqliteTree"
INTERLEAVED = (
    "tests/metadata/test_sqlite_interleavings.py::test_stores_on_one_file_agree_with_the_model_and_miss_no_change",
)
STOPPED = ("tests/metadata/test_sqlite_processes.py::test_process_stopped_inside_a_write_blocks_no_reads_and_is_named",)

MUTANTS = (
    TestMutant(
        "sqlite-second-watch",
        "an older watch takes over the state of a later read",
        edited((f"{WORKER}._arm", "if armed != token:", "if False:")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-token-after-names",
        "the state of a listing is taken after its names",
        edited((f"{TREE}.children", "limit)], token", 'limit)], self.token(("children", parent))')),
        INTERLEAVED,
        slow=True,
    ),
    TestMutant(
        "sqlite-list-not-touched",
        "a change of the same store fires no watch on its list",
        edited((f"{TREE}._touch", 'self.touched["children", parent] = None', "pass")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-own-change-unseen",
        "watches of the same store's changes wait for a poll",
        edited((f"{WORKER}._fire_touched", "for place in places:", "for place in ():")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-row-is-life",
        "a session without its file lives as long as its row",
        edited((f"{TREE}._notice_lost_session", "not (known and self._lock.intact())", "not known")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-never-lost",
        "a session that others have ended goes on",
        edited(
            (
                f"{TREE}._notice_lost_session",
                "if self._lock is not None and not (known and self._lock.intact()):",
                "if False:",
            )
        ),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-writes-when-lost",
        "a write does not check whether its session has ended",
        edited((f"{TREE}._write_all", "self._notice_lost_session(self._is_own_known())", "pass")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-dead-keys-block",
        "keys of a dead session block writes",
        edited((f"{TREE}._write_all", "self._end_session(session)", "pass")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-dead-listed",
        "keys of dead sessions are listed until the next write",
        edited((f"{TREE}._rows", "if not self._is_live(session)]", "if False]")),
        INTERLEAVED,
        slow=True,
    ),
    TestMutant(
        "sqlite-older-version",
        "a change accepts any version that is not newer",
        edited((f"{TREE}._apply", "if version != op.version:", "if version < op.version:")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-first-hears",
        "after a failed commit only the first writer gets the error",
        edited((f"{WORKER}._do_writes", "[error] * len(writes)", "[error] + [[0]] * (len(writes) - 1)")),
        INTERLEAVED,
    ),
    TestMutant(
        "sqlite-reads-behind-writes",
        "reads wait for a change that waits for another process",
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
        "sqlite-holder-not-named",
        "a time-out does not name the process that holds the lock",
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

"""Planted bugs of databases for the wider lives: consistencies, copies, clocks, files, servers.

Not here: the bugs that clients and forks alone find (`mutants.py`).
"""

from __future__ import annotations

from simulator.database.mutant import Mutant
from simulator.engine.edits import edited

_DATABASE = "buckram.state.db.database:Database"
_EXECUTION = "buckram.state.db.table_engine.execution:Execution"
_FRESH = "buckram.state.machine.freshness:FreshnessQuestion"
_BACKUPS = "buckram.state.db.backups:Backups"
_WALL = "self._place.client.services.runtime.clock.wall_us() / 1e6"

WIDER: tuple[Mutant, ...] = (
    # -- consistencies ------------------------------------------------------------------------------------
    Mutant(
        "stale-by-wall-clock",
        "looks",
        "how stale a state may be is measured by the wall clock, which is set meanwhile",
        edited(
            (f"{_FRESH}.fresh", "target = self._loop.time() - at_most_s", f"target = {_WALL} - at_most_s"),
            (f"{_FRESH}._question", "asked_at, place = self._loop.time()", f"asked_at, place = {_WALL}"),
        ),
        60,
        extras=("looks",),
        clocks=True,
    ),
    Mutant(
        "fresh-as-of-the-answer",
        "looks",
        "a state counts as fresh as of the end of the question for the log's end",
        edited((f"{_FRESH}._question", "confirmed(asked_at)", "confirmed(self._loop.time())")),
        100,
        extras=("looks",),
    ),
    Mutant(
        "after-is-not-awaited",
        "looks",
        "a read after a position is answered before the replica has reached it",
        edited((f"{_DATABASE}.applied_at_least", "await self._replica.applied_at_least(offset)", "pass")),
        extras=("looks",),
    ),
    Mutant(
        "anybody-reads-as-leader",
        "looks",
        "a read of the leader is answered by any replica",
        edited((f"{_DATABASE}._query", "await replica.leading()", "replica.check_running()")),
        extras=("looks",),
    ),
    Mutant(
        "begun-before-it-has-caught-up",
        "looks",
        "a replica serves as soon as it knows the end of its log",
        edited((f"{_FRESH}.begin", "await self._applied_at_least(end)", "pass")),
        100,
        extras=("newcomer", "looks"),
    ),
    Mutant(
        "first-read-does-not-wait",
        "looks",
        "a read without bounds does not ask whether the replica has begun",
        edited((f"{_DATABASE}.query", "await self._begun()", "pass")),
        100,
        extras=("newcomer",),
    ),
    Mutant(
        "late-questions-see-an-old-state",
        "looks, R6, D7",
        "a question that came while a slow statement ran is answered from the state that was taken before",
        edited(
            (
                "buckram.state.db.table_engine.readers:Readers._work_off",
                "newest is not None and number > newest",
                "False",
            )
        ),
        100,
        extras=("looks",),
    ),
    # -- files --------------------------------------------------------------------------------------------
    Mutant(
        "deleted-files-are-read",
        "looks, R6, D7, fresh",
        "a reader keeps the files that it has opened, although others have taken their place",
        edited(
            (
                "buckram.state.db.table_engine.readers:Reading.executor",
                "while self._executor is None or self._engine.files is not self._files:",
                "while self._executor is None:",
            )
        ),
        extras=("deleter", "looks"),
    ),
    Mutant(
        "deleted-log-is-forgotten",
        "D3, looks, D7",
        "files that are made anew have the pages of the database file, without the frames of its log",
        edited(
            (
                "buckram.state.db.table_engine.wal_files:WalFiles.contents",
                "self._frames.get(number)",
                "None",
            )
        ),
        extras=("deleter",),
    ),
    # -- schema and keys ----------------------------------------------------------------------------------
    Mutant(
        "schema-known-too-long",
        "schema",
        "a leader compiles by the schema that it knew before others led",
        edited((f"{_EXECUTION}._prepare", "if self._behind and not executor.connection.in_transaction:", "if False:")),
        200,
        extras=("schema",),
    ),
    Mutant(
        "keys-stay-off",
        "keys",
        "foreign keys stay off after a transaction that had them off",
        edited((f"{_EXECUTION}._prepare", "if self._keys_off:", "if False:")),
        extras=("bank",),
    ),
    Mutant(
        "keys-are-not-looked-at",
        "keys",
        "a transaction with foreign keys off is committed whatever it leaves",
        edited((f"{_EXECUTION}.commit", "if self._keys_off:", "if False:")),
        extras=("bank",),
    ),
    # -- copies -------------------------------------------------------------------------------------------
    Mutant(
        "backup-of-two-positions",
        "copies",
        "a backup reads each page as it is by now",
        edited(
            (
                "buckram.state.db.table_engine.wal_files:Image.page",
                "self._frames.get(number)",
                "self._files._frames.get(number)",
            )
        ),
        100,
        extras=("copies",),
    ),
    Mutant(
        "backup-names-a-later-position",
        "copies",
        "a backup names the position at which it ended, not that of its state",
        edited(
            (
                f"{_DATABASE}.backup_at",
                "return offset, await write_in_thread(await image, Path(path))",
                "written = await write_in_thread(await image, Path(path))\n        return self.applied, written",
            )
        ),
        100,
        extras=("copies",),
    ),
    Mutant(
        "fork-knows-the-tokens",
        "copies",
        "a fork remembers the tokens of its source, and answers for it",
        edited(
            (
                "buckram.state.db.transfer:fork",
                "with closing(await found.engine.image(found.state.sequence)) as image:",
                "from buckram.state.db.table_engine import execution\n"
                "        execution.__dict__['SOURCE'] = [\n"
                "            execution.Receipt(*one)\n"
                "            for span in found.state.outcomes.receipts() for one in span.items()\n"
                "        ]\n"
                "        with closing(await found.engine.image(found.state.sequence)) as image:",
            ),
            (f"{_EXECUTION}.pages_group", "leadership, []", "leadership, [*globals().get('SOURCE', [])]"),
        ),
        extras=("copies",),
    ),
    Mutant(
        "copy-keeps-its-schema-cookie",
        "copies, schema",
        "a connection of a database that a file is loaded into does not read the schema again",
        edited(("buckram.state.db.transfer:_schema_after", "if page == before:", "if True:")),
        extras=("copies",),
    ),
    # -- tokens -------------------------------------------------------------------------------------------
    Mutant(
        "restored-without-tokens",
        "D6",
        "a replica that begins with a snapshot has forgotten which tokens were used",
        edited(
            (
                "buckram.state.db.commits.state_machine:DatabaseState.restore",
                "_outcomes(codec, pieces, head['outcomes'])".replace("'", '"'),
                '(_outcomes(codec, pieces, head["outcomes"]), Outcomes())[1]',
            )
        ),
        100,
        restless=True,
    ),
    Mutant(
        "tokens-by-the-clock-alone",
        "D6",
        "a token is forgotten after a day although few came after it",
        edited(("buckram.core.db.outcomes:Outcomes._expired", "or left < KEPT_ANYWAY", "")),
        100,
        extras=("days",),
    ),
    Mutant(
        "call-of-another-leadership",
        "D5",
        "a call that waits is executed under a later leadership, when it has been said to be aborted",
        edited(
            (
                "buckram.state.db.commits.write_queue:WriteQueue._execute",
                "if waiting.leader is not leader:",
                "if False:",
            )
        ),
        200,
        extras=("sleeper",),
    ),
    Mutant(
        "token-is-not-passed-on",
        "D6, D7",
        "a server that follows passes a request on without its token",
        edited(
            (
                "buckram.serve.hrana.execution:Execution._send_on",
                "for name in _PASSED_ON if name in request.headers",
                "for name in _PASSED_ON[1:] if name in request.headers",
            )
        ),
        extras=("network",),
    ),
    Mutant(
        "unanswered-is-sent-again",
        "once",
        "a request without a token whose answer was lost on its way from the leader is passed on again",
        edited(
            (
                "buckram.serve.hrana.forwarding:Forwarder.send",
                "except _NotYet as error:",
                "except (_NotYet, OSError, TimeoutError) as error:",
            ),
            (
                "buckram.serve.hrana.forwarding:Forwarder.send",
                "except _NotYet:",
                "except (_NotYet, OSError, TimeoutError):",
            ),
        ),
        extras=("network",),
    ),
    Mutant(
        "lead-lost-twice",
        "served",
        "a server that led when it was to pass a request on, and leads no more, does not know what to do with it",
        edited(("buckram.serve.hrana.execution:Execution._send_on", "with suppress(SendOn):", "with suppress():")),
        200,
        extras=("network", "sleeper"),
        restless=True,
    ),
    Mutant(
        "failed-call-shares-the-doubt",
        "D4",
        "a call that failed by itself is told the unknown outcome of the group that it was to be part of",
        edited((f"{_EXECUTION}.group", "_failed(results) == len(self._partly)", "True")),
        200,
        faults=("deafen the leader",) * 4,
        extras=("looks",),
    ),
    # -- backups and snapshots ----------------------------------------------------------------------------
    Mutant(
        "older-backup-is-recorded",
        "backups",
        "an older backup is recorded in the place of a newer one",
        edited(
            (f"{_BACKUPS}._record", "newest.offset > made.offset", "newest.offset < 0"),
        ),
        100,
        extras=("janitor",),
    ),
    Mutant(
        "claim-of-another-is-removed",
        "backups",
        "a process that gives up its claim removes that of another one",
        edited((f"{_BACKUPS}._claimed", "if found.value == self._nonce:", "if True:")),
        100,
        extras=("janitor",),
    ),
    Mutant(
        "snapshot-published-again",
        "R7",
        "a snapshot of a state that is published already is published again",
        edited(
            (
                "buckram.state.machine.snapshotter:Snapshotter._write",
                "if before and before[-1].offset >= header.offset:",
                "if False:",
            )
        ),
        100,
        restless=True,
    ),
)


__all__ = ["WIDER"]

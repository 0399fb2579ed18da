"""Lives of replicated databases: no violation, the same life twice, planted bugs that are caught, the reference."""

from __future__ import annotations

import pytest
from tests.support.soak import some_of

from buckram.core.db.group import Group, PageChange, Receipt, cut, encode_group
from buckram.core.machine import records
from buckram.core.machine.records import CommandRecord
from buckram.core.streams.records.codecs import Codec
from simulator.__main__ import main
from simulator.database.mutants import MUTANTS, written_twice
from simulator.database.plan import EXTRAS, make_database_plan
from simulator.database.reference import Reference
from simulator.database.subject import Databases, run_database_life
from simulator.engine.edits import stale

LIVES = 2
"""Of the 1000 that `make soak` runs; others with each commit."""


def test_lives_without_violation() -> None:
    for seed in some_of(range(1000), LIVES, soak=6):
        result = run_database_life(seed)
        assert not result.violations, (seed, result.plan, result.violations[0])


@pytest.mark.share(4, "broken once")
@pytest.mark.parametrize("seed", [38, 111, 243, 583, 672])
def test_lives_that_broke_a_rule_once(seed: int) -> None:
    """38: a replica was overtaken while it became the leader. 111: the last replica kept fewer snapshots than the
    others. 243: a query that comes while its replica is closed opens files that are gone. 583: a take-over that is
    asked for is tried again when the follower begins anew. 672: a query that comes while its replica is closed begins a
    thread, and one that was to end never does. All of them before there were wider actors."""
    plan = make_database_plan(seed)
    plan.extras = ()
    result = run_database_life(seed, plan=plan)
    assert not result.violations, result.violations[0]


@pytest.mark.share(6, "wider actors of databases")
@pytest.mark.parametrize("extra", EXTRAS)
def test_lives_with_one_wider_actor(extra: str) -> None:
    """Each kind of actor by itself, in a life without faults."""
    plan = make_database_plan(5)
    plan.extras, plan.cluster.faults = (extra,), []
    result = run_database_life(5, plan=plan)
    assert not result.violations, result.violations[0]


def test_a_group_that_is_written_twice_counts_once() -> None:
    result = run_database_life(5, mutant=written_twice())
    assert not result.violations, result.violations[0]
    assert result.reached["a group was void"]


def test_a_seed_decides_everything() -> None:
    assert run_database_life(5).trace_hash == run_database_life(5).trace_hash


def test_seeds_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--database", "--seed", "8"]) == 0
    assert '"lives": 1' in capsys.readouterr().out


@pytest.mark.parametrize("name", MUTANTS)
def test_bugs_can_be_planted(name: str) -> None:
    assert stale(MUTANTS[name].apply) == ""


@pytest.mark.share(8, "planted bugs in databases")
@pytest.mark.parametrize(
    "name",
    [
        "commit-before-acknowledgement",
        "own-group-applied-again",
        "failed-unit-stays",
        "group-twice",
        "token-not-recorded",
        "pages-beyond-the-end",
        "what-waits-is-aborted",
        "no-receipt-of-nothing",
        "after-is-not-awaited",
        "deleted-files-are-read",
        "deleted-log-is-forgotten",
        "keys-stay-off",
        "keys-are-not-looked-at",
        "fork-knows-the-tokens",
        "snapshot-published-again",
    ],
)
def test_a_planted_bug_is_caught(name: str) -> None:
    assert Databases().kill(name).by


class _Log:
    """Writes groups into a reference, as a leader does."""

    def __init__(self) -> None:
        self.reference = Reference()
        self.reference.append(records.encode_plain(records.SESSION, 0))
        self._next = 0

    def group(self, sequence: int, size: int, *pages: PageChange, token: str = "", limit: int = 1 << 20) -> list[bytes]:
        receipts = [Receipt(token, "[[1, null]]")] if token else []
        payload = encode_group(Group(0, sequence, size, 0, receipts, pages), Codec())  # the digest is wrong
        return list(cut(payload, 0, sequence, limit))

    def write(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.reference.append(records.encode_command(CommandRecord(0, 0, self._next, 0, payload)))
            self._next += 1


def test_the_reference_applies_groups_in_their_order() -> None:
    log = _Log()
    log.write(*log.group(1, 2, PageChange(2, [(3, b"abc")]), token="one"))
    log.write(*log.group(1, 2, PageChange(2, [(3, b"xyz")]), token="void"))
    assert log.reference.void == 1
    assert log.reference.states[-1][2][:7] == b"\0\0\0abc\0"
    log.write(*log.group(2, 1))
    assert list(log.reference.states[-1]) == [1]
    assert list(log.reference.tokens) == ["one"]
    assert log.reference.state_before(2) is log.reference.states[1]
    log.write(*log.group(3, 1, token="one"))
    assert log.reference.twice == ["one"]


def test_the_reference_joins_parts_of_one_group_only() -> None:
    log = _Log()
    data = bytes(range(256)) * 4
    parts = log.group(1, 2, PageChange(2, [(0, data)]), limit=100)
    assert len(parts) > 2
    log.write(parts[0], *log.group(1, 1))
    log.write(*parts[1:])
    assert log.reference.sequence == 1
    log.write(*log.group(2, 2, PageChange(2, [(0, data)]), limit=100))
    assert log.reference.states[-1][2][: len(data)] == data

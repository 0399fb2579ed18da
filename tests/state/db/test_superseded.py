"""A leader that was replaced while its engine is busy: its event loop goes on, and what is executed is given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from typing import NamedTuple

import pytest
from tests.state.db.kit import check_equal, image_of
from tests.support.polling import until

from buckram.errors import BuckramError, NotLeader
from buckram.namespace import Namespace
from buckram.state.db.database import Database
from buckram.state.db.table_engine import engine
from buckram.testing import Cluster

_ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
_GROUPS = 6


class Two(NamedTuple):
    """A leader, and a replica that will take over."""

    first: Database
    second: Database


@pytest.fixture
async def two(three_bookies: Cluster, ns: Namespace) -> AsyncIterator[Two]:
    async with three_bookies.client() as other, ns.database("main", stand=False) as first:
        await first.lead()
        await first.execute("CREATE TABLE item (data)")
        async with other.namespace("shop").database("main", stand=False) as second:
            yield Two(first, second)


class Held:
    """The engine's thread of a replica waits in its next statement until `go` is set."""

    def __init__(self, db: Database) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        execution = db._engine.execution
        unit = execution._unit

        def slow(*args: object) -> object:
            self.reached.set()
            assert self.go.wait(20), "the loop waits for the thread"
            return unit(*args)  # type: ignore[arg-type]  # as they came

        execution._unit = slow  # type: ignore[method-assign, assignment]


async def _write(db: Database) -> None:
    for number in range(_GROUPS):
        await db.execute("INSERT INTO item VALUES (randomblob(?))", (2000 + number,))


async def test_the_loop_goes_on_while_groups_wait_for_a_long_statement(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_MOST_QUEUED_BYTES", 3000)
    first, second = two
    held = Held(first)
    calling = asyncio.create_task(first.execute("INSERT INTO item VALUES ('never')"))
    await until(held.reached.is_set)
    await second.lead(takeover=True)
    await _write(second)
    # The tail stops when so much waits for the thread, and the loop goes on.
    await until(lambda: not first._engine._has_room())
    behind = second.applied - first.applied
    assert behind >= _GROUPS - 3
    assert first._engine._queued < 3 * 3000
    assert not held.go.is_set()
    held.go.set()
    with pytest.raises(BuckramError):
        await calling
    await check_equal(second, [first])
    assert (await second.query("SELECT count(*) FROM item")).rows == [(_GROUPS,)]
    assert first._engine._queued == 0


async def test_a_statement_that_can_never_be_committed_is_stopped(two: Two) -> None:
    first, second = two
    calling = asyncio.create_task(first.execute(f"INSERT INTO item {_ENDLESS}"))
    await until(lambda: first._writer._running is not None and not first._writer._queue.queues)
    await second.lead(takeover=True)
    await _write(second)
    async with asyncio.timeout(3):  # The statement alone would be stopped after 5 s.
        with pytest.raises(NotLeader):
            await calling
    await check_equal(second, [first])


async def test_an_open_transaction_that_can_never_be_committed_is_stopped(two: Two) -> None:
    first, second = two
    transaction = await first.begin("immediate")
    await transaction.execute("INSERT INTO item VALUES ('never')")
    endless = asyncio.create_task(transaction.execute(f"INSERT INTO item {_ENDLESS}"))
    await second.lead(takeover=True)
    await _write(second)
    async with asyncio.timeout(3):
        with pytest.raises(NotLeader):
            await endless
    with pytest.raises(BuckramError):
        await transaction.commit()
    await transaction.rollback()
    await check_equal(second, [first])
    assert (await second.query("SELECT count(*) FROM item WHERE data = 'never'")).rows == [(0,)]


async def test_an_image_is_taken_before_what_is_being_executed_is_committed(two: Two) -> None:
    first = two.first
    before, held = await image_of(first), Held(first)
    calling = asyncio.create_task(first.execute("INSERT INTO item VALUES ('later')"))
    await until(held.reached.is_set)
    taking = first._engine.image(first.groups)
    held.go.set()
    await calling
    with closing(await taking) as image:
        assert b"".join(image.pages()) == before


async def test_a_snapshot_waits_for_its_state_and_not_in_the_loop(two: Two) -> None:
    """Also a leader that was one before may have groups to apply, and a statement before them."""
    first, second = two
    held = Held(first)
    calling = asyncio.create_task(first.execute("INSERT INTO item VALUES ('never')"))
    await until(held.reached.is_set)
    await second.lead(takeover=True)
    await _write(second)
    applied = second.applied
    await second.step_down()
    await first.lead()
    await first._replica.applied_at_least(applied)
    taking = asyncio.create_task(first.snapshot())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not taking.done()
    held.go.set()
    with pytest.raises(BuckramError):
        await calling
    offset = await taking
    async with asyncio.timeout(10):
        await first.execute("INSERT INTO item VALUES (1)")
    await check_equal(first, [second])
    assert offset >= applied

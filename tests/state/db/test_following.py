"""Followers: readers beside applying, checkpoints, other leaders, and files that were changed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.state.db.kit import check_equal
from tests.support.polling import until

from buckram.core.db.group import Group
from buckram.errors import BuckramError, CommitUnknown, DatabaseFailed, NotLeader, ReplicaStopped
from buckram.namespace import Namespace
from buckram.state.db.database import Database
from buckram.state.db.table_engine import wal_files
from buckram.testing import Cluster

_ACCOUNTS = 200


async def _bank(db: Database) -> None:
    await db.lead()
    await db.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, note TEXT)")
    await db.batch(
        [("INSERT INTO account VALUES (?, 100, hex(randomblob(400)))", (number,)) for number in range(_ACCOUNTS)]
    )


async def _transfer(db: Database, number: int) -> None:
    source, target = number * 17 % _ACCOUNTS, number * 31 % _ACCOUNTS
    await db.batch(
        [
            ("UPDATE account SET balance = balance - 1, note = hex(randomblob(400)) WHERE id = ?", (source,)),
            ("UPDATE account SET balance = balance + 1 WHERE id = ?", (target,)),
        ]
    )


async def test_reads_are_never_torn_while_transactions_are_applied(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_files, "_CHECKPOINT_FRAMES", 50)  # So that the log begins anew often.
    async with ns.database("bank") as db, ns.database("bank", stand=False) as follower:
        await _bank(db)
        await follower.query("SELECT 1", consistency="stale", after=db.applied)
        done = False
        reads = 0

        async def read() -> None:
            nonlocal reads
            while not done:
                found = await follower.query(
                    "SELECT sum(balance), count(*), (SELECT sum(balance) FROM account) FROM account",
                    consistency="stale",
                )
                assert found.rows == [(100 * _ACCOUNTS, _ACCOUNTS, 100 * _ACCOUNTS)]
                reads += 1

        readers = [asyncio.create_task(read()) for _ in range(4)]
        for number in range(0, 400, 4):
            await asyncio.gather(*(_transfer(db, number + more) for more in range(4)))
        done = True
        await asyncio.gather(*readers)
        assert reads > 20
        await check_equal(db, [follower])
        for replica in (db, follower):
            assert replica._engine.files.log_frames < 400


async def test_a_reader_that_holds_an_old_state_keeps_it(ns: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_files, "_CHECKPOINT_FRAMES", 20)
    async with ns.database("bank") as db, ns.database("bank", stand=False) as follower:
        await _bank(db)
        await follower.query("SELECT 1", consistency="stale", after=db.applied)
        images = [await replica._engine.image(replica._state.sequence) for replica in (db, follower)]
        before = [list(image.pages()) for image in images]
        for number in range(60):
            await _transfer(db, number)
        await db.execute("DELETE FROM account WHERE id > 20")
        await db.execute("VACUUM")
        await check_equal(db, [follower])
        assert [list(image.pages()) for image in images] == before
        for image in images:
            image.close()
        for number in range(30):
            await _transfer(db, number)
        await check_equal(db, [follower])


async def test_a_leader_that_is_fenced_commits_nothing_more(three_bookies: Cluster, ns: Namespace) -> None:
    async with three_bookies.client() as other, ns.database("bank") as db:
        await _bank(db)
        async with other.namespace("shop").database("bank", stand=False) as second:
            stop = False
            unknown: list[CommitUnknown] = []

            async def work(number: int) -> None:
                while not stop:
                    try:
                        await _transfer(db, number)
                    except CommitUnknown as error:
                        unknown.append(error)
                    except NotLeader:
                        await until(lambda: stop or db.role == "leader")

            workers = [asyncio.create_task(work(number)) for number in range(8)]
            for leader in (second, db, second):
                await leader.lead(takeover=True)
                await until(lambda leader=leader: leader.role == "leader")
                await leader.execute("UPDATE account SET note = '' WHERE id = 1")
            stop = True
            await asyncio.gather(*workers)
            async with second.transaction() as transaction:
                sums = await transaction.execute("SELECT sum(balance) FROM account")
            assert sums.rows == [(100 * _ACCOUNTS,)]
            await check_equal(second, [db])
            for error in unknown:
                assert await second.outcome(error.token) in ("committed", "aborted")


async def test_an_open_transaction_of_a_leader_that_is_fenced_is_rolled_back(
    three_bookies: Cluster, ns: Namespace
) -> None:
    async with three_bookies.client() as other, ns.database("bank", stand=False) as db:
        await _bank(db)
        async with other.namespace("shop").database("bank", stand=False) as second:
            transaction = await db.begin()
            await transaction.execute("UPDATE account SET balance = 0")
            await second.lead(takeover=True)
            await second.execute("UPDATE account SET note = 'new' WHERE id = 1")
            with pytest.raises(BuckramError):
                await transaction.commit()
            await transaction.rollback()
            await check_equal(second, [db])
            assert (await db.query("SELECT note FROM account WHERE id = 1", consistency="stale")).rows == [("new",)]


async def test_a_replica_whose_pages_were_changed_stops_and_says_where(ns: Namespace) -> None:
    async with ns.database("bank") as db, ns.database("bank", stand=False) as follower:
        await _bank(db)
        await follower.query("SELECT 1", consistency="stale", after=db.applied)
        files = follower._engine.files
        files.checkpoint()
        files._cached.clear()
        os.pwrite(files._file, b"changed", 3 * 4096 + 2000)
        for number in range(40):
            await _transfer(db, number)
        await until(lambda: follower.role == "stopped")
        with pytest.raises((DatabaseFailed, ReplicaStopped), match="differ from the leader's"):
            await follower.query("SELECT 1", consistency="stale")
        async with ns.database("bank", stand=False) as again:
            await check_equal(db, [again])


async def test_how_new_a_read_is(ns: Namespace) -> None:
    async with ns.database("bank") as db, ns.database("bank", stand=False) as follower:
        await _bank(db)
        count = "SELECT count(*) FROM account"
        assert (await follower.query(count, consistency="stale", at_most_s=0)).rows == [(_ACCOUNTS,)]
        with pytest.raises(NotLeader):
            await follower.query(count)
        with pytest.raises(NotLeader):
            await follower.query(count, consistency="leader")
        assert (await db.query(count, consistency="leader")).rows == [(_ACCOUNTS,)]
        with pytest.raises(BuckramError, match="choose"):
            await db.query(count, consistency="soon")  # type: ignore[arg-type]
        with pytest.raises(BuckramError, match="seconds"):
            await db.query(count, consistency="stale", at_most_s=-1)
        described = await follower.describe("SELECT id, balance + 1 AS more FROM account WHERE id = :id")
        assert described.columns == ("id", "more")
        assert described.declared == ("INTEGER", None)
        assert (described.parameters, described.read_only) == (("id",), True)


async def test_a_replica_that_was_just_opened_answers_from_nothing_older_than_its_opening(
    ns: Namespace, tmp_path: Path
) -> None:
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, text TEXT)")
        for _ in range(30):
            await asyncio.gather(*(db.execute("INSERT INTO item (text) VALUES (hex(randomblob(400)))") for _ in "1234"))
        async with ns.database("main", stand=False) as first:
            await first.query("SELECT 1", consistency="stale", after=db.applied)  # Now readers can have all of it.
        for number in range(4):
            async with ns.database("main", stand=False) as follower:
                if number % 2:
                    assert (await follower.describe("SELECT id, text FROM item")).columns == ("id", "text")
                found = await follower.query("SELECT count(*) FROM item", consistency="stale")
                assert found.rows == [(120,)]
            async with ns.database("main", stand=False) as follower:
                await follower.backup(tmp_path / f"{number}.db")
            with closing(sqlite3.connect(tmp_path / f"{number}.db")) as copy:
                assert copy.execute("SELECT count(*) FROM item").fetchall() == [(120,)]


@pytest.mark.parametrize("pages", [1000, 2**32 - 1])
async def test_a_group_adds_no_more_pages_than_it_has(ns: Namespace, pages: int) -> None:
    """Each of them would be looked at, by every replica and in each snapshot; who may append can write any number."""
    async with ns.database("bank") as db, ns.database("bank", stand=False) as follower:
        await _bank(db)
        await follower.query("SELECT 1", consistency="stale", after=db.applied)
        engine = follower._engine
        engine.apply(db.applied, Group(1, engine.sequence + 1, pages, engine.digest, [], []))
        await until(lambda: follower.role == "stopped")
        with pytest.raises(DatabaseFailed, match=f"makes {pages} pages"):
            await follower.query("SELECT 1", consistency="stale")

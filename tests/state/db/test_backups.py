"""Backups by policy: made when they are due, verified, written down, and nothing else goes; whoever fails or is killed
leaves the old ones."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from buckram.cluster import Client, connect
from buckram.config import EncryptionConfig
from buckram.core.db.backups import Backup, BackupFile, BackupRecord, encode_kept, file_name, files_of
from buckram.core.streams.external.history import UNFINISHED
from buckram.errors import InvalidArgument
from buckram.namespace import Namespace
from buckram.state.db import backups
from buckram.state.db.backups import Backups, read_kept
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.janitor_report import JanitorReport
from buckram.streams.shared.locations import FileLocation
from buckram.testing import Cluster

EVERY_S = 3600.0


class Shop:
    """The database shop/main with a policy, and a janitor whose place `nightly` is a directory."""

    def __init__(self, client: Client, ns: Namespace, root: Path) -> None:
        self.client, self.ns, self.root = client, ns, root
        root.mkdir()
        self.places = {"nightly": str(root)}
        self.backups = Backups(client, self.places)

    async def create(self, **policy: Any) -> None:
        wanted = {"backup_every_s": EVERY_S, "backup_to": "nightly", "backup_keep": 3, **policy}
        await self.ns.create_database("main", **wanted)
        await self.write("CREATE TABLE item (id INTEGER PRIMARY KEY, data)")
        await self.write("INSERT INTO item (data) VALUES (randomblob(20000))")

    async def write(self, sql: str = "INSERT INTO item (data) VALUES ('more')") -> None:
        async with self.ns.database("main", create=False) as db:
            await db.lead()
            await db.execute(sql)

    async def clean(self, by: Backups | None = None) -> JanitorReport:
        return await Janitor(self.client, JanitorSettings(grace_s=0, orphans=False), by or self.backups).clean()

    async def again(self) -> JanitorReport:
        """A pass of a janitor that was just started: it waits for nothing."""
        return await self.clean(Backups(self.client, self.places))

    async def made(self) -> Path:
        """Have a backup made; returns its file."""
        report = await self.again()
        assert (report.backups, report.problems) == (1, [])
        return self.directory / (await self.newest()).file

    async def uid(self) -> str:
        return (await self.ns.info("main")).uid

    async def kept(self) -> BackupRecord:
        return await read_kept(self.ns.store, await self.uid())

    async def newest(self) -> Backup:
        newest = (await self.kept()).newest
        assert newest is not None
        return newest

    @property
    def directory(self) -> Path:
        return self.root / "shop" / "main"

    def files(self) -> list[str]:
        return sorted(os.listdir(self.directory)) if self.directory.exists() else []

    async def let_pass(self, seconds: float = EVERY_S) -> None:
        """As if the backups had been made so much earlier."""
        uid, past = await self.uid(), round(seconds * 1_000_000)
        for one in files_of(uid, self.files()):
            (self.directory / one.name).rename(self.directory / _earlier(uid, one, past))
        kept = await self.kept()
        if kept.newest is not None:
            older = kept.newest._replace(time=kept.newest.time - past)
            older = older._replace(file=file_name(uid, older.offset, older.time, older.sha256))
            key = self.ns.store.layout.backup(uid)
            version = (await self.ns.store.keys.get(key)).version
            await self.ns.store.keys.set(key, encode_kept(BackupRecord(older, kept.trouble, kept.since)), version)


def _earlier(uid: str, one: BackupFile, by: int) -> str:
    return file_name(uid, one.offset, one.time - by, one.digest)


@pytest.fixture
def shop(client: Client, ns: Namespace, tmp_path: Path) -> Shop:
    return Shop(client, ns, tmp_path / "place")


def rows_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found: int = connection.execute("SELECT count(*) FROM item").fetchone()[0]
        return found


# -- what a policy gets -----------------------------------------------------------------------------------


async def test_a_backup_is_made_when_it_is_due_and_comes_back(shop: Shop, ns: Namespace) -> None:
    await shop.create()
    file = await shop.made()
    newest = await shop.newest()
    assert shop.files() == [file.name]
    assert (newest.uid, newest.place, newest.bytes) == (await shop.uid(), "nightly", file.stat().st_size)
    assert file.name == file_name(newest.uid, newest.offset, newest.time, newest.sha256)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == newest.sha256
    assert (await shop.again()).backups == 0
    await shop.write()
    assert (await shop.again()).backups == 0, "it is not due"
    await shop.let_pass()
    second = await shop.made()
    assert len(shop.files()) == 2
    assert [rows_of(shop.directory / name) for name in shop.files()] == [1, 2]
    await ns.restore_database(str(second), "again")
    async with ns.database("again", create=False) as db:
        await db.lead()
        assert (await db.query("SELECT count(*) FROM item")).rows == [(2,)]
    assert (await ns.verify_database("again")).faults == ()


async def test_the_newest_stay_and_no_other_file_is_touched(shop: Shop) -> None:
    await shop.create(backup_keep=2)
    shop.directory.mkdir(parents=True)
    others = ["README", file_name("0123456789abcdef", 1, 1, "ab" * 32), "main.db", ".mine.unfinished"]
    for name in others:
        (shop.directory / name).write_text("mine")
    for rows in range(1, 5):
        assert rows_of(await shop.made()) == rows
        await shop.write()
        await shop.let_pass()
    ours = [one.name for one in files_of(await shop.uid(), shop.files())]
    assert [rows_of(shop.directory / name) for name in ours] == [3, 4]
    assert set(shop.files()) == {*others, *ours}
    await shop.ns.set_policy("main", backup_keep=1)
    await shop.made()
    assert len(files_of(await shop.uid(), shop.files())) == 1


async def test_only_databases_with_a_policy_are_backed_up(shop: Shop, client: Client, ns: Namespace) -> None:
    await client.namespaces.set("shop", backup_every_s=EVERY_S, backup_to="nightly")
    await ns.create("records")
    await ns.create_machine_log("machine")
    await ns.create_database("main")
    await ns.create_database("cache", backup_every_s=0)
    report = await shop.again()
    assert (report.backups, report.problems) == (1, [])
    assert [path.name for path in (shop.root / "shop").iterdir()] == ["main"]
    await ns.set_policy("main", backup_every_s=0)
    await shop.let_pass()
    assert (await shop.again()).backups == 0
    assert (await shop.kept()).newest is not None


async def test_a_policy_that_names_a_location_is_refused(ns: Namespace, client: Client) -> None:
    with pytest.raises(InvalidArgument, match="only operators say where places are"):
        await ns.create_database("main", backup_to="/etc")
    await ns.create_database("main")
    with pytest.raises(InvalidArgument, match="backup_to"):
        await ns.set_policy("main", backup_to="s3://bucket/mine")
    with pytest.raises(InvalidArgument, match="backup_to"):
        await client.namespaces.set("shop", backup_to="../up")


async def test_a_database_that_was_made_anew_has_backups_of_its_own(shop: Shop, ns: Namespace) -> None:
    await shop.create(backup_keep=1)
    old = await shop.made()
    uid = await shop.uid()
    await ns.delete("main", purpose="database")
    assert old.exists(), "a backup outlives its database"
    layout = ns.store.layout
    assert await ns.store.keys.children(layout.data(uid)) == []
    await shop.create(backup_keep=1)
    new = await shop.made()
    assert shop.files() == sorted([old.name, new.name])
    await shop.write()
    await shop.let_pass()
    newest = await shop.made()
    assert shop.files() == sorted([old.name, newest.name])


async def test_another_place_gets_a_backup_at_once(shop: Shop, tmp_path: Path) -> None:
    await shop.create()
    first = await shop.made()
    (tmp_path / "other").mkdir()
    shop.places["weekly"] = f"file://{tmp_path}/other"
    await shop.ns.set_policy("main", backup_to="weekly")
    assert (await shop.again()).backups == 1
    assert (await shop.newest()).place == "weekly"
    assert first.exists()
    assert len(list((tmp_path / "other" / "shop" / "main").iterdir())) == 1


async def test_a_place_may_be_any_that_fsspec_knows(shop: Shop, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    shop.places["nightly"] = f"memory://{tmp_path}/bucket"
    await shop.create(backup_keep=1)
    for rows in (1, 2):
        assert (await shop.again()).problems == []
        newest = await shop.newest()
        place = FileLocation(f"memory://{tmp_path}/bucket/shop/main")
        assert place.names() == [newest.file]
        copy = tmp_path / "copy.db"
        copy.write_bytes(place.read(newest.file, -1))
        assert rows_of(copy) == rows
        await shop.write()
        key = shop.ns.store.layout.backup(newest.uid)
        await shop.ns.store.keys.delete(key, (await shop.ns.store.keys.get(key)).version)
        store = MemoryFileSystem()
        path = f"{tmp_path}/bucket/shop/main/"
        store.mv(
            path + newest.file, path + file_name(newest.uid, newest.offset, newest.time - 4_000_000_000, newest.sha256)
        )


# -- several, and killed ----------------------------------------------------------------------------------


async def test_two_janitors_at_once_make_one(shop: Shop, client: Client) -> None:
    await shop.create()
    both = [Backups(client, shop.places) for _ in range(2)]
    reports = await asyncio.gather(*(shop.clean(one) for one in both))
    assert [problem for report in reports for problem in report.problems] == []
    assert sum(report.backups for report in reports) == 1
    assert len(shop.files()) == 1


async def test_a_database_that_another_janitor_works_on_is_left_to_it(shop: Shop, client: Client) -> None:
    await shop.create()
    keys, claim = client.services.store.keys, shop.ns.store.layout.backup_claim(await shop.uid())
    await keys.create(claim, b"another one", ephemeral=True)
    report = await shop.again()
    assert (report.backups, report.problems, shop.files()) == (0, [], [])
    assert (await keys.get(claim)).value == b"another one"
    await keys.set(claim, shop.backups._nonce, 0)  # It was ours: the reply to the deletion was lost.
    assert (await shop.clean()).backups == 1


class Crash(BaseException):
    """The process ends here."""


def crash_in(patched: pytest.MonkeyPatch, step: str) -> None:
    """End the process at this step, which is carried out before unless only half of it is."""
    if step == "half a file":

        def half(source: Any, target: Any, length: int) -> None:
            target.write(source.read(5000))
            raise Crash

        patched.setattr(shutil, "copyfileobj", half)
        patched.setattr(os, "unlink", partial(_unlink_others, os.unlink))
        return
    owner: Any = {"made": backups, "put": FileLocation, "recorded": Backups}[step]
    name = {"made": "_check_integrity", "put": "put", "recorded": "_record"}[step]
    real = getattr(owner, name)

    def crashing(*given: Any) -> None:
        real(*given)
        raise Crash

    async def crashing_later(*given: Any) -> None:
        await real(*given)
        raise Crash

    patched.setattr(owner, name, crashing_later if step == "recorded" else crashing)


def _unlink_others(real: Any, path: Any, **more: Any) -> None:
    """Nobody is left who could remove what is unfinished."""
    if not str(path).endswith(UNFINISHED):
        real(path, **more)


@pytest.mark.parametrize("step", ["made", "half a file", "put", "recorded"])
async def test_a_crash_after_each_step(shop: Shop, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await shop.create(backup_keep=1)
    old = await shop.made()
    await shop.write()
    await shop.let_pass()
    (old,) = shop.directory.iterdir()
    with monkeypatch.context() as patched:
        crash_in(patched, step)
        with pytest.raises(Crash):
            await shop.again()
    assert rows_of(old) == 1, "the old one stays until the new one is written down"
    recorded, there = (await shop.newest()).file, files_of(await shop.uid(), shop.files())
    assert (recorded != old.name) is (step == "recorded")
    assert len(there) == (2 if step in ("put", "recorded") else 1)
    assert len(shop.files()) - len(there) == (step == "half a file")
    report = await shop.again()
    assert report.problems == []
    assert report.backups == (step in ("made", "half a file")), "a file that was whole counts"
    if step == "recorded":  # The next one takes the old ones along.
        await shop.let_pass()
        await shop.made()
    (only,) = shop.files()
    assert (await shop.newest()).file == only
    assert rows_of(shop.directory / only) == 2


@pytest.mark.parametrize("fault", ["pages", "rows"])
async def test_a_file_that_is_found_counts_only_without_faults(
    shop: Shop, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.create()
    with monkeypatch.context() as patched:
        crash_in(patched, "put")
        with pytest.raises(Crash):
            await shop.again()
    (found,) = shop.directory.iterdir()
    if fault == "pages":
        damage(found)
    else:  # SQLite finds nothing wrong with it.
        with closing(sqlite3.connect(found)) as connection:
            connection.execute("UPDATE item SET data = 'other'")
            connection.commit()
    await shop.write()
    new = await shop.made()
    assert new != found
    assert rows_of(new) == 2
    assert found.exists(), "whoever looks into it may want it"


def damage(path: Path) -> None:
    """Overwrite the second page, with which the table begins."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)


# -- what fails -------------------------------------------------------------------------------------------


async def failed(shop: Shop, says: str) -> None:
    """A pass fails, says why, and has it written down; the backup before stays."""
    before, newest = shop.files(), await shop.newest()
    report = await shop.again()
    assert report.backups == 0
    (problem,) = report.problems
    assert problem.startswith("backup of shop/main: ")
    assert says in problem
    kept = await shop.kept()
    assert says in kept.trouble
    assert kept.newest == newest
    assert shop.files() == before


async def repaired(shop: Shop) -> None:
    await shop.made()
    assert (await shop.kept()).trouble == ""


async def test_a_place_that_is_unknown(shop: Shop) -> None:
    await shop.create()
    await shop.made()
    await shop.ns.set_policy("main", backup_to="offsite")
    await failed(shop, "backup_to = 'offsite', and the janitor has no place of this name (it has: nightly)")
    await shop.ns.set_policy("main", backup_to="nightly")
    await shop.let_pass()
    await repaired(shop)
    await shop.ns.set_policy("main", backup_to="")
    await failed(shop, "backup_to names no place")


async def test_a_place_that_is_away_is_not_made(shop: Shop) -> None:
    await shop.create()
    await shop.made()
    await shop.let_pass()
    away = shop.root.with_name("away")
    shop.root.rename(away)
    report = await shop.again()
    assert report.backups == 0
    assert f"{shop.root} is away: there is no such directory" in report.problems[0]
    assert not shop.root.exists()
    away.rename(shop.root)
    assert "is away" in (await shop.kept()).trouble
    await repaired(shop)


async def test_a_place_that_cannot_be_written(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    await shop.create()
    await shop.made()
    await shop.let_pass()

    def full(source: Any, target: Any, length: int) -> None:
        target.write(source.read(5000))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfileobj", full)
        await failed(shop, f"cannot be written to {shop.directory}: OSError: [Errno 28] No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", partial(_refuse_below, shop.root, open))
        await failed(shop, f"cannot be written to {shop.directory}: OSError: [Errno 30] Read-only file system")
    await repaired(shop)


def _refuse_below(root: Path, real: Any, path: Any, mode: str = "r", *more: Any, **others: Any) -> Any:
    if str(path).startswith(str(root)) and "w" in mode:
        raise OSError(errno.EROFS, "Read-only file system")
    return real(path, mode, *more, **others)


async def test_a_file_that_comes_back_with_other_bytes(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    await shop.create(backup_keep=1)
    await shop.made()
    await shop.let_pass()
    (old,) = shop.files()
    put = FileLocation.put

    def damaging(place: FileLocation, file: str, source: str) -> None:
        put(place, file, source)
        damage(shop.directory / file)

    with monkeypatch.context() as patched:
        patched.setattr(FileLocation, "put", damaging)
        report = await shop.again()
    assert (report.backups, len(report.problems)) == (0, 1)
    assert "with other bytes than were written" in report.problems[0]
    assert shop.files() == [old], "nobody takes the other one for a backup"
    assert (await shop.newest()).file == old
    await shop.let_pass()
    await repaired(shop)


async def test_a_failure_is_not_repeated_in_every_pass_and_is_told_in_each(shop: Shop) -> None:
    await shop.create(backup_to="offsite")
    first = await shop.clean()
    assert len(first.problems) == 1
    await shop.ns.set_policy("main", backup_to="nightly")
    assert (await shop.clean()).problems == first.problems
    shop.backups._waiting = {uid: (0.0, why) for uid, (_, why) in shop.backups._waiting.items()}
    assert (await shop.clean()).backups == 1
    assert (await shop.clean()).problems == []


async def test_what_is_written_down_and_cannot_be_read_is_told(shop: Shop) -> None:
    await shop.create()
    key = shop.ns.store.layout.backup(await shop.uid())
    await shop.ns.store.keys.create(key, b"?")
    report = await shop.again()
    assert (report.backups, len(report.problems)) == (0, 1)
    assert f"{key}: not what is known of a database's backups" in report.problems[0]


async def test_nothing_is_made_by_age_while_the_time_is_in_doubt(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    await shop.create()
    await shop.made()
    await shop.write()
    await shop.let_pass()

    async def doubt() -> str:
        return "the bookies tell another time"

    with monkeypatch.context() as patched:
        patched.setattr(shop.client.services.clocks, "doubt", doubt)
        report = await shop.again()
    assert report.backups == 0
    assert report.problems == ["what goes by age: the bookies tell another time"]
    await shop.made()


async def test_what_is_encrypted_does_not_leave_the_cluster(
    shop: Shop, three_bookies: Cluster, ns: Namespace, tmp_path: Path
) -> None:
    keys = tmp_path / "shop.keys"
    keys.touch(mode=0o600)
    keys.write_text(f"{'ab' * 32}\n")
    encryption = EncryptionConfig(keys=str(tmp_path / "{namespace}.keys"))
    async with connect(three_bookies.uri, encryption=encryption) as client:
        secret = Shop(client, client.namespace("shop"), tmp_path / "plain")
        await secret.create()
        report = await secret.again()
    assert report.backups == 0
    assert "are encrypted, and backups outside the cluster would not be" in report.problems[0]
    assert secret.files() == []


async def test_a_newer_record_of_another_janitor_stays(shop: Shop) -> None:
    await shop.create()
    await shop.made()
    newest = await shop.newest()
    await shop.backups._record(newest.uid, newest._replace(offset=newest.offset - 1, time=newest.time + 1))
    assert await shop.newest() == newest


async def test_a_pass_begins_with_the_oldest_and_ends_after_a_while(
    shop: Shop, ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.create()
    await shop.made()
    await shop.let_pass()
    await ns.create_database("another", backup_every_s=EVERY_S, backup_to="nightly")
    monkeypatch.setattr(backups, "PASS_S", 0.0)
    begun: list[str] = []
    attempt = Backups._attempt

    async def noted(self: Backups, one: Any, report: JanitorReport) -> None:
        begun.append(one.name.stream)
        await attempt(self, one, report)

    monkeypatch.setattr(Backups, "_attempt", noted)
    for _ in range(2):
        await shop.again()
    assert begun == []
    monkeypatch.setattr(backups, "PASS_S", 600.0)
    await shop.again()
    assert begun == ["another", "main"]

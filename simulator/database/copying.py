"""Copies under load: backups of replicas and of the log, databases restored or forked from them, and their use.

A copy has the pages of one state, that of the position which it names. It is a database of its own: it knows none of
the tokens of its source, so a call under such a token is executed in it, once.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from buckram.cluster import Client
from buckram.errors import BuckramError, DatabaseBusy, SqlError
from buckram.namespace import Namespace
from buckram.state.db.database import Database
from buckram.state.db.transfer import load
from simulator.database.asking import Asking
from simulator.database.reading import READ
from simulator.database.rules import DATABASE
from simulator.database.stage import Stage
from simulator.engine.world import Died
from simulator.machine.faults import MACHINE, NAMESPACE

_COOKIE = slice(40, 44)
"""The bytes of page 1 that change with the schema (SQLite's file format)."""
_TROUBLE = (BuckramError, TimeoutError, Died, KeyError)


class CopyActor:
    """Makes copies of all kinds, and uses them."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world, self.rules, self.report = stage, stage.world, stage.rules, stage.world.report
        self._asking = Asking(stage, "copies")
        self.rng: random.Random = self._asking.rng
        self.host = "k9"
        self._made = 0

    async def run(self) -> None:
        while not self.stage.over and self._made < 6:
            await asyncio.sleep(0.3 + self.rng.random() * 1.5)
            self._made += 1
            kind = self.rng.choice(("of a replica", "of a replica", "of the log", "fork", "restore", "load"))
            try:
                if kind == "of a replica":
                    await self._back_up_replica()
                else:
                    client = await self.world.client(self.host)
                    process = self.world.processes[self.host]
                    work = self._with_client(client, kind, f"copy-{self._made}")
                    await self.world.join(process, work, kind)
            except _TROUBLE as error:
                self.world.trace.note("copies", f"{kind}: {error!r}")

    def _path(self) -> Path:
        return self.stage.directory / f"backup-{self._made}.db"

    async def _back_up_replica(self) -> None:
        if not self.stage.living():
            return
        path, host = self._path(), self.rng.choice(self.stage.living())
        offset, _ = await self._asking.ask_at(host, lambda database: database.backup_at(path), 6.0)
        self._check_file(path, offset)
        self.report.situation("a replica was backed up under load")

    def _check_file(self, path: Path, offset: int) -> None:
        """Check that a file has the pages of the state at this position."""
        wanted = b"".join(self.rules.reference.state_before(offset).values())
        found = path.read_bytes()
        self.report.check("copies", found == wanted, "a backup that names {} has other pages", offset)

    async def _with_client(self, client: Client, kind: str, name: str) -> None:
        try:
            ns = client.namespace(NAMESPACE)
            if kind == "fork":
                offset = await ns.fork_database(DATABASE, name)
            else:
                path = self._path()
                offset, _ = await ns.backup_database(MACHINE, str(path))
                self._check_file(path, offset)
                self.report.situation("the log was backed up under load")
                if kind == "of the log":
                    return
                if kind == "load":
                    await self._load(ns, path, name, offset)
                    return
                await ns.restore_database(str(path), name)
            self.report.situation(f"a {kind} was used")
            await self._use(ns, name, offset)
        finally:
            await client.close()

    def _rows(self, offset: int) -> list[tuple[object, ...]]:
        reference = self.rules.reference
        return reference.rows(READ, reference.after[offset - 1] if offset else 0)

    async def _use(self, ns: Namespace, name: str, offset: int) -> None:
        """Check that a copy has the rows of its source at the position, and none of its tokens."""
        wanted = self._rows(offset)
        async with ns.database(name, create=False, directory=str(self.stage.directory)) as copy:
            await copy.lead()
            rows = await _read(copy)
            self.report.check("copies", rows == wanted, "{} of {} has {}, not {}", name, offset, rows, wanted)
            await self._repeat_token(copy, name)

    async def _repeat_token(self, copy: Database, name: str) -> None:
        """Execute a call under a token of the source: the copy has never seen it."""
        tokens = [token for token in self.rules.reference.tokens if token.startswith("token")]
        if not tokens:
            return
        token = self.rng.choice(tokens)
        said = await copy.outcome(token)
        self.report.check("copies", said == "aborted", "{} says that {} of its source is {}", name, token, said)
        for _ in range(2):
            await copy.execute("INSERT INTO lists (key, value) VALUES ('copy', 'once')", token=token)
        found = (await copy.execute("SELECT count(*) FROM lists WHERE key = 'copy'")).rows
        self.report.check("copies", found == [(1,)], "{} executes a call {} times under {}", name, found, token)
        self.report.situation("a token of its source was used in a copy")

    async def _load(self, ns: Namespace, path: Path, name: str, offset: int) -> None:
        """Load a file into an open database that has nothing, which then has all of it for those who had it open."""
        async with ns.database(name, directory=str(self.stage.directory)) as empty:
            await empty.lead()
            await _change_schema(empty, _cookie(path))
            await load(empty, path)
            wanted = self._rows(offset)
            rows = await _read(empty)
            self.report.check("copies", rows == wanted, "{} is loaded and has {}, not {}", name, rows, wanted)
            self.report.situation("a file was loaded into an open database")


def _cookie(path: Path) -> int:
    """Return the number that changes with the schema of a file."""
    return int.from_bytes(path.read_bytes()[_COOKIE], "big")


async def _read(copy: Database) -> Any:
    """Return the rows of all lists, or the error for a copy that does not have the table."""
    try:
        return (await copy.execute(READ)).rows
    except SqlError as error:
        if isinstance(error, DatabaseBusy):
            raise
        return str(error)


async def _change_schema(database: Database, times: int) -> None:
    """Change the schema of an empty database so often that its cookie is that of the file to be loaded.

    Only the change of the cookie makes the connections read the schema again.
    """
    for _ in range(times // 2):
        await database.execute("CREATE TABLE soon_gone (id INTEGER)")
        await database.execute("DROP TABLE soon_gone")
    if times % 2:
        await database.execute("VACUUM")
    await database.query("SELECT count(*) FROM sqlite_schema")


__all__ = ["CopyActor"]

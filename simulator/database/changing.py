"""Schema changes: columns and indexes that come and go under readers and writers that know the schema of before.

Whoever was told that a column is there can write it at once, whoever leads, and read it from any replica that has come
so far. Whoever was told that it is gone gets an error.
"""

from __future__ import annotations

import asyncio

from buckram.core.db.sql import SqlResult
from buckram.errors import BuckramError, DatabaseBusy, SqlError
from buckram.state.db.database import Database
from simulator.database.asking import Asking
from simulator.database.looking import Looking
from simulator.database.stage import Stage
from simulator.engine.world import Died

_TROUBLE = (BuckramError, TimeoutError, Died)
_COLUMNS = 4
"""Columns of the table beside its key, beyond which the oldest is dropped."""


class SchemaChanger:
    """Adds and drops columns of one table, and uses it at every replica."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world, self.report = stage, stage.world, stage.world.report
        self._asking = Asking(stage, "schema")
        self._looking, self.rng = Looking(self._asking), self._asking.rng
        self._serial = 0
        self._columns: list[str] = []
        self._sure = True
        """False once it is not known which columns there are."""

    async def prepare(self) -> None:
        await self._execute("CREATE TABLE wide (id INTEGER PRIMARY KEY)", 200)

    async def run(self) -> None:
        while not self.stage.over:
            await asyncio.sleep(self.rng.random() * 0.5)
            kind = self.rng.random()
            if kind < 0.35 or not self._columns:
                await self._add()
            elif kind < 0.45:
                await self._hand_over()
            elif kind < 0.7:
                await self._write(self.rng.choice(self._columns))
            else:
                await self._read_everywhere(self._columns[-1])
            if len(self._columns) > _COLUMNS:
                await self._drop(self._columns.pop(0))

    async def _add(self) -> None:
        self._serial += 1
        column = f"c{self._serial}"
        if not await self._execute(f"ALTER TABLE wide ADD COLUMN {column} TEXT DEFAULT 'new'", 40):
            self._sure = False
            return
        self._columns.append(column)
        self.report.situation("a column was added")
        if self.rng.random() < 0.4:
            await self._execute(f"CREATE INDEX by_{column} ON wide ({column})", 40)
        if self.rng.random() < 0.6:
            await self._write(column)

    async def _write(self, column: str) -> None:
        if await self._execute(f"INSERT INTO wide ({column}) VALUES ('written')", 40):
            self.report.situation("a column was written")

    async def _write_all(self) -> None:
        """Insert a row by the places of its columns: their number must be known."""
        if self._sure:
            values = ", ".join("'all'" for _ in self._columns)
            await self._execute(f"INSERT INTO wide VALUES (NULL, {values})", 40)

    async def _hand_over(self) -> None:
        """Let one replica lead and write, another one lead and add a column, and the first one lead and write again."""
        hosts = self.stage.living()
        if len(hosts) < 2:
            return
        first, second = self.rng.sample(hosts, 2)
        for host in (first, second, first):
            try:
                await self._asking.ask_at(host, lambda database: database.lead(takeover=True), 4.0)
            except (*_TROUBLE, KeyError):
                return
            if host == second:
                await self._add()
            else:
                await self._write_all()
        self.report.situation("another leader changed the schema between two writes")

    async def _drop(self, column: str) -> None:
        await self._execute(f"DROP INDEX IF EXISTS by_{column}", 40)
        if not await self._execute(f"ALTER TABLE wide DROP COLUMN {column}", 40):
            self._sure = False
            return

        async def read(database: Database) -> SqlResult:
            return await database.query(f"SELECT {column} FROM wide")

        try:
            found = await self._asking.ask(read)
        except SqlError as error:
            if not isinstance(error, DatabaseBusy):
                self.report.situation("a column was dropped")
                self.report.check("schema", "no such column" in str(error), "reading {}: {}", column, error)
        except _TROUBLE:
            return
        else:
            self.report.check("schema", False, "{} was dropped, and {} rows are read", column, len(found.rows))

    async def _execute(self, sql: str, attempts: int) -> bool:
        """Execute a statement under a token until there is an answer. It must not fail by itself."""
        self._serial += 1
        token = f"schema {self._serial}"
        for _ in range(attempts):
            try:
                await self._asking.ask(lambda database: database.execute(sql, token=token))
                return True
            except SqlError as error:
                self.report.check("schema", isinstance(error, DatabaseBusy), "{}: {}", sql, error)
            except _TROUBLE as error:
                self.world.trace.note("schema", f"{sql}: {error!r}")
            await asyncio.sleep(self.rng.random() * 0.3)
        return False

    async def _read_everywhere(self, column: str) -> None:
        """Read a column at every replica, as soon as it has come so far."""
        after = self._asking.applied

        async def read(database: Database) -> SqlResult:
            return await database.query(f"SELECT {column} FROM wide", consistency="stale", after=after)

        hosts = self.stage.living()
        self.rng.shuffle(hosts)
        for host in hosts:
            try:
                await self._asking.ask_at(host, read, 5.0)
            except SqlError as error:
                self.report.check("schema", isinstance(error, DatabaseBusy), "{} after {}: {}", host, after, error)
            except (*_TROUBLE, KeyError):
                continue
            else:
                self.report.check("schema", True)
                self.report.situation("a new column was read at a replica")


__all__ = ["SchemaChanger"]

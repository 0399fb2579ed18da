"""A bank: transfers between accounts, statements at every replica, and foreign keys that are off while a table is made
anew.

A transfer names its accounts by foreign keys. Nobody may commit one of an account that does not exist, neither in a
call, nor in a transaction that has foreign keys off, nor in a call after such a transaction.
"""

from __future__ import annotations

import asyncio
from typing import Any

from buckram.core.db.sql import SqlResult
from buckram.errors import BuckramError, CommitUnknown, DatabaseBusy, SqlError
from buckram.state.db.database import Database
from simulator.database.asking import Asking
from simulator.database.histories import ACCOUNTS
from simulator.database.looking import Bounds, Looking
from simulator.database.stage import Stage
from simulator.engine.checkers.bank import Statement, Transfer
from simulator.engine.checkers.promises import Added
from simulator.engine.world import Died

TABLES = (
    "CREATE TABLE accounts (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL)",
    "CREATE TABLE transfers (name TEXT PRIMARY KEY, source INTEGER NOT NULL REFERENCES accounts (id), "
    "target INTEGER NOT NULL REFERENCES accounts (id), amount INTEGER NOT NULL)",
    *(f"INSERT INTO accounts VALUES ({number}, {amount})" for number, amount in ACCOUNTS.items()),
)
_READ = (
    "SELECT 0, id, amount, NULL FROM accounts UNION ALL SELECT 1, source, amount, name FROM transfers ORDER BY 1, 2, 4"
)
_REMAKE = (
    "CREATE TABLE made_anew (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL)",
    "INSERT INTO made_anew SELECT id, amount FROM accounts",
    "DROP TABLE accounts",
    "ALTER TABLE made_anew RENAME TO accounts",
)
_NO_ACCOUNT = 99
_TROUBLE = (BuckramError, TimeoutError, Died)


class Banker:
    """One user of the bank."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.world, self.name = stage, stage.world, name
        self.bank, self.report = stage.rules.histories.bank, stage.world.report
        self._asking = Asking(stage, name)
        self._looking, self.rng = Looking(self._asking), self._asking.rng
        self._serial = 0

    async def prepare(self) -> None:
        """Create the tables."""
        await self._repeat(list(TABLES), "the bank's tables", 200)

    async def run(self) -> None:
        while not self.stage.over:
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.05, 0.4)))
            kind = self.rng.random()
            if kind < 0.45:
                await self._transfer()
            elif kind < 0.8:
                await self._look()
            elif kind < 0.9:
                await self._refused_transfer()
            else:
                await self._make_anew()

    def _named(self) -> str:
        self._serial += 1
        return f"{self.name} {self._serial}"

    # -- transfers ----------------------------------------------------------------------------------------

    async def _transfer(self) -> None:
        source, target = self.rng.sample(sorted(ACCOUNTS), 2)
        one = Transfer(self._named(), source, target, self.rng.randrange(1, 20))
        self.bank.made.append(one)
        began = self.world.loop.time()
        self.bank.added[one.name] = Added(one.name, began)
        done = await self._repeat(_moving(one), one.name, 40)
        if done:
            ended, asking = self.world.loop.time(), self._asking
            self.bank.added[one.name] = Added(one.name, began, ended, asking.applied, asking.answered)
            self.report.situation("money was moved")

    async def _repeat(self, statements: list[Any], token: str, attempts: int) -> bool:
        """Execute a batch under a token until there is an answer. Return whether it was committed."""
        for _ in range(attempts):
            try:
                await self._asking.ask(lambda database: database.batch(statements, token=token))
                return True
            except SqlError as error:
                self.report.check(
                    "keys", isinstance(error, DatabaseBusy), "{}: a good transfer fails: {}", token, error
                )
            except _TROUBLE as error:
                self.world.trace.note(self.name, f"{token}: {error!r}")
            await asyncio.sleep(self.rng.random() * 0.3)
        return False

    async def _refused_transfer(self) -> None:
        """Try to move money from an account that does not exist, which SQLite must refuse at any leader."""
        one = Transfer(self._named(), _NO_ACCOUNT, 1, 1)
        try:
            await self._asking.ask(lambda database: database.batch(_moving(one)))
        except SqlError as error:
            if not isinstance(error, DatabaseBusy):
                self.report.situation("a foreign key was violated and refused")
                self.report.check("keys", "FOREIGN KEY" in str(error), "{}: {}", one.name, error)
        except _TROUBLE:
            return
        else:
            self.report.check("keys", False, "{} moves money of an account that does not exist", one.name)

    async def _make_anew(self) -> None:
        """Make the accounts anew with foreign keys off; sometimes with a transfer that must keep it from committing."""
        wrong = Transfer(self._named(), _NO_ACCOUNT, 1, 1) if self.rng.random() < 0.4 else None

        async def transact(database: Database) -> None:
            transaction = await database.begin("immediate", foreign_keys=False)
            try:
                for sql in _REMAKE:
                    await transaction.execute(sql)
                if wrong is not None:
                    await transaction.execute(*_moving(wrong)[-1])
                await transaction.commit()
            finally:
                await transaction.rollback()

        try:
            await self._asking.ask(transact, 8.0)
        except CommitUnknown:
            return
        except SqlError as error:
            if not isinstance(error, DatabaseBusy):
                good = wrong is not None and "FOREIGN KEY" in str(error)
                self.report.check("keys", good, "the accounts cannot be made anew: {}", error)
                self.report.situation("a transaction with foreign keys off was refused")
            return
        except _TROUBLE:
            return
        self.report.check("keys", wrong is None, "{} is committed with foreign keys off", wrong)
        self.report.situation("a table was made anew with foreign keys off")

    # -- statements ---------------------------------------------------------------------------------------

    async def _look(self) -> None:
        hosts = self.stage.living()
        if not hosts:
            return
        bounds: Bounds = self._looking.bounds()
        found = await self._looking.ask(self.rng.choice(hosts), bounds, _READ, (), 6.0)
        if found is None:
            return
        asked, rows, position = found
        names = tuple(str(row[3]) for row in rows if row[0] == 1)
        self.bank.looks.append(asked.answered(self.world.loop.time(), names, position))
        if rows:
            balances = {int(row[1]): int(row[2]) for row in rows if row[0] == 0}
            self.bank.statements.append(Statement(asked.name, balances, names))

    async def check_end(self) -> None:
        """Check the bank at its end: nothing violates a foreign key, and all that was acknowledged is there."""

        async def question(database: Database) -> SqlResult:
            return await database.execute(
                "SELECT count(*) FROM transfers WHERE source NOT IN (SELECT id FROM accounts)"
            )

        for _ in range(100):
            try:
                found = await self._asking.ask(question)
                self.report.check("keys", found.rows == [(0,)], "{} transfers of no account", found.rows)
                return
            except _TROUBLE:
                await asyncio.sleep(0.3)


def _moving(one: Transfer) -> list[Any]:
    return [
        ("UPDATE accounts SET amount = amount - ? WHERE id = ?", (one.amount, one.source)),
        ("UPDATE accounts SET amount = amount + ? WHERE id = ?", (one.amount, one.target)),
        ("INSERT INTO transfers VALUES (?, ?, ?, ?)", (one.name, one.source, one.target, one.amount)),
    ]


__all__ = ["TABLES", "Banker"]

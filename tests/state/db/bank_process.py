"""A process of the bank: a replica that transfers money whenever it leads. It says on standard output what was done.

`leads` when it begins, `done ID` for a transfer that was committed, `maybe ID` for one of which it does not know.
"""

from __future__ import annotations

import asyncio
import sys

from buckram.cluster import connect
from buckram.errors import BuckramError, CommitUnknown, NotLeader
from buckram.state.db.database import Database

ACCOUNTS = 20
_CLIENTS = 4


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _transfer(db: Database, name: str, number: int) -> None:
    token = f"{name}-{number}"
    source, target = number % ACCOUNTS, (number * 7 + 3) % ACCOUNTS
    statements = [
        ("UPDATE account SET balance = balance - 1 WHERE id = ?", (source,)),
        ("UPDATE account SET balance = balance + 1 WHERE id = ?", (target,)),
        ("INSERT INTO transfer (id) VALUES (?)", (token,)),
    ]
    if number % 3:
        await db.batch(statements, token=token)
        return
    async with db.transaction() as transaction:
        for sql, parameters in statements:
            await transaction.execute(sql, parameters)


async def _work(db: Database, name: str, client: int) -> None:
    number = client
    while True:
        number += _CLIENTS
        try:
            await _transfer(db, name, number)
        except NotLeader:
            await db.lead()
        except CommitUnknown:
            say(f"maybe {name}-{number}")
        else:
            say(f"done {name}-{number}")


async def main(uri: str, name: str) -> None:
    async with connect(uri) as client, client.namespace("shop").database("bank", announce=name) as db:
        say("opened")
        await db.lead()
        say("leads")
        await db.batch(
            [
                "CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)",
                "CREATE TABLE IF NOT EXISTS transfer (id TEXT PRIMARY KEY)",
                *(("INSERT OR IGNORE INTO account VALUES (?, 100)", (number,)) for number in range(ACCOUNTS)),
            ]
        )
        await asyncio.gather(*(_work(db, name, number) for number in range(_CLIENTS)))


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:3]))
    except BuckramError as error:
        sys.exit(str(error))

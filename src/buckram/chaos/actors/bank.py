"""The database that actors use: its tables, transactions as SQL and as they stand in histories, requests to replicas.

A transaction is a list of operations in JSON: ["look", KEY, ...] reads the sum of all balances, the number of
transactions so far and these lists; ["append", KEY, VALUE] extends a list; ["done", NAME, FROM, TO, AMOUNT] says that
the transaction was here and moves money, unless FROM is null; ["bulk", BYTES] makes the transaction large.

Not here: who asks (`actors/customers.py`), who answers (`actors/replicas.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

DATABASE = "bank"
REPLICA_PORT = 3190
ACCOUNTS, BALANCE = 10, 100
SUM = ACCOUNTS * BALANCE
ANSWER_BYTES = 4 << 20
"""No answer is larger."""
UNREACHABLE = "Unreachable"
"""The error of an answer that did not come."""
SCHEMA: list[tuple[str, list[Any]]] = [
    ("CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance >= 0))", []),
    ("CREATE TABLE IF NOT EXISTS done (id INTEGER PRIMARY KEY, name TEXT, source INTEGER, target INTEGER, amount)", []),
    ("CREATE TABLE IF NOT EXISTS list (id INTEGER PRIMARY KEY, key TEXT NOT NULL, value TEXT NOT NULL)", []),
    ("CREATE INDEX IF NOT EXISTS list_key ON list (key)", []),
    ("CREATE TABLE IF NOT EXISTS bulk (data BLOB)", []),
    *(("INSERT OR IGNORE INTO account VALUES (?, ?)", [number, BALANCE]) for number in range(ACCOUNTS)),
]
LOOK = (
    "SELECT (SELECT sum(balance) FROM account), (SELECT count(*) FROM done),"
    " (SELECT json_group_array(json_array(key, value) ORDER BY id) FROM list"
    " WHERE key IN (SELECT value FROM json_each(?)))"
)
Operation: TypeAlias = list[Any]
Answer: TypeAlias = dict[str, Any]


def statements(operation: Operation) -> list[tuple[str, list[Any]]]:
    """An operation as SQL. Only a look gives rows, and it gives one."""
    match operation:
        case ["look", *keys]:
            return [(LOOK, [json.dumps(keys)])]
        case ["append", key, value]:
            return [("INSERT INTO list (key, value) VALUES (?, ?)", [key, value])]
        case ["bulk", size]:
            return [("DELETE FROM bulk", []), ("INSERT INTO bulk VALUES (randomblob(?))", [size])]
        case ["done", name, source, target, amount]:
            moves = [
                ("UPDATE account SET balance = balance - ? WHERE id = ?", [amount, source]),
                ("UPDATE account SET balance = balance + ? WHERE id = ?", [amount, target]),
            ]
            row = "INSERT INTO done (name, source, target, amount) VALUES (?, ?, ?, ?)", [name, source, target, amount]
            return [row, *(moves if source is not None else [])]
    raise ValueError(f"{operation!r} is no operation")


def looks(operations: Sequence[Operation], results: Sequence[Sequence[Sequence[Any]]]) -> list[dict[str, Any]]:
    """What each look of a transaction saw, of the rows of all statements; none if a repetition was answered without."""
    rows = [found[0] for found in results if found]
    wanted = [operation[1:] for operation in operations if operation[0] == "look"]
    if len(rows) != len(wanted):
        return []
    seen = list[dict[str, Any]]()
    for keys, (total, count, pairs) in zip(wanted, rows, strict=True):
        lists: dict[str, list[str]] = {key: [] for key in keys}
        for key, value in json.loads(pairs):
            lists[key].append(value)
        seen.append({"sum": total, "count": count, "lists": lists})
    return seen


async def ask(address: str, request: dict[str, Any], within_s: float) -> Answer:
    """Ask a replica. What it answers has `error`, the name of what it raised, and `text` and `token` of that; or
    `results`, the rows of each statement, and `applied`. Whoever does not answer in time is UNREACHABLE."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(host, int(port), limit=ANSWER_BYTES)
            try:
                writer.write(json.dumps(request).encode() + b"\n")
                answer: Answer = json.loads(await reader.readline())
                return answer
            finally:
                writer.close()
    except (OSError, ValueError) as error:
        return {"error": UNREACHABLE, "text": repr(error), "token": None}

"""The database that actors use: its tables, transactions as SQL and as they stand in histories, requests to replicas.

A transaction is a list of operations in JSON: ["look", KEY, ...] reads the sum of all balances, the number of
transactions so far and these lists; ["append", KEY, VALUE] extends a list; ["done", NAME, FROM, TO, AMOUNT] says that
the transaction was here and moves money, unless FROM is null; ["bulk", BYTES] makes the transaction large.

Not here: who asks (`actors/customers.py`), who answers (`actors/replicas.py`).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

from buckram.addresses import host_port

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
QUICK = "SELECT count(*) FROM account"
SLOW = (
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 600000) "
    "SELECT count(*), (SELECT sum(balance) FROM account) FROM n"
)
"""Query that takes some tenths of a second, and reads the state at its beginning."""
LOOK = (
    "SELECT (SELECT sum(balance) FROM account), (SELECT count(*) FROM done),"
    " (SELECT json_group_array(json_array(key, value) ORDER BY id) FROM list"
    " WHERE key IN (SELECT value FROM json_each(?)))"
)
_KEYS, _GENERATION_S = 3, 10.0
"""Lists that are extended at one time, and for how long: none becomes longer than a reader can hold against others."""
Operation: TypeAlias = list[Any]
Answer: TypeAlias = dict[str, Any]


def drawn_look(rng: random.Random) -> Operation:
    """Draw a look at current lists, and at an earlier one."""
    now = int(time.monotonic() // _GENERATION_S)
    keys = [f"{number}.{now}" for number in range(_KEYS)]
    return ["look", *keys, f"{rng.randrange(_KEYS)}.{now - 1}"]


def drawn(rng: random.Random, name: str, look: bool) -> list[Operation]:
    """Draw the operations of a transaction that writes; `look`: it looks first."""
    found: list[Operation] = [drawn_look(rng)] if look else []
    for number in range(rng.choice((0, 1, 1, 2, 3))):
        key = f"{rng.randrange(_KEYS)}.{int(time.monotonic() // _GENERATION_S)}"
        found.append(["append", key, f"{name}.{number}"])
    move = [*rng.sample(range(ACCOUNTS), 2), rng.randrange(1, 40)] if rng.random() < 0.6 else [None] * 3
    found.append(["done", name, *move])
    if rng.random() < 0.01:
        found.append(["bulk", rng.choice((20_000, 700_000))])
    return [*found, drawn_look(rng)] if rng.random() < 0.2 else found


def statements(operation: Operation) -> list[tuple[str, list[Any]]]:
    """Return the SQL statements of an operation. Only a look returns rows, and it returns one."""
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
    """Return what each look of a transaction saw in the rows of all statements; empty if a repetition returned no
    rows."""
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
    """Ask a replica. The answer has `error`, the name of the raised error, with its `text` and `token`; or `results`,
    the rows of each statement, and `applied`. Without an answer in time the result is UNREACHABLE."""
    host, port = host_port(address, f"replica {address!r}")
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(host, port, limit=ANSWER_BYTES)
            try:
                writer.write(json.dumps(request).encode() + b"\n")
                answer: Answer = json.loads(await reader.readline())
                return answer
            finally:
                writer.close()
    except (OSError, ValueError) as error:
        return {"error": UNREACHABLE, "text": repr(error), "token": None}

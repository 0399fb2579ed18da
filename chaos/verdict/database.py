"""State of the database at the end, read by a replica of the verdict's own. It is judged in `verdict/bank.py`."""

from __future__ import annotations

import asyncio
import functools
import tempfile
from pathlib import Path

from buckram.cluster import Client
from buckram.errors import NotLeader
from chaos.actors.bank import DATABASE
from chaos.actors.replicas import digest_of_copy
from chaos.verdict.bank import DatabaseEnd

_LEAD_S = 60.0
_NAME = "verdict"


async def read_database(client: Client) -> DatabaseEnd | None:
    """Read the database; None if it was never made. Raises errors of reading, and NotLeader: everything has to be
    readable now."""
    ns = client.namespace()
    if not await ns.exists(DATABASE):
        return None
    found = DatabaseEnd()
    async with ns.database(DATABASE, announce=_NAME) as database:
        try:
            async with asyncio.timeout(_LEAD_S):
                await database.lead(takeover=True)
        except TimeoutError:
            raise NotLeader(DATABASE, await database.leader_address() or "") from None
        tables = await database.query("SELECT count(*) FROM sqlite_schema WHERE name = 'list'")
        if tables.rows != [(1,)]:
            return None
        rows = (await database.query("SELECT name, source, target, amount FROM done ORDER BY id")).rows
        found.done = [(str(name), *numbers) for name, *numbers in rows]  # type: ignore[misc]  # three numbers
        for key, value in (await database.query("SELECT key, value FROM list ORDER BY id")).rows:
            found.lists.setdefault(str(key), []).append(str(value))
        balances = (await database.query("SELECT id, balance FROM account")).rows
        found.balances = {int(str(number)): int(str(balance)) for number, balance in balances}
    with tempfile.TemporaryDirectory(prefix="buckram-chaos-") as folder:
        copy = functools.partial(ns.backup_database, DATABASE)
        found.digest = await digest_of_copy(lambda path: copy(str(path)), Path(folder) / "copy.db")
    found.faults = list((await ns.verify_database(DATABASE)).faults)
    return found

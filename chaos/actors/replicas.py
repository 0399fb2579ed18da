"""Actors that hold a replica of the bank's database: whichever of them leads executes, all of them answer reads.

They answer one request on each connection, a line of JSON (`actors/bank.py`). In the end each has everything that was
committed, and records a digest of its file. Not here: customers (`actors/customers.py`).
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from buckram.addresses import host_port, join
from buckram.cluster import Client
from buckram.core.db.sql import SqlResult
from buckram.errors import BuckramError
from buckram.state.db.database import Database
from buckram.state.machine.settings import MachineSettings
from chaos.actors.bank import ANSWER_BYTES, DATABASE, Answer
from chaos.actors.stage import Stage

SETTINGS = MachineSettings(snapshot_commands=300, digest_commands=50)
"""Small intervals, so that a run of minutes takes many snapshots and drops much of the log."""
_LOOK_S = 0.1
_CAUGHT_UP_S = 120.0


async def hold_replica(stage: Stage) -> None:
    """Hold a replica, again and again after an error, and serve it at `stage.listen`."""
    await stage.with_clients(lambda client: _hold(stage, client))


async def _hold(stage: Stage, client: Client) -> None:
    host, port = host_port(stage.listen, f"listen {stage.listen!r}")
    record = stage.recorder.record
    async with client.namespace().database(DATABASE, announce=stage.name, settings=SETTINGS) as database:
        answer = functools.partial(_answer_one, database)
        server = await asyncio.start_server(answer, host, port, limit=ANSWER_BYTES)
        served = server.sockets[0].getsockname()
        record("opened", address=join(served[0], served[1]), offset=database.applied, groups=database.groups)
        try:
            await _watch(stage, database)
            if stage.stop.is_set():
                await _tell_end(stage, database)
        except BuckramError as error:
            record("replica-failed", what=type(error).__name__, text=str(error)[:500])
            raise
        finally:
            server.close()


async def _watch(stage: Stage, database: Database) -> None:
    """Record who leads, until the end. Raises why the replica stopped."""
    role = ""
    while not stage.stop.is_set():
        if database.role != role:
            role = database.role
            stage.recorder.record({"leader": "leads", "follower": "follows"}.get(role, role), offset=database.applied)
        if role == "stopped":
            await database.query("SELECT 1", consistency="stale")
        await stage.pause(_LOOK_S)


async def _tell_end(stage: Stage, database: Database) -> None:
    """Customers have ended: everything that is committed comes, and is what all replicas have."""
    loop = asyncio.get_running_loop()
    limit = loop.time() + _CAUGHT_UP_S
    while True:
        try:
            await database.query("SELECT 1", consistency="stale", at_most_s=0.0)
            break
        except BuckramError:
            if loop.time() > limit or database.role == "stopped":
                raise
            await asyncio.sleep(_LOOK_S)
    with tempfile.TemporaryDirectory(prefix="buckram-chaos-") as folder:
        digest = await digest_of_copy(database.backup, Path(folder) / "copy.db")
    stage.recorder.record("replica-ends", offset=database.applied, groups=database.groups, digest=digest)


async def digest_of_copy(backup: Callable[[Path], Awaitable[Any]], path: Path) -> str:
    """Return the digest of a copy of all pages."""
    await backup(path)
    return await asyncio.to_thread(lambda: hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest())


# -- requests ----------------------------------------------------------------------------------------------------------


async def _answer_one(database: Database, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        request = json.loads(await reader.readline())
        writer.write(json.dumps(await _answer(database, request)).encode() + b"\n")
        await writer.drain()
    except (OSError, ValueError):
        pass  # Whoever asked has gone, or was killed while it wrote.
    finally:
        writer.close()


async def _answer(database: Database, request: dict[str, Any]) -> Answer:
    try:
        results = await _DO[request["do"]](database, request)
    except BuckramError as error:
        return {"error": type(error).__name__, "text": str(error)[:300], "token": getattr(error, "token", None)}
    return {"results": [[list(row) for row in one.rows] for one in results], "applied": database.applied}


async def _batch(database: Database, request: dict[str, Any]) -> Sequence[SqlResult]:
    return await database.batch([(sql, values) for sql, values in request["statements"]], token=request["token"])


async def _transaction(database: Database, request: dict[str, Any]) -> Sequence[SqlResult]:
    """Statement by statement, with time between them."""
    transaction = await database.begin(request["mode"])
    try:
        found = list[SqlResult]()
        for sql, values in request["statements"]:
            found.append(await transaction.execute(sql, values))
            await asyncio.sleep(request["pause_s"])
        await transaction.commit(token=request["token"])
        return found
    finally:
        await transaction.rollback()


async def _query(database: Database, request: dict[str, Any]) -> Sequence[SqlResult]:
    ((sql, values),) = request["statements"]
    freshness = {"at_most_s": request.get("at_most_s"), "after": request.get("after")}
    return [await database.query(sql, values, consistency=request["consistency"], **freshness)]


async def _outcome(database: Database, request: dict[str, Any]) -> Sequence[SqlResult]:
    return [SqlResult(rows=[(await database.outcome(request["token"]),)])]


async def _lead(database: Database, request: dict[str, Any]) -> Sequence[SqlResult]:
    await database.lead(takeover=True)
    return []


_DO: dict[str, Callable[[Database, dict[str, Any]], Awaitable[Sequence[SqlResult]]]] = {
    "batch": _batch,
    "transaction": _transaction,
    "query": _query,
    "outcome": _outcome,
    "lead": _lead,
}

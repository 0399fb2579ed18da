"""A process with a replica of the database, made to be killed: `python -m examples.debian.replica URI NAME`.

Requests are JSON lines on its standard input, answers JSON lines on standard output; many may be under way. `Replica`
is the parent's side.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

from buckram import BuckramError, CommitUnknown, Database, NotLeader, connect
from examples.debian.load import NAMESPACE

DATABASE = "maintainers"
CREATE = (
    "CREATE TABLE IF NOT EXISTS maintainer "
    "(name TEXT PRIMARY KEY, packages INTEGER NOT NULL, entries INTEGER NOT NULL) WITHOUT ROWID"
)
ADD = (
    "INSERT INTO maintainer VALUES (?, ?, ?) ON CONFLICT (name) "
    "DO UPDATE SET packages = packages + excluded.packages, entries = entries + excluded.entries"
)
LINE_BYTES = 64 * 1024 * 1024
LOG = "replicas.log"


class Lost(Exception):
    """This replica does not lead, or its process ended: what was asked of it has happened, or it has not."""


class Replica:
    """The process, seen from the parent."""

    def __init__(self, name: str, process: Process) -> None:
        self.name, self.pid = name, process.pid
        self._process = process
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, uri: str, name: str, folder: Path) -> Replica:
        command = [sys.executable, "-m", "examples.debian.replica", uri, name]
        with (folder / LOG).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=log, limit=LINE_BYTES, start_new_session=True
            )
        return cls(name, process)

    @property
    def alive(self) -> bool:
        return not self._reading.done()

    async def ask(self, do: str, **words: Any) -> dict[str, Any]:
        """Raises Lost, and RuntimeError for what must not happen."""
        if not self.alive:
            raise Lost(f"{self.name} is dead")
        assert self._process.stdin is not None
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps({"number": number, "do": do, **words}).encode() + b"\n")
        try:
            answer = await self._waiting[number]
        finally:
            del self._waiting[number]
        if "lost" in answer:
            raise Lost(answer["lost"])
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while (line := await self._process.stdout.readline()).endswith(b"\n"):
            answer = json.loads(line)
            waiting = self._waiting.get(answer["number"])
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Lost(f"{self.name} died"))

    async def kill(self) -> None:
        """kill -9."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading

    async def stop(self) -> None:
        """It closes the database first."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()
        await self._reading


async def _answer(db: Database, asked: dict[str, Any]) -> dict[str, Any]:
    match asked["do"]:
        case "lead":
            await db.lead()
            await db.execute(CREATE)
            return {}
        case "add":
            # Repeated on another leader it must not count twice: that is what the token is for.
            known = asked["again"] and await db.outcome(asked["token"]) == "committed"
            await db.batch([(ADD, row) for row in asked["rows"]], token=asked["token"])
            return {"known": known}
        case "applied":
            return {"applied": db.applied}
        case "table":
            rows = await db.query("SELECT * FROM maintainer", consistency="stale", after=asked["after"])
            return {"rows": rows.rows, "digest": await _digest(db)}
    raise ValueError(asked["do"])


async def _digest(db: Database) -> str:
    """Of the file that SQLite would have."""
    with tempfile.TemporaryDirectory(prefix="buckram-replica-") as folder:
        path = Path(folder) / "image.db"
        await db.backup(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()


async def main(uri: str, name: str) -> None:
    requests = asyncio.StreamReader(limit=LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    serving: set[asyncio.Task[None]] = set()
    async with connect(uri) as client, client.namespace(NAMESPACE).database(DATABASE, announce=name) as db:

        async def serve(asked: dict[str, Any]) -> None:
            try:
                answer = await _answer(db, asked)
            except (NotLeader, CommitUnknown) as error:
                answer = {"lost": str(error)}
            except BuckramError as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps({"number": asked["number"], **answer}), flush=True)

        while line := await requests.readline():
            task = asyncio.create_task(serve(json.loads(line)))
            serving.add(task)
            task.add_done_callback(serving.discard)
        for task in serving:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))

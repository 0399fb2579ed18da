"""The end of the job: what Spark counted for each maintainer is added up in a replicated SQL database, whose leader is
killed on the way.

What is sent are additions, so a batch that was lost or counted twice would be seen. Batches carry tokens: one that was
under way when the leader died is sent again to the next, and counts once. Some that were acknowledged before are sent
again as well, as if their answers had been lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buckram import connect
from examples.debian.load import NAMESPACE
from examples.debian.replica import DATABASE, LOG, Lost, Replica

Row = tuple[str, int, int]
"""A maintainer, packages, changelog entries."""
Say = Callable[[str], None]

BATCHES, MOST_ROWS = 120, 200
"""So many batches, or more where they would have more rows than that."""
SENDERS = 8
SENT_AGAIN = 10
PATIENCE_S = 90.0


@dataclass
class Outcome:
    """What came of it. `different`: rows that are not as Spark counted them, on any replica."""

    rows: int = 0
    packages: int = 0
    entries: int = 0
    different: int = 0
    batches: int = 0
    sent_again: int = 0
    known: int = 0
    """Batches sent again that had been committed before the leader died: these were not added again."""
    take_over_s: float = 0.0
    """From the kill to the first batch that the next leader committed."""
    digests: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the database file of each replica."""
    faults: Sequence[str] = ()
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        return len(self.digests) == 2 and len(set(self.digests.values())) == 1 and not self.faults

    @property
    def good(self) -> bool:
        return self.rows > 0 and self.different == 0 and self.known > 0 and self.equal

    def figures(self) -> dict[str, Any]:
        return {
            "rows": self.rows, "packages": self.packages, "entries": self.entries, "different": self.different,
            "batches": self.batches, "batches_sent_again": self.sent_again, "batches_known": self.known,
            "killed_leaders": 1, "take_over_s": round(self.take_over_s, 2), "replicas_equal": self.equal,
            "digests": self.digests, "seconds": round(self.seconds, 1),
        }  # fmt: skip


def batches_of(parts: Sequence[Row]) -> list[list[Row]]:
    size = min(max(len(parts) // BATCHES, 1), MOST_ROWS)
    return [list(parts[start : start + size]) for start in range(0, len(parts), size)]


def summed(parts: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """What must be in the table."""
    found: dict[str, tuple[int, int]] = {}
    for name, packages, entries in parts:
        before = found.get(name, (0, 0))
        found[name] = before[0] + packages, before[1] + entries
    return found


async def keep(uri: str, folder: Path, parts: Sequence[Row], say: Say) -> Outcome:
    """Add up `parts`, rows of Spark, and compare."""
    began = time.monotonic()
    client = Client(uri, folder, batches_of(parts), say)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await client.work()
            outcome = await client.compare(summed(parts))
            await client.stop()
    except TimeoutError:
        raise RuntimeError(f"the database was not written and compared within {PATIENCE_S:g} s") from None
    finally:
        await client.kill()
    async with connect(uri) as reader:
        verified = await reader.namespace(NAMESPACE).verify_database(DATABASE)
    outcome.faults = verified.faults
    outcome.seconds = time.monotonic() - began
    return outcome


class Client:
    """The client, which also starts and kills the two replicas."""

    def __init__(self, uri: str, folder: Path, batches: list[list[Row]], say: Say) -> None:
        self._uri, self._folder, self._say = uri, folder, say
        self._batches: Iterator[tuple[int, list[Row]]] = iter(enumerate(batches))
        self._kill_at = len(batches) // 3
        self._outcome = Outcome(batches=len(batches))
        self._replicas: list[Replica] = []
        self._leader: Replica
        self._search: asyncio.Task[Replica] | None = None
        self._acknowledged: list[tuple[str, list[Row]]] = []
        self._killed, self._killed_at = 0, 0.0
        self._kill: asyncio.Task[None] | None = None

    async def work(self) -> None:
        for name in ("replica-1", "replica-2"):
            self._replicas.append(await Replica.start(self._uri, name, self._folder))
            await self._replicas[-1].ask("applied")
        self._leader = await self._next_leader()
        others = [one for one in self._replicas if one is not self._leader]
        self._say(f"{self._leader.name} leads the database {NAMESPACE}/{DATABASE} as process {self._leader.pid}, "
                  f"{others[0].name} follows as process {others[0].pid}")  # fmt: skip
        async with asyncio.TaskGroup() as group:
            for _ in range(SENDERS):
                group.create_task(self._send_batches())
        if self._kill is not None:
            await self._kill

    async def _send_batches(self) -> None:
        for number, rows in self._batches:
            await self._send(f"batch-{number}", rows)
            self._acknowledged.append((f"batch-{number}", rows))
            if len(self._acknowledged) >= self._kill_at and self._kill is None:
                self._kill = asyncio.create_task(self._kill_leader())

    async def _send(self, token: str, rows: list[Row], *, again: bool = False) -> None:
        """Until it is committed."""
        while True:
            leader = self._leader
            self._outcome.sent_again += again
            try:
                answer = await leader.ask("add", token=token, rows=rows, again=again)
            except Lost:
                await self._find_leader(leader)
                again = True
                continue
            self._outcome.known += answer["known"]
            if self._killed_at and leader.pid != self._killed and not self._outcome.take_over_s:
                self._outcome.take_over_s = time.monotonic() - self._killed_at
            return

    async def _find_leader(self, lost: Replica) -> None:
        """All senders wait for one search."""
        if self._leader is not lost:
            return
        if self._search is None:
            self._search = asyncio.create_task(self._next_leader())
            self._search.add_done_callback(self._found)
        await asyncio.shield(self._search)

    def _found(self, search: asyncio.Task[Replica]) -> None:
        self._search = None
        if not search.cancelled() and search.exception() is None:
            self._leader = search.result()

    async def _next_leader(self) -> Replica:
        """Whoever leads first."""
        while True:
            alive = [one for one in self._replicas if one.alive]
            if not alive:
                raise RuntimeError(f"no replica is left: {(self._folder / LOG).read_text()[-2000:]}")
            asked = {asyncio.create_task(one.ask("lead")): one for one in alive}
            try:
                done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if not isinstance(task.exception(), Lost):
                        task.result()
                        return asked[task]
            finally:
                for task in asked:
                    task.cancel()

    async def _kill_leader(self) -> None:
        """It is back with an empty disk when another one leads, and follows."""
        dead, known = self._leader, self._acknowledged[-SENT_AGAIN:]
        self._killed, self._killed_at = dead.pid, time.monotonic()
        await dead.kill()
        self._say(f"[bold red]kill -9 {dead.pid}[/bold red]: {dead.name}, the leader, "
                  f"after {len(self._acknowledged)} of {self._outcome.batches} batches")  # fmt: skip
        for token, rows in known:
            await self._send(token, rows, again=True)
        again = await Replica.start(self._uri, dead.name, self._folder)
        self._replicas[self._replicas.index(dead)] = again

    async def compare(self, want: dict[str, tuple[int, int]]) -> Outcome:
        """What both replicas have with what Spark counted, and with each other."""
        outcome, leader = self._outcome, self._leader
        self._say(f"{leader.name} took over {outcome.take_over_s:.2f} s after the kill; {outcome.sent_again} batches "
                  f"were sent again, {outcome.known} of them had been committed")  # fmt: skip
        applied = (await leader.ask("applied"))["applied"]
        for replica in self._replicas:
            found = await replica.ask("table", after=applied)
            rows = {name: (packages, entries) for name, packages, entries in found["rows"]}
            outcome.different += sum(want.get(name) != rows.get(name) for name in want.keys() | rows.keys())
            outcome.digests[replica.name] = found["digest"]
            if replica is leader:
                outcome.rows = len(rows)
                outcome.packages, outcome.entries = (sum(row[n] for row in rows.values()) for n in (0, 1))
        return outcome

    async def stop(self) -> None:
        for replica in self._replicas:
            await replica.stop()

    async def kill(self) -> None:
        """Whatever is left after an error."""
        left = [task for task in (self._kill, self._search) if task is not None and not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for replica in self._replicas:
            await replica.kill()

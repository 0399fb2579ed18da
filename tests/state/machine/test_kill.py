"""Real processes: the leader of a bank is killed (SIGKILL) again and again while tellers transfer money."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from examples.bank import Bank
from tests.support.polling import until

from buckram.namespace import Namespace
from buckram.testing import cluster

ROOT = Path(__file__).parents[3]
KILLS, TELLERS = 3, 8
ACCOUNTS, EACH = 5, 1000
SESSION_S = 2.0
"""On SQLite the end of a process ends its session; others look for that once a second."""
TAKE_OVER_S = SESSION_S + 3.0


class Replica:
    """A process with a replica, from outside."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name, self.process = name, process
        self.is_open = self.leads = False
        self._waiting: dict[int, asyncio.Future[tuple[str, Any]]] = {}
        self._number = 0
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            number, kind, value = json.loads(line)
            if number < 0:
                self.is_open, self.leads = True, kind == "leads"
            else:
                self._waiting.pop(number).set_result((kind, value))
        self.leads = False
        for future in self._waiting.values():
            future.set_result(("again", "the process died"))
        self._waiting.clear()

    async def ask(self, token: str | None, command: list[Any] | None) -> tuple[str, Any]:
        if self._reading.done():
            return "again", "the process is dead"
        self._number += 1
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        assert self.process.stdin is not None
        with suppress(ConnectionError):
            self.process.stdin.write(json.dumps([self._number, token, command]).encode() + b"\n")
        kind, value = await future
        if kind == "again":
            self.leads = self.leads and "does not lead" not in str(value)
        return kind, value

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self._reading
        await self.process.wait()


class Branch:
    """All processes with a replica. It replaces those that were killed."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.replicas: list[Replica] = []
        self.acknowledged: dict[str, list[Any]] = {}
        """By token."""
        self.last_at = 0.0

    async def start(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.state.machine.teller", self.uri, name]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
        self.replicas.append(Replica(name, process))

    def leader(self) -> Replica | None:
        return next((replica for replica in self.replicas if replica.leads), None)

    async def ask(self, token: str | None, command: list[Any] | None) -> Any:
        """The answer of whoever leads, as often as it takes."""
        while True:
            leader = self.leader()
            kind, value = await leader.ask(token, command) if leader is not None else ("again", "")
            if kind in ("ok", "refused"):
                self.last_at = time.monotonic()
                return value
            assert kind == "again", value
            dead = [replica.name for replica in self.replicas if replica.process.returncode is not None]
            assert not dead, f"{dead} died by themselves"
            await asyncio.sleep(0.01)

    async def teller(self, number: int, stop: asyncio.Event) -> None:
        rng = random.Random(number)
        while not stop.is_set():
            token = await self.ask(None, None)
            source, target = rng.sample(range(ACCOUNTS), 2)
            command = ["transfer", f"a{source}", f"a{target}", rng.randrange(1, 50)]
            result = await self.ask(token, command)
            self.acknowledged[token] = [command, result]

    async def close(self) -> None:
        for replica in self.replicas:
            if replica.process.returncode is None:
                await replica.kill()


async def test_no_transfer_is_lost_or_counts_twice_whoever_is_killed() -> None:
    async with cluster(bookies=3, metadata="sqlite") as running, running.client() as client, asyncio.timeout(90):
        await client.namespaces.create("shop")
        await _kill_leaders(Branch(running.uri), client.namespace("shop"))


async def _kill_leaders(branch: Branch, ns: Namespace) -> None:
    stop = asyncio.Event()
    took: list[float] = []
    try:
        await asyncio.gather(*(branch.start(f"teller-{number}") for number in range(2)))
        for account in range(ACCOUNTS):
            await branch.ask(None, ["open", f"a{account}", EACH])
        tellers = [asyncio.create_task(branch.teller(number, stop)) for number in range(TELLERS)]
        for kill in range(KILLS):
            enough = len(branch.acknowledged) + 30
            await until(lambda enough=enough: len(branch.acknowledged) > enough)
            leader = branch.leader()
            assert leader is not None
            # What is measured is a take-over, and not the start of a process.
            await until(lambda: all(replica.is_open for replica in branch.replicas))
            branch.replicas.remove(leader)
            await leader.kill()
            killed_at = time.monotonic()
            await until(lambda at=killed_at: branch.last_at > at)
            took.append(branch.last_at - killed_at)
            await branch.start(f"teller-{2 + kill}")
        stop.set()
        await asyncio.gather(*tellers)
        assert max(took) < TAKE_OVER_S
        # Each token again: what it gave the first time, and no transfer more.
        for token, (command, result) in random.Random(1).sample(sorted(branch.acknowledged.items()), 20):
            assert await branch.ask(token, command) == result
    finally:
        stop.set()
        await branch.close()
    async with ns.machine("bank", Bank) as machine:
        async with asyncio.timeout(TAKE_OVER_S):
            await machine.lead()
        balances, transfers = await machine.read(lambda bank: (bank.balances, bank.transfers))
    done = [command for command, result in branch.acknowledged.values() if isinstance(result, int)]
    wanted = {f"a{account}": EACH for account in range(ACCOUNTS)}
    for _, source, target, amount in done:
        wanted[source] -= amount
        wanted[target] += amount
    assert transfers == len(done)
    assert balances == wanted
    print(f"{transfers} transfers, take-overs after {[round(one, 2) for one in took]} s")

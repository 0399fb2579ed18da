"""A bank on real processes whose leader is killed: no transfer that was told is lost or doubled, the sum stays."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable
from pathlib import Path

from tests.state.db.bank_process import ACCOUNTS
from tests.state.db.kit import check_equal
from tests.support.polling import until

from buckram.testing import cluster

_ROUNDS = 3
_SECONDS = 20.0


class Teller:
    """One process of the bank, and what it has said."""

    def __init__(self, name: str, process: Process) -> None:
        self.name, self._process = name, process
        self.said: list[str] = []
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, uri: str, name: str) -> Teller:
        program = Path(__file__).with_name("bank_process.py")
        process = await asyncio.create_subprocess_exec(sys.executable, str(program), uri, name, stdout=PIPE)
        return cls(name, process)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.endswith(b"\n"):
                self.said.append(line.decode().strip())

    @property
    def leads(self) -> bool:
        return any(line.startswith("done") for line in self.said)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def kill(self) -> None:
        if self.alive:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading


def _ids(tellers: Iterable[Teller], word: str) -> list[str]:
    return [line.split()[1] for teller in tellers for line in teller.said if line.startswith(word)]


async def test_a_bank_whose_leader_is_killed_loses_nothing_and_doubles_nothing() -> None:
    tellers: list[Teller] = []
    async with cluster(bookies=3, metadata="sqlite") as running, running.client() as client:
        await client.namespaces.create("shop")
        try:
            for number in range(2):
                tellers.append(await Teller.start(running.uri, f"teller{number}"))
            for number in range(_ROUNDS):
                leader = await _leader(tellers)
                before = len(leader.said)
                await until(
                    lambda said=leader.said, before=before: len(said) > before + 30, "nothing was done", _SECONDS
                )
                await leader.kill()
                killed = time.monotonic()
                tellers.append(await Teller.start(running.uri, f"teller{number + 2}"))
                await _leader(tellers)
                assert time.monotonic() - killed < _SECONDS
        finally:
            for teller in tellers:
                await teller.kill()
        ns = client.namespace("shop")
        async with ns.database("bank") as db, ns.database("bank", stand=False) as follower:
            await db.lead()
            await check_equal(db, [follower])
            assert (await db.query("SELECT sum(balance) FROM account")).rows == [(100 * ACCOUNTS,)]
            stored = {str(row[0]) for row in (await db.query("SELECT id FROM transfer")).rows}
            done, maybe = set(_ids(tellers, "done")), set(_ids(tellers, "maybe"))
            assert len(done) > 30 * _ROUNDS
            assert done <= stored
            for token in stored:
                if int(token.rsplit("-", 1)[1]) % 3:
                    assert await db.outcome(token) == "committed"
            for token in maybe - stored:
                assert await db.outcome(token) == "aborted"


async def _leader(tellers: list[Teller]) -> Teller:
    def leaders() -> list[Teller]:
        return [teller for teller in tellers if teller.alive and teller.leads]

    await until(lambda: bool(leaders()), "nobody leads", 2 * _SECONDS)
    return leaders()[-1]

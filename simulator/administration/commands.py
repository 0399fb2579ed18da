"""An administrator who gives commands, each in a process of its own that may die at any step or hang for minutes.

A command that did not end well is given again, by another process. Not here: the commands (`departing.py`,
`resting.py`, `restoring.py`, `moving.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, Protocol, TypeVar

from buckram.cluster import Client
from buckram.errors import BuckramError
from buckram.healing.operations.dependency_check import OperationRefused
from buckram.metadata.tree.store import TreeStore
from simulator.administration.rules import OPERATOR
from simulator.administration.stage import Stage
from simulator.engine.loop import Process
from simulator.engine.world import Died, Machine

T = TypeVar("T")
WORK_S, TRIES = 90.0, 10
STUCK_S = 10.0
_DONE, _REFUSED, _FAILED = "done", "refused", "failed"


class Command(Protocol):
    """Gives one command, with what belongs to it, until it succeeds or was refused often enough."""

    def __call__(self, admin: Administrator, /) -> Awaitable[None]: ...


class Administrator:
    """Gives the commands of a life one after the other."""

    def __init__(self, stage: Stage, number: int, commands: Mapping[str, Command]) -> None:
        self.stage, self.world, self.rules = stage, stage.world, stage.rules
        self.report, self.number, self._commands = stage.world.report, number, commands
        self.rng = random.Random(f"administrator {number} {stage.admin.seed}")
        self._attempts = count(1)
        self.interrupted = False
        """True if an attempt at the present command died or hung."""

    async def run(self) -> None:
        names = list(self.stage.admin.commands)
        if self.number > 1:
            self.report.situation("two administrators at once")
            self.rng.shuffle(names)
        for name in names:
            await self.stage.nap(self.rng, self.stage.plan.busy_s)
            if self.stage.over:
                return
            self.world.trace.note("administrator", f"{self.number}: {name}")
            self.interrupted = False
            await self._commands[name](self)

    def choose(self) -> Machine | None:
        """Return a bookie for a command, which nothing else is about until `free`."""
        machine = self.stage.choose(self.rng)
        if machine is not None:
            self.stage.busy.add(machine.name)
        return machine

    def free(self, machine: Machine) -> None:
        self.stage.busy.discard(machine.name)

    # -- attempts

    async def ask(self, what: str, work: Callable[[Client], Awaitable[bool]], tries: int = TRIES) -> bool:
        """Give a command that needs a client. Return whether it succeeded."""

        async def opened(process: Process) -> bool:
            client = await self.world.client(process.name)  # in a new process of the same host
            return await self._within(self.world.processes[process.name], lambda: work(client), what)

        return await self._repeat(what, opened, tries)

    async def ask_store(
        self, what: str, work: Callable[[TreeStore, Process], Awaitable[bool]], tries: int = TRIES, *, puts_back: bool
    ) -> bool:
        """Give a command that opens the metadata store only. `puts_back`: its changes are not judged as a client's."""

        async def opened(process: Process) -> bool:
            if puts_back:
                self.rules.restorers.add(process.name)

            async def with_store() -> bool:
                return await work(
                    self.world.store(process, random.Random(f"{self.stage.admin.seed} {process.name}")), process
                )

            return await self._within(process, with_store, what)

        return await self._repeat(what, opened, tries)

    async def _within(self, process: Process, work: Callable[[], Awaitable[bool]], what: str) -> bool:
        async def in_time() -> bool:
            async with asyncio.timeout(WORK_S):
                return await work()

        if self.rng.random() < self.stage.admin.killing:
            process.crash_after(int(self.rng.random() ** 2 * 900))
        return await self.world.join(process, in_time(), what)

    async def _repeat(self, what: str, opened: Callable[[Process], Awaitable[bool]], tries: int) -> bool:
        refused = 0
        for _ in range(tries):
            if self.stage.over:
                return False
            host = f"{OPERATOR}{self.number}{what[:3]}{next(self._attempts)}"
            attempt = asyncio.create_task(self._attempt(host, what, opened), name=host)
            if self.rng.random() < self.stage.admin.hanging:
                await asyncio.wait([attempt], timeout=self.rng.random() * 4.0)
                if not attempt.done():
                    self._hang(host)
                    await asyncio.sleep(self.rng.random() * 3.0)
                    continue
            outcome = await attempt
            if outcome == _DONE:
                if self.interrupted:
                    self.report.situation("a command was killed and given again")
                return True
            refused += outcome == _REFUSED
            if refused >= 4:
                self.report.situation(f"refused: {what}")
                return False
            await asyncio.sleep(1.0 + self.rng.random() * 4.0)
        return False

    async def _attempt(self, host: str, what: str, opened: Callable[[Process], Awaitable[bool]]) -> str:
        process = self.world.process(host)
        try:
            return _DONE if await opened(process) else _FAILED
        except OperationRefused as error:
            self.world.trace.note(host, f"{what} is refused: {error}")
            return _REFUSED
        except (BuckramError, TimeoutError) as error:
            self.world.trace.note(host, f"{what}: {error!r}")
        except Died:
            self.interrupted = True
            self.world.trace.note(host, f"{what}: dies")
        finally:
            last = self.world.processes[host]
            if not last.dead:
                last.crash()
            self.rules.process_ended(host)
        return _FAILED

    def _hang(self, host: str) -> None:
        """Pause a command's process; it goes on minutes later, when another one has done its work."""
        self.interrupted = True
        self.report.situation("a command hung while another process did its work")
        self.world.pause(host)
        self.world.loop.call_later(
            30.0 + self.rng.random() * 120.0, self.world.resume, host, context=self.world.loop.world.context
        )

    def did(self, what: str) -> None:
        self.report.situation(f"done: {what}")


def quietly(progress: Any) -> None:
    """Ignore the progress of a command."""

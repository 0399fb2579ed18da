"""Clients: they execute commands on the leader, repeat them under their tokens, and read in every way.

A client is no process: it survives the replicas that it asks, as a program that wrote its tokens down does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from buckram.errors import (
    BuckramError,
    CommandForgotten,
    CommandRefused,
    CommandUnknown,
    NotLeader,
    TooStale,
)
from buckram.state.machine.machine import Machine
from simulator.engine.checkers.judge import describe
from simulator.engine.checkers.linearizability import UNKNOWN
from simulator.engine.world import Died
from simulator.machine.asking import Asking
from simulator.machine.reference import REFUSED
from simulator.machine.rules import LISTS, REGISTERS
from simulator.machine.stage import Stage
from simulator.machine.state import Book

_KEYS = 3


class ClientActor(Asking[Machine[Book]]):
    """One client."""

    answers = (CommandRefused, CommandUnknown)

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(stage, f"machines {name}")
        self.stage, self.name, self.rules = stage, name, stage.rules
        self._serial = 0
        self._values: list[str] = []

    async def run(self) -> None:
        for _ in range(self.stage.machines.commands):
            if self.stage.over:
                return
            await self.act()
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.01, 0.3, 0.8)))

    async def act(self) -> None:
        """Make one call, or a few at once."""
        kind = self.rng.random()
        if kind < 0.55:
            await asyncio.gather(*(self.command() for _ in range(self.rng.choice((1, 1, 1, 4)))))
        elif kind < 0.85:
            await self.read()
        else:
            await self.stale_read()

    # -- commands -----------------------------------------------------------------------------------------

    def _draw(self) -> tuple[list[Any], tuple[Any, ...] | None]:
        """Return a random command, and its operation in the history (None: not recorded)."""
        ident, rng = f"{self.name}.{self._serial}", self.rng
        self._serial += 1
        kind, number = rng.random(), rng.randrange(_KEYS)
        if kind < 0.08:
            return [ident, "refuse"], None
        if kind < 0.4:
            self._values.append(ident)
            return [ident, "write", f"{REGISTERS}{number}", ident], ("write", ident)
        if kind < 0.6:
            old = rng.choice([None, *self._values[-2:]])
            return [ident, "cas", f"{REGISTERS}{number}", old, ident], ("cas", old, ident)
        new = "old" in self.stage.machines.replicas and rng.random() < 0.1
        return [ident, "append2" if new else "append", f"{LISTS}{number}", ident], ("append", ident)

    async def command(self) -> None:
        """Execute a command until its outcome is known, or give it up."""
        command, operation = self._draw()
        began = self.world.loop.time()
        result = await self._execute(command)
        if result is UNKNOWN:
            self.world.report.situation("a command was given up")
        else:
            self.rules.told(command[0], result)
        if operation is not None:
            self.rules.call(self.name, operation, command[2], result, began)

    async def _execute(self, command: list[Any]) -> Any:
        """Return the command's result, REFUSED, or UNKNOWN if it was given up."""
        token = ""
        if self.rng.random() < 0.6:
            # The command has not begun before there is a token.
            token = await self._until_answered(lambda machine: machine.token())
        attempts = 0
        for _ in range(self.rng.choice((3, 40, 40))):
            try:
                attempts += 1
                if attempts == 2 and token:
                    self.world.report.situation("a command was repeated")
                return await self._attempt(command, token or None)
            except CommandRefused:
                self.world.report.situation("a command was refused")
                return REFUSED
            except CommandForgotten as error:
                self.rules.report.check("R4", False, "{}: {}", command[0], error)
                return UNKNOWN
            except CommandUnknown as error:
                token = token or error.token
            except NotLeader:
                pass
            except (BuckramError, TimeoutError, Died) as error:
                self.world.trace.note(self.name, f"{command[0]}: {error!r}")
                if not token:
                    return UNKNOWN  # It may have been executed under a token that this client does not know.
            await asyncio.sleep(self.rng.random() * 0.3)
        return UNKNOWN

    async def _attempt(self, command: list[Any], token: str | None) -> Any:
        return await self.ask(lambda machine: machine.execute(command, token=token))

    # -- reads --------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Read linearizably; a read without an answer is not in the history."""
        number = self.rng.randrange(_KEYS)
        key = f"{REGISTERS}{number}" if self.rng.random() < 0.6 else f"{LISTS}{number}"

        def look(state: Book) -> Any:
            return tuple(state.lists.get(key, ())) if key.startswith(LISTS) else state.registers.get(key)

        for _ in range(10):
            began = self.world.loop.time()
            try:
                found = await self.ask(lambda machine: machine.read(look))
            except (BuckramError, TimeoutError, Died):
                await asyncio.sleep(self.rng.random() * 0.2)
                continue
            self.rules.call(self.name, ("read",), key, found, began)
            return

    async def stale_read(self) -> None:
        """Read from any replica with a maximum age, or with an offset that it must have applied."""
        hosts = self.stage.living()
        if not hosts:
            return
        host, at_most_s = self.rng.choice(hosts), self.rng.choice((0.0, 0.05, 1.0, None))
        after = self.rules.acknowledged.before(self.world.loop.time()) + 1 if at_most_s is None else None
        began = self.world.loop.time()

        def question(machine: Machine[Book]) -> Awaitable[int]:
            return machine.read(lambda state: machine.applied, "stale", at_most_s=at_most_s, after=after)

        try:
            applied = await self.ask_at(host, question, 6.0)
        except TooStale:
            self.world.report.situation("a read was too stale")
        except (BuckramError, TimeoutError, Died) as error:
            self.world.trace.note(self.name, f"stale read: {error!r}")
        else:
            moment = began - at_most_s if at_most_s is not None else -1.0
            self.rules.fresh(host, applied, moment, after)

    # -- asking -------------------------------------------------------------------------------------------

    async def _until_answered(self, question: Callable[[Machine[Book]], Awaitable[str]]) -> str:
        """Ask until there is an answer; return "" if none comes for long."""
        for _ in range(30):
            try:
                return await self.ask(question)
            except (BuckramError, TimeoutError, Died) as error:
                self.world.trace.note(self.name, describe(error) if isinstance(error, BuckramError) else repr(error))
            await asyncio.sleep(self.rng.random() * 0.3)
        return ""


__all__ = ["ClientActor"]

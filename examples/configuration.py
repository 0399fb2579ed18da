"""A configuration service: every process has all settings and is told of changes. `python -m examples.configuration`

A change names the revision that it was made from, so that nobody overwrites what he has not seen. Who watches is no
part of the state: the factory gives each new instance the process's own `Watch`, and what is told is looked up by
revision, so nothing is missed when a snapshot replaces the state.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from buckram import CommandRefused, Machine, UnknownCommand, connect


class Watch:
    """Wakes those of this process who wait for a change."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Configuration:
    """Settings by key, each with the revision of its last change; a deleted one has no value."""

    def __init__(self, watch: Watch) -> None:
        self.settings: dict[str, tuple[Any, int]] = {}
        self.revision, self.watch = 0, watch

    def apply(self, command: Any) -> int:
        if command[0] != "set":
            raise UnknownCommand(str(command))
        _, key, value, seen = command
        now = self.settings.get(key, (None, 0))[1]
        if now != seen:
            raise CommandRefused(f"{key} was changed at revision {now}, you have seen {seen}")
        self.revision += 1
        self.settings[key] = value, self.revision
        self.watch.wake()
        return self.revision

    def snapshot(self) -> bytes:
        return json.dumps([self.settings, self.revision], sort_keys=True).encode()

    def restore(self, data: bytes) -> None:
        self.settings, self.revision = json.loads(data)
        self.watch.wake()


async def changes(machine: Machine[Configuration], watch: Watch, since: int = 0) -> AsyncIterator[tuple[str, Any]]:
    """Each change after a revision, in order; of several changes of a key perhaps only the last."""
    while True:
        changed = watch.changed
        rows = await machine.read(
            lambda state: [(at, key, value) for key, (value, at) in state.settings.items()], "stale"
        )
        for at, key, value in sorted(row for row in rows if row[0] > since):
            since = at
            yield key, value
        await changed.wait()


async def main() -> None:
    watch = Watch()
    async with connect() as one, connect() as two:
        leader = await one.namespace().machine("configuration", lambda: Configuration(Watch()), process="first")
        await leader.lead()
        follower = await two.namespace().machine("configuration", lambda: Configuration(watch), stand=False)
        seen = changes(follower, watch)
        first = await leader.execute(["set", "workers", 4, 0])
        print(f"revision {first}; the follower is told: {await anext(seen)}")
        await leader.execute(["set", "workers", 8, first])
        await leader.execute(["set", "colour", "blue", 0])
        print(f"then: {await anext(seen)}, {await anext(seen)}")
        try:
            await leader.execute(["set", "workers", 2, first])
        except CommandRefused as refused:
            print(f"refused: {refused}")


if __name__ == "__main__":
    asyncio.run(main())

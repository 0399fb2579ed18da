"""State machines of the tests, and helpers."""

from __future__ import annotations

import json
from typing import Any

from buckram.errors import CommandRefused, UnknownCommand


class Inventory:
    """Counts of goods. It keeps the order of its commands, so that one that was applied twice or not at all is seen."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.applied: list[Any] = []

    def apply(self, command: Any) -> Any:
        """["add", NAME, COUNT] gives the new count; ["take", NAME, COUNT] is refused beyond what is there."""
        match command:
            case ["add", name, count]:
                after = self.counts.get(name, 0) + count
            case ["take", name, count]:
                after = self.counts.get(name, 0) - count
                if after < 0:
                    raise CommandRefused(f"only {self.counts.get(name, 0)} of {name} are there")
            case _:
                raise UnknownCommand(repr(command))
        self.counts[name] = after
        self.applied.append(command)
        return after

    def snapshot(self) -> bytes:
        return json.dumps([self.counts, self.applied]).encode()

    def restore(self, data: bytes) -> None:
        self.counts, self.applied = json.loads(data)

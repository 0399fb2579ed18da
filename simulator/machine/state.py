"""The state machine of lives: registers, and lists that only grow; versions of its class that are wrong on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from buckram.errors import CommandRefused, UnknownCommand

Command = list[Any]
"""[IDENT, KIND, KEY, ...]; the ident is unique in a life."""


class Book:
    """Registers and lists by key. It also counts commands, so that one that changes nothing is seen, too."""

    def __init__(self) -> None:
        self.registers: dict[str, Any] = {}
        self.lists: dict[str, list[Any]] = {}
        self.count = 0

    def apply(self, command: Command) -> Any:
        match command:
            case [_, "write", key, value]:
                self.registers[key] = value
                result: Any = None
            case [_, "cas", key, old, new]:
                result = self.registers.get(key) == old
                if result:
                    self.registers[key] = new
            case [_, "append" | "append2", key, value]:
                held = self.lists.setdefault(key, [])
                held.append(value)
                result = len(held)
            case [ident, "refuse", *_]:
                raise CommandRefused(f"{ident} is not allowed")
            case _:
                raise UnknownCommand(repr(command))
        self.count += 1
        return result

    def snapshot(self) -> bytes:
        return json.dumps([self.registers, self.lists, self.count], sort_keys=True).encode()

    def restore(self, data: bytes) -> None:
        self.registers, self.lists, self.count = json.loads(data)


class OldBook(Book):
    """A version of the program that does not know `append2` yet."""

    def apply(self, command: Command) -> Any:
        if command[1] == "append2":
            raise UnknownCommand(repr(command))
        return super().apply(command)


class WrongBook(Book):
    """A wrong version of the program: it miscounts each seventh command."""

    def apply(self, command: Command) -> Any:
        result = super().apply(command)
        self.count += self.count % 7 == 6
        return result


KINDS: dict[str, Callable[[], Book]] = {"good": Book, "old": OldBook, "wrong": WrongBook}

__all__ = ["KINDS", "Book", "Command", "OldBook", "WrongBook"]

"""Histories of the calls on files and objects, and the contents that clients put, by which they are known again."""

from __future__ import annotations

import random
from typing import Any

from simulator.engine.checkers.linearizability import UNKNOWN, Call, Step, Undecided, not_linearizable
from simulator.engine.world import World
from simulator.gateways.file_model import empty, file_step
from simulator.gateways.object_model import object_step

FILE_GROUPS = ("g0", "g1")
"""Directories that are there from the beginning to the end. Calls never lead out of one, so each has its history."""


class Histories:
    """All calls of a life."""

    def __init__(self, world: World) -> None:
        self.report = world.report
        self._labels: dict[bytes, str] = {}
        self._files: list[Call] = []
        self._objects: list[Call] = []
        self.versions: dict[str, str] = {}
        """The label of each version of an object that somebody was told."""

    def new_content(self, rng: random.Random) -> tuple[str, bytes]:
        """Return bytes that nobody has put before, and their label, which is their length."""
        size = len(self._labels) + 1 + rng.choice((0, 0, 1000, 3000))
        while str(size) in self._labels.values():
            size += 1
        content = random.Random(f"content {size}").randbytes(size)
        self._labels[content] = str(size)
        return str(size), content

    def label(self, content: bytes) -> str:
        """Return the label of bytes that somebody was given."""
        return self._labels.get(content, f"unknown bytes, {len(content)} of them")

    def files(self, client: str, operation: tuple[Any, ...], result: Any, began: float, ended: float | None) -> None:
        """Record a call on files; `ended` is None where the result is UNKNOWN."""
        group = str(operation[1]).partition("/")[0]
        self._files.append(Call(client, group, operation, result, began, ended))

    def objects(self, client: str, operation: tuple[Any, ...], result: Any, began: float, ended: float | None) -> None:
        """Record a call on objects; `ended` is None where the result is UNKNOWN."""
        self._objects.append(Call(client, "objects", operation, result, began, ended))

    def judge(self) -> None:
        """Check that all calls can be explained."""
        for group in FILE_GROUPS:
            self._judge("files", [call for call in self._files if call.key == group], file_step, empty(group))
        self._judge("objects", self._objects, object_step, ())

    def _judge(self, invariant: str, calls: list[Call], step: Step, state: Any) -> None:
        if not calls:
            return
        try:
            why = not_linearizable(calls, step, state)
        except Undecided:
            self.report.situation("a history was too wide")
            return
        self.report.check(invariant, not why, "{}", why)


__all__ = ["FILE_GROUPS", "UNKNOWN", "Histories"]

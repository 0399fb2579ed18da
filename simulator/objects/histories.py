"""Histories: all calls on a group of names, and the model by which they are linearizable.

A group is a top-level directory; calls never lead out of it, so the groups are searched one by one. An operation
carries its outcome, because what the index chooses (versions, numbers of uploads) is part of the state afterwards.
Versions only grow, which leaves few orders to try. A call without an answer took effect at any time after it began, or
never.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from simulator.engine.checkers.linearizability import UNKNOWN, Call, Undecided, not_linearizable
from simulator.objects.contents import Contents
from simulator.objects.model import ABSENT, CHANGED, INCOMPLETE, LOST, Names, Refused
from simulator.objects.reference import Reference

OK, REFUSED, MAYBE = "ok", "refused", "maybe"
READS = ("info", "get", "list")
Row = tuple[str, tuple[str, ...], int]
"""An object: its label, those of its parts, and its version, 0 if nobody was told that."""
EMPTY: Hashable = ((), (), (), 0)


def group_of(name: str) -> str:
    return name.partition("/")[0]


@dataclass(slots=True)
class Asked:
    """One call of a client, and what it was told; `ended` is None while it was not."""

    client: str
    name: str
    call: tuple[Any, ...]
    began: float
    outcome: tuple[str, Any] | None = None
    ended: float | None = None

    @property
    def verb(self) -> str:
        return str(self.call[0])


@dataclass(slots=True)
class Histories:
    """All calls of a life."""

    contents: Contents
    calls: list[Asked] = field(default_factory=list)

    def judge(self, reference: Reference) -> list[tuple[str, bool]]:
        """Return why each group is not linearizable ("" if it is), and whether that could be decided."""
        groups = sorted({group_of(asked.name) for asked in self.calls})
        found: list[tuple[str, bool]] = []
        for group in groups:
            asked = [one for one in self.calls if group_of(one.name) == group]
            calls = [call for one in asked if (call := self._call(one, reference)) is not None]
            try:
                found.append((not_linearizable(calls, Steps(self.contents).step, EMPTY), True))
            except Undecided:
                found.append(("", False))
        return found

    def _call(self, asked: Asked, reference: Reference) -> Call | None:
        """Return the call as the search takes it; None for one that changed nothing and told nothing.

        What is put under a label of its own is in the log or not, also where nobody was told.
        """
        outcome, group = asked.outcome, group_of(asked.name)
        if outcome is not None:
            return Call(asked.client, group, (*asked.call, outcome), outcome, asked.began, asked.ended)
        if asked.verb in (*READS, "upload"):
            return None
        if asked.verb in ("put", "part", "complete"):
            label = asked.call[2 if asked.verb == "put" else 3]
            version = reference.labels.get(label if asked.verb != "part" else self.contents.digest(label, (label,)))
            if version is None:
                return None
            outcome = MAYBE, version
        return Call(asked.client, group, (*asked.call, outcome), UNKNOWN, asked.began, None)


class Steps:
    """The effect of each operation on the state of a group: rows, kept directories, uploads, the newest version."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def step(self, state: Any, operation: tuple[Any, ...]) -> tuple[Hashable, Any]:
        """Apply an operation, whose last item is its outcome; return the state afterwards and what it tells."""
        verb, *given, outcome = operation
        if outcome == (REFUSED, LOST):
            return state, outcome
        book = _Book(state, outcome, self._contents)
        try:
            value = getattr(book, verb)(*given)
        except Refused as refused:
            return state, (REFUSED, str(refused))
        return book.state(), (OK, value)


class _Book:
    """A state in the middle of one step."""

    def __init__(self, state: Any, outcome: tuple[str, Any] | None, contents: Contents) -> None:
        rows, kept, uploads, self.last = state
        self.names: Names[Row] = Names(dict(rows), set(kept), self._holds)
        self.uploads: dict[int, tuple[str, dict[int, str]]] = {
            number: (name, dict(parts)) for number, name, parts in uploads
        }
        self.outcome, self.contents = outcome, contents

    def state(self) -> Hashable:
        uploads = tuple((number, name, tuple(sorted(parts.items()))) for number, (name, parts) in self.uploads.items())
        return tuple(sorted(self.names.rows.items())), tuple(sorted(self.names.kept)), uploads, self.last

    def _holds(self, row: Row, version: int) -> bool:
        """Return whether the row has the version; of one whose version nobody knows the outcome tells it."""
        return row[2] == version if row[2] else self.outcome != (REFUSED, CHANGED)

    def _version(self) -> int:
        """Return the version that was told, which must be greater than all before; 0 if none was told."""
        if self.outcome is None or self.outcome[0] == REFUSED:
            return 0
        version: int = self.outcome[1]
        if version <= self.last:
            raise Refused(f"version {version} after {self.last}")
        self.last = version
        return version

    # -- changes --------------------------------------------------------------------------------------------

    def put(self, name: str, label: str, condition: str | int | None) -> int:
        self.names.check(name, condition)
        version = self._version()
        self.names.rows[name] = (label, (label,), version)
        return version

    def copy(self, source: str, name: str, condition: str | int | None) -> int:
        label, parts, _ = self.names.needed(source)
        self.names.check(name, condition)
        version = self._version()
        self.names.rows[name] = (label, parts, version)
        return version

    def rename(self, source: str, name: str, condition: str | None) -> None:
        if self.names.is_directory(source):
            self.names.move_directory(source, name)
            return
        label, parts, _ = self.names.needed(source)
        if name != source:
            self.names.put(name, (label, parts, 0), condition)
            del self.names.rows[source]

    def delete(self, name: str, condition: int | None) -> None:
        self.names.delete(name, condition)

    def remove(self, path: str, recursive: bool) -> None:
        self.names.remove(path, recursive)

    def mkdirs(self, path: str) -> bool:
        return self.names.make_directories(path)

    # -- uploads --------------------------------------------------------------------------------------------

    def upload(self, name: str) -> int:
        number = self._version()
        self.uploads[number] = (name, {})
        return number

    def _needed(self, upload: int) -> tuple[str, dict[int, str]]:
        if upload not in self.uploads:
            raise Refused(ABSENT)
        return self.uploads[upload]

    def part(self, upload: int, number: int, label: str) -> None:
        self._needed(upload)[1][number] = label

    def complete(self, upload: int, parts: int, label: str, condition: str | int | None) -> int:
        name, found = self._needed(upload)
        if sorted(found) != list(range(parts)):
            raise Refused(INCOMPLETE)
        self.names.check(name, condition)
        version = self._version()
        self.names.rows[name] = (label, tuple(found[number] for number in range(parts)), version)
        del self.uploads[upload]
        return version

    def abort(self, upload: int) -> None:
        self.uploads.pop(upload, None)

    # -- reads ----------------------------------------------------------------------------------------------

    def _seen(self, name: str, version: int) -> Row:
        """Return the row, which has this version from now on if nobody was told one before."""
        label, parts, known = self.names.needed(name)
        if not known:
            self.names.rows[name] = (label, parts, version)
            self.last = max(self.last, version)
        return self.names.rows[name]

    def _told(self) -> Any:
        return self.outcome[1] if self.outcome is not None and self.outcome[0] == OK else None

    def info(self, name: str) -> Any:
        told = self._told()
        label, parts, version = self._seen(name, told[3] if told else 0)
        return label, len(self.contents.of(parts)), self.contents.digest(label, parts), version

    def get(self, name: str, start: int, length: int | None) -> Any:
        told = self._told()
        label, parts, version = self._seen(name, told[1] if told else 0)
        return label, version, summed(self.contents.of(parts)[start:], length)

    def list(self, prefix: str) -> Any:
        told = {name: version for name, _, version in self._told() or ()}
        found = []
        for name in sorted(self.names.rows):
            label, _, version = self._seen(name, told.get(name, 0))
            found.append((name, label, version))
        return tuple(found)


def summed(data: bytes, length: int | None = None) -> str:
    """Return a sum of the first `length` bytes, with their number."""
    data = data if length is None else data[:length]
    return f"{len(data)}:{hashlib.sha256(data).hexdigest()[:16]}"


__all__ = ["OK", "REFUSED", "Asked", "Histories", "group_of", "summed"]

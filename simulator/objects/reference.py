"""Reference: an independent fold of the commands on the index, with what uses which ledger after each of them.

What no model foresees is taken from the index: versions, times, and which of the objects that are due it removes first.
The rules check what was taken. Not here: comparing replicas with it (`rules.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from buckram.core.objects.index import ObjectIndex
from buckram.core.objects.rows import NEVER, Extent, ObjectRow, extents_of
from buckram.core.objects.tree import walk
from buckram.types import LedgerId
from simulator.objects.model import ABSENT, INCOMPLETE, LOST, Names, Refused

Command = list[Any]


@dataclass(frozen=True, slots=True)
class Kept:
    """An object: its version, size, digest and extents, the label of its put, and when it expires in true time."""

    version: int
    size: int
    digest: str
    extents: tuple[Extent, ...]
    label: str
    due_us: int | None = None

    def same(self, row: ObjectRow) -> bool:
        return (self.version, self.size, self.digest, self.extents) == (row.version, row.size, row.digest, row.extents)


@dataclass(slots=True)
class OpenUpload:
    """An upload: its name, its parts by number with size, digest and extents, and when it began in true time."""

    name: str
    began_us: int
    parts: dict[int, tuple[int, str, tuple[Extent, ...]]] = field(default_factory=dict)


@dataclass(slots=True)
class Step:
    """The effect of a command: what it must tell, what it removed by its age, and its refusal."""

    told: Any = None
    refused: str = ""
    expired: list[Kept] = field(default_factory=list)
    left: list[OpenUpload] = field(default_factory=list)
    lost: tuple[Extent, ...] = ()
    """Extents that the index refused as given up."""


class Reference:
    """The fold of all commands that any replica has executed, in the order of the log."""

    def __init__(self) -> None:
        self.names: Names[Kept] = Names({}, set(), lambda row, version: row.version == version)
        self.uploads: dict[int, OpenUpload] = {}
        self.labels: dict[str, int] = {}
        """The version under which each label was put; 0 for the digest of a part."""
        self.version = self.replaced = 0
        """The version that was given out last; how many parts were put in the place of others."""
        self.writers: dict[LedgerId, str] = {}
        """The writers of ledgers that are open."""

    @property
    def rows(self) -> dict[str, Kept]:
        return self.names.rows

    def extents(self) -> dict[LedgerId, list[str]]:
        """Return the ledgers that anything has bytes in, with the names or uploads that do."""
        found: dict[LedgerId, list[str]] = {}
        for name, row in self.rows.items():
            for extent in row.extents:
                found.setdefault(extent.ledger, []).append(name)
        for number, upload in self.uploads.items():
            for _, _, extents in upload.parts.values():
                for extent in extents:
                    found.setdefault(extent.ledger, []).append(f"upload {number}")
        return found

    def execute(self, index: ObjectIndex, command: Command, refusal: str, true_us: int) -> Step:
        """Apply the next command of the log, which a replica's index has executed just now."""
        step = Step()
        verb, *given = command
        if refusal == LOST:
            step.refused, step.lost = LOST, _named(command)
        else:
            try:
                step.told = self._do(verb, given, index, step, true_us)
            except Refused as refused:
                step.refused = str(refused)
        return step

    def _do(self, verb: str, given: list[Any], index: ObjectIndex, step: Step, true_us: int) -> Any:
        match verb, given:
            case "put", [name, put, condition]:
                return self._put(name, put, condition, true_us)
            case "copy" | "rename", [source, name, condition]:
                return self._again(verb, source, name, condition)
            case "delete", [name, condition]:
                version = self.names.needed(name).version
                self.names.delete(name, condition)
                return version
            case "remove", [path, recursive]:
                self.names.remove(path, recursive)
            case "mkdirs", [path]:
                return self.names.make_directories(path)
            case "moved", [name, version, extents]:
                return self._moved(name, version, extents_of(extents))
            case "upload" | "part" | "complete" | "abort", _:
                return self._in_parts(verb, given, true_us)
            case "expire", _:
                self._expire(index, step)
            case "begin", [ledger, writer]:
                self.writers[ledger] = writer
            case "seal", [ledger, total]:
                self._seal([(ledger, total)])
        return None

    def _seal(self, sealed: Iterable[tuple[LedgerId, int]]) -> None:
        for ledger, _ in sealed:
            self.writers.pop(ledger, None)

    def _next(self) -> int:
        self.version += 1
        return self.version

    def _put(self, name: str, put: dict[str, Any], condition: Any, true_us: int) -> list[Any]:
        self.names.check(name, condition)
        label, age = str(dict(put["metadata"]).get("id", "")), put["expires_us"]
        due = true_us + age if age != NEVER else None
        row = Kept(self._next(), put["size"], put["digest"], extents_of(put["extents"]), label, due)
        self.names.rows[name] = row
        self._seal(put.get("sealed", ()))
        self.labels[label] = row.version
        return [row.version, row.size, row.digest]

    def _again(self, verb: str, source: str, name: str, condition: Any) -> Any:
        if verb == "rename" and self.names.is_directory(source):
            self.names.move_directory(source, name)
            return None
        row = self.names.needed(source)
        if verb == "rename" and name == source:
            return None
        self.names.check(name, condition)
        row = self.names.rows[name] = replace(row, version=self._next())
        if verb == "copy":
            return [row.version, row.size, row.digest]
        del self.names.rows[source]
        return None

    def _moved(self, name: str, version: int, extents: tuple[Extent, ...]) -> bool:
        row = self.rows.get(name)
        if row is None or row.version != version:
            return False
        self.names.rows[name] = replace(row, extents=extents)
        return True

    def _in_parts(self, verb: str, given: list[Any], true_us: int) -> Any:
        if verb == "upload":
            number = self._next()
            self.uploads[number] = OpenUpload(given[0], true_us)
            return number
        upload = self.uploads.get(given[0])
        if verb == "abort":
            self.uploads.pop(given[0], None)
            return None
        if upload is None:
            raise Refused(ABSENT)
        if verb == "part":
            _, number, size, digest, extents, sealed = given
            self._seal(sealed)
            self.replaced += number in upload.parts
            upload.parts[number] = (size, digest, extents_of(extents))
            self.labels[digest] = 0
            return None
        _, put, condition = given
        if sorted(upload.parts) != list(range(put["parts"])):
            raise Refused(INCOMPLETE)
        parts = [upload.parts[number] for number in sorted(upload.parts)]
        extents = [extent for _, _, found in parts for extent in found]
        told = self._put(upload.name, {**put, "size": 0, "digest": "", "extents": extents}, condition, true_us)
        whole = hashlib.sha256("".join([digest for _, digest, _ in parts]).encode()).hexdigest()
        size, digest = sum(size for size, _, _ in parts), f"parts:{whole}-{len(parts)}"
        self.rows[upload.name] = replace(self.rows[upload.name], size=size, digest=digest)
        del self.uploads[given[0]]
        return [upload.name, told[0]]

    def _expire(self, index: ObjectIndex, step: Step) -> None:
        """Remove what the index has removed by its age."""
        there = dict(walk(index.root, "", ""))
        for name, row in list(self.rows.items()):
            if name not in there and row.due_us is not None:
                step.expired.append(row)
                del self.rows[name]
        for number, upload in list(self.uploads.items()):
            if number not in index.uploads:
                step.left.append(upload)
                del self.uploads[number]


def _named(command: Command) -> tuple[Extent, ...]:
    """Return the extents that a command names."""
    match command:
        case ["put", _, dict(put), _]:
            return extents_of(put["extents"])
        case ["part", _, _, _, _, extents, _] | ["moved", _, _, extents]:
            return extents_of(extents)
    return ()


__all__ = ["Kept", "OpenUpload", "Reference", "Step"]

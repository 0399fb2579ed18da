"""Mirroring of objects: differences of two indexes, and the steps by which one becomes the other.

An object is the same on both sides if all that is known of it is: version, size, digest, times, metadata. Where its
bytes are is each cluster's own. Pure. Not here: what a step does to an index (`core/objects/index.py`), copying bytes
(`replication/object_copy.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from buckram.core.objects.rows import Extent, ObjectRow
from buckram.core.objects.tree import Directory

MOST_CHANGES = 256
"""Maximum number of names that change in one step."""
MOST_BYTES = 8 * 1024 * 1024
"""Maximum bytes of the objects of one step, unless it is a single one."""
_ROW_BYTES = 512 * 1024
"""Approximate maximum of JSON bytes of the rows of one step."""
_NOTHING: tuple[bool, dict[str, Directory | ObjectRow]] = (False, {})

Named = tuple[str, ObjectRow]
"""A full name with its object."""


class Outline(NamedTuple):
    """All names of an index at one moment."""

    version: int
    """The greatest version that was given out."""
    directories: Mapping[str, tuple[bool, Mapping[str, Directory | ObjectRow]]]
    """By path: whether it was made to be kept, and its children by name."""


class IndexDifference(NamedTuple):
    """Difference of a mirror from its source."""

    puts: Sequence[Named]
    """Objects that the mirror lacks or has otherwise, as the source has them, in the order of their versions."""
    replaced: Sequence[Named]
    """Objects of the mirror that differ from those in the source."""
    gone: Sequence[Named]
    """Objects that only the mirror has."""
    kept: Sequence[str]
    """Directories that are kept in the source only."""
    unkept: Sequence[str]
    """Directories that are kept in the mirror only, the deepest first."""

    @property
    def empty(self) -> bool:
        """Return whether the two are the same."""
        return not (self.puts or self.gone or self.kept or self.unkept)

    @property
    def bytes(self) -> int:
        """Return the bytes of the objects that the mirror lacks or has otherwise."""
        return sum(row.size for _, row in self.puts)

    @property
    def since(self) -> int | None:
        """Return when the first of these objects was put, microseconds UTC; None if there is none."""
        return min((row.time_us for _, row in self.puts), default=None)

    def reusable(self) -> dict[tuple[str, int], tuple[Extent, ...]]:
        """Return the extents of objects that go or change in the mirror, by digest and size: renamed ones need no
        copy.
        """
        return {(row.digest, row.size): row.extents for _, row in (*self.gone, *self.replaced)}


class MirrorStep(NamedTuple):
    """Changes that a mirror makes at once."""

    puts: Sequence[Named]
    gone: Sequence[str] = ()
    kept: Sequence[str] = ()
    unkept: Sequence[str] = ()

    def encode(self, puts: Sequence[Named]) -> dict[str, Any]:
        """Return the step for the command; `puts` are those of the step with the extents that they have in the
        mirror.
        """
        rows = [[name, list(row)] for name, row in puts]
        return {"put": rows, "gone": list(self.gone), "kept": list(self.kept), "unkept": list(self.unkept)}


def same(one: ObjectRow, other: ObjectRow) -> bool:
    """Return whether two clusters have the same object, whatever its extents."""
    return one[:-1] == other[:-1]


def parted_at(source: Outline, mirror: Outline) -> int | None:
    """Return a version that shows that the source went back; None if nothing does.

    A mirror that had more versions than its source, or another object of a version, was copied from a state that the
    source has lost. Deleted or replaced objects show nothing.
    """
    if mirror.version > source.version:
        return mirror.version
    there = {row.version: row for _, row in _objects(source)}
    for _, row in _objects(mirror):
        other = there.get(row.version)
        if other is not None and (row.digest, row.size, row.time_us) != (other.digest, other.size, other.time_us):
            return row.version
    return None


def _objects(outline: Outline) -> Iterator[Named]:
    for _, children in outline.directories.values():
        for name, row in children.items():
            if isinstance(row, ObjectRow):
                yield name, row


def difference(source: Outline, mirror: Outline, now_us: int) -> IndexDifference:
    """Compare two indexes; objects of the source that have expired by `now_us` are ignored."""
    puts: list[Named] = []
    replaced: list[Named] = []
    gone: list[Named] = []
    kept: list[str] = []
    unkept: list[str] = []
    for path in sorted({**source.directories, **mirror.directories}):
        (keeps, there), (has_kept, here) = (side.directories.get(path, _NOTHING) for side in (source, mirror))
        if keeps != has_kept:
            (kept if keeps else unkept).append(path)
        begin = f"{path}/" if path else ""
        for name, row in there.items():
            if not isinstance(row, ObjectRow) or row.expired(now_us):
                continue
            present = here.get(name)
            if not isinstance(present, ObjectRow):
                puts.append((begin + name, row))
            elif not same(row, present):
                puts.append((begin + name, row))
                replaced.append((begin + name, present))
        for name, row in here.items():
            if isinstance(row, ObjectRow):
                other = there.get(name)
                if not isinstance(other, ObjectRow) or other.expired(now_us):
                    gone.append((begin + name, row))
    puts.sort(key=lambda item: item[1].version)
    return IndexDifference(puts, replaced, sorted(gone), kept, unkept[::-1])


def steps(found: IndexDifference) -> Iterator[MirrorStep]:
    """Yield the steps that make the mirror the same: objects in the order of their versions, then removals.

    A rename, where few things have changed, is one step.
    """
    groups = list(_groups(found.puts)) or [[]]
    names = [name for name, _ in found.gone]
    ends = (names, found.kept, found.unkept)
    for group in groups[:-1]:
        yield MirrorStep(group)
    last = groups[-1]
    if len(last) + sum(map(len, ends)) <= MOST_CHANGES:
        yield MirrorStep(last, *ends)
        return
    if last:
        yield MirrorStep(last)
    for begin in range(0, max(map(len, ends)), MOST_CHANGES):
        yield MirrorStep((), *(some[begin : begin + MOST_CHANGES] for some in ends))


def _groups(puts: Sequence[Named]) -> Iterator[list[Named]]:
    group: list[Named] = []
    size = weight = 0
    for name, row in puts:
        own = 300 + 6 * (len(name) + sum(len(key) + len(value) for key, value in row.metadata)) + 80
        full = len(group) >= MOST_CHANGES or weight + own > _ROW_BYTES
        if group and (full or size + row.size > MOST_BYTES):
            yield group
            group, size, weight = [], 0, 0
        group.append((name, row))
        size, weight = size + row.size, weight + own
    if group:
        yield group

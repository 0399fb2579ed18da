"""Objects as a replication sees them: all of one moment, their bytes, and the mirror that becomes the same.

Not here: in what two sides differ (`core/objects/index_difference.py`), going through it
(`replication/object_copy.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from buckram.core.objects.index_difference import MirrorStep, Named, Outline, same
from buckram.core.objects.rows import Extent, ObjectRow
from buckram.errors import BuckramError, ObjectDamaged
from buckram.state.objects.objects import Objects
from buckram.state.objects.writing import Stored

Reusable = Mapping[tuple[str, int], tuple[Extent, ...]]
"""Extents of bytes that are stored already, by digest and size."""


class ObservedObjects(Objects):
    """The objects of a namespace with their rows."""

    @property
    def applied(self) -> int:
        """Offset of the index's log that is applied here; it grows with every change."""
        return self._index.machine.applied

    async def outline(self) -> Outline:
        """Return all names, with everything that was done before this call."""
        return await self._index.look(lambda state: state.outline())

    async def has(self, name: str, row: ObjectRow) -> bool:
        """Return whether the object is still there, unchanged."""
        found = await self._index.look(lambda state: state.look(name))
        return found is not None and same(found, row)

    def bytes_of(self, name: str, row: ObjectRow) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an object, compared with its digest. Raises ObjectDamaged, ReadFailed."""
        return self._pieces(f"{self.namespace}/{name}", row, 0, row.size)


class MirrorObjects(ObservedObjects):
    """Objects that are a mirror: `start` gets the uid of the index that it is one of."""

    async def take(self, source: ObservedObjects, name: str, row: ObjectRow, present: Reusable) -> Stored | None:
        """Make the bytes of an object durable here; None if it changed in the source meanwhile.

        Raises ObjectDamaged if the source's bytes cannot be read or are others than were put.
        """
        known = present.get((row.digest, row.size))
        if known is not None:
            return Stored(row.size, row.digest, list(known))
        try:
            async with aclosing(source.bytes_of(name, row)) as pieces:
                stored = await self._store(pieces)
            whole = stored.digest == row.digest or not row.digest.startswith("sha256:")
            if stored.size == row.size and whole:
                return stored
            self._maker.give_up(stored.sealed)
            raise ObjectDamaged(f"{self.namespace}/{name}", f"{stored.size} bytes were read, and {row.size} were put")
        except BuckramError:
            if not await source.has(name, row):
                return None
            raise

    async def change(self, step: MirrorStep, taken: Sequence[tuple[Named, Stored]], version: int) -> None:
        """Make the changes of a step, with what was taken of its objects. CommandRefused: try the whole step again."""
        puts = [(name, row._replace(extents=tuple(stored.extents))) for (name, row), stored in taken]
        sealed = [pair for _, stored in taken for pair in stored.sealed]
        try:
            await self._index.execute(["mirror", version, step.encode(puts), sealed])
        except BaseException:
            self._maker.give_up(sealed)
            raise

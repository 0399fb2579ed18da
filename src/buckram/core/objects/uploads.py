"""Uploads: objects that are put in parts. Not here: commands (`core/objects/index.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from buckram.core.objects.rows import Extent, extents_of


class Upload:
    """An object that is put in parts: `parts` by number, each with size, digest and extents."""

    def __init__(self, name: str, time_us: int) -> None:
        self.name, self.time_us = name, time_us
        self.parts: dict[int, tuple[int, str, tuple[Extent, ...]]] = {}

    def dump(self) -> list[Any]:
        """Return the upload for JSON."""
        return [self.name, self.time_us, sorted((part, *rest) for part, rest in self.parts.items())]

    @classmethod
    def load(cls, name: str, time_us: int, parts: Iterable[Sequence[Any]]) -> Upload:
        """Restore an upload from JSON."""
        upload = cls(name, time_us)
        upload.parts = {part: (size, digest, extents_of(extents)) for part, size, digest, extents in parts}
        return upload


__all__ = ["Upload"]

"""Contents: the bytes of each put, made from its label, so that any bytes that are read tell where they are from.

An object is made of parts; one that was put at once is of a single part, whose label it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


class Contents:
    """The bytes of all puts and parts of a life, by label."""

    def __init__(self) -> None:
        self._bytes: dict[str, bytes] = {}

    def make(self, label: str, size: int) -> bytes:
        """Return the bytes of a new label, which no other label has."""
        seed = hashlib.sha256(label.encode()).digest()
        found = self._bytes[label] = (seed * (size // len(seed) + 1))[:size]
        return found

    def knows(self, label: str) -> bool:
        """Return whether bytes were put under this label, and not made of parts."""
        return label in self._bytes

    def of(self, parts: Sequence[str]) -> bytes:
        return b"".join([self._bytes[label] for label in parts])

    def digest(self, label: str, parts: Sequence[str]) -> str:
        """Return the digest that the object with this label has."""
        if tuple(parts) == (label,):
            return f"sha256:{hashlib.sha256(self._bytes[label]).hexdigest()}"
        whole = "".join([f"sha256:{hashlib.sha256(self._bytes[part]).hexdigest()}" for part in parts])
        return f"parts:{hashlib.sha256(whole.encode()).hexdigest()}-{len(parts)}"


__all__ = ["Contents"]

"""Names of objects in grants: NAMESPACE/objects/NAME is one object, NAMESPACE/objects/PREFIX* all with that prefix.

Pure. Not here: grants (`core/security/acl.py`), the check of names of objects (`core/objects/rows.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from buckram.core.objects.rows import check_object_name
from buckram.errors import InvalidArgument

OBJECTS = "objects"
_LAST = chr(0x10FFFF)
"""The last character of all in the order of names."""


class NameRange(NamedTuple):
    """Range of names: those that begin with `text`, or, with `exact`, this one alone; without those in `holes`."""

    text: str
    exact: bool = False
    holes: tuple[NameRange, ...] = ()

    def has(self, name: str) -> bool:
        """Return whether a name is in the range."""
        found = name == self.text if self.exact else name.startswith(self.text)
        return found and not any(hole.has(name) for hole in self.holes)

    def reaches(self, prefix: str) -> bool:
        """Return whether names with this prefix may be in the range."""
        if any(hole.has_all(prefix) for hole in self.holes):
            return False
        return self.text.startswith(prefix) or (not self.exact and prefix.startswith(self.text))

    def has_all(self, prefix: str) -> bool:
        """Return whether all names with this prefix are in the range."""
        whole = not self.exact and prefix.startswith(self.text)
        return whole and not any(hole.reaches(prefix) for hole in self.holes)

    def from_prefix(self, prefix: str) -> NameRange | None:
        """Return the part of the range with this prefix; None if there is none."""
        if not self.reaches(prefix):
            return None
        if self.text.startswith(prefix):
            return self
        return NameRange(prefix, holes=tuple(hole for hole in self.holes if hole.reaches(prefix)))

    def behind(self, name: str) -> str:
        """Return the text after which a listing that has reached this name continues.

        It is the end of the hole that the name is in, so that holes are skipped, or else the name itself.
        """
        ends = [hole.text + _LAST for hole in self.holes if not hole.exact and hole.has(name)]
        return max([name, *ends])


def object_name(namespace: str, name: str) -> str:
    """Return the name of an object in grants."""
    return f"{namespace}/{OBJECTS}/{name}"


def granted_range(words: str) -> NameRange | None:
    """Return the names that a grant is for, from its text behind the namespace; None if it is for streams."""
    first, slash, name = words.partition("/")
    if first != OBJECTS or not slash:
        return None
    return NameRange(name[:-1]) if name.endswith("*") else NameRange(name, exact=True)


def check_range(words: str) -> None:
    """Raise InvalidArgument for text behind the namespace of a grant, `objects/NAME`, that can name no object."""
    name = words.partition("/")[2]
    text = name.removesuffix("*")
    if any(letter in text for letter in "*?["):
        raise InvalidArgument(
            f"{words!r}: the objects of a grant are one name, or all that begin with a text and * behind it, such as "
            "'shop/objects/logs/*'; grant several"
        )
    check_object_name(text if text == name else f"{text}x")


def disjoint(ranges: Iterable[NameRange]) -> tuple[NameRange, ...]:
    """Return the same names as ranges of which none is within another, in the order of the names."""
    found: list[NameRange] = []
    for one in sorted(set(ranges)):
        if not any(before.has(one.text) if one.exact else before.has_all(one.text) for before in found):
            found.append(one)
    return tuple(found)


def without(ranges: Iterable[NameRange], holes: Iterable[NameRange]) -> tuple[NameRange, ...]:
    """Return ranges with these holes in them; ranges without any name left are dropped. Neither may have holes yet."""
    taken = disjoint(holes)
    found: list[NameRange] = []
    for one in ranges:
        if not any(hole.has(one.text) if one.exact else hole.has_all(one.text) for hole in taken):
            within = () if one.exact else tuple(hole for hole in taken if hole.reaches(one.text))
            found.append(one._replace(holes=within))
    return tuple(found)

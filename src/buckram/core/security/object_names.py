"""Names of objects in grants: NAMESPACE/objects/NAME is one object, NAMESPACE/objects/PREFIX* all that begin so.

Pure. Not here: grants (`core/security/acl.py`), which names are good ones (`core/objects/rows.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from buckram.core.objects.rows import check_object_name
from buckram.errors import InvalidArgument

OBJECTS = "objects"
_LAST = chr(0x10FFFF)
"""No character comes behind it."""


class NameRange(NamedTuple):
    """The names that begin with `text`, or, with `exact`, this one alone; but for those in `holes`."""

    text: str
    exact: bool = False
    holes: tuple[NameRange, ...] = ()

    def has(self, name: str) -> bool:
        """Whether this is one of the names."""
        found = name == self.text if self.exact else name.startswith(self.text)
        return found and not any(hole.has(name) for hole in self.holes)

    def reaches(self, prefix: str) -> bool:
        """Whether some names that begin with the prefix may be among these."""
        if any(hole.has_all(prefix) for hole in self.holes):
            return False
        return self.text.startswith(prefix) or (not self.exact and prefix.startswith(self.text))

    def has_all(self, prefix: str) -> bool:
        """Whether all names that begin with the prefix are among these."""
        whole = not self.exact and prefix.startswith(self.text)
        return whole and not any(hole.reaches(prefix) for hole in self.holes)

    def from_prefix(self, prefix: str) -> NameRange | None:
        """Those of the names that begin with the prefix as well; None if there are none."""
        if not self.reaches(prefix):
            return None
        if self.text.startswith(prefix):
            return self
        return NameRange(prefix, holes=tuple(hole for hole in self.holes if hole.reaches(prefix)))

    def behind(self, name: str) -> str:
        """What a list goes on after behind a name: a hole is not gone through."""
        ends = [hole.text + _LAST for hole in self.holes if not hole.exact and hole.has(name)]
        return max([name, *ends])


def object_name(namespace: str, name: str) -> str:
    """What grants call an object."""
    return f"{namespace}/{OBJECTS}/{name}"


def granted_range(words: str) -> NameRange | None:
    """The names that a grant is for, from its words behind the namespace; None if it is for streams."""
    first, slash, name = words.partition("/")
    if first != OBJECTS or not slash:
        return None
    return NameRange(name[:-1]) if name.endswith("*") else NameRange(name, exact=True)


def check_range(words: str) -> None:
    """Raises InvalidArgument for `state/objects.` in a grant that could not name an object."""
    name = words.partition("/")[2]
    text = name.removesuffix("*")
    if any(letter in text for letter in "*?["):
        raise InvalidArgument(
            f"{words!r}: the objects of a grant are one name, or all that begin with a text and * behind it, such as "
            "'shop/objects/logs/*'; grant several"
        )
    check_object_name(text if text == name else f"{text}x")


def disjoint(ranges: Iterable[NameRange]) -> tuple[NameRange, ...]:
    """The same names in ranges of which none is within another, in the order of the names."""
    found: list[NameRange] = []
    for one in sorted(set(ranges)):
        if not any(before.has(one.text) if one.exact else before.has_all(one.text) for before in found):
            found.append(one)
    return tuple(found)


def without(ranges: Iterable[NameRange], holes: Iterable[NameRange]) -> tuple[NameRange, ...]:
    """What is left of ranges; those without any name that is left are gone. Neither has holes yet."""
    taken = disjoint(holes)
    found: list[NameRange] = []
    for one in ranges:
        if not any(hole.has(one.text) if one.exact else hole.has_all(one.text) for hole in taken):
            within = () if one.exact else tuple(hole for hole in taken if hole.reaches(one.text))
            found.append(one._replace(holes=within))
    return tuple(found)


__all__ = ["OBJECTS", "NameRange", "check_range", "disjoint", "granted_range", "object_name", "without"]

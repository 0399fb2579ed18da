"""Names of objects in grants: NAMESPACE/objects/NAME is one object, NAMESPACE/objects/PREFIX* all that begin so.

Pure. Not here: grants (`core/security/acl.py`), which names are good ones (`core/objects/rows.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from buckram.core.objects.rows import check_object_name
from buckram.errors import InvalidArgument

OBJECTS = "objects"


class NameRange(NamedTuple):
    """The names that begin with `text`, or, with `exact`, this one alone."""

    text: str
    exact: bool = False

    def has(self, name: str) -> bool:
        """Whether this is one of the names."""
        return name == self.text if self.exact else name.startswith(self.text)

    def has_all(self, prefix: str) -> bool:
        """Whether all names that begin with the prefix are among these."""
        return not self.exact and prefix.startswith(self.text)

    def from_prefix(self, prefix: str) -> NameRange | None:
        """Those of the names that begin with the prefix as well; None if there are none."""
        if self.has_all(prefix):
            return NameRange(prefix)
        return self if self.text.startswith(prefix) else None


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
    """Raises InvalidArgument for `objects/...` in a grant that could not name an object."""
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


__all__ = ["OBJECTS", "NameRange", "check_range", "disjoint", "granted_range", "object_name"]

"""The table of a server's operations: each method of a path is there once, with what it does, in one sentence.

Servers route by it and documents are made from it. Not here: handlers, requests and answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

ANY = "*"
"""The method of an operation that takes every method which the others of its path do not."""
_NAMED = re.compile(r"{(\w+)(:path)?}")


class Described(Protocol):
    """An operation. `path` has names in braces, as in /v2/jobs/{job}; one that ends in :path may have slashes."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def what(self) -> str:
        """Description for people."""
        ...


O = TypeVar("O", bound=Described)  # noqa: E741 - an operation
S = TypeVar("S", bound=Described, covariant=True)


class Group(Protocol[S]):
    """Operations that belong together."""

    def operations(self) -> Sequence[S]:
        """Its operations."""
        ...


class Registry(Generic[O]):
    """All operations of a server, in the order of their groups."""

    def __init__(self, groups: Sequence[Group[O]]) -> None:
        """Raises ValueError if a method of a path is there twice."""
        self._all = [one for group in groups for one in group.operations()]
        self._by_path: dict[str, dict[str, O]] = {}
        for one in self._all:
            methods = self._by_path.setdefault(one.path, {})
            if one.method in methods:
                raise ValueError(f"{one.method} {one.path} is registered twice")
            methods[one.method] = one
        self._patterns = [(_pattern(path), path) for path in self._by_path if "{" in path]

    def __iter__(self) -> Iterator[O]:
        return iter(self._all)

    def at(self, path: str) -> Mapping[str, O]:
        """Return the operations of a request's path by method; empty for an unknown path. A path without names comes
        before those with names.
        """
        known = self._by_path.get(path)
        if known is None:
            known = next((self._by_path[named] for pattern, named in self._patterns if pattern.fullmatch(path)), {})
        return known


def _pattern(path: str) -> re.Pattern[str]:
    """Return the expression that matches a path with names."""
    pieces, end = [], 0
    for found in _NAMED.finditer(path):
        pieces += [re.escape(path[end : found.start()]), ".*" if found[2] else "[^/]+"]
        end = found.end()
    return re.compile("".join([*pieces, re.escape(path[end:])]), re.DOTALL)

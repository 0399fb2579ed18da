"""Objects of /v2 as clients see them: what each call does to the names of one directory, and what it answers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

ABSENT, CHANGED, EXISTS = "absent", "changed", "exists"
OK, REFUSED = "ok", "refused"
FREE = "free"
"""The condition that nothing has the name; any other one is the label of what has to be there."""


class Refused(Exception):
    """The call changes nothing; the text is why."""


class Names:
    """Labels of objects by name, in the middle of one call."""

    def __init__(self, state: Any) -> None:
        self.rows: dict[str, str] = dict(state)

    def state(self) -> Hashable:
        return tuple(sorted(self.rows.items()))

    def _check(self, name: str, condition: str) -> None:
        present = self.rows.get(name)
        if condition == FREE and present is not None:
            raise Refused(EXISTS)
        if condition not in ("", FREE) and present != condition:
            raise Refused(CHANGED)

    def _needed(self, name: str) -> str:
        if name not in self.rows:
            raise Refused(ABSENT)
        return self.rows[name]

    # -- calls ----------------------------------------------------------------------------------------------

    def put(self, name: str, label: str, condition: str) -> None:
        self._check(name, condition)
        self.rows[name] = label

    def delete(self, name: str, condition: str) -> None:
        self._needed(name)
        self._check(name, condition)
        del self.rows[name]

    def rename(self, source: str, name: str, condition: str) -> None:
        label = self._needed(source)
        if name != source:
            self._check(name, condition)
            del self.rows[source]
            self.rows[name] = label

    def get(self, name: str) -> str:
        return self._needed(name)

    def page(self, after: str, most: int) -> tuple[str, ...]:
        return tuple(name for name in sorted(self.rows) if name > after)[:most]


def object_step(state: Any, operation: tuple[Any, ...]) -> tuple[Hashable, tuple[str, Any]]:
    """Apply a call; return the state afterwards, and what it answers."""
    verb, *given = operation
    names = Names(state)
    try:
        value = getattr(names, verb)(*given)
    except Refused as refused:
        return state, (REFUSED, str(refused))
    return names.state(), (OK, value)


__all__ = ["ABSENT", "CHANGED", "EXISTS", "FREE", "OK", "REFUSED", "object_step"]

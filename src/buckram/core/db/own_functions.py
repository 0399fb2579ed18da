"""Functions of a connection that are no functions of SQLite: each is called by a statement of its own.

`SELECT buckram_token('order-4711')` gives the next commit of the connection a token, `SELECT buckram_offset()` says how
far its replica is, `SELECT buckram_after(1200)` has its reads see everything below an offset. They are executed in
`sql/session.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from buckram.core.db.sql import Parameters, SqlValue

_CALL = re.compile(
    r"""SELECT\s+(?P<name>buckram_(?:token|offset|after))\s*
        \(\s*(?P<argument>'(?:[^']|'')*'|\d{1,19}|\?\d*|[:@$]\w+)?\s*\)
        (?:\s*AS\s+(?P<label>\w+))?\s*;?\s*""",
    re.VERBOSE | re.IGNORECASE,
)
_MOST_CHARACTERS = 1000
_PREFIX = "buckram_"


class OwnCall(NamedTuple):
    """One call of a function of the connection."""

    name: str
    argument: str
    """The argument as it is written: a literal or a placeholder; empty for none."""
    label: str
    """Name of the result column."""


def own_call(sql: str) -> OwnCall | None:
    """Return the call that a statement consists of; None for any other statement.

    `sql`: text of the statement, without comments before it.
    """
    if len(sql) > _MOST_CHARACTERS or _PREFIX not in sql.lower():
        return None
    found = _CALL.fullmatch(sql)
    if found is None:
        return None
    name = found["name"].lower()
    return OwnCall(name, found["argument"] or "", found["label"] or name)


def argument_of(call: OwnCall, parameters: Parameters) -> SqlValue:
    """Return the value of the argument of a call; None without one, or if its placeholder has no value."""
    written = call.argument
    if written.startswith("'"):
        return written[1:-1].replace("''", "'")
    if written.isdigit():
        return int(written)
    if not written:
        return None
    if isinstance(parameters, Mapping):
        return parameters.get(written[1:])
    given = tuple(parameters)
    return given[0] if len(given) == 1 else None


__all__ = ["OwnCall", "argument_of", "own_call"]

"""The functions of a connection that are no functions of SQLite: a statement of its own asks for one.

`SELECT buckram_token('order-4711')` gives the next commit of the connection a token, `SELECT buckram_offset()` says how
far its replica is, `SELECT buckram_after(1200)` has its reads see everything below an offset. What they do is in
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
    """A call of such a function."""

    name: str
    argument: str
    """As it is written; empty for none."""
    label: str
    """The name of the column."""


def own_call(sql: str) -> OwnCall | None:
    """The call that a statement is, of which `sql` is the text without comments before it; None for all else."""
    if len(sql) > _MOST_CHARACTERS or _PREFIX not in sql.lower():
        return None
    found = _CALL.fullmatch(sql)
    if found is None:
        return None
    name = found["name"].lower()
    return OwnCall(name, found["argument"] or "", found["label"] or name)


def argument_of(call: OwnCall, parameters: Parameters) -> SqlValue:
    """The value of its argument; None where there is none."""
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

"""Fields of a log line, named after the words before the values in its text.

`log.info("ledger %d: bookie %s failed", 7, "b1")` has the fields ledger and bookie without naming them twice, so the
line for people and the fields for machines cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

NAMES = ("ledger", "bookie", "namespace", "stream", "machine", "job", "auditor", "replicator", "task")
LONGEST_VALUE = 200
"""Characters of a field's value."""
_VALUE = re.compile(r"%(?:%|(?P<kind>[-#0 +]*\d*(?:\.\d+)?[a-zA-Z]))")
_WORD = re.compile(rf"\b({'|'.join(NAMES)}) $", re.IGNORECASE)


@lru_cache(maxsize=1024)
def places(template: str) -> tuple[tuple[str, int], ...]:
    """Fields of a text in printf style, with the places of their values; the first of a field that is there twice."""
    found: dict[str, int] = {}
    place = 0
    for match in _VALUE.finditer(template):
        if match["kind"] is None:
            continue
        word = _WORD.search(template, max(0, match.start() - 20), match.start())
        if word is not None:
            found.setdefault(word[1].lower(), place)
        place += 1
    return tuple(found.items())


def fields(template: str, values: object) -> dict[str, int | str]:
    """Return the fields of one line: whole numbers stay numbers, everything else is text."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | Mapping):
        return {}
    found: dict[str, int | str] = {}
    for name, place in places(template):
        if place < len(values):
            value = values[place]
            found[name] = value if type(value) is int else str(value)[:LONGEST_VALUE]
    return found

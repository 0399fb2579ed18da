"""The format of sqllogictest: records of a script, and how its results are written. Pure.

A record is `statement ok`, `statement error` or `query TYPES SORT LABEL`, SQL, and for a query `----` and the values,
or their number and hash. Values may be missing: whoever runs the script compares with another engine as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_ENGINE = "sqlite"


@dataclass(frozen=True)
class Record:
    """One statement or query. `types` is empty for a statement."""

    line: int
    sql: str
    error: bool = False
    types: str = ""
    sort: str = "nosort"
    label: str = ""
    values: tuple[str, ...] | None = None
    """What the script expects, as it stands there."""


def records(script: str) -> Iterator[Record]:
    """The records for SQLite. Raises ValueError for what is none."""
    for line, lines in _blocks(script):
        wanted, rest = _conditions(lines)
        if not wanted or not rest or rest[0].startswith("hash-threshold"):
            continue
        kind, *words = rest[0].split()
        if kind == "halt":
            return
        if kind == "statement":
            yield Record(line, "\n".join(rest[1:]), error=words[0] == "error")
        elif kind == "query":
            at = rest.index("----") if "----" in rest else len(rest)
            values = tuple(rest[at + 1 :]) if at < len(rest) else None
            types, sort, label, *_ = [*words, *("nosort", "")[len(words) - 1 :], ""]
            yield Record(line, "\n".join(rest[1:at]), False, types, sort, label, values)
        else:
            raise ValueError(f"line {line}: {rest[0]!r} begins no record")


def _blocks(script: str) -> Iterator[tuple[int, list[str]]]:
    """Lines up to the next empty one, without comments, and the number of the first."""
    found: list[str] = []
    for number, line in enumerate([*script.splitlines(), ""], 1):
        if line.strip():
            if not line.startswith("#"):
                found.append(line)
        elif found:
            yield number - len(found), found
            found = []


def _conditions(lines: list[str]) -> tuple[bool, list[str]]:
    """Whether a record is for SQLite, and its lines without the conditions."""
    wanted = True
    for at, line in enumerate(lines):
        word, _, engine = line.partition(" ")
        if word not in ("onlyif", "skipif"):
            return wanted, lines[at:]
        wanted &= (engine.split()[0] == _ENGINE) is (word == "onlyif")
    return wanted, []


def written(types: str, sort: str, rows: Sequence[Sequence[Any]], written_by: Callable[[str, Any], Any]) -> list[str]:
    """The values of a result as scripts have them. `written_by` gives an expression of SQLite for a value."""
    texts = [[_value(value, kind, written_by) for value, kind in zip(row, types, strict=True)] for row in rows]
    if sort == "rowsort":
        texts.sort()
    values = [value for row in texts for value in row]
    return sorted(values) if sort == "valuesort" else values


def _value(value: Any, kind: str, written_by: Callable[[str, Any], Any]) -> str:
    if value is None:
        return "NULL"
    if kind == "I":
        return str(value if type(value) is int else written_by("CAST(? AS INTEGER)", value))
    if kind == "R":
        return str(written_by("printf('%.3f', ?)", value))
    text = value if type(value) is str else str(written_by("CAST(? AS TEXT)", value))
    return "".join(one if " " <= one <= "~" else "@" for one in text) or "(empty)"


def hashed(values: Sequence[str]) -> str:
    """How a script says so many values in one line."""
    digest = hashlib.md5("".join(f"{value}\n" for value in values).encode(), usedforsecurity=False).hexdigest()
    return f"{len(values)} values hashing to {digest}"


__all__ = ["Record", "hashed", "records", "written"]

"""SQL text: the ends of statements, which of them begin and end transactions, and calls of Buckram's own functions.

No grammar beyond that is known. The own functions are functions of a connection, not of SQLite, and each is called by a
statement of its own: `SELECT buckram_token('order-4711')` gives the next commit of the connection a token, `SELECT
buckram_offset()` says how far its replica is, `SELECT buckram_after(1200)` has its reads see everything below an
offset.

Not here: carrying the functions out (`sql/session.py`).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from buckram.core.db.sql import Parameters, SqlValue

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
      |(?P<quoted>'(?:[^']|'')*(?:'|\Z)|"(?:[^"]|"")*(?:"|\Z)|`(?:[^`]|``)*(?:`|\Z)|\[[^\]]*(?:\]|\Z))
      |(?P<word>[\w$]+)
      |(?P<end>;)
      |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)

_MODES = {"DEFERRED": "deferred", "IMMEDIATE": "immediate", "EXCLUSIVE": "immediate", "CONCURRENT": "deferred"}


class Kind(enum.Enum):
    """Kinds of statements, by their effect on the transaction of the connection."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    ROLLBACK_TO = "rollback to"
    SAVEPOINT = "savepoint"
    RELEASE = "release"
    OTHER = "other"
    """A statement without effect on it: it runs in the open transaction, or in one of its own."""
    EMPTY = "empty"
    """Text of blanks and comments only."""


@dataclass(frozen=True, slots=True)
class ClassifiedStatement:
    """One statement. `mode` of a BEGIN: "deferred", "immediate" or "readonly"; `name`: that of a savepoint."""

    kind: Kind
    mode: str = ""
    name: str = ""


_OTHER = ClassifiedStatement(Kind.OTHER)


def classify(sql: str) -> ClassifiedStatement:
    """Return the kind of a single statement. Text that is not understood is OTHER: SQLite reports its errors."""
    first, words = "", list[str]()
    for kind, text in _tokens(sql):
        if kind == "end":
            if not words:
                continue
            break
        words.append(text if kind == "quoted" else text.upper())
        first = first or text.upper()
        if first not in _CONTROL or len(words) > 5:
            return _OTHER
    return _CONTROL[first](words) if first else ClassifiedStatement(Kind.EMPTY)


def split(script: str) -> list[str]:
    """Return the statements of a script without empty ones; a trigger with its body is one statement."""
    found: list[str] = []
    begin, words = 0, list[str]()
    for match in _TOKEN.finditer(script):
        kind = match.lastgroup
        if kind == "space":
            continue
        if kind != "end":
            words.append(match[0].upper() if kind == "word" else "?")
            continue
        if _creates_trigger(words) and words[-2:] != [";", "END"]:
            words.append(";")
            continue
        if words:
            found.append(script[begin : match.end()].strip())
        begin, words = match.end(), []
    if words:
        found.append(script[begin:].strip())
    return found


def is_single(sql: str) -> bool:
    """Return whether the text has at most one statement."""
    return ";" not in sql.rstrip().rstrip(";") or len(split(sql)) <= 1


def placeholders(sql: str) -> dict[str, str]:
    """Return the names of a statement's placeholders, each with its full form: {"a": ":a", "2": "?2"}."""
    found: dict[str, str] = {}
    before = ""
    for match in _TOKEN.finditer(sql):
        if match.lastgroup == "word" and before and before in ":@$?":
            found.setdefault(match[0], before + match[0])
        elif match.lastgroup == "word" and match[0].startswith("$"):
            found.setdefault(match[0][1:], match[0])
        before = match[0] if match.lastgroup == "other" else ""
    return found


def _creates_trigger(words: list[str]) -> bool:
    at = 0
    if words[:1] == ["EXPLAIN"]:
        at = 3 if words[1:3] == ["QUERY", "PLAN"] else 1
    if words[at : at + 1] != ["CREATE"]:
        return False
    at += 1
    while words[at : at + 1] in (["TEMP"], ["TEMPORARY"]):
        at += 1
    return words[at : at + 1] == ["TRIGGER"]


def _tokens(sql: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup
        assert kind is not None
        if kind != "space":
            yield kind, match[0]


def _begin(words: list[str]) -> ClassifiedStatement:
    rest = words[1:]
    mode = _MODES.get(rest[0], "") if rest else ""
    rest = rest[1:] if mode else rest
    if rest[:1] == ["TRANSACTION"]:
        rest = rest[1:]
    if rest == ["READONLY"] and not mode:
        return ClassifiedStatement(Kind.BEGIN, "readonly")
    return _OTHER if rest else ClassifiedStatement(Kind.BEGIN, mode or "deferred")


def _commit(words: list[str]) -> ClassifiedStatement:
    return ClassifiedStatement(Kind.COMMIT) if words[1:] in ([], ["TRANSACTION"]) else _OTHER


def _rollback(words: list[str]) -> ClassifiedStatement:
    rest = words[2:] if words[1:2] == ["TRANSACTION"] else words[1:]
    if not rest:
        return ClassifiedStatement(Kind.ROLLBACK)
    name = rest[2:] if rest[1:2] == ["SAVEPOINT"] and len(rest) == 3 else rest[1:]
    return ClassifiedStatement(Kind.ROLLBACK_TO, name=_name(name[0])) if rest[0] == "TO" and len(name) == 1 else _OTHER


def _savepoint(words: list[str]) -> ClassifiedStatement:
    return ClassifiedStatement(Kind.SAVEPOINT, name=_name(words[1])) if len(words) == 2 else _OTHER


def _release(words: list[str]) -> ClassifiedStatement:
    rest = words[2:] if words[1:2] == ["SAVEPOINT"] and len(words) == 3 else words[1:]
    return ClassifiedStatement(Kind.RELEASE, name=_name(rest[0])) if len(rest) == 1 else _OTHER


def _name(word: str) -> str:
    """Return the name of a savepoint in a form for comparison: without quotes, in lower case."""
    if word[0] in "'\"`[":
        close = "]" if word[0] == "[" else word[0]
        word = word[1:-1] if word[0] == "[" else word[1:-1].replace(close * 2, close)
    return word.lower()


_CONTROL = {
    "BEGIN": _begin,
    "COMMIT": _commit,
    "END": _commit,
    "ROLLBACK": _rollback,
    "SAVEPOINT": _savepoint,
    "RELEASE": _release,
}


# -- functions of a connection --------------------------------------------------------------------------------

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

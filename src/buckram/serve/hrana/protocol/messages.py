"""Messages of the Hrana protocol on a WebSocket, parsed from JSON. Raises Malformed for what violates the
specification.

A request of a stream is the same as over HTTP (`serve/hrana/protocol/requests.py`), with the number of its stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from buckram.serve.hrana.protocol.values import Malformed

SUBPROTOCOLS = ("hrana3", "hrana2", "hrana1")
"""Subprotocols, all in JSON, the preferred first; the first of them that a client offers is chosen."""
_INT32 = 1 << 31
_UINT32 = 1 << 32
_OF_STREAMS = ("open_stream", "close_stream", "execute", "batch", "sequence", "describe", "get_autocommit")
_OF_TEXTS = ("store_sql", "close_sql")
_OF_CURSORS = ("open_cursor", "fetch_cursor", "close_cursor")


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message, which authenticates the client."""

    jwt: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. `raw` is the whole message; ids that its kind does not have are 0."""

    id: int
    kind: str
    raw: dict[str, Any]
    stream: int = 0
    cursor: int = 0
    sql_id: int = 0
    sql: str = ""
    most: int = 0
    """Entries that fetch_cursor wants."""


Message: TypeAlias = Hello | Asked


def parse_message(raw: Any) -> Message:
    """A message of a client."""
    if not isinstance(raw, dict):
        raise Malformed("a message needs to be an object")
    kind = raw.get("type")
    if kind == "hello":
        jwt = raw.get("jwt")
        if jwt is not None and not (isinstance(jwt, str) and jwt.isprintable() and jwt.isascii()):
            raise Malformed("hello.jwt: needs a token, or null")
        return Hello(jwt)
    if kind != "request":
        raise Malformed(f"type: {_short(kind)} is neither hello nor request")
    number, request = _number(raw, "request_id", -_INT32, _INT32, ""), raw.get("request")
    if not isinstance(request, dict):
        raise Malformed("request: needs an object")
    return _asked(number, request)


def _asked(number: int, request: dict[str, Any]) -> Asked:
    kind = request.get("type")
    if kind in _OF_STREAMS:
        return Asked(number, kind, request, _number(request, "stream_id", -_INT32, _INT32))
    if kind == "store_sql":
        sql = request.get("sql")
        if not isinstance(sql, str):
            raise Malformed("request.sql: needs a string")
        return Asked(number, kind, request, sql_id=_number(request, "sql_id", -_INT32, _INT32), sql=sql)
    if kind == "close_sql":
        return Asked(number, kind, request, sql_id=_number(request, "sql_id", -_INT32, _INT32))
    if kind in _OF_CURSORS:
        cursor = _number(request, "cursor_id", -_INT32, _INT32)
        stream = _number(request, "stream_id", -_INT32, _INT32) if kind == "open_cursor" else 0
        most = _number(request, "max_count", 1, _UINT32) if kind == "fetch_cursor" else 0
        return Asked(number, kind, request, stream, cursor, most=most)
    raise Malformed(f"request.type: {_short(kind)} is none of {', '.join((*_OF_STREAMS, *_OF_TEXTS, *_OF_CURSORS))}")


def with_texts(raw: dict[str, Any], text: Callable[[int], str]) -> dict[str, Any]:
    """Return a request in the form that it has over HTTP: without its stream's number, with SQL texts in place of ids.

    `text` returns the text of an id and may raise; malformed parts are left to the parser of the request.
    """
    found = _with_text({key: value for key, value in raw.items() if key not in ("stream_id", "cursor_id")}, text)
    if isinstance(found.get("stmt"), dict):
        found["stmt"] = _with_text(found["stmt"], text)
    batch = found.get("batch")
    if isinstance(batch, dict) and isinstance(batch.get("steps"), list):
        found["batch"] = {**batch, "steps": [_step_with_text(step, text) for step in batch["steps"]]}
    return found


def _step_with_text(step: Any, text: Callable[[int], str]) -> Any:
    if isinstance(step, dict) and isinstance(step.get("stmt"), dict):
        return {**step, "stmt": _with_text(step["stmt"], text)}
    return step


def _with_text(part: dict[str, Any], text: Callable[[int], str]) -> dict[str, Any]:
    sql_id = part.get("sql_id")
    if type(sql_id) is not int or part.get("sql") is not None:
        return dict(part)
    return {**{key: value for key, value in part.items() if key != "sql_id"}, "sql": text(sql_id)}


def _number(raw: dict[str, Any], key: str, least: int, most: int, where: str = "request.") -> int:
    value = raw.get(key)
    if type(value) is not int or not least <= value < most:
        raise Malformed(f"{where}{key}: {_short(value)} is no integer of 32 bits")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

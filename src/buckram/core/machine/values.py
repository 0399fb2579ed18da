"""Commands and results as bytes: one letter says how, then the value. Bytes stay bytes, everything else is JSON."""

from __future__ import annotations

import json
from typing import Any

from buckram.errors import InvalidArgument

_BYTES, _JSON = b"b", b"j"
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def encode_value(value: Any, what: str = "a command") -> bytes:
    """Encode bytes or a JSON-able value. InvalidArgument for anything else; `what` names it there."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _BYTES + bytes(value)
    try:
        return _JSON + _encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{what} must be bytes or a value that JSON has, not {type(value).__name__} ({error}); the class may have "
            "encode() and decode() of its own for commands"
        ) from None


def decode_value(data: bytes) -> Any:
    """Raises ValueError for bytes that `encode_value` did not make."""
    if data[:1] == _BYTES:
        return data[1:]
    if data[:1] == _JSON:
        return json.loads(data[1:].decode())
    raise ValueError(f"a value of unknown form {data[:1]!r}")


__all__ = ["decode_value", "encode_value"]

"""Commands and results as bytes: one letter for the encoding, then the value. Bytes stay bytes, everything else is
JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from buckram.errors import InvalidArgument

_BYTES, _JSON = b"b", b"j"
_BUFFERS = (bytes, bytearray, memoryview)
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]
DEEPEST = 200
"""Maximum levels of lists and dictionaries in a value. Python's own limit depends on the caller's stack: one replica
could read a command and another could not.
"""
_SMALL = {None: b"jnull", True: b"jtrue", False: b"jfalse"}


def _one_shot() -> Callable[[Any], str]:
    """Return the encoder's own function in C, made once and not for each value."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return _encode
    # Without the list of what it is in: a value that contains itself ends in a RecursionError.
    chunks = make(None, _refuse, json.encoder.encode_basestring, None, ":", ",", False, False, False)
    return lambda value: "".join(chunks(value, 0))


def _refuse(value: Any) -> None:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


_dumps = _one_shot()


def _depth(value: Any) -> int:
    """Return the levels of lists and dictionaries of a value."""
    depth, level = 0, [value]
    while level := [part for part in level if isinstance(part, list | tuple | dict)]:
        depth += 1
        level = [part for held in level for part in (held.values() if isinstance(held, dict) else held)]
    return depth


def encode_value(value: Any, what: str = "a command") -> bytes:
    """Encode bytes or a JSON-able value. InvalidArgument for anything else; `what` names it there."""
    kind = type(value)
    if kind is int:
        return b"j%d" % value
    if value is None or kind is bool:
        return _SMALL[value]
    if isinstance(value, _BUFFERS):
        return _BYTES + bytes(value)
    try:
        text = _dumps(value)
        if len(text) > DEEPEST and text.count("[") + text.count("{") > DEEPEST and _depth(value) > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        return _JSON + text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{what} must be bytes or a value that JSON has, not {type(value).__name__} ({error}); the class may have "
            "encode() and decode() of its own for commands"
        ) from None


def decode_value(data: bytes) -> Any:
    """Parse a value. Raises ValueError for bytes that `encode_value` did not make."""
    form = data[:1]
    if form == _JSON:
        text = data.decode()
        try:
            value, end = _scan(text, 1)
        except StopIteration:
            end = 0
        # Whatever is unusual, spaces at the ends or garbage, is left to the careful way.
        return value if end == len(text) else json.loads(text[1:])
    if form == _BYTES:
        return data[1:]
    raise ValueError(f"a value of unknown form {form!r}")

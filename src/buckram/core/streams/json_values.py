"""Values in the JSON of a stream's metadata, which anyone who may append to the stream writes. Pure."""

from __future__ import annotations

_MOST = 1 << 63


def is_int64(value: object) -> bool:
    """Return whether a value is a whole number of 64 bits. JSON has larger ones, which fit into no time, offset or
    file.
    """
    return type(value) is int and -_MOST <= value < _MOST

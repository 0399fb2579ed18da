"""Batons: identify a client's stream to the server, a new one after each request. They cannot be forged."""

from __future__ import annotations

import base64
import binascii
import hmac
import struct

_PLACE = struct.Struct(">QQ")
_MAC = 32


def encode_baton(key: bytes, stream_id: int, sequence: int) -> str:
    """The baton for the next request of a stream; `key` is this server's alone."""
    place = _PLACE.pack(stream_id, sequence)
    return base64.urlsafe_b64encode(place + hmac.digest(key, place, "sha256")).decode()


def decode_baton(key: bytes, baton: str) -> tuple[int, int] | None:
    """Stream and sequence of a baton; None for one that was not made with this key."""
    if len(baton) > 2 * (_PLACE.size + _MAC):
        return None
    try:
        data = base64.b64decode(baton, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    place, mac = data[: _PLACE.size], data[_PLACE.size :]
    if len(place) < _PLACE.size or not hmac.compare_digest(mac, hmac.digest(key, place, "sha256")):
        return None
    stream_id, sequence = _PLACE.unpack(place)
    return stream_id, sequence

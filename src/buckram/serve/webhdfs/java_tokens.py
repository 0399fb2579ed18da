"""Tokens of Hadoop as text: what its clients carry as `delegation=`. Inside is a token of the cluster.

The layout is that of Hadoop's class Token: two byte strings and two texts, each with its length before it, in base64
for URLs. The token of the cluster is the password, which Hadoop writes into no log.
"""

from __future__ import annotations

import base64
import binascii

from buckram.core.security.tokens import MAX_TOKEN_BYTES

KIND = b"WEBHDFS delegation"


def encode(token: str, subject: str, service: str = "") -> str:
    """The text of a delegation token with a token of the cluster in it."""
    parts = (subject.encode(), token.encode(), KIND, service.encode())
    raw = b"".join(_length(len(part)) + part for part in parts)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(text: str) -> str:
    """The token of the cluster in a delegation token. Raises ValueError."""
    if len(text) > 2 * MAX_TOKEN_BYTES:
        raise ValueError(f"it has {len(text)} characters, the limit is {2 * MAX_TOKEN_BYTES}")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        _, rest = _split(raw)
        password, _ = _split(rest)
        return password.decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError, IndexError):
        raise ValueError("it is no token that this gateway gave: ask for one with op=GETDELEGATIONTOKEN") from None


def _length(number: int) -> bytes:
    """A number from 0 on as WritableUtils.writeVInt writes it."""
    if number <= 127:
        return bytes((number,))
    size = (number.bit_length() + 7) // 8
    return bytes((256 - 112 - size,)) + number.to_bytes(size, "big")


def _split(raw: bytes) -> tuple[bytes, bytes]:
    """The byte string at the beginning, and what follows. Raises ValueError, IndexError."""
    first, at = raw[0], 1
    number = first
    if first > 127:
        size = 256 - 112 - first
        if not 1 <= size <= 4:
            raise ValueError("a negative length")
        number, at = int.from_bytes(raw[1 : 1 + size], "big"), 1 + size
    if at + number > len(raw):
        raise ValueError("cut short")
    return raw[at : at + number], raw[at + number :]

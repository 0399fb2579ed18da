"""Validity of a certificate, read from its PEM without any library for certificates, and its renewal. Pure.

A certificate is DER: SEQUENCE { tbsCertificate SEQUENCE { [0] version?, serial, algorithm, issuer, validity, ... } }.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import NamedTuple

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


RENEWED_LEFT = 1 / 3
"""Share of its validity below which a certificate is renewed."""


class Life(NamedTuple):
    """Validity of a certificate, in seconds since 1970."""

    begins_s: int
    ends_s: int

    def due(self, now_s: float) -> bool:
        """Return whether it is to be renewed: less than RENEWED_LEFT of its validity is left."""
        return self.ends_s - now_s < (self.ends_s - self.begins_s) * RENEWED_LEFT


def ends_s(pem: str) -> int:
    """Return when the first certificate of a PEM file ends, in seconds since 1970. Raises ValueError without one."""
    return life_of(pem).ends_s


def life_of(pem: str) -> Life:
    """Return the validity of the first certificate of a PEM file. Raises ValueError if there is none."""
    _, begin, rest = pem.partition(_BEGIN)
    body, end, _ = rest.partition(_END)
    if not begin or not end:
        raise ValueError("no certificate in it")
    try:
        der = base64.b64decode("".join(body.split()), validate=True)
        certificate = _content(der, 0, _SEQUENCE)
        fields = _content(der, certificate[0], _SEQUENCE)
        at = fields[0]
        if der[at] == _VERSION:
            at = _next(der, at)
        for _ in ("serial", "algorithm", "issuer"):
            at = _next(der, at)
        validity = _content(der, at, _SEQUENCE)
        return Life(_time(der, validity[0]), _time(der, _next(der, validity[0])))
    except (IndexError, binascii.Error) as error:
        raise ValueError(f"no certificate ({error})") from None


def _head(der: bytes, at: int) -> tuple[int, int]:
    """Return the offsets at which the content of the element at this offset begins and ends."""
    size, begin = der[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size, begin = int.from_bytes(der[begin : begin + count]), begin + count
    if begin + size > len(der):
        raise ValueError("it is cut off")
    return begin, begin + size


def _content(der: bytes, at: int, kind: int) -> tuple[int, int]:
    if der[at] != kind:
        raise ValueError(f"an element of kind {der[at]:#x}, not {kind:#x}")
    return _head(der, at)


def _next(der: bytes, at: int) -> int:
    return _head(der, at)[1]


def _time(der: bytes, at: int) -> int:
    begin, end = _head(der, at)
    text = der[begin:end].decode("ascii", "replace")
    if der[at] == _UTC_TIME:
        text = f"{'20' if text[:2] < '50' else '19'}{text}"  # RFC 5280: two digits of the year
    elif der[at] != _GENERALIZED_TIME:
        raise ValueError(f"a time of kind {der[at]:#x}")
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp())

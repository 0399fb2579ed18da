"""Errors of the metadata service as a status and fields, and back: the same class with the same fields.

What is in no row travels as MetadataError with its message. Not here: other packets (`metadata/service/packets.py`).
"""

from __future__ import annotations

import struct

from buckram.errors import (
    AccessRefused,
    BuckramError,
    ClusterNotInitialised,
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    LedgerIdRefused,
    LedgerIdsExhausted,
    LedgerIdUsed,
    MalformedRecord,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    QuotaExceeded,
    ValueTooLarge,
    VersionConflict,
    WrongCluster,
)
from buckram.metadata.service.packets import PacketReader, encode_refusal, request_id_of

_OTHER = 1
# Status, class, and the attributes it is made from: s text, n number. Without any it is made from its message.
_ROWS: tuple[tuple[int, type[BuckramError], tuple[tuple[str, str], ...]], ...] = (
    (2, MetadataUnavailable, ()),
    (3, NoSuchKey, (("key", "s"),)),
    (4, KeyExists, (("key", "s"),)),
    (5, KeyNotEmpty, (("key", "s"),)),
    (6, VersionConflict, (("key", "s"), ("expected", "n"))),
    (7, ValueTooLarge, (("key", "s"), ("size", "n"), ("limit", "n"))),
    (8, InvalidArgument, ()),
    (9, MalformedRecord, ()),
    (10, AccessRefused, (("key", "s"), ("found", "s"))),
    (11, LedgerIdUsed, (("ledger_id", "n"),)),
    (12, LedgerIdsExhausted, ()),
    (13, ClusterNotInitialised, (("uri", "s"),)),
    (14, WrongCluster, ()),
    (15, QuotaExceeded, (("namespace", "s"), ("quota", "s"), ("used", "n"), ("limit", "n"))),
    (16, LedgerIdRefused, (("ledger_id", "n"),)),
    (_OTHER, MetadataError, ()),
)
_BY_STATUS = {status: (cls, fields) for status, cls, fields in _ROWS}
_BY_CLASS = {cls: (status, fields) for status, cls, fields in _ROWS}
_I64 = struct.Struct(">q")
_U16 = struct.Struct(">H")
_MOST = 2000


def encode_error(error: BuckramError) -> tuple[int, bytes]:
    """Return the status and the fields of an error."""
    status, fields = _BY_CLASS.get(type(error), (_OTHER, ()))
    if not fields:
        return status, _text(str(error))
    values = [(getattr(error, name), form) for name, form in fields]
    return status, b"".join(_text(value) if form == "s" else _I64.pack(value) for value, form in values)


def decode_error(status: int, reader: PacketReader) -> BuckramError:
    """Return the error. A status of a later release is a MetadataError. Raises BadPacket."""
    cls, fields = _BY_STATUS.get(status, (MetadataError, ()))
    if status not in _BY_STATUS:
        return MetadataError(f"the bookie refused it with status {status}, which this release does not know: upgrade")
    if not fields:
        return cls(reader.text())
    if cls is AccessRefused:  # A bookie has judged it by grants, and says itself what is missing.
        return AccessRefused(reader.text(), reader.text(), advice="")
    return cls(*(reader.text() if form == "s" else reader.number() for _, form in fields))


def stranger_refused(packet: bytes, needs_tls: bool) -> bytes:
    """Return the answer to a peer that has not identified itself, or not through TLS, as the bookie wants it."""
    why = (
        "it speaks TLS only: use a buckram+tls:// URI, and BUCKRAM_CA for the file of the cluster's authority"
        if needs_tls
        else "it asks for a login, and this client has no token: set one (BUCKRAM_TOKEN, BUCKRAM_AUTH_TOKEN_FILE, or a"
        " context's)"
    )
    request_id = request_id_of(packet)
    return b"" if request_id is None else encode_refusal(request_id, *encode_error(AccessRefused("this bookie", why)))


def _text(text: str) -> bytes:
    data = text.encode(errors="replace")[:_MOST]
    data = data.decode(errors="ignore").encode()  # not cut within a character
    return _U16.pack(len(data)) + data

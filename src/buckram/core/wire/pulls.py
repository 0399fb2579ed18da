"""Pulls: a bookie gets the places of entries in a neighbour's files, and copies them itself (protocol, section 5).

A packet of our own on the v2 wire, only for bookies that announced it. Not here: carrying it out
(`bookie/service/entries/pulls.py`), and requesting it (`healing/repair/server_side_copy.py`).
"""

from __future__ import annotations

import struct

from buckram.core.wire.located import Located
from buckram.core.wire.messages import OP_PULL, BadPacket, Pull, PullReply, RefusedRequest, ReplyContext
from buckram.errors import Code, InvalidArgument
from buckram.types import MASTER_KEY_SIZE, DigestType

PULL = 0x45
"""Opcode of a pull."""
PULL_HEADER = 2 << 24 | PULL << 16
MAX_PULL_BYTES = 4 * 1024 * 1024
"""Maximum bytes of files that one request may name."""
_REQUEST = struct.Struct(f">IIqqqiH{MASTER_KEY_SIZE}sH")
"""Length, header; ledger, first entry, request id, entries, digest kind, master key, bytes of the source's id."""
_REPLY = struct.Struct(">IIiqqqiq")
"""Length, header; code, ledger, first entry, request id, entries, bytes."""


def encode_pull(request: Pull, request_id: int) -> bytes:
    """Encode a frame. Raises InvalidArgument for a key of another size or an id of a bookie that is too long."""
    source, places = request.source.encode(), request.located.pack()
    if len(request.master_key) != MASTER_KEY_SIZE or len(source) > 0xFFFF:
        raise InvalidArgument(
            f"a pull with a key of {len(request.master_key)} bytes and a bookie id of {len(source)}: the key has "
            f"{MASTER_KEY_SIZE} bytes, and an id 65,535 at most"
        )
    size = _REQUEST.size - 4 + len(source) + len(places)
    ids = request.ledger_id, request.entry_id, request_id, request.count
    head = _REQUEST.pack(size, PULL_HEADER, *ids, request.digest, request.master_key, len(source))
    return b"".join((head, source, places))


def decode_pull(packet: bytes) -> tuple[Pull | RefusedRequest, ReplyContext]:
    """Decode a packet. Raises BadPacket if it has no ids to answer with; anything else that is wrong is refused."""
    if len(packet) < _REQUEST.size - 4:
        raise BadPacket(f"a v2 PULL of {len(packet)} bytes, {_REQUEST.size - 4} are needed at least")
    _, _, ledger, entry, number, count, kind, key, size = _REQUEST.unpack(bytes(4) + packet[: _REQUEST.size - 4])
    context = ReplyContext(2, 2, OP_PULL, ledger, entry, number)
    at = _REQUEST.size - 4
    located = Located.parse(packet[at + size :])
    try:
        digest, source = DigestType(kind), packet[at : at + size].decode()
    except ValueError:
        return RefusedRequest(Code.BAD_REQUEST), context
    if located is None or not _fits(located, entry, count) or ledger < 0 or not source:
        return RefusedRequest(Code.BAD_REQUEST), context
    return Pull(ledger, entry, count, key, digest, source, located), context


def _fits(located: Located, first: int, count: int) -> bool:
    """Return whether these are the places of `count` entries from `first` on, without a gap, within MAX_PULL_BYTES."""
    if first < 0 or count < 1:
        return False
    after, size = first, 0
    for extent in located.extents:
        if extent.first != after or extent.entries < 1:
            return False
        after += extent.entries
        size += extent.length
    return after == first + count and size <= MAX_PULL_BYTES


def encode_pull_reply(context: ReplyContext, reply: PullReply) -> bytes:
    """Encode a frame with the ids of the request."""
    ids = reply.code.v2, context.ledger_id, context.entry_id, context.txn
    return _REPLY.pack(_REPLY.size - 4, PULL_HEADER, *ids, reply.count, reply.bytes)


def decode_pull_reply(data: bytes | bytearray, start: int, end: int) -> tuple[PullReply, int]:
    """Decode the packet data[start:end] to the reply and the request id. Raises BadPacket if it is malformed."""
    if end - start != _REPLY.size - 4:
        raise BadPacket(f"a v2 answer to PULL of {end - start} bytes, {_REPLY.size - 4} are expected")
    _, _, number, ledger, entry, request_id, count, size = _REPLY.unpack(bytes(4) + data[start:end])
    if count < 0 or size < 0:
        raise BadPacket(f"a v2 answer to PULL of {count} entries with {size} bytes")
    return PullReply(Code.from_v2(number), ledger, entry, count, size), request_id

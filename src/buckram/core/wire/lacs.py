"""Explicit LACs on the v2 wire: a small packet of our own for each ledger, many of which travel in one write.

Only for bookies that announced it (`introduction.LACS`); others get WRITE_LAC of v3. Not here: when a LAC is published
(`client/write/explicit_lac.py`), and how a bookie stores it (`bookie/service/dispatch.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

from buckram.core.wire.messages import OP_WRITE_LAC, ReplyContext, WriteLac
from buckram.errors import Code
from buckram.types import MASTER_KEY_SIZE, Buffer, EntryId, LedgerId

LAC = 0x46
"""Opcode of the packet and of its reply."""
LAC_HEADER = 2 << 24 | LAC << 16
LAC_PACKET = struct.Struct(">qq")
"""Head of the sealed packet: ledger and LAC. The digest follows."""
LARGEST_LAC_PACKET = LAC_PACKET.size + 20
"""The two numbers and the longest digest (MAC)."""
_HEAD = struct.Struct(f">II{MASTER_KEY_SIZE}s")
_START = struct.Struct(f">II{MASTER_KEY_SIZE}sqq")
_REPLY = struct.Struct(">IIiqq")
_LEAST = _HEAD.size - 4 + LAC_PACKET.size
_MOST = _HEAD.size - 4 + LARGEST_LAC_PACKET

Answered: TypeAlias = "list[tuple[LedgerId, EntryId, Code]]"
"""Ledger, LAC and code of replies."""


def encode_lac(master_key: bytes, sealed: bytes) -> bytes:
    """Return the frame with a sealed packet (`Digest.seal_lac`)."""
    return _HEAD.pack(_HEAD.size - 4 + len(sealed), LAC_HEADER, master_key) + sealed


def take_lacs(buffer: bytes, offset: int) -> tuple[int, Sequence[tuple[WriteLac, ReplyContext]]]:
    """Take such frames from `offset` on; return the offset of the unconsumed rest, and the requests.

    Stops before the first frame that is another, not complete, or of a size or with ids that no such packet has.
    """
    found: list[tuple[WriteLac, ReplyContext]] = []
    unpack, stop = _START.unpack_from, len(buffer)
    while offset + _START.size <= stop:
        size, header, key, ledger, lac = unpack(buffer, offset)
        end = offset + 4 + size
        if header != LAC_HEADER or not _LEAST <= size <= _MOST or end > stop or ledger < 0 or lac < -1:
            break
        request = WriteLac(ledger, lac, key, buffer[offset + _HEAD.size : end])
        found.append((request, ReplyContext(2, 2, OP_WRITE_LAC, ledger, lac)))
        offset = end
    return offset, found


def encode_lac_reply(context: ReplyContext, code: Code) -> bytes:
    """Return the frame that answers, with the ids of the request."""
    return _REPLY.pack(_REPLY.size - 4, LAC_HEADER, code.v2, context.ledger_id, context.entry_id)


def take_lac_replies(buffer: Buffer, offset: int, found: Answered) -> int:
    """Append the replies from `offset` on to `found`; return the offset of the unconsumed rest.

    Stops before the first frame that is another or not complete.
    """
    unpack, step = _REPLY.unpack_from, _REPLY.size
    stop = len(buffer) - step
    while offset <= stop:
        size, header, number, ledger, lac = unpack(buffer, offset)
        if header != LAC_HEADER or size != step - 4:
            break
        found.append((ledger, lac, Code.from_v2(number)))
        offset += step
    return offset

"""Context of a request for its reply, and the results of decoding an invalid request.

Not here: bytes (`core/wire/v2.py`, `core/wire/v3.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from buckram.errors import Code
from buckram.types import EntryId, LedgerId

OP_READ, OP_ADD, OP_AUTH, OP_WRITE_LAC, OP_READ_LAC = 1, 2, 5, 6, 7
OP_BOOKIE_INFO, OP_START_TLS, OP_FORCE, OP_LIST_ENTRIES, OP_BATCH_READ = 8, 9, 10, 11, 12
OP_PULL = 0x45
"""Opcode of a pull on v2; v3 does not have it."""


class ReplyContext(NamedTuple):
    """Echoed into the reply. `operation` is the v3 number on both wires.

    `version`: the request's version byte (v2). `txn`: the v3 transaction id or the v2 batch read's request id.
    `priority`: the v3 header's, for replies that copy the whole header; -1 when it has none.
    """

    protocol: int
    version: int
    operation: int
    ledger_id: LedgerId = -1
    entry_id: EntryId = -1
    txn: int = 0
    priority: int = -1


class BadPacket(Exception):
    """A packet that cannot be answered: the connection must be closed."""


class RefusedRequest(NamedTuple):
    """A valid packet that is answered with an error at once. `envelope_only`: the reply has no ids (v3)."""

    code: Code
    envelope_only: bool = False

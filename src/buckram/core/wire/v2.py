"""The v2 (binary) wire: packets of ADD, READ, BATCH_READ and AUTH to messages and back.

Packet header, 4 bytes: version, opcode, u16 flags; a version 0 packet has the opcode as one number. `encode_*` returns
whole frames, `decode_*` takes a packet without its length.
Not here: runs of adds (`core/wire/adds.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from buckram.core.entries.entry import MIN_STORED_BYTES
from buckram.core.entries.packed import FrameParts, PackedBodies
from buckram.core.wire import bookkeeper_pb2 as pb
from buckram.core.wire.adds import HIGH_PRIORITY, RECOVERY_ADD, frame_add
from buckram.core.wire.lacs import encode_lac_reply
from buckram.core.wire.located import Located
from buckram.core.wire.messages import (
    OP_ADD,
    OP_AUTH,
    OP_BATCH_READ,
    OP_PULL,
    OP_READ,
    OP_WRITE_LAC,
    Add,
    AddReply,
    Auth,
    AuthReply,
    BadPacket,
    BatchRead,
    BatchReadReply,
    LocatedReply,
    Pull,
    PullReply,
    Read,
    ReadReply,
    RefusedRequest,
    Reply,
    ReplyContext,
    Request,
)
from buckram.core.wire.pulls import PULL, decode_pull, decode_pull_reply, encode_pull, encode_pull_reply
from buckram.errors import Code, InvalidArgument
from buckram.types import BIRTH_SIZE, MASTER_KEY_SIZE, TRACE_SIZE, Buffer, EntryId, LedgerId

DO_FENCING = 0x0001
FRAMED = 0x4000
"""A flag of our own for batch reads and their replies, which Apache's bookies ignore: the entries are in the frames in
which they were added. The master key follows the request, because these frames contain it."""
LOCATED = 0x2000
"""Flag, with FRAMED in a request: the reply may list places of entries (core/wire/located), and then has this flag."""
FROM_FILES = 0x1000
"""Flag, with FRAMED in a request: read from files, not from memory."""
ADDENTRY, READENTRY, AUTH, BATCH_READ_ENTRY = 1, 2, 3, 7
NAME_LEDGER = 0x42
"""Opcode of a packet of our own: the birth of the ledger that the next requests about its id mean. It has no reply."""
KEYS = 0x43
"""Opcode of packets of our own about the metadata store, which the bookie that serves it handles
(metadata/service/packets).
"""
TRACED_ADD = 0x44
"""Opcode of a packet of our own: the add of this entry, which comes behind it, is part of a trace. It has no reply."""
MAX_VERSION = 2
_OPERATION = {ADDENTRY: OP_ADD, READENTRY: OP_READ, AUTH: OP_AUTH, BATCH_READ_ENTRY: OP_BATCH_READ}
_OPCODE = {operation: opcode for opcode, operation in _OPERATION.items()}
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_IDS = struct.Struct(">qq")
_READ = struct.Struct(">IIqq")
_BATCH = struct.Struct(">IIqqqiq")
_REPLY = struct.Struct(">IIiqq")
_BATCH_TAIL = struct.Struct(">qiq")
_REPLY_BODY = struct.Struct(">iqq")
_I64 = struct.Struct(">q")
_NAME = struct.Struct(f">IIq{BIRTH_SIZE}s")
_TRACED = struct.Struct(f">IIqq{TRACE_SIZE}s")


def header_of(version: int, opcode: int, flags: int = 0) -> int:
    """Return the 4-byte packet header as a number."""
    return (version & 0xFF) << 24 | opcode << 16 | flags if version else opcode


_TRACED_HEADER = header_of(2, TRACED_ADD)
_PLAIN_READ = header_of(2, READENTRY)
_BATCH_HEADER = header_of(2, BATCH_READ_ENTRY)
_NAME_HEADER = header_of(2, NAME_LEDGER)
KEY_HEADER = header_of(2, KEYS)
OWN_HEADERS = frozenset(_U32.pack(one) for one in (_NAME_HEADER, _TRACED_HEADER, KEY_HEADER))
"""First bytes of the packets that Apache's protocol lacks and that are no requests with a reply of their own kind."""


def name_ledger(ledger_id: LedgerId, birth: bytes) -> bytes:
    """Return the frame that names the birth of the ledger that is meant."""
    return _NAME.pack(_NAME.size - 4, _NAME_HEADER, ledger_id, birth)


def named_ledger(packet: bytes) -> tuple[LedgerId, bytes] | None:
    """Return ledger and birth of such a packet; None for any other. Raises BadPacket if it is malformed."""
    if len(packet) < 4 or _U32.unpack_from(packet)[0] != _NAME_HEADER:
        return None
    if len(packet) != _NAME.size - 4 or _I64.unpack_from(packet, 4)[0] < 0:
        raise BadPacket(f"a v2 NAME_LEDGER of {len(packet)} bytes, or of a ledger below 0")
    return _I64.unpack_from(packet, 4)[0], packet[12:]


def trace_add(ledger_id: LedgerId, entry: EntryId, context: bytes) -> bytes:
    """Return the frame that marks the add of an entry as part of a trace."""
    return _TRACED.pack(_TRACED.size - 4, _TRACED_HEADER, ledger_id, entry, context)


def traced_add(packet: bytes) -> tuple[LedgerId, EntryId, bytes] | None:
    """Return ledger, entry and context of such a packet; None for any other. Raises BadPacket if it is malformed."""
    if len(packet) < 4 or _U32.unpack_from(packet)[0] != _TRACED_HEADER:
        return None
    if len(packet) != _TRACED.size - 4:
        raise BadPacket(f"a v2 TRACED_ADD of {len(packet)} bytes")
    ledger_id, entry = _IDS.unpack_from(packet, 4)
    if ledger_id < 0 or entry < 0:
        raise BadPacket(f"a v2 TRACED_ADD of ledger {ledger_id}, entry {entry}")
    return ledger_id, entry, packet[20:]


def is_key_packet(packet: bytes) -> bool:
    """Return whether a packet is about the metadata store."""
    return len(packet) >= 4 and _U32.unpack_from(packet)[0] == KEY_HEADER


def encode_request(request: Request, request_id: int = 0) -> bytes:
    """Encode a frame; only BatchRead and Pull use `request_id`. Raises InvalidArgument for operations that v2 lacks."""
    if isinstance(request, Read):
        if request.previous_lac is not None:
            raise InvalidArgument("a long poll needs protocol 3, protocol 2 has none")
        key = _read_key(request)
        header = _PLAIN_READ | _read_flags(request)
        return _READ.pack(20 + len(key), header, request.ledger_id, request.entry_id) + key
    if isinstance(request, Add):
        if request.deferred_sync:
            raise InvalidArgument("DEFERRED_SYNC needs protocol 3, protocol 2 has no write flags")
        flags = (RECOVERY_ADD if request.recovery else 0) | (HIGH_PRIORITY if request.high_priority else 0)
        return frame_add(request.master_key, request.body, flags)
    if isinstance(request, BatchRead):
        key, flags = _read_key(request), _read_flags(request) | (FRAMED if request.framed else 0)
        flags |= (LOCATED if request.located else 0) | (FROM_FILES if request.from_files else 0)
        return (
            _BATCH.pack(
                40 + len(key),
                _BATCH_HEADER | flags,
                request.ledger_id,
                request.entry_id,
                request_id,
                request.max_count,
                request.max_bytes,
            )
            + key
        )
    if isinstance(request, Pull):
        return encode_pull(request, request_id)
    if isinstance(request, Auth):
        message = pb.AuthMessage(authPluginName=request.plugin, payload=request.payload).SerializeToString()
        return struct.pack(">II", 4 + len(message), header_of(2, AUTH)) + message
    raise InvalidArgument(f"protocol 2 has no {type(request).__name__}; use protocol 3")


def _read_flags(request: Read | BatchRead) -> int:
    return (DO_FENCING if request.fence else 0) | (HIGH_PRIORITY if request.high_priority else 0)


def _read_key(request: Read | BatchRead) -> bytes:
    key = request.master_key or b""
    needed = request.fence or (isinstance(request, BatchRead) and request.framed)
    if len(key) not in ((MASTER_KEY_SIZE,) if needed else (0, MASTER_KEY_SIZE)):
        raise InvalidArgument(f"a master key of {len(key)} bytes, {MASTER_KEY_SIZE} are needed")
    return key


def decode_request(packet: bytes) -> tuple[Request | RefusedRequest, ReplyContext]:
    """Decode a packet. Raises BadPacket if the connection must be closed."""
    if len(packet) < 4:
        raise BadPacket(f"a v2 packet of {len(packet)} bytes")
    header = _U32.unpack_from(packet)[0]
    version = header >> 24
    opcode, flags = (header >> 16 & 0xFF, header & 0xFFFF) if version else (header, 0)
    if opcode == AUTH:
        plugin, payload = _auth_message(packet)
        return Auth(plugin, payload), ReplyContext(2, version, OP_AUTH)
    if opcode == ADDENTRY:
        return _decode_add(packet, version, flags)
    if opcode == READENTRY:
        return _decode_read(packet, version, flags)
    if opcode == BATCH_READ_ENTRY:
        return _decode_batch(packet, version, flags)
    if opcode == PULL and version == MAX_VERSION:
        return decode_pull(packet)
    raise BadPacket(f"v2 opcode {opcode} (version {version}) is not known")


def plain_reads(buffer: bytes, offset: int) -> tuple[int, list[tuple[LedgerId, EntryId]]]:
    """Take plain reads of one entry, as most reads are, from `offset` on.

    Returns the offset of the unconsumed rest, and the ids. Stops before the first frame that is another or not
    complete.
    """
    found: list[tuple[LedgerId, EntryId]] = []
    unpack, stop = _READ.unpack_from, len(buffer) - _READ.size
    while offset <= stop:
        size, header, ledger, entry = unpack(buffer, offset)
        if header != _PLAIN_READ or size != 20 or ledger < 0 or entry < 0:
            break
        found.append((ledger, entry))
        offset += _READ.size
    return offset, found


def _decode_add(packet: bytes, version: int, flags: int) -> tuple[Request | RefusedRequest, ReplyContext]:
    if len(packet) < 24 + 16:
        raise BadPacket(f"a v2 ADD of {len(packet)} bytes has no room for ledger and entry id")
    ledger, entry = _IDS.unpack_from(packet, 24)
    context = ReplyContext(2, version, OP_ADD, ledger, entry)
    if version > MAX_VERSION:
        return RefusedRequest(Code.BAD_VERSION), context
    if len(packet) < 24 + MIN_STORED_BYTES or ledger < 0 or entry < 0:
        return RefusedRequest(Code.BAD_REQUEST), context
    recovery, high = bool(flags & RECOVERY_ADD), bool(flags & HIGH_PRIORITY)
    return Add(ledger, entry, packet[4:24], packet[24:], recovery, high), context


def _fencing_key(packet: bytes, version: int, flags: int, offset: int) -> bytes | None:
    """Return the key, which a read has only with DO_FENCING and from version 2 on."""
    if not flags & DO_FENCING or version < 2:
        return None
    key = packet[offset : offset + MASTER_KEY_SIZE]
    if len(key) < MASTER_KEY_SIZE:
        raise BadPacket(f"a fencing read with {len(key)} of {MASTER_KEY_SIZE} key bytes")
    return key


def _decode_read(packet: bytes, version: int, flags: int) -> tuple[Request | RefusedRequest, ReplyContext]:
    if len(packet) < 20:
        raise BadPacket(f"a v2 READ of {len(packet)} bytes, 20 are needed")
    ledger, entry = _IDS.unpack_from(packet, 4)
    key = _fencing_key(packet, version, flags, 20)
    context = ReplyContext(2, version, OP_READ, ledger, entry)
    if version > MAX_VERSION:
        return RefusedRequest(Code.BAD_VERSION), context
    if ledger < 0 or entry < -1:
        return RefusedRequest(Code.BAD_REQUEST), context
    return Read(ledger, entry, bool(flags & DO_FENCING), key, bool(flags & HIGH_PRIORITY)), context


def _decode_batch(packet: bytes, version: int, flags: int) -> tuple[Request | RefusedRequest, ReplyContext]:
    if len(packet) < 40:
        raise BadPacket(f"a v2 BATCH_READ of {len(packet)} bytes, 40 are needed")
    ledger, entry = _IDS.unpack_from(packet, 4)
    request_id, max_count, max_bytes = _BATCH_TAIL.unpack_from(packet, 20)
    key = _fencing_key(packet, version, flags, 40)
    context = ReplyContext(2, version, OP_BATCH_READ, ledger, entry, request_id)
    if version > MAX_VERSION:
        return RefusedRequest(Code.BAD_VERSION), context
    if ledger < 0 or entry < 0:
        return RefusedRequest(Code.BAD_REQUEST), context
    fence, high, framed = bool(flags & DO_FENCING), bool(flags & HIGH_PRIORITY), False
    if flags & FRAMED and not fence and len(packet) == 40 + MASTER_KEY_SIZE:
        framed, key = True, packet[40:]
    located, files = framed and bool(flags & LOCATED), framed and bool(flags & FROM_FILES)
    return BatchRead(ledger, entry, max_count, max_bytes, fence, key, high, framed, located, files), context


def _auth_message(packet: bytes) -> tuple[str, bytes]:
    try:
        message = pb.AuthMessage.FromString(packet[4:])
        if not message.IsInitialized():
            raise BadPacket("a v2 AUTH without plug-in name or payload")
        if not isinstance(message.authPluginName, str):
            raise BadPacket("a v2 AUTH whose plug-in name is no text")
        return message.authPluginName, message.payload
    except (DecodeError, UnicodeDecodeError) as error:  # protobuf checks text on access, or returns bytes
        raise BadPacket(f"a v2 AUTH that is no AuthMessage: {error}") from None


def encode_reply(context: ReplyContext, reply: Reply) -> bytes:
    """Encode a frame with the ids of the request, whatever the reply carries; batch reads have only the request id."""
    if context.operation == OP_AUTH:
        if not isinstance(reply, AuthReply):
            raise InvalidArgument(f"an AUTH request is answered by AuthReply, not {type(reply).__name__}")
        message = pb.AuthMessage(authPluginName=reply.plugin, payload=reply.payload).SerializeToString()
        return struct.pack(">II", 4 + len(message), header_of(context.version, AUTH)) + message
    if context.operation == OP_PULL:
        found = reply if isinstance(reply, PullReply) else PullReply(reply.code, context.ledger_id, context.entry_id)
        return encode_pull_reply(context, found)
    if context.operation == OP_WRITE_LAC:
        return encode_lac_reply(context, reply.code)
    header = header_of(context.version, _OPCODE[context.operation])
    ledger, entry, number = context.ledger_id, context.entry_id, reply.code.v2
    if context.operation == OP_BATCH_READ:
        parts = [b"", _I64.pack(context.txn)]
        if isinstance(reply, BatchReadReply) and reply.code is Code.OK:
            bodies = reply.bodies
            sizes = set(map(len, bodies))
            if len(sizes) == 1:
                # Of one size, the usual case: the same four bytes go before each of them.
                size = sizes.pop()
                head = _REPLY.pack(32 + len(bodies) * (4 + size), header, number, ledger, entry) + parts[1]
                return _I32.pack(size).join([head, *bodies])
            for body in bodies:
                parts += (_I32.pack(len(body)), body)
        parts[0] = _REPLY.pack(24 + sum(map(len, parts)), header, number, ledger, entry)
        return b"".join(parts)
    if isinstance(reply, ReadReply) and reply.code is Code.OK and reply.body is not None:
        return _REPLY.pack(24 + len(reply.body), header, number, ledger, entry) + reply.body
    return _REPLY.pack(24, header, number, ledger, entry)


def framed_reply(context: ReplyContext, frames: FrameParts) -> list[Buffer]:
    """Return the reply to a framed batch read, in the same pieces as `frames`."""
    return [_batch_head(context, FRAMED, frames.size), *frames.parts]


def located_reply(context: ReplyContext, located: Located) -> bytes:
    """Return the reply that lists the places of the entries."""
    body = located.pack()
    return _batch_head(context, LOCATED, len(body)) + body


def _batch_head(context: ReplyContext, flag: int, size: int) -> bytes:
    """Return what precedes `size` bytes of a reply to a batch read in one of our own forms."""
    header = header_of(context.version, BATCH_READ_ENTRY, flag)
    return _REPLY.pack(32 + size, header, Code.OK.v2, context.ledger_id, context.entry_id) + _I64.pack(context.txn)


def decode_reply(data: bytes | bytearray, start: int = 0, end: int | None = None) -> tuple[Reply, int, int]:
    """Decode the packet data[start:end] to the reply, its operation, and the request id of a batch read or pull, or 0.

    Entries of a batch read stay in `data`. Raises BadPacket if the packet is malformed.
    """
    stop = len(data) if end is None else end
    size = stop - start
    if size < 4:
        raise BadPacket(f"a v2 answer of {size} bytes")
    header = _U32.unpack_from(data, start)[0]
    opcode, flags = (header >> 16 & 0xFF, header & 0xFFFF) if header >> 24 else (header, 0)
    if opcode == AUTH:
        plugin, payload = _auth_message(bytes(data[start:stop]))
        return AuthReply(Code.OK, plugin, payload), OP_AUTH, 0
    if opcode == PULL:
        pulled, request_id = decode_pull_reply(data, start, stop)
        return pulled, OP_PULL, request_id
    if opcode not in _OPERATION or size < 24:
        raise BadPacket(f"a v2 answer of {size} bytes with opcode {opcode}")
    number, ledger, entry = _REPLY_BODY.unpack_from(data, start + 4)
    code = Code.from_v2(number)
    if opcode == ADDENTRY:
        return AddReply(code, ledger, entry), OP_ADD, 0
    if opcode == READENTRY:
        return ReadReply(code, ledger, entry, bytes(data[start + 24 : stop]) if code is Code.OK else None), OP_READ, 0
    if size < 32:
        raise BadPacket(f"a v2 batch answer of {size} bytes, 32 are needed")
    request_id = _I64.unpack_from(data, start + 24)[0]
    bodies: Sequence[bytes] | None = []
    if code is Code.OK and flags & LOCATED:
        located = Located.parse(bytes(data[start + 32 : stop]))
        if located is None:
            raise BadPacket("a v2 batch answer says that it names places, and names none")
        return LocatedReply(code, ledger, entry, located), OP_BATCH_READ, request_id
    if code is Code.OK:
        parse = PackedBodies.parse_frames if flags & FRAMED else PackedBodies.parse
        bodies = parse(data, start + 32, stop)
    if bodies is None:
        raise BadPacket("the entries of a v2 batch answer do not fit it")
    return BatchReadReply(code, ledger, entry, bodies), OP_BATCH_READ, request_id

"""The v3 (protobuf) wire: `Request` and `Response` to messages and back.

Python's protobuf accepts messages that lack required fields, so everything parsed is checked with IsInitialized(). The
order of fields, unknown fields and unknown values of optional enums do not matter. Replies always carry their
sub-message with all required fields, unless they are envelopes.
"""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf.message import DecodeError

from buckram.core.entries.entry import MIN_STORED_BYTES
from buckram.core.wire import bookkeeper_pb2 as pb
from buckram.core.wire.frames import frame
from buckram.core.wire.introduction import Identity, Introduction
from buckram.core.wire.messages import (
    OP_ADD,
    OP_AUTH,
    OP_BOOKIE_INFO,
    OP_FORCE,
    OP_LIST_ENTRIES,
    OP_READ,
    OP_READ_LAC,
    OP_START_TLS,
    OP_WRITE_LAC,
    Add,
    AddReply,
    Auth,
    AuthReply,
    BadPacket,
    BookieInfoReply,
    ErrorReply,
    Force,
    ForceReply,
    GetBookieInfo,
    ListEntries,
    ListEntriesReply,
    MemoryUse,
    Read,
    ReadLac,
    ReadLacReply,
    ReadReply,
    RefusedRequest,
    Reply,
    ReplyContext,
    Request,
    StartTls,
    StartTlsReply,
    Trouble,
    WriteLac,
    WriteLacReply,
)
from buckram.errors import Code, InvalidArgument
from buckram.types import BIRTH_SIZE, MASTER_KEY_SIZE

VERSION = 3
RECOVERY_PRIORITY = 100
DEFERRED_SYNC = 1
_FENCE_LEDGER, _ENTRY_PIGGYBACK, _RECOVERY_ADD = 1, 2, 1
_IDS = struct.Struct(">qq")
_REQUEST_FIELD = {
    OP_READ: "readRequest",
    OP_ADD: "addRequest",
    OP_AUTH: "authRequest",
    OP_WRITE_LAC: "writeLacRequest",
    OP_READ_LAC: "readLacRequest",
    OP_BOOKIE_INFO: "getBookieInfoRequest",
    OP_START_TLS: "startTLSRequest",
    OP_FORCE: "forceLedgerRequest",
    OP_LIST_ENTRIES: "getListOfEntriesOfLedgerRequest",
}
_REPLY_FIELD = {operation: name.replace("Request", "Response") for operation, name in _REQUEST_FIELD.items()}
_OPERATION_OF: dict[type, int] = {
    Read: OP_READ,
    Add: OP_ADD,
    Auth: OP_AUTH,
    WriteLac: OP_WRITE_LAC,
    ReadLac: OP_READ_LAC,
    GetBookieInfo: OP_BOOKIE_INFO,
    StartTls: OP_START_TLS,
    Force: OP_FORCE,
    ListEntries: OP_LIST_ENTRIES,
}


def operation_of(request: Request) -> int:
    """Return the v3 operation number. Raises InvalidArgument for BatchRead, which v3 lacks."""
    operation = _OPERATION_OF.get(type(request))
    if operation is None:
        raise InvalidArgument(f"protocol 3 has no {type(request).__name__}; use protocol 2")
    return operation


def encode_request(request: Request, txn: int) -> bytes:
    """Encode a frame. `txn` is any uint64, unique among the outstanding requests of the connection."""
    operation = operation_of(request)
    message: Any = pb.Request()
    header = message.header
    header.version, header.operation, header.txnId = VERSION, operation, txn
    if isinstance(request, Add | Read) and request.high_priority:
        header.priority = RECOVERY_PRIORITY
    body = getattr(message, _REQUEST_FIELD[operation])
    body.SetInParent()  # StartTLS is empty but must be there.
    if isinstance(request, Read):
        body.ledgerId, body.entryId = request.ledger_id, request.entry_id
        if request.master_key is not None:
            body.masterKey = request.master_key
        if request.previous_lac is not None:
            body.previousLAC = request.previous_lac
        if request.timeout_ms is not None:
            body.timeOut = request.timeout_ms
        if request.fence:
            body.flag = _FENCE_LEDGER
        elif request.piggyback:
            body.flag = _ENTRY_PIGGYBACK
    elif isinstance(request, Add):
        body.ledgerId, body.entryId = request.ledger_id, request.entry_id
        body.masterKey, body.body = request.master_key, request.body
        if request.deferred_sync:
            body.writeFlags = DEFERRED_SYNC
        if request.recovery:
            body.flag = _RECOVERY_ADD
    elif isinstance(request, WriteLac):
        body.ledgerId, body.lac = request.ledger_id, request.lac
        body.masterKey, body.body = request.master_key, request.body
    elif isinstance(request, GetBookieInfo):
        body.requested = request.requested
        if request.introduction is not None:
            said = request.introduction
            body.cluster, body.bookie = said.cluster.encode(), said.bookie_id.encode()
            body.incarnation, body.epoch = said.incarnation.encode(), said.epoch
            if said.features:
                body.features = said.features
    elif isinstance(request, Auth):
        body.authPluginName, body.payload = request.plugin, request.payload
    elif isinstance(request, ReadLac | Force | ListEntries):
        body.ledgerId = request.ledger_id
    if isinstance(request, Read | Add | WriteLac | ReadLac | Force | ListEntries) and request.birth:
        body.birth = request.birth
    return frame(message.SerializeToString())


def decode_request(packet: bytes) -> tuple[Request | RefusedRequest, ReplyContext] | None:
    """Decode a packet; None if it is not v3 at all (it is then decoded as v2)."""
    try:
        message = pb.Request.FromString(packet)
    except DecodeError:
        return None
    if not message.IsInitialized():
        return None
    header = message.header
    operation = header.operation
    priority = header.priority if header.HasField("priority") else -1
    name = _REQUEST_FIELD.get(operation)
    if name is None:  # A number of the enum that nobody implements.
        return RefusedRequest(Code.BAD_REQUEST, True), ReplyContext(
            3, VERSION, operation, txn=header.txnId, priority=priority
        )
    body = getattr(message, name) if message.HasField(name) else None
    ledger = entry = -1
    if body is not None and operation not in (OP_AUTH, OP_START_TLS, OP_BOOKIE_INFO):
        ledger = body.ledgerId
        if operation in (OP_READ, OP_ADD):
            entry = body.entryId
    context = ReplyContext(3, VERSION, operation, ledger, entry, header.txnId, priority)
    if body is None:
        return RefusedRequest(Code.BAD_REQUEST, True), context
    if operation == OP_AUTH:
        plugin = _text(body)
        if plugin is None:
            return RefusedRequest(Code.BAD_REQUEST, True), context
        return Auth(plugin, body.payload), context
    if operation == OP_START_TLS:
        return StartTls(), context
    if header.version != VERSION:
        return RefusedRequest(Code.BAD_VERSION), context
    if operation == OP_BOOKIE_INFO:
        return GetBookieInfo(body.requested, _introduction(body)), context
    if ledger < 0:
        return RefusedRequest(Code.BAD_REQUEST), context
    if body.birth and len(body.birth) != BIRTH_SIZE:
        return RefusedRequest(Code.BAD_REQUEST), context
    return _decode_body(operation, body, priority > 0), context


def _decode_body(operation: int, body: Any, high_priority: bool) -> Request | RefusedRequest:
    ledger = body.ledgerId
    if operation == OP_ADD:
        stored = body.body
        if len(stored) < MIN_STORED_BYTES or len(body.masterKey) != MASTER_KEY_SIZE or body.entryId < 0:
            return RefusedRequest(Code.BAD_REQUEST)
        if _IDS.unpack_from(stored) != (ledger, body.entryId):
            return RefusedRequest(Code.BAD_REQUEST)
        recovery = body.HasField("flag") and body.flag == _RECOVERY_ADD
        deferred = bool(body.writeFlags & DEFERRED_SYNC) and not recovery
        return Add(ledger, body.entryId, body.masterKey, stored, recovery, high_priority, deferred, body.birth)
    if operation == OP_READ:
        return _decode_read(body, high_priority)
    if operation == OP_WRITE_LAC:
        packet = body.body
        if len(packet) < 16 or len(body.masterKey) != MASTER_KEY_SIZE:
            return RefusedRequest(Code.BAD_REQUEST)
        # The packet decides: Apache's writer fills the lac field before it seals a possibly newer LAC.
        packet_ledger, lac = _IDS.unpack_from(packet)
        if packet_ledger != ledger:
            return RefusedRequest(Code.BAD_REQUEST)
        return WriteLac(ledger, lac, body.masterKey, packet, body.birth)
    if operation == OP_READ_LAC:
        return ReadLac(ledger, body.birth)
    return Force(ledger, body.birth) if operation == OP_FORCE else ListEntries(ledger, body.birth)


def _decode_read(body: Any, high_priority: bool) -> Read | RefusedRequest:
    flag = body.flag if body.HasField("flag") else 0
    fence, piggyback = flag == _FENCE_LEDGER, flag == _ENTRY_PIGGYBACK
    key = body.masterKey if body.HasField("masterKey") else None
    if body.entryId < -1 or (fence and key is not None and len(key) != MASTER_KEY_SIZE):
        return RefusedRequest(Code.BAD_REQUEST)
    if fence:
        return Read(body.ledgerId, body.entryId, True, key, high_priority, birth=body.birth)
    if not body.HasField("previousLAC"):
        return Read(body.ledgerId, body.entryId, False, key, high_priority, birth=body.birth)
    timeout = body.timeOut if body.HasField("timeOut") else None
    return Read(
        body.ledgerId, body.entryId, False, key, high_priority, body.previousLAC, timeout, piggyback, body.birth
    )


def encode_reply(context: ReplyContext, reply: Reply) -> bytes:
    """Encode a frame with the request's ids, except the entry id of a ReadReply (a long poll names its entry)."""
    message: Any = pb.Response()  # Any, because the generated types demand enum members where numbers are faster.
    header = message.header
    header.version, header.operation, header.txnId = VERSION, context.operation, context.txn
    number = int(reply.code)
    message.status = number
    if isinstance(reply, ErrorReply | AuthReply | StartTlsReply):
        if context.priority >= 0:
            header.priority = context.priority
        if reply.code is Code.OK and isinstance(reply, AuthReply):
            message.authResponse.authPluginName, message.authResponse.payload = reply.plugin, reply.payload
        elif reply.code is Code.OK and isinstance(reply, StartTlsReply):
            message.startTLSResponse.SetInParent()
        return frame(message.SerializeToString())
    body = getattr(message, _REPLY_FIELD[context.operation])
    body.status = number
    if not isinstance(reply, BookieInfoReply):
        body.ledgerId = context.ledger_id
    if isinstance(reply, AddReply):
        body.entryId = context.entry_id
    elif isinstance(reply, ReadReply):
        body.entryId = reply.entry_id
        if reply.body is not None:
            body.body = reply.body
        if reply.max_lac is not None:
            body.maxLAC = reply.max_lac
        if reply.lac_update_ms is not None:
            body.lacUpdateTimestamp = reply.lac_update_ms
    elif isinstance(reply, ReadLacReply):
        if reply.lac_body is not None:
            body.lacBody = reply.lac_body
        if reply.last_entry_body is not None:
            body.lastEntryBody = reply.last_entry_body
    elif isinstance(reply, BookieInfoReply):
        if reply.total_bytes is not None:
            body.totalDiskCapacity = reply.total_bytes
        if reply.free_bytes is not None:
            body.freeDiskSpace = reply.free_bytes
        for name, size, limit in reply.memory:
            body.memory.add(name=name, bytes=size, limit=limit)
        if reply.loss is not None:
            body.loss = reply.loss
        for name, value in reply.figures.items():
            body.figures.add(name=name, value=value)
        for trouble in reply.troubles:
            body.troubles.add(what=trouble.what, why=trouble.why, action=trouble.action)
        if reply.report is not None:
            body.report = reply.report
        if reply.identity is not None:
            who = reply.identity
            body.cluster, body.bookie = who.cluster.encode(), who.bookie_id.encode()
            body.incarnation, body.epoch = who.incarnation.encode(), who.epoch
            body.wallUs, body.features = who.wall_us, who.features
            body.highestLedger = who.highest_ledger
    elif isinstance(reply, ListEntriesReply) and reply.code is Code.OK:
        body.availabilityOfEntriesOfLedger = reply.availability
        if reply.birth:
            body.birth = reply.birth
    return frame(message.SerializeToString())


def decode_reply(packet: bytes) -> tuple[Reply, int, int]:
    """Decode a packet to (reply, operation, txn). Raises BadPacket if it is no Response."""
    try:
        message = pb.Response.FromString(packet)
    except DecodeError as error:
        raise BadPacket(f"a v3 answer that is no Response: {error}") from None
    # As in Apache's client, the outer status counts, and the inner one only if that is OK.
    status, operation, txn = message.status, message.header.operation, message.header.txnId
    name = _REPLY_FIELD.get(operation)
    body = getattr(message, name) if name is not None and message.HasField(name) else None
    if not message.IsInitialized() and (status == 0 or not message.header.IsInitialized()):
        raise BadPacket("a v3 answer without a required field")
    inner = getattr(body, "status", 0) if body is not None else 0
    code = Code.from_v3(status or inner)
    return _reply_of(operation, code, body), operation, txn


def _reply_of(operation: int, code: Code, body: Any) -> Reply:
    if body is None:
        if code is Code.OK:
            raise BadPacket(f"a v3 answer OK to operation {operation} without its sub-message")
        return ErrorReply(code)
    if operation == OP_READ:
        return ReadReply(
            code,
            body.ledgerId,
            body.entryId,
            body.body if body.HasField("body") else None,
            body.maxLAC if body.HasField("maxLAC") else None,
            body.lacUpdateTimestamp if body.HasField("lacUpdateTimestamp") else None,
        )
    if operation == OP_ADD:
        return AddReply(code, body.ledgerId, body.entryId)
    if operation == OP_WRITE_LAC:
        return WriteLacReply(code, body.ledgerId)
    if operation == OP_READ_LAC:
        return ReadLacReply(
            code,
            body.ledgerId,
            body.lacBody if body.HasField("lacBody") else None,
            body.lastEntryBody if body.HasField("lastEntryBody") else None,
        )
    if operation == OP_FORCE:
        return ForceReply(code, body.ledgerId)
    if operation == OP_BOOKIE_INFO:
        total = body.totalDiskCapacity if body.HasField("totalDiskCapacity") else None
        free = body.freeDiskSpace if body.HasField("freeDiskSpace") else None
        memory = tuple(MemoryUse(u.name, u.bytes, u.limit if u.HasField("limit") else None) for u in body.memory)
        loss = body.loss if body.HasField("loss") else None
        figures = {one.name: one.value for one in body.figures}
        troubles = tuple(Trouble(one.what, one.why, one.action) for one in body.troubles)
        report = body.report if body.HasField("report") else None
        return BookieInfoReply(code, total, free, memory, loss, _identity(body), figures, troubles, report)
    if operation == OP_LIST_ENTRIES:
        birth = body.birth if len(body.birth) == BIRTH_SIZE else b""
        return ListEntriesReply(code, body.ledgerId, body.availabilityOfEntriesOfLedger, birth)
    if operation == OP_START_TLS:
        return StartTlsReply(code)
    plugin = _text(body)
    if plugin is None:
        raise BadPacket("a v3 AUTH answer whose plug-in name is no text")
    return AuthReply(code, plugin, body.payload)


def _introduction(body: Any) -> Introduction | None:
    """Return None for a client that sends no introduction: Apache's, and older ones."""
    if not body.HasField("cluster") and not body.HasField("bookie"):
        return None
    return Introduction(_name(body.cluster), _name(body.bookie), _name(body.incarnation), body.epoch, body.features)


def _identity(body: Any) -> Identity | None:
    """Return None for a bookie that sends no identity: Apache's, and older ones."""
    if not body.HasField("cluster") or not body.HasField("bookie"):
        return None
    return Identity(
        _name(body.cluster),
        _name(body.bookie),
        _name(body.incarnation),
        body.epoch,
        body.wallUs,
        body.features,
        body.highestLedger if body.HasField("highestLedger") else -1,
    )


def _name(data: bytes) -> str:
    return data.decode(errors="replace")


def _text(auth: Any) -> str | None:
    """Return the plug-in name; for bytes that are no text protobuf returns them or raises, depending on its version."""
    try:
        name = auth.authPluginName
    except UnicodeDecodeError:
        return None
    return name if isinstance(name, str) else None

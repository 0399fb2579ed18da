"""Metadata as a service: requests about keys and ledgers, replies and events as packets of a v2 connection.

A packet is the v2 header with opcode 0x43, a request id, a kind (requests) or a status (replies), and fields: integers
are big-endian, strings and bytes have their length in front. Id 0 is no request's: it marks events, which come
unrequested. Whatever a peer sends is a value or BadPacket, and takes no more memory than its packet.

Not here: which errors have which status (`metadata/service/error_codec.py`), sessions
(`bookie/service/metadata/metadata_service.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from buckram.core.wire.frames import frame
from buckram.core.wire.messages import BadPacket
from buckram.core.wire.v2 import KEY_HEADER, is_key_packet
from buckram.types import CheckVersion, Create, Delete, KeyOp, KeyValue, LedgerId, SetValue

MAX_OPS = 10_000
_START = struct.Struct(">IQB")
_GET = struct.Struct(">IIQBH")
_FLAG = (b"\0", b"\1")
_HELD = struct.Struct(">BBqI")
_HEAD = _START.size + _HELD.size
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")


class RequestKind(IntEnum):
    """Kind of a request, or of an event (the last two)."""

    HELLO = 1
    GET = 2
    CHILDREN = 3
    VALUES = 4
    CHANGE = 5
    SYNC = 6
    PING = 7
    CLOSE = 8
    LEDGER_KEY = 16
    LEDGER_CREATE = 17
    ALLOCATE = 18
    NEXT_ID = 19
    RAISE_NEXT_ID = 20
    LEDGERS = 21
    RECORDS = 22
    REMOVED = 23
    MANAGER_NAME = 24
    STRAYS = 25
    INSTANCE_ID = 26
    VALUE_CHANGED = 64
    CHILDREN_CHANGED = 65
    SESSION_LOST = 66


class KeyRequest(NamedTuple):
    """One request; each kind uses some of the fields. `key` is a parent's for listings, the cluster's id for HELLO, and
    `number` a ledger id, or a session's milliseconds for HELLO."""

    kind: RequestKind
    key: str = ""
    after: str = ""
    limit: int = 0
    watch: bool = False
    number: LedgerId = -1
    value: bytes = b""
    ops: tuple[KeyOp, ...] = ()


class Welcome(NamedTuple):
    """The answer to HELLO: which cluster it is ("" before it was set up), where its keys are, how its ledgers are kept
    ("" if that is not known yet), and how long a silent session lives."""

    instance_id: str
    root: str
    own: str
    manager: str
    timeout_ms: int


class Names(NamedTuple):
    """Names of children; `more`: the frame had no room for all that were requested."""

    names: list[str]
    more: bool


class Event(NamedTuple):
    kind: RequestKind
    key: str


class Refusal(NamedTuple):
    """An error as it was received; `metadata/service/error_codec.py` makes an exception of it."""

    status: int
    fields: PacketReader


KeyReply: TypeAlias = int | str | KeyValue | Welcome | Names | list[tuple[str, KeyValue]] | None

# What each kind of request has, one letter a field: k key, a after, l limit, w watch, n number, v value, o operations.
_REQUESTS: dict[RequestKind, str] = {
    RequestKind.HELLO: "kn",
    RequestKind.GET: "kw",
    RequestKind.CHILDREN: "kalw",
    RequestKind.VALUES: "kal",
    RequestKind.CHANGE: "o",
    RequestKind.SYNC: "",
    RequestKind.PING: "",
    RequestKind.CLOSE: "",
    RequestKind.LEDGER_KEY: "n",
    RequestKind.LEDGER_CREATE: "nwv",
    RequestKind.ALLOCATE: "",
    RequestKind.NEXT_ID: "",
    RequestKind.RAISE_NEXT_ID: "n",
    RequestKind.LEDGERS: "nl",
    RequestKind.RECORDS: "nl",
    RequestKind.REMOVED: "k",
    RequestKind.MANAGER_NAME: "",
    RequestKind.STRAYS: "",
    RequestKind.INSTANCE_ID: "",
}
_NONE, _INT, _TEXT, _VALUE, _WELCOME, _NAMES, _VALUES = range(7)
_OP_OF: dict[type, int] = {Create: 0, SetValue: 1, Delete: 2, CheckVersion: 3}
_EPHEMERAL = 0x80


class PacketReader:
    """Takes the fields of a packet one by one. Raises BadPacket if it ends too early or a text is malformed."""

    def __init__(self, packet: bytes, at: int = 0) -> None:
        self._packet, self._at = packet, at

    def raw(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._packet):
            raise BadPacket(f"a metadata packet of {len(self._packet)} bytes ends within a field")
        return self._packet[start : self._at]

    def byte(self) -> int:
        return self.raw(1)[0]

    def count(self) -> int:
        return int(_U32.unpack(self.raw(4))[0])

    def number(self) -> int:
        return int(_I64.unpack(self.raw(8))[0])

    def data(self) -> bytes:
        return self.raw(self.count())

    def text(self) -> str:
        try:
            return self.raw(_U16.unpack(self.raw(2))[0]).decode()
        except UnicodeDecodeError:
            raise BadPacket("a metadata packet with a text that is none") from None

    def end(self) -> None:
        if self._at != len(self._packet):
            raise BadPacket(f"a metadata packet with {len(self._packet) - self._at} bytes too many")


def encode_request(request_id: int, request: KeyRequest) -> bytes:
    """Return the frame of a request; its id is at least 1."""
    if request.kind is RequestKind.GET:  # nine of ten requests, without the general way
        key = request.key.encode()
        size = len(key)
        return (
            _GET.pack(_START.size + 3 + size, KEY_HEADER, request_id, RequestKind.GET, size)
            + key
            + _FLAG[request.watch]
        )
    parts = [_START.pack(KEY_HEADER, request_id, request.kind)]
    for letter in _REQUESTS[request.kind]:
        match letter:
            case "k":
                parts.append(_text(request.key))
            case "a":
                parts.append(_text(request.after))
            case "l":
                parts.append(_U32.pack(min(max(request.limit, 0), 0xFFFF_FFFF)))
            case "w":
                parts.append(b"\1" if request.watch else b"\0")
            case "n":
                parts.append(_I64.pack(request.number))
            case "v":
                parts.append(_data(request.value))
            case _:
                parts.append(_U32.pack(len(request.ops)))
                parts += [_op(op) for op in request.ops]
    return frame(b"".join(parts))


def decode_request(packet: bytes) -> tuple[int, KeyRequest]:
    """Return id and request. Raises BadPacket."""
    if len(packet) < _START.size:
        raise BadPacket(f"a metadata request of {len(packet)} bytes")
    _, request_id, number = _START.unpack_from(packet)
    if number == RequestKind.GET and request_id:
        return request_id, _read_get(packet)
    letters = _REQUESTS.get(number)
    if letters is None or not request_id:
        raise BadPacket(f"a metadata request of kind {number} with id {request_id}")
    reader = PacketReader(packet, _START.size)
    found: dict[str, object] = {}
    for letter in letters:
        match letter:
            case "k":
                found["key"] = reader.text()
            case "a":
                found["after"] = reader.text()
            case "l":
                found["limit"] = reader.count()
            case "w":
                found["watch"] = reader.byte() != 0
            case "n":
                found["number"] = reader.number()
            case "v":
                found["value"] = reader.data()
            case _:
                found["ops"] = _read_ops(reader)
    reader.end()
    return request_id, KeyRequest(RequestKind(number), **found)  # type: ignore[arg-type]  # the letters say which types


def _read_get(packet: bytes) -> KeyRequest:
    try:
        (size,) = _U16.unpack_from(packet, _START.size)
        start = _START.size + 2
        if len(packet) != start + size + 1:
            raise BadPacket(f"a metadata request of {len(packet)} bytes with a key of {size}")
        return KeyRequest(RequestKind.GET, packet[start : start + size].decode(), "", 0, packet[-1] != 0)
    except (struct.error, UnicodeDecodeError):
        raise BadPacket("a metadata request whose key is none") from None


def _op(op: KeyOp) -> bytes:
    kind = _OP_OF[type(op)] | (_EPHEMERAL if isinstance(op, Create) and op.ephemeral else 0)
    head = bytes((kind,)) + _text(op.key)
    if isinstance(op, Create):
        return head + _data(op.value)
    return head + _I64.pack(op.version) + (_data(op.value) if isinstance(op, SetValue) else b"")


def _read_ops(reader: PacketReader) -> tuple[KeyOp, ...]:
    count = reader.count()
    if count > MAX_OPS:
        raise BadPacket(f"{count} operations in one metadata request, the limit is {MAX_OPS}")
    ops: list[KeyOp] = []
    for _ in range(count):
        kind, key = reader.byte(), reader.text()
        match kind & ~_EPHEMERAL:
            case 0:
                ops.append(Create(key, reader.data(), bool(kind & _EPHEMERAL)))
            case 1:
                version = reader.number()
                ops.append(SetValue(key, reader.data(), version))
            case 2:
                ops.append(Delete(key, reader.number()))
            case 3:
                ops.append(CheckVersion(key, reader.number()))
            case other:
                raise BadPacket(f"a metadata operation of kind {other}")
    return tuple(ops)


def encode_reply(request_id: int, reply: KeyReply) -> bytes:
    """Return the frame of a reply that is no error."""
    if type(reply) is KeyValue:
        size = len(reply.value)
        head = _HELD.pack(_VALUE, reply.owned, reply.version, size)
        prefix = _U32.pack(_START.size + _HELD.size + size)
        return b"".join((prefix, _START.pack(KEY_HEADER, request_id, 0), head, reply.value))
    return frame(_START.pack(KEY_HEADER, request_id, 0) + _reply(reply))


def request_id_of(packet: bytes) -> int | None:
    """Return the id of a request; None if the packet is cut short."""
    return int(_START.unpack_from(packet)[1]) if len(packet) >= _START.size else None


def encode_refusal(request_id: int, status: int, body: bytes) -> bytes:
    """Return the frame of an error; `status` from 1 on."""
    return frame(_START.pack(KEY_HEADER, request_id, status) + body)


def encode_event(event: Event) -> bytes:
    return frame(_START.pack(KEY_HEADER, 0, event.kind) + _text(event.key))


def _reply(reply: KeyReply) -> bytes:
    if reply is None:
        return bytes((_NONE,))
    if isinstance(reply, int):
        return bytes((_INT,)) + _I64.pack(reply)
    if isinstance(reply, str):
        return bytes((_TEXT,)) + _text(reply)
    if isinstance(reply, KeyValue):
        return bytes((_VALUE,)) + _key_value(reply)
    if isinstance(reply, Welcome):
        texts = b"".join(map(_text, (reply.instance_id, reply.root, reply.own, reply.manager)))
        return bytes((_WELCOME,)) + texts + _I64.pack(reply.timeout_ms)
    if isinstance(reply, Names):
        head = bytes((_NAMES, reply.more)) + _U32.pack(len(reply.names))
        return head + b"".join(map(_text, reply.names))
    return (
        bytes((_VALUES,)) + _U32.pack(len(reply)) + b"".join(_text(name) + _key_value(value) for name, value in reply)
    )


def decode_reply(packet: bytes) -> tuple[int, KeyReply | Event | Refusal]:
    """Return the request's id with its reply or refusal, or 0 with an event. Raises BadPacket."""
    if len(packet) < _START.size or not is_key_packet(packet):
        raise BadPacket(f"a metadata reply of {len(packet)} bytes")
    _, request_id, status = _START.unpack_from(packet)
    if request_id and not status and len(packet) >= _HEAD and packet[_START.size] == _VALUE:
        _, owned, version, size = _HELD.unpack_from(packet, _START.size)
        if len(packet) == _HEAD + size:
            return request_id, KeyValue(packet[_HEAD:], version, owned != 0)
    reader = PacketReader(packet, _START.size)
    if not request_id:
        if status not in (RequestKind.VALUE_CHANGED, RequestKind.CHILDREN_CHANGED, RequestKind.SESSION_LOST):
            raise BadPacket(f"a metadata event of kind {status}")
        return 0, Event(RequestKind(status), reader.text())
    if status:
        return request_id, Refusal(status, reader)
    return request_id, _read_reply(reader)


def _read_reply(reader: PacketReader) -> KeyReply:
    match reader.byte():
        case 0:
            return None
        case 1:
            return reader.number()
        case 2:
            return reader.text()
        case 3:
            return _read_key_value(reader)
        case 4:
            return Welcome(reader.text(), reader.text(), reader.text(), reader.text(), reader.number())
        case 5:
            more = reader.byte() != 0
            return Names([reader.text() for _ in range(reader.count())], more)
        case 6:
            return [(reader.text(), _read_key_value(reader)) for _ in range(reader.count())]
        case other:
            raise BadPacket(f"a metadata reply of form {other}")


def names_that_fit(names: Sequence[str], room: int) -> Names:
    """Return as many names as fit into so many bytes."""
    for at, name in enumerate(names):
        room -= 2 + len(name.encode())
        if room < 0:
            return Names(list(names[:at]), True)
    return Names(list(names), False)


def _key_value(value: KeyValue) -> bytes:
    return bytes((value.owned,)) + _I64.pack(value.version) + _data(value.value)


def _read_key_value(reader: PacketReader) -> KeyValue:
    owned, version = reader.byte() != 0, reader.number()
    return KeyValue(reader.data(), version, owned)


def _text(text: str) -> bytes:
    data = text.encode()
    return _U16.pack(len(data)) + data


def _data(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data

"""Bytes of ledger metadata: serialisation versions 1 (lines), 2 (protobuf text) and 3 (protobuf).

Byte for byte what Apache writes (docs/reference/protocol.md, ledger metadata). A ledger keeps the version it was
created with; what a legal record is and how it may change is core/ledgers/metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

from buckram.core.ledgers.metadata import check_metadata, metadata_problem
from buckram.core.wire import protobuf_text as text_format
from buckram.core.wire.protobuf import Fields, WireError, bytes_field, int_field, read_varint, text, varint
from buckram.core.wire.protobuf_text import TextError, quote
from buckram.errors import InvalidArgument, MalformedRecord
from buckram.types import NO_ENTRY, DigestType, Fragment, LedgerMetadata, LedgerState

_Enum = TypeVar("_Enum", DigestType, LedgerState)
HEADER = b"BookieMetadataFormatVersion\t"
_MAX_VERSION_DIGITS = 9
_RECOVERY_MARK = -102
_FRAGMENTS, _SHORT_FRAGMENT = 1024, 512
"""Maximum number of parsed fragments in the cache, and maximum bytes of one of them."""
_DIGESTS = {"HMAC" if digest is DigestType.MAC else digest.name: digest for digest in DigestType}
_DIGEST_NAMES = {digest: name for name, digest in _DIGESTS.items()}
_STATES = {state.name: state for state in LedgerState}


def serialise(md: LedgerMetadata) -> bytes:
    """Encode the record in its own format version. Raises InvalidArgument if that version cannot hold it."""
    check_metadata(md)
    header = HEADER + b"%d\n" % md.format_version
    if md.format_version == 1:
        return header + _serialise_1(md)
    if md.format_version == 2:
        return header + _serialise_2(md)
    body = _serialise_3(md)
    return header + varint(len(body)) + body


def parse(record: bytes) -> LedgerMetadata:
    """Parse a record of any version. Raises MalformedRecord, and nothing else, if that fails."""
    if not record.startswith(HEADER):
        raise MalformedRecord(f"ledger metadata begins with {record[:40]!r}, not with {HEADER.decode().strip()}")
    line_end = record.find(b"\n", len(HEADER), len(HEADER) + _MAX_VERSION_DIGITS + 1)
    version = record[len(HEADER) : line_end] if line_end >= 0 else b""
    if version not in (b"1", b"2", b"3"):
        shown = record[len(HEADER) : len(HEADER) + 12]
        raise MalformedRecord(f"ledger metadata has format version {shown!r}; known are 1, 2 and 3")
    body = record[line_end + 1 :]
    try:
        md = (_parse_1, _parse_2, _parse_3)[int(version) - 1](body)
    except (WireError, TextError) as error:
        raise MalformedRecord(f"ledger metadata, version {version.decode()}: {error}") from None
    problem = metadata_problem(md)
    if problem:
        raise MalformedRecord(f"ledger metadata, version {version.decode()}: {problem}")
    return md


def _end(md: LedgerMetadata) -> tuple[int, int]:
    """Return (length, last entry) as they are written; both have no meaning until the ledger is closed."""
    return (0, NO_ENTRY) if md.length is None or md.last_entry is None else (md.length, md.last_entry)


def _record(
    sizes: tuple[int, int, int],
    state: LedgerState,
    fragments: Sequence[Fragment],
    end: tuple[int | None, int | None],
    secret: tuple[DigestType | None, bytes | None],
    custom: Mapping[str, bytes],
    creation_time_ms: int | None,
    creator_token: int,
    format_version: int,
) -> LedgerMetadata:
    digest_type, password = secret
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        *sizes,
        tuple(fragments),
        state,
        # An absent last entry in a closed record is protobuf's default, 0.
        last_entry=(end[1] or 0) if closed else None,
        length=(end[0] or 0) if closed else None,
        # The password's presence is what tells readers that the digest type is valid.
        digest_type=digest_type if password is not None else None,
        password=password,
        custom_metadata=MappingProxyType(dict(custom)),
        creation_time_ms=creation_time_ms,
        creator_token=creator_token,
        format_version=format_version,
    )


# Version 3: protobuf with a length in front.


def _serialise_3(md: LedgerMetadata) -> bytes:
    length, last_entry = _end(md)
    out = bytearray(int_field(1, md.write_quorum) + int_field(2, md.ensemble_size))
    out += int_field(3, length) + int_field(4, last_entry) + int_field(5, md.state)
    for fragment in md.fragments:
        members = b"".join([bytes_field(1, member.encode()) for member in fragment.ensemble])
        out += bytes_field(6, members + int_field(2, fragment.first_entry))
    if md.digest_type is not None:
        out += int_field(7, md.digest_type)
    if md.password is not None:
        out += bytes_field(8, md.password)
    out += int_field(9, md.ack_quorum)
    if md.creation_time_ms is not None:
        out += int_field(10, md.creation_time_ms)
    for key, value in md.custom_metadata.items():
        out += bytes_field(11, bytes_field(1, key.encode()) + bytes_field(2, value))
    out += int_field(12, md.creator_token)
    return bytes(out)


def _parse_3(body: bytes) -> LedgerMetadata:
    size, offset = read_varint(body, 0)
    if size > len(body) - offset:
        raise WireError(f"{size} bytes are announced, {len(body) - offset} are there")
    fields = Fields(body[offset : offset + size])
    write_quorum = _required(fields.last_int(1), "quorumSize")
    ensemble_size = _required(fields.last_int(2), "ensembleSize")
    length = _required(fields.last_int(3), "length")
    state = _state(_required(fields.last_int(5), "state"))
    fragments = [
        (_known_fragment if len(segment) <= _SHORT_FRAGMENT else _fragment_3)(segment)
        for segment in fields.all_bytes(6)
    ]
    ack_quorum = fields.last_int(9)
    custom = {}
    for pair in map(Fields, fields.all_bytes(11)):
        custom[text(pair.last_bytes(1) or b"")] = pair.last_bytes(2) or b""
    return _record(
        (ensemble_size, write_quorum, write_quorum if ack_quorum is None else ack_quorum),
        state,
        fragments,
        (length, fields.last_int(4)),
        (_digest(fields.last_int(7)), fields.last_bytes(8)),
        custom,
        fields.last_int(10),
        fields.last_int(12) or 0,
        3,
    )


def _fragment_3(segment: bytes) -> Fragment:
    fields = Fields(segment)
    first_entry = _required(fields.last_int(2), "firstEntryId")
    return Fragment(first_entry, tuple(text(member) for member in fields.all_bytes(1)))


_known_fragment = lru_cache(maxsize=_FRAGMENTS)(_fragment_3)
"""Cache of parsed fragments. Most ledgers have one fragment and there are few ensembles, so readers of all records meet
the same ones again.
"""


def _required(value: int | None, name: str) -> int:
    if value is None:
        raise WireError(f"{name} is missing")
    return value


def _state(number: int) -> LedgerState:
    try:
        return LedgerState(number)
    except ValueError:
        raise WireError(f"state {number} is not known") from None


def _digest(number: int | None) -> DigestType | None:
    try:
        return None if number is None else DigestType(number)
    except ValueError:
        raise WireError(f"digest type {number} is not known") from None


# Version 2: protobuf text; it never gains fields, since older readers refuse names that they do not know.


def _serialise_2(md: LedgerMetadata) -> bytes:
    if md.creator_token:
        raise InvalidArgument("format version 2 holds no creator token; use version 3 or token 0")
    length, last_entry = _end(md)
    lines = [
        f"quorumSize: {md.write_quorum}",
        f"ensembleSize: {md.ensemble_size}",
        f"length: {length}",
        f"lastEntryId: {last_entry}",
        f"state: {md.state.name}",
    ]
    for fragment in md.fragments:
        lines.append("segment {")
        lines += [f"  ensembleMember: {quote(member)}" for member in fragment.ensemble]
        lines += [f"  firstEntryId: {fragment.first_entry}", "}"]
    if md.digest_type is not None:
        lines.append(f"digestType: {_DIGEST_NAMES[md.digest_type]}")
    if md.password is not None:
        lines.append(f"password: {quote(md.password)}")
    lines.append(f"ackQuorumSize: {md.ack_quorum}")
    if md.creation_time_ms is not None:
        lines.append(f"ctime: {md.creation_time_ms}")
    for key, value in md.custom_metadata.items():
        lines += ["customMetadata {", f"  key: {quote(key)}", f"  value: {quote(value)}", "}"]
    return ("\n".join(lines) + "\n").encode("ascii")


def _parse_2(body: bytes) -> LedgerMetadata:
    message = text_format.parse(body)
    write_quorum = _required(message.integer("quorumSize"), "quorumSize")
    ensemble_size = _required(message.integer("ensembleSize"), "ensembleSize")
    length = _required(message.integer("length"), "length")
    state = _named(message.name("state"), "state", _STATES)
    if state is None:
        raise TextError("state is missing")
    fragments = []
    for segment in message.messages("segment"):
        first_entry = _required(segment.integer("firstEntryId"), "firstEntryId")
        fragments.append(Fragment(first_entry, tuple(segment.strings("ensembleMember"))))
    ack_quorum = message.integer("ackQuorumSize")
    custom = {pair.string("key") or "": pair.bytes("value") or b"" for pair in message.messages("customMetadata")}
    digest = _named(message.name("digestType"), "digestType", _DIGESTS)
    return _record(
        (ensemble_size, write_quorum, write_quorum if ack_quorum is None else ack_quorum),
        state,
        fragments,
        (length, message.integer("lastEntryId")),
        (digest, message.bytes("password")),
        custom,
        message.integer("ctime"),
        0,
        2,
    )


def _named(name: str | None, field: str, known: Mapping[str, _Enum]) -> _Enum | None:
    if name is None:
        return None
    if name not in known:
        raise TextError(f"{field} {name[:40]!r} is not one of {', '.join(known)}")
    return known[name]


# Version 1: lines; ack quorum = write quorum, no password, digest, creation time or custom metadata.


def _serialise_1(md: LedgerMetadata) -> bytes:
    extra = md.password is not None or md.custom_metadata or md.creation_time_ms is not None or md.creator_token
    if extra or md.ack_quorum != md.write_quorum:
        raise InvalidArgument(
            "format version 1 holds no password, digest, custom metadata, creation time or ack quorum; use version 3"
        )
    length, last_entry = _end(md)
    lines = [str(md.write_quorum), str(md.ensemble_size), str(length)]
    lines += ["\t".join((str(fragment.first_entry), *fragment.ensemble)) for fragment in md.fragments]
    if md.state is LedgerState.OPEN:
        lines.append("")
    else:
        lines.append(f"{last_entry if md.closed else _RECOVERY_MARK}\tCLOSED")
    return "\n".join(lines).encode()


def _parse_1(body: bytes) -> LedgerMetadata:
    lines = text(body).split("\n")
    if len(lines) < 3:
        raise WireError("fewer than three lines")
    write_quorum, ensemble_size, length = (_number(line) for line in lines[:3])
    fragments: list[Fragment] = []
    state, last_entry = LedgerState.OPEN, None
    for line in lines[3:]:
        if not line:
            continue
        if state is not LedgerState.OPEN:
            raise WireError("a line follows the one that closes the ledger")
        first, *members = line.split("\t")
        if members == ["CLOSED"]:
            last_entry = _number(first)
            state = LedgerState.IN_RECOVERY if last_entry == _RECOVERY_MARK else LedgerState.CLOSED
        else:
            fragments.append(Fragment(_number(first), tuple(members)))
    sizes = (ensemble_size, write_quorum, write_quorum)
    return _record(sizes, state, fragments, (length, last_entry), (None, None), {}, None, 0, 1)


def _number(word: str) -> int:
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        raise WireError(f"{word[:40]!r} is not a whole number")
    return int(word)

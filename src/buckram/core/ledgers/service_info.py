"""Identity and addresses of a bookie: the grammar of bookie ids and the BookieServiceInfo record.

The record is what a bookie's registration holds (docs/reference/protocol.md, registration). Not here: registering it
(`metadata/tree/store`), its use by clients (`client/cluster/bookies`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from buckram.addresses import address_of_id
from buckram.core.wire.protobuf import Fields, WireError, bytes_field, int_field, text
from buckram.errors import InvalidArgument, MalformedRecord
from buckram.types import BookieAddress, BookieId, BookieInfo

BOOKIE_RPC = "bookie-rpc"
"""Protocol name of the endpoint that clients connect to; compared exactly."""
SESSION_PROPERTY = "buckram.session"
"""Property of a registration that changes whenever the bookie registers anew, or hung, so that it may lack entries
since.
"""
ADMISSION_PROPERTY = "buckram.admission"
"""The property of a registration that names the bookie's admission setting if that is not the safe default."""
_ENDPOINT_ID = "bookie"
# Apache's grammar: the range from ':' to '_' is an accident of its regular expression, but it is the rule.
_BOOKIE_ID = re.compile(r"[a-zA-Z0-9.\-:-_]+")


def valid_bookie_id(bookie_id: BookieId) -> bool:
    """Return whether every peer, Apache's included, can parse this id. `readonly` is the name of a folder."""
    return _BOOKIE_ID.fullmatch(bookie_id) is not None and bookie_id.lower() != "readonly"


def check_bookie_id(bookie_id: BookieId) -> BookieId:
    """Return the id. Raises InvalidArgument if some peer could not parse it."""
    if not valid_bookie_id(bookie_id):
        raise InvalidArgument(
            f"bookie id {bookie_id!r}: use letters, digits and `: . _ -` (no slash, comma, space), not readonly"
        )
    return bookie_id


def address_of(bookie_id: BookieId) -> BookieAddress | None:
    """Return the address in a host:port id; None for any other id."""
    return address_of_id(bookie_id)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One service of a bookie process. All of id, port, host and protocol are required by every reader."""

    id: str
    port: int
    host: str
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """The whole record: endpoints in order, properties."""

    endpoints: tuple[Endpoint, ...] = ()
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def rpc_address(self) -> BookieAddress | None:
        for endpoint in self.endpoints:
            if endpoint.protocol == BOOKIE_RPC:
                return BookieAddress(endpoint.host, endpoint.port)
        return None


def encode_service_info(info: ServiceInfo) -> bytes:
    """Encode the record as protobuf, with fields in the order of their numbers."""
    out = bytearray()
    for endpoint in info.endpoints:
        body = bytes_field(1, endpoint.id.encode()) + int_field(2, endpoint.port)
        body += bytes_field(3, endpoint.host.encode()) + bytes_field(4, endpoint.protocol.encode())
        body += b"".join(bytes_field(5, name.encode()) for name in endpoint.auth)
        body += b"".join(bytes_field(6, name.encode()) for name in endpoint.extensions)
        out += bytes_field(6, body)
    for key, value in info.properties.items():
        out += bytes_field(7, bytes_field(1, key.encode()) + bytes_field(2, value.encode()))
    return bytes(out)


def decode_service_info(bookie_id: BookieId, payload: bytes) -> ServiceInfo:
    """Parse a registration. An empty one is of a bookie older than this record, whose host:port id is the endpoint.

    Raises MalformedRecord if it does not parse or an endpoint lacks a required field.
    """
    if not payload:
        address = address_of(bookie_id)
        if address is None:
            return ServiceInfo()
        return ServiceInfo((Endpoint(bookie_id, address.port, address.host, BOOKIE_RPC),))
    endpoints: list[Endpoint] = []
    properties: dict[str, str] = {}
    try:
        fields = Fields(payload)
        endpoints.extend(_decode_endpoint(body) for body in fields.all_bytes(6))
        for body in fields.all_bytes(7):
            entry = Fields(body)
            properties[text(entry.last_bytes(1) or b"")] = text(entry.last_bytes(2) or b"")
    except WireError as error:
        raise MalformedRecord(f"registration of bookie {bookie_id}: {error}") from None
    return ServiceInfo(tuple(endpoints), MappingProxyType(properties))


def _decode_endpoint(body: bytes) -> Endpoint:
    fields = Fields(body)
    identity, host, protocol = fields.last_bytes(1), fields.last_bytes(3), fields.last_bytes(4)
    port = fields.last_int(2)
    if identity is None or port is None or host is None or protocol is None:
        raise WireError("an endpoint lacks its id, port, host or protocol")
    if not 0 <= port <= 65535:
        raise WireError(f"port {port} is not between 0 and 65535")
    auth = tuple(text(name) for name in fields.all_bytes(5))
    extensions = tuple(text(name) for name in fields.all_bytes(6))
    return Endpoint(text(identity), port, text(host), text(protocol), auth, extensions)


def encode_bookie(info: BookieInfo) -> bytes:
    """Encode one of our bookies, always with its endpoint, because an empty record can hang Apache's clients."""
    check_bookie_id(info.bookie_id)
    if info.address is None:
        raise InvalidArgument(f"bookie {info.bookie_id}: has no address to register; give host and port")
    endpoint = Endpoint(_ENDPOINT_ID, info.address.port, info.address.host, BOOKIE_RPC)
    return encode_service_info(ServiceInfo((endpoint,), info.properties))


def decode_bookie(bookie_id: BookieId, payload: bytes) -> BookieInfo:
    """Return what a client needs of a registration; a record that does not parse gives a bookie without address."""
    try:
        info = decode_service_info(bookie_id, payload)
    except MalformedRecord:
        return BookieInfo(bookie_id, None)
    return BookieInfo(bookie_id, info.rpc_address, info.properties)

"""Bookie ids and the registration record."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.ledgers.service_info import (
    Endpoint,
    ServiceInfo,
    address_of,
    check_bookie_id,
    decode_bookie,
    decode_service_info,
    encode_bookie,
    encode_service_info,
    valid_bookie_id,
)
from buckram.core.wire.protobuf import bytes_field, int_field
from buckram.errors import InvalidArgument, MalformedRecord
from buckram.types import BookieAddress, BookieInfo

PUBLISHED = bytes.fromhex("32210a06626f6f6b696510ed181a0831302e302e302e31220a626f6f6b69652d727063")


def test_the_published_sample_both_ways() -> None:
    info = BookieInfo("10.0.0.1:3181", BookieAddress("10.0.0.1", 3181))
    assert encode_bookie(info) == PUBLISHED
    assert decode_bookie("10.0.0.1:3181", PUBLISHED) == info


def test_properties_endpoints_auth_and_extensions() -> None:
    info = ServiceInfo(
        (
            Endpoint("httpserver", 8080, "h", "http"),
            Endpoint("bookie", 3181, "host", "bookie-rpc", ("sasl", "none"), ("tls",)),
            Endpoint("bookie2", 1, "other", "bookie-rpc"),
        ),
        {"buckram.incarnation": "abc", "rack": "/r1", "leer": ""},
    )
    assert decode_service_info("b1", encode_service_info(info)) == info
    found = decode_bookie("b1", encode_service_info(info))
    assert (found.address, found.incarnation) == (BookieAddress("host", 3181), "abc")


def test_an_empty_record_is_an_old_bookie_that_is_its_address() -> None:
    assert decode_bookie("old.host:3181", b"").address == BookieAddress("old.host", 3181)
    assert decode_bookie("just-a-name", b"").address is None
    assert encode_service_info(ServiceInfo()) == b""


def test_a_bookie_without_the_rpc_endpoint_is_unreachable() -> None:
    for protocol in ("http", "Bookie-RPC", "bookie-rpc2"):
        info = ServiceInfo((Endpoint("bookie", 1, "h", protocol),))
        assert decode_bookie("a:1", encode_service_info(info)).address is None


def test_our_own_registration_always_has_an_endpoint() -> None:
    with pytest.raises(InvalidArgument, match="b1"):
        encode_bookie(BookieInfo("b1", None))
    with pytest.raises(InvalidArgument, match="'b 1'"):
        encode_bookie(BookieInfo("b 1", BookieAddress("h", 1)))


ENDPOINT = [bytes_field(1, b"bookie"), int_field(2, 3181), bytes_field(3, b"h"), bytes_field(4, b"bookie-rpc")]
BAD = [
    b"\xff", b"text", PUBLISHED[:-1], bytes_field(6, b"".join(ENDPOINT[:3])), bytes_field(6, b"".join(ENDPOINT[1:])),
    bytes_field(6, b"".join([ENDPOINT[0], *ENDPOINT[2:]])), bytes_field(6, b"".join([*ENDPOINT[:2], ENDPOINT[3]])),
    bytes_field(6, b"".join([*ENDPOINT, int_field(2, 65536)])), bytes_field(6, b"".join([*ENDPOINT, int_field(2, -1)])),
    bytes_field(6, b"".join([*ENDPOINT, bytes_field(3, b"\xff")])), bytes_field(7, b"\x0a\x05a"),
]  # fmt: skip


@pytest.mark.parametrize("payload", BAD)
def test_bad_registrations(payload: bytes) -> None:
    with pytest.raises(MalformedRecord, match="b1"):
        decode_service_info("b1", payload)
    assert decode_bookie("host:1", payload) == BookieInfo("host:1", None)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_raise_one_typed_error(payload: bytes) -> None:
    with contextlib.suppress(MalformedRecord):
        decode_service_info("b1", payload)


@given(
    st.lists(
        st.tuples(st.text(max_size=9), st.integers(0, 65535), st.text(max_size=9), st.text(max_size=9)), max_size=3
    ),
    st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3),
)
def test_records_round_trip(endpoints: list[tuple[str, int, str, str]], properties: dict[str, str]) -> None:
    info = ServiceInfo(tuple(Endpoint(*fields) for fields in endpoints), properties)
    if endpoints or properties:
        assert decode_service_info("b1", encode_service_info(info)) == info


@pytest.mark.parametrize("name", ["a", "10.0.0.1:3181", "bk_1.example-x", "A<=>?@[\\]^_", "READ"])
def test_ids_that_every_peer_parses(name: str) -> None:
    assert valid_bookie_id(name)
    assert check_bookie_id(name) == name


@pytest.mark.parametrize(
    "name", ["", "a/b", "a b", "a,b", "a\tb", "ä", "a\n", "a`b", "{a}", "readonly", "ReadOnly", "a%"]
)
def test_ids_that_some_peer_does_not_parse(name: str) -> None:
    assert not valid_bookie_id(name)
    with pytest.raises(InvalidArgument):
        check_bookie_id(name)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("h:1", BookieAddress("h", 1)), ("::1:3181", BookieAddress("::1", 3181)),
        ("h:65535", BookieAddress("h", 65535)),
        ("h:65536", None), ("h:", None), (":1", None), ("h", None), ("h:x", None), ("h:-1", None), ("h:²", None),
        ("h:" + "9" * 5000, None), ("h:000001", None),
    ],
)  # fmt: skip
def test_addresses_in_ids(name: str, address: BookieAddress | None) -> None:
    assert address_of(name) == address

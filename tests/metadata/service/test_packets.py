"""Packets of the metadata service: round trips, and bytes that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.wire.frames import PREFIX_BYTES
from buckram.core.wire.messages import BadPacket
from buckram.core.wire.v2 import is_key_packet
from buckram.errors import (
    AccessRefused,
    BuckramError,
    ClusterNotInitialised,
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    LedgerIdsExhausted,
    LedgerIdUsed,
    MalformedRecord,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    StoreReplaced,
    ValueTooLarge,
    VersionConflict,
    WrongCluster,
)
from buckram.metadata.service.error_codec import decode_error, encode_error
from buckram.metadata.service.packets import (
    Event,
    KeyReply,
    KeyRequest,
    Names,
    Refusal,
    RequestKind,
    Welcome,
    decode_reply,
    decode_request,
    encode_event,
    encode_refusal,
    encode_reply,
    encode_request,
    names_that_fit,
)
from buckram.types import CheckVersion, Create, Delete, KeyValue, SetValue

texts = st.text(max_size=40).filter(lambda text: text.isprintable())
numbers = st.integers(-(2**63), 2**63 - 1)
ops = st.one_of(
    st.builds(Create, texts, st.binary(max_size=50), st.booleans()),
    st.builds(SetValue, texts, st.binary(max_size=50), numbers),
    st.builds(Delete, texts, numbers),
    st.builds(CheckVersion, texts, numbers),
)
requests = st.one_of(
    st.builds(lambda key, number: KeyRequest(RequestKind.HELLO, key, number=number), texts, numbers),
    st.builds(lambda key, watch: KeyRequest(RequestKind.GET, key, watch=watch), texts, st.booleans()),
    st.builds(
        lambda key, after, limit, watch: KeyRequest(RequestKind.CHILDREN, key, after, limit, watch),
        texts, texts, st.integers(0, 2**32 - 1), st.booleans(),
    ),
    st.builds(lambda found: KeyRequest(RequestKind.CHANGE, ops=tuple(found)), st.lists(ops, max_size=5)),
    st.builds(
        lambda number, value, watch: KeyRequest(RequestKind.LEDGER_CREATE, number=number, value=value, watch=watch),
        numbers, st.binary(max_size=50), st.booleans(),
    ),
    st.sampled_from(
        [
            KeyRequest(kind)
            for kind in (
                RequestKind.SYNC,
                RequestKind.PING,
                RequestKind.CLOSE,
                RequestKind.ALLOCATE,
                RequestKind.STRAYS,
            )
        ]
    ),
)  # fmt: skip
values = st.builds(KeyValue, st.binary(max_size=50), numbers, st.booleans())
replies = st.one_of(
    st.none(),
    numbers,
    texts,
    values,
    st.builds(Welcome, texts, texts, texts, texts, numbers),
    st.builds(Names, st.lists(texts, max_size=5), st.booleans()),
    st.lists(st.tuples(texts, values), max_size=5),
)
ids = st.integers(1, 2**64 - 1)


@given(ids, requests)
def test_a_request_comes_out_as_it_went_in(request_id: int, request: KeyRequest) -> None:
    packet = encode_request(request_id, request)[PREFIX_BYTES:]
    assert is_key_packet(packet)
    assert decode_request(packet) == (request_id, request)


@given(ids, replies)
def test_a_reply_comes_out_as_it_went_in(request_id: int, reply: KeyReply) -> None:
    found = decode_reply(encode_reply(request_id, reply)[PREFIX_BYTES:])
    assert found == (request_id, reply)
    assert type(found[1]) is type(reply)


@given(requests, st.data())
def test_a_request_that_was_cut_or_has_more_is_refused(request: KeyRequest, data: st.DataObject) -> None:
    packet = encode_request(7, request)[PREFIX_BYTES:]
    with pytest.raises(BadPacket):
        decode_request(packet[: data.draw(st.integers(0, len(packet) - 1))])
    with pytest.raises(BadPacket):
        decode_request(packet + b"\0")


@given(st.binary(max_size=200))
def test_random_fields_are_a_value_or_refused(fields: bytes) -> None:
    head = encode_request(1, KeyRequest(RequestKind.SYNC))[PREFIX_BYTES:-1]
    for decode in (decode_request, decode_reply):
        for packet in (head + fields, fields):
            try:
                decode(packet)
            except BadPacket:
                continue


def test_counts_of_a_peer_allocate_nothing() -> None:
    head = encode_request(1, KeyRequest(RequestKind.SYNC))[PREFIX_BYTES:-1]
    with pytest.raises(BadPacket, match="limit is 10000"):
        decode_request(head + bytes((RequestKind.CHANGE,)) + b"\xff\xff\xff\xff")
    with pytest.raises(BadPacket, match="within a field"):
        decode_reply(head + b"\0\5\0\xff\xff\xff\xff")


def test_events_have_no_request() -> None:
    event = Event(RequestKind.VALUE_CHANGED, "/a/b")
    assert decode_reply(encode_event(event)[PREFIX_BYTES:]) == (0, event)


@pytest.mark.parametrize(
    "error",
    [
        MetadataUnavailable("later"), NoSuchKey("/a"), KeyExists("/a"), KeyNotEmpty("/a"), VersionConflict("/a", 7),
        ValueTooLarge("/a", 9, 8), InvalidArgument("bad"), MalformedRecord("odd"), LedgerIdUsed(5),
        AccessRefused("stream a/b", "not yours", advice=""),
        LedgerIdsExhausted("none"), ClusterNotInitialised("x:"), WrongCluster("other"),
        MetadataError("else"),
    ],
)  # fmt: skip
def test_errors_keep_class_text_and_fields(error: BuckramError) -> None:
    _, found = decode_reply(encode_refusal(3, *encode_error(error))[PREFIX_BYTES:])
    assert isinstance(found, Refusal)
    again = decode_error(found.status, found.fields)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_an_error_without_a_row_keeps_its_text() -> None:
    _, found = decode_reply(encode_refusal(3, *encode_error(StoreReplaced("gone " + "ü" * 3000)))[PREFIX_BYTES:])
    assert isinstance(found, Refusal)
    again = decode_error(found.status, found.fields)
    assert type(again) is MetadataError
    assert str(again).startswith("gone üü")


def test_names_beyond_the_frame_are_asked_for_later() -> None:
    assert names_that_fit(["aaa", "bbb", "ccc"], 10) == Names(["aaa", "bbb"], True)
    assert names_that_fit(["aaa", "bbb"], 10) == Names(["aaa", "bbb"], False)

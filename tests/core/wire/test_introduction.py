"""What bookie and client say of themselves: on the wire and compared."""

from __future__ import annotations

import pytest

from buckram.core.wire import bookkeeper_pb2 as pb
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.frames import frame
from buckram.core.wire.introduction import Identity, Introduction, identity_mismatch
from buckram.core.wire.messages import OP_BOOKIE_INFO, BookieInfoReply, GetBookieInfo, ReplyContext
from buckram.errors import Code

CONTEXT = ReplyContext(3, 3, OP_BOOKIE_INFO, txn=3)
MINE = Identity("c", "b", "i", 4, 5, 6, 7)


@pytest.mark.parametrize(
    "said",
    [
        None,
        Introduction("c", "b", "i", 9),
        Introduction("c", "b", "i", 9, 1),
        Introduction("", "b"),
        Introduction("ü", "b", ""),
    ],
)
def test_an_introduction_arrives_as_it_was_said(said: Introduction | None) -> None:
    packet = wire_v3.encode_request(GetBookieInfo(2, said), 3)[4:]
    decoded = wire_v3.decode_request(packet)
    assert decoded is not None
    assert decoded[0] == GetBookieInfo(2, said)


@pytest.mark.parametrize("identity", [None, MINE, Identity("c", "b", "")])
def test_an_identity_arrives_as_it_was_said(identity: Identity | None) -> None:
    packet = wire_v3.encode_reply(CONTEXT, BookieInfoReply(Code.OK, 1, 2, identity=identity))[4:]
    reply, operation, txn = wire_v3.decode_reply(packet)
    assert (operation, txn) == (OP_BOOKIE_INFO, 3)
    assert reply == BookieInfoReply(Code.OK, 1, 2, identity=identity)


def test_names_that_are_no_text_break_nothing() -> None:
    request = pb.Request()
    request.header.version, request.header.operation, request.header.txnId = 3, OP_BOOKIE_INFO, 1  # type: ignore[assignment]  # a number of the enum
    request.getBookieInfoRequest.cluster = b"\xff\xfe"
    decoded = wire_v3.decode_request(frame(request.SerializeToString())[4:])
    assert decoded is not None
    assert isinstance(decoded[0], GetBookieInfo)
    assert identity_mismatch(Introduction("c", "b"), MINE) == ""
    assert decoded[0].introduction is not None
    assert identity_mismatch(decoded[0].introduction, MINE)


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        (Introduction("c", "b", "i"), ""),
        (Introduction("c", "b", ""), ""),
        (Introduction("d", "b", "i"), "belongs to cluster c"),
        (Introduction("c", "a", "i"), "is bookie b"),
        (Introduction("c", "b", "j"), "incarnation i"),
        (Introduction("", "b", "i"), "cluster"),
    ],
)
def test_any_difference_is_an_identity_mismatch(expected: Introduction, why: str) -> None:
    assert why in identity_mismatch(expected, MINE)
    assert bool(why) == bool(identity_mismatch(expected, MINE))

"""What comes in clear before TLS, in every order: only START_TLS and one empty AUTH of v3 beside it lead to TLS."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import pytest

from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.messages import Add, Auth, AuthReply, ErrorReply, Read, StartTls, StartTlsReply
from buckram.core.wire.server_protocol import (
    AUTH_DISABLED,
    AuthStep,
    BeginTls,
    Close,
    Item,
    LoginBegun,
    Ready,
    ServerProtocol,
)
from buckram.core.wire.start_tls import MAX_OPENING_BYTES
from buckram.errors import Code

LIMIT = 5 << 20
TLS = b"\x16\x03\x01\x00\x05hello"
KEY = bytes(range(20))
SAID = {
    "begin": wire_v3.encode_request(Auth("sasl", b""), 11),
    "begin of another plug-in": wire_v3.encode_request(Auth("other", b""), 12),
    "word": wire_v3.encode_request(Auth("sasl", b"word"), 13),
    "start": wire_v3.encode_request(StartTls(), 14),
    "read": wire_v3.encode_request(Read(1, 1), 15),
    "add": wire_v3.encode_request(Add(1, 0, KEY, bytes(40)), 16),
    "v2 begin": wire_v2.encode_request(Auth("sasl", b"")),
    "v2 word": wire_v2.encode_request(Auth("sasl", b"word")),
    "v2 read": wire_v2.encode_request(Read(1, 1)),
    "tls": TLS,
}
BEGINS = ("begin", "begin of another plug-in")
TO_TLS = {("start",), *((one, "start") for one in BEGINS), *(("start", one) for one in BEGINS)}
"""All that may have been said in clear when TLS begins."""
ORDERS = [order for count in (1, 2, 3, 4) for order in itertools.product(SAID, repeat=count)]


class Asks:
    """A challenge for the empty word, and yes to `word`; notes what it was told."""

    plugin = "sasl"

    def __init__(self) -> None:
        self.told: list[bytes] = []

    def step(self, payload: bytes) -> AuthStep:
        self.told.append(payload)
        if len(self.told) == 1:
            return AuthStep(None, failed=True) if payload else AuthStep(b"challenge")
        return AuthStep(b"", done=True) if payload == b"word" else AuthStep(None, failed=True)


def server(login: Asks | None, *, needs_tls: bool) -> ServerProtocol:
    return ServerProtocol(LIMIT, auth=login, offers_tls=True, needs_tls=needs_tls)


def fed(protocol: ServerProtocol, chunks: Iterator[bytes] | list[bytes]) -> list[Item]:
    """Everything until TLS begins or the connection is closed."""
    items: list[Item] = []
    for chunk in chunks:
        items += protocol.feed(chunk)
        if items and type(items[-1]) in (BeginTls, Close):
            break
    return items


def replies(items: list[Item]) -> list[object]:
    return [wire_v3.decode_reply(item.data[4:])[0] for item in items if isinstance(item, Ready)]


def cut(order: tuple[str, ...]) -> list[list[bytes]]:
    """The same bytes in one chunk, in one for each message, and byte by byte."""
    whole = [SAID[one] for one in order]
    joined = b"".join(whole)
    return [[joined], whole, [joined[n : n + 1] for n in range(len(joined))]]


def kinds(items: list[Item]) -> list[str]:
    return [type(item).__name__ for item in items if not isinstance(item, BeginTls)]


@pytest.mark.parametrize("needs_tls", [True, False], ids=["needs-tls", "offers-tls"])
@pytest.mark.parametrize("asks", [True, False], ids=["login", "no-login"])
def test_tls_begins_after_start_tls_and_an_empty_auth_and_after_nothing_else(needs_tls: bool, asks: bool) -> None:
    for order in ORDERS:
        if "start" not in order or order.count("tls") > 1 or (len(order) == 4 and order[3] != "tls"):
            continue
        found = set()
        for chunks in cut(order):
            login = Asks() if asks else None
            items = fed(server(login, needs_tls=needs_tls), chunks)
            begun = any(isinstance(item, BeginTls) for item in items)
            right = "tls" in order and order[: order.index("tls")] in TO_TLS
            assert begun is right, (order, items)
            if begun:
                assert login is None or login.told == [], order
                assert replies(items) == [StartTlsReply(Code.OK)], order
            found.add((begun, type(items[-1]) is Close))
        assert len(found) == 1, (order, found)


@pytest.mark.parametrize("order", [("begin", "start"), ("start", "begin")], ids="-".join)
def test_the_challenge_goes_through_tls(order: tuple[str, str]) -> None:
    for chunks in cut((*order, "tls")):
        login = Asks()
        protocol = server(login, needs_tls=True)
        *clear, last = fed(protocol, chunks)
        assert replies(clear) == [StartTlsReply(Code.OK)]
        assert isinstance(last, BeginTls)
        assert protocol.answer_begun() == []  # not before there is TLS
        protocol.secured()
        (item,) = protocol.answer_begun()
        assert isinstance(item, Ready)
        assert wire_v3.decode_reply(item.data[4:]) == (AuthReply(Code.OK, "sasl", b"challenge"), 5, 11)
        assert not protocol.authenticated
        assert protocol.answer_begun() == []
        assert replies(protocol.feed(SAID["word"])) == [AuthReply(Code.OK, "sasl", b"")]
        assert protocol.authenticated
        assert login.told == [b"", b"word"]


@pytest.mark.parametrize("order", [("begin", "start", "tls"), ("start", "begin", "tls"), ("start", "tls")])
def test_who_is_known_by_a_certificate_or_need_not_be_known_is_told_so(order: tuple[str, ...]) -> None:
    for login in (Asks(), None):
        protocol = server(login, needs_tls=True)
        fed(protocol, [SAID[one] for one in order])
        protocol.secured()
        if login is not None:
            protocol.logged_in()
        wanted = [AuthReply(Code.OK, AUTH_DISABLED, b"")] if "begin" in order else []
        assert replies(protocol.answer_begun()) == wanted
        assert [type(item).__name__ for item in protocol.feed(SAID["read"])] == ["Incoming"]
        large = struct.pack(">qqqq", 1, 0, -1, 1 << 20) + bytes(1 << 20)
        run = protocol.feed(wire_v3.encode_request(Add(1, 0, KEY, large), 20))
        assert [type(item).__name__ for item in run] == ["AddRun"]


def test_a_begin_of_a_plug_in_that_is_not_there_is_refused_through_tls() -> None:
    protocol = server(Asks(), needs_tls=True)
    fed(protocol, [SAID["start"], SAID["begin of another plug-in"], TLS])
    protocol.secured()
    assert replies(protocol.answer_begun()) == [ErrorReply(Code.UNAUTHORIZED)]
    assert not protocol.authenticated


def test_a_login_without_tls_is_answered_when_start_tls_has_not_come() -> None:
    login = Asks()
    protocol = server(login, needs_tls=False)
    assert protocol.feed(SAID["begin"]) == [LoginBegun()]
    assert login.told == []
    assert replies(protocol.answer_begun()) == [AuthReply(Code.OK, "sasl", b"challenge")]
    assert replies(protocol.feed(SAID["word"])) == [AuthReply(Code.OK, "sasl", b"")]
    assert protocol.authenticated

    needs = server(Asks(), needs_tls=True)
    assert needs.feed(SAID["begin"]) == [LoginBegun()]
    assert replies(needs.answer_begun()) == [ErrorReply(Code.UNAUTHORIZED)]
    assert isinstance(needs.feed(SAID["start"] + TLS)[-1], Close)  # too late: somebody had an answer in clear


@pytest.mark.parametrize("behind", [one for one in SAID if one not in ("start", "tls")])
def test_nothing_but_start_tls_may_follow_the_empty_auth(behind: str) -> None:
    for needs_tls in (True, False):
        login = Asks()
        protocol = server(login, needs_tls=needs_tls)
        items = fed(protocol, [SAID["begin"], SAID[behind]])
        assert kinds(items) == ["LoginBegun", "Close"]
        assert login.told == []
        assert protocol.answer_begun() == []


def test_frames_in_clear_are_small() -> None:
    large = wire_v3.encode_request(Auth("x" * MAX_OPENING_BYTES, b""), 1)
    for first in ("start", "begin"):
        protocol = server(Asks(), needs_tls=True)
        protocol.feed(SAID[first])
        (closed,) = protocol.feed(large[:4])
        assert isinstance(closed, Close)
        assert str(MAX_OPENING_BYTES) in closed.reason

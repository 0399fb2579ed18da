"""SASL DIGEST-MD5: both sides agree, and nothing else gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.security.digest_md5 import SaslRefused, accept, challenge, check_server, parse, response

USERS = {"hd": "testpwd", 'odd"\\user': "p:w"}


@pytest.mark.parametrize("user", list(USERS))
def test_both_sides_agree(user: str) -> None:
    said = challenge("nonce")
    answer = response(said, user, USERS[user], "cnonce")
    name, last = accept(answer, "nonce", USERS)
    assert name == user
    check_server(last, said, user, USERS[user], "cnonce")


def test_the_fields_of_a_challenge() -> None:
    """That of RFC 2831, section 4."""
    fields = parse(b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8')
    assert fields["nonce"] == "OA6MG9tEQGm2hh"
    assert fields["charset"] == "utf-8"


@pytest.mark.parametrize(
    ("change", "users"),
    [
        ((b"", b""), {"hd": "other"}),
        ((b"", b""), {}),
        ((b"", b""), {"hd": ""}),
        ((b"nc=00000001", b"nc=00000002"), USERS),
        ((b'nonce="nonce"', b'nonce="older"'), USERS),
        ((b"bookkeeper/", b"http/"), USERS),
        ((b"qop=auth", b"qop=auth-conf"), USERS),
        ((b'username="hd"', b'username="eve"'), USERS),
    ],
)
def test_a_wrong_answer_is_refused(change: tuple[bytes, bytes], users: dict[str, str]) -> None:
    answer = response(challenge("nonce"), "hd", "testpwd", "cnonce").replace(*change) if change[0] else None
    with pytest.raises(SaslRefused, match="unknown user or wrong password"):
        accept(answer or response(challenge("nonce"), "hd", "testpwd", "cnonce"), "nonce", users)


def test_nobody_acts_as_another() -> None:
    """The proof covers whom a client wants to act as, and that has to be itself."""
    answer = response(challenge("nonce"), "hd", "testpwd", "cnonce")
    for other in ("hd", "root"):
        with pytest.raises(SaslRefused):
            accept(answer + f',authzid="{other}"'.encode(), "nonce", USERS)


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    with pytest.raises(SaslRefused, match="does not know"):
        check_server(b"rspauth=00", challenge("nonce"), "hd", "testpwd", "cnonce")


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(SaslRefused):
        accept(data, "nonce", USERS)


@given(st.text(max_size=100))
def test_random_text_is_fields_or_refused(text: str) -> None:
    try:
        assert all(isinstance(name, str) for name in parse(text.encode()))
    except SaslRefused:
        return


def test_a_field_twice_and_a_message_without_end_are_refused() -> None:
    for message in (b"nonce=a,nonce=b", b"a" * 5000):
        with pytest.raises(SaslRefused):
            parse(message)

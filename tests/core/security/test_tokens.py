"""Tokens: what counts and what does not, and that nothing that is no token gets through."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.security.tokens import Revocations, Token, TokenRefused, new_signing_key, sign, verify

PRIVATE, PUBLIC = new_signing_key()
KEYS = {"k1": PUBLIC}
CLUSTER, NOW = "cluster-1", 1_800_000_000.0
TOKEN = Token("t1", "alice", ("ops",), NOW - 10, NOW + 100)
GOOD = sign(TOKEN, CLUSTER, "k1", PRIVATE)


def pems(key: Any) -> tuple[bytes, bytes]:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_a_token_says_who_it_is() -> None:
    found = verify(GOOD, KEYS, CLUSTER, NOW, Revocations())
    assert found == TOKEN
    assert (found.principal.name, found.principal.roles, found.principal.admin) == ("token:alice", ("ops",), False)


def test_an_rsa_key_serves_too_and_a_short_or_other_one_does_not() -> None:
    for key, good in (
        (rsa.generate_private_key(65537, 2048), True),
        (rsa.generate_private_key(65537, 1024), False),
    ):
        private, public = pems(key)
        text = sign(TOKEN, CLUSTER, "k2", private)
        if good:
            assert verify(text, {"k2": public}, CLUSTER, NOW, Revocations()) == TOKEN
        else:
            with pytest.raises(TokenRefused, match="2048 bits"):
                verify(text, {"k2": public}, CLUSTER, NOW, Revocations())
    _, curve = pems(ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(TokenRefused, match="neither"):
        verify(GOOD, {"k1": curve}, CLUSTER, NOW, Revocations())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"now": NOW + 100}, "expired"),
        ({"now": NOW - 400}, "from the future"),
        ({"cluster": "cluster-2"}, "another cluster"),
        ({"keys": {}}, "does not know"),
        ({"keys": {"k1": b"no key"}}, "is none"),
        ({"revoked": Revocations(frozenset({"t1"}))}, "t1 was revoked"),
        ({"revoked": Revocations(subjects={"alice": NOW - 10})}, "tokens of alice were revoked"),
    ],
)
def test_what_does_not_count(change: dict[str, Any], why: str) -> None:
    given = {"keys": KEYS, "cluster": CLUSTER, "now": NOW, "revoked": Revocations(), **change}
    with pytest.raises(TokenRefused, match=why):
        verify(GOOD, given["keys"], given["cluster"], given["now"], given["revoked"])


def test_a_clock_five_minutes_behind_and_a_later_token_count() -> None:
    assert verify(GOOD, KEYS, CLUSTER, NOW - 300, Revocations(subjects={"alice": NOW - 11})) == TOKEN


def part(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_the_algorithm_is_never_the_tokens() -> None:
    claims = {"iss": "buckram", "aud": CLUSTER, "sub": "eve", "jti": "x", "iat": NOW, "exp": NOW + 9}
    unsigned = f"{part({'alg': 'none', 'kid': 'k1'})}.{part(claims)}."
    with pytest.raises(jwt.InvalidKeyError):
        jwt.encode(claims, PUBLIC, algorithm="HS256", headers={"kid": "k1"})
    shared = jwt.encode(claims, "x" * 40, algorithm="HS256", headers={"kid": "k1"})
    for text in (unsigned, shared):
        with pytest.raises(TokenRefused, match="no good token"):
            verify(text, KEYS, CLUSTER, NOW, Revocations())


@pytest.mark.parametrize(
    "change",
    [{"sub": 7}, {"roles": "admin"}, {"roles": [1]}, {"exp": "soon"}, {"iat": None}, {"jti": None}, {"iss": "x"}],
)
def test_claims_of_other_kinds_are_refused(change: dict[str, object]) -> None:
    claims = {"iss": "buckram", "aud": CLUSTER, "sub": "a", "jti": "x", "iat": NOW, "exp": NOW + 9, **change}
    text = f"{part({'alg': 'EdDSA', 'kid': 'k1'})}.{part(claims)}"
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key: Any = load_pem_private_key(PRIVATE, None)
    signed = f"{text}.{urlsafe_b64encode(key.sign(text.encode())).rstrip(b'=').decode()}"
    with pytest.raises(TokenRefused):
        verify(signed, KEYS, CLUSTER, NOW, Revocations())


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(TokenRefused):
        verify(data, KEYS, CLUSTER, NOW, Revocations())


@given(st.integers(0, len(GOOD) - 1), st.characters(min_codepoint=33, max_codepoint=126))
def test_a_token_with_a_changed_letter_is_refused_or_the_same(at: int, letter: str) -> None:
    changed = GOOD[:at] + letter + GOOD[at + 1 :]
    try:
        assert verify(changed, KEYS, CLUSTER, NOW, Revocations()) == TOKEN
    except TokenRefused:
        assert changed != GOOD


def test_a_token_without_end_is_refused_unread() -> None:
    with pytest.raises(TokenRefused, match="limit is 8192"):
        verify("a" * 9000, KEYS, CLUSTER, NOW, Revocations())


def test_while_the_time_is_in_doubt_a_token_has_to_count_at_all_that_it_may_be() -> None:
    def counts(earliest: float, latest: float) -> bool:
        try:
            return verify(GOOD, KEYS, CLUSTER, latest, Revocations(), earliest_s=earliest) == TOKEN
        except TokenRefused:
            return False

    day = 86_400.0
    assert counts(NOW, NOW)
    assert counts(NOW, NOW + 50)
    assert not counts(NOW, NOW + 40 * day)  # it may have expired
    assert not counts(NOW - 40 * day, NOW)  # it may be from the future
    assert not counts(NOW - 40 * day, NOW + 40 * day)

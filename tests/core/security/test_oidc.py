"""Tokens of an issuer: which count, who that is and with which roles, and which keys are keys."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from tests.support.issuer_kit import AUDIENCE, FakeIssuer, Key

from buckram.config import AuthConfig
from buckram.core.security.oidc import (
    Issuer,
    IssuerRefused,
    UnknownKey,
    is_of,
    issuer_of,
    keys_of,
    keys_url_of,
    verify,
)
from buckram.core.security.principal import Principal
from buckram.core.security.tokens import Revocations, Token, TokenExpired, TokenRefused, new_signing_key, sign
from buckram.core.security.tokens import verify as verify_own
from buckram.errors import ConfigError

URL = "https://login.example.com"
ISSUER = Issuer(URL, AUDIENCE, admin_groups=frozenset({"operators"}), roles={"team a": "ops"})
THERE = FakeIssuer(URL)
KEYS = {name: Key(name, name) for name in ("RS256", "ES256", "EdDSA")}
PUBLISHED = keys_of(json.dumps({"keys": [key.published for key in KEYS.values()]}).encode())


def checked(text: str, now_s: float | None = None, revoked: Revocations | None = None) -> Token:
    now = time.time() if now_s is None else now_s
    return verify(text, ISSUER, PUBLISHED, now, revoked or Revocations())


@pytest.mark.parametrize("algorithm", list(KEYS))
def test_a_good_token_is_its_subject_with_its_groups_as_roles(algorithm: str) -> None:
    text = THERE.token("alice", key=KEYS[algorithm], groups=["team a", "admin", "dev"])
    assert is_of(text, ISSUER)
    found = checked(text)
    assert found.principal == Principal("oidc:alice", ("oidc-group:admin", "oidc-group:dev", "ops"))
    assert found.known_as == "oidc:alice"


def test_nobody_is_an_administrator_but_by_a_group_that_is_named() -> None:
    plain = checked(THERE.token("admin", key=KEYS["EdDSA"], roles=["admin"], groups=["admin"]))
    assert not plain.principal.admin
    assert checked(THERE.token(key=KEYS["EdDSA"], groups="operators")).principal.admin


def unsigned(said: dict[str, Any], header: dict[str, Any]) -> str:
    parts = (json.dumps(one).encode() for one in (header, said))
    return ".".join(base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in parts) + "."


def with_secret() -> str:
    """HS256 with what everybody knows, the modulus that is published, as its secret."""
    return jwt.encode(THERE.claims(), KEYS["RS256"].published["n"], "HS256", {"kid": "RS256"})


def now() -> float:
    """A whole run takes longer than clocks may be apart."""
    return time.time()


SIGNED = KEYS["EdDSA"]
WRONG: dict[str, tuple[Callable[[], str], str]] = {
    "audience": (lambda: THERE.token(key=SIGNED, aud="others"), "not for audience buckram"),
    "no audience": (lambda: THERE.token(key=SIGNED, aud=None), "aud"),
    "issuer": (lambda: THERE.token(key=SIGNED, iss="https://evil.example.com"), "not of https://login"),
    "expired": (lambda: THERE.token(key=SIGNED, exp=int(now()) - 1), "has expired"),
    "no end": (lambda: THERE.token(key=SIGNED, exp=None), "exp"),
    "no subject": (lambda: THERE.token(key=SIGNED, sub=None), "sub"),
    "issued later": (lambda: THERE.token(key=SIGNED, iat=int(now()) + 400), "from the future"),
    "not yet valid": (lambda: THERE.token(key=SIGNED, nbf=int(now()) + 400), "from the future"),
    "no time": (lambda: THERE.token(key=SIGNED, iat=True), "is no number"),
    "without end": (lambda: THERE.token(key=SIGNED, exp=float("nan")), "is no time"),
    "too large": (lambda: THERE.token(key=SIGNED, exp=10**400), "is no time"),
    "long subject": (lambda: THERE.token("a" * 256, key=SIGNED), "printable bytes"),
    "subject of lines": (lambda: THERE.token("a\nb", key=SIGNED), "printable bytes"),
    "groups": (lambda: THERE.token(key=SIGNED, groups=[1]), "no list of texts"),
    "unsigned": (lambda: unsigned(THERE.claims(), {"alg": "none", "kid": "EdDSA"}), "'none'"),
    "no algorithm": (lambda: unsigned(THERE.claims(), {"kid": "EdDSA"}), "'None'"),
    "shared secret": (with_secret, "'HS256'"),
    "another key's algorithm": (
        lambda: jwt.encode(THERE.claims(), KEYS["ES256"].private, "ES256", {"kid": "RS256"}),
        "that of its key is RS256",
    ),
    "another key": (lambda: THERE.token(key=Key("EdDSA")), "no good token"),
    "no key": (lambda: jwt.encode(THERE.claims(), SIGNED.private, "EdDSA"), "names no key"),
    "nothing": (lambda: "x", "no good token"),
    "long": (lambda: THERE.token("a", key=SIGNED, more="x" * 9000), "the limit is 8192"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(WRONG))
def test_a_wrong_token_is_refused_and_the_reason_is_named(what: str) -> None:
    make, said = WRONG[what]
    with pytest.raises(TokenRefused, match=said):
        checked(make())


def test_clocks_may_differ_by_five_minutes_and_an_unknown_key_is_told_apart() -> None:
    assert checked(THERE.token(key=SIGNED, iat=int(now()) + 290, nbf=int(now()) + 290))
    with pytest.raises(UnknownKey):
        checked(THERE.token(key=Key("new")))
    with pytest.raises(TokenExpired) as over:
        checked(THERE.token(key=SIGNED), now_s=time.time() + 601)
    assert over.value.subject == "oidc:alice"


def test_a_subject_is_revoked_by_its_name_here_and_no_token_of_the_cluster_with_it() -> None:
    text = THERE.token("alice", key=SIGNED)
    assert checked(text, revoked=Revocations(subjects={"alice": now() + 99}))
    with pytest.raises(TokenRefused, match="tokens of oidc:alice were revoked"):
        checked(text, revoked=Revocations(subjects={"oidc:alice": now() - 200}))  # the issuer's clock may be ahead
    assert checked(text, revoked=Revocations(subjects={"oidc:alice": now() - 310}))
    own = Token("id", "alice", (), now(), now() + 10)
    assert Revocations(subjects={"oidc:alice": now() + 99}).why(own) == ""


def test_a_pass_for_another_server_keeps_who_it_is() -> None:
    private, public = new_signing_key()
    asking = Token("id", "alice", ("ops",), now(), now() + 30, "oidc")
    text = sign(asking, "cluster", "k", private)
    found = verify_own(text, {"k": public}, "cluster", now(), Revocations())
    assert found.principal == Principal("oidc:alice", ("ops",))
    said = jwt.decode(text, options={"verify_signature": False})
    assert said["sub"] == "oidc:alice"  # what a release that knows no issuers takes, and has granted nothing to
    same = sign(Token("id", "oidc:alice", (), now(), now() + 30), "cluster", "k", private)
    assert verify_own(same, {"k": public}, "cluster", now(), Revocations()).principal.name == "token:oidc:alice"


def test_only_keys_that_can_sign_are_taken() -> None:
    rsa, curve = KEYS["RS256"].published, KEYS["ES256"].published
    rows: list[Any] = [
        KEYS["EdDSA"].published,
        {**rsa, "use": "enc", "kid": "a"},
        {**rsa, "alg": "RS512", "kid": "b"},
        Key("small", "RS256", 1024).published,
        {"kty": "oct", "k": "c2VjcmV0", "kid": "s", "alg": "HS256"},
        {key: value for key, value in curve.items() if key != "kid"},
        {"kty": "RSA", "kid": "broken"},
        7,
    ]
    assert list(keys_of(json.dumps({"keys": rows}).encode())) == ["EdDSA"]
    for broken in (b"", b"[]", b'{"keys": 3}', b'{"keys": []}', b"[" * 100_000):
        with pytest.raises(IssuerRefused):
            keys_of(broken)
    with pytest.raises(IssuerRefused, match="at most 64"):
        keys_of(json.dumps({"keys": [KEYS["EdDSA"].published] * 65}).encode())
    with pytest.raises(IssuerRefused, match="two keys"):
        keys_of(json.dumps({"keys": [KEYS["EdDSA"].published] * 2}).encode())


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"issuer": "https://evil.example.com", "jwks_uri": URL}, "and not of https://login"),
        ({"issuer": URL}, "no jwks_uri"),
        ({"issuer": URL, "jwks_uri": "http://login.example.com/keys"}, "needs https"),
        ({"issuer": URL, "jwks_uri": "file:///etc/passwd"}, "needs https"),
    ],
)
def test_a_discovery_document_of_somebody_else_is_refused(said: dict[str, str], why: str) -> None:
    with pytest.raises(IssuerRefused, match=why):
        keys_url_of(json.dumps(said).encode(), ISSUER)
    assert keys_url_of(json.dumps({"issuer": URL, "jwks_uri": f"{URL}/keys"}).encode(), ISSUER) == f"{URL}/keys"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"oidc_issuer": URL}, "oidc_audience"),
        ({"oidc_audience": "x"}, "without oidc_issuer"),
        ({"oidc_issuer": "http://login.example.com", "oidc_audience": "x"}, "needs https"),
        ({"oidc_issuer": URL, "oidc_audience": "x", "oidc_jwks": "http://10.0.0.1/keys"}, "needs https"),
        ({"oidc_issuer": URL, "oidc_audience": "x", "oidc_roles": "devs=admin"}, "oidc_admin_groups"),
        ({"oidc_issuer": URL, "oidc_audience": "x", "oidc_roles": "devs"}, "GROUP=ROLE"),
    ],
)
def test_settings_that_do_not_do_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        issuer_of(AuthConfig(**settings))  # type: ignore[arg-type]
    assert issuer_of(AuthConfig()) is None
    good = AuthConfig(oidc_issuer=URL, oidc_audience=AUDIENCE, oidc_admin_groups="operators", oidc_roles="team a = ops")
    assert issuer_of(good) == ISSUER

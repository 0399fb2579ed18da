"""Logins by OIDC: the claims of an issuer's token, the principal they stand for here, and the keys of an issuer.

Pure: documents, keys, revocations and the time are given. Needs the extra `security`. Not here: fetching keys
(`runtime/net/security/issuer_keys.py`), the cluster's own tokens (`core/security/tokens.py`).
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

from buckram.config import AuthConfig
from buckram.core.security.tokens import (
    ADMIN,
    CLOCK_S,
    MAX_TOKEN_BYTES,
    OIDC,
    Revocations,
    Token,
    TokenExpired,
    TokenRefused,
    need_extra,
)
from buckram.errors import ConfigError

ALGORITHMS = ("RS256", "ES256", "EdDSA")
"""Algorithms of signatures: one for each kind of key. The key determines it, never the header of the token."""
MOST_KEYS = 64
MOST_DOCUMENT_BYTES = 256 * 1024
GROUP_ROLE = "oidc-group:"
"""Prefix of a role that is made from a group, so that no group is taken for a role of this cluster."""
_LEAST_RSA_BITS = 2048
_MOST_SUBJECT_BYTES = 255
_DISCOVERY = "/.well-known/openid-configuration"


class IssuerRefused(Exception):
    """A document of the issuer that cannot be used."""


class UnknownKey(TokenRefused):
    """A token whose key is not known; the issuer may have published it since its keys were fetched."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer whose tokens are accepted, and the meaning of their claims here."""

    issuer: str
    audience: str
    jwks: str = ""
    """Address of its keys; empty: the one in its discovery document."""
    groups_claim: str = "groups"
    principal_claim: str = "sub"
    known_s: float = 3600.0
    admin_groups: frozenset[str] = frozenset()
    roles: Mapping[str, str] | None = None
    """Roles by group; any other group has the role of its own name with GROUP_ROLE before it."""

    @property
    def discovery(self) -> str:
        """Return the address of the issuer's discovery document, which has the address of its keys."""
        return self.issuer.rstrip("/") + _DISCOVERY


def issuer_of(auth: AuthConfig) -> Issuer | None:
    """Return the issuer of the settings; None without one. Raises ConfigError."""
    if not auth.oidc_issuer:
        for name in ("oidc_audience", "oidc_jwks", "oidc_admin_groups", "oidc_roles"):
            if getattr(auth, name):
                raise ConfigError(f"[auth] {name} is set without oidc_issuer: set that, or leave both out")
        return None
    if not auth.oidc_audience:
        raise ConfigError("[auth] oidc_issuer needs oidc_audience: whom the issuer's tokens for this cluster are for")
    need_extra("[auth] oidc_issuer")
    for name, url in (("oidc_issuer", auth.oidc_issuer), ("oidc_jwks", auth.oidc_jwks)):
        if url and (why := url_refusal(url)):
            raise ConfigError(f"[auth] {name} = {url!r}: {why}")
    roles: dict[str, str] = {}
    for one in _listed(auth.oidc_roles):
        group, _, role = one.rpartition("=")
        if not group.strip() or not role.strip():
            raise ConfigError(f"[auth] oidc_roles: {one!r} needs GROUP=ROLE, with commas between several")
        if role.strip() == ADMIN:
            raise ConfigError(f"[auth] oidc_roles: {one!r} would make administrators; oidc_admin_groups names these")
        roles[group.strip()] = role.strip()
    return Issuer(
        auth.oidc_issuer, auth.oidc_audience, auth.oidc_jwks, auth.oidc_groups_claim, auth.oidc_principal_claim,
        auth.oidc_known_s, frozenset(_listed(auth.oidc_admin_groups)), roles,
    )  # fmt: skip


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def url_refusal(url: str) -> str:
    """Return why keys may not be fetched from an address; "" if they may: https, or http on this machine."""
    try:
        found = urlsplit(url)
        host, _ = found.hostname or "", found.port
    except ValueError as error:
        return str(error)
    if found.scheme == "https" and host:
        return ""
    return "" if found.scheme == "http" and _is_loopback(host) else "needs https://HOST; http:// is for this machine"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def keys_url_of(document: bytes, issuer: Issuer) -> str:
    """Return the address of keys in a discovery document. Raises IssuerRefused if it has none, or another issuer."""
    found = _object(document)
    if found.get("issuer") != issuer.issuer:
        raise IssuerRefused(f"it is of issuer {str(found.get('issuer'))[:100]!r}, and not of {issuer.issuer}")
    url = found.get("jwks_uri")
    if not isinstance(url, str):
        raise IssuerRefused("it has no jwks_uri")
    if why := url_refusal(url):
        raise IssuerRefused(f"jwks_uri {url[:200]!r}: {why}")
    return url


def keys_of(document: bytes) -> dict[str, tuple[Any, str]]:
    """Return the keys for signatures in a JWK set by their ids, each with its only algorithm. Keys of other kinds are
    left out. Raises IssuerRefused for another document, or if no key is left."""
    import jwt

    rows = _object(document).get("keys")
    if not isinstance(rows, list) or len(rows) > MOST_KEYS:
        raise IssuerRefused(f"it has no list of at most {MOST_KEYS} keys")
    found: dict[str, tuple[Any, str]] = {}
    for row in rows:
        key_id = row.get("kid") if isinstance(row, dict) else None
        if not isinstance(key_id, str) or row.get("use", "sig") != "sig":
            continue
        algorithm = _algorithm(row)
        if algorithm is None or row.get("alg", algorithm) != algorithm:
            continue
        try:
            public = {name: value for name, value in row.items() if name not in ("d", "p", "q", "dp", "dq", "qi")}
            key = jwt.PyJWK.from_dict(public, algorithm).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        if algorithm == "RS256" and key.key_size < _LEAST_RSA_BITS:
            continue
        if key_id in found:
            raise IssuerRefused(f"it has two keys with the id {key_id[:100]!r}")
        found[key_id] = key, algorithm
    if not found:
        raise IssuerRefused(f"it has no key with an id for {', '.join(ALGORITHMS)}")
    return found


def _algorithm(row: Mapping[str, Any]) -> str | None:
    kind, curve = row.get("kty"), row.get("crv")
    if kind == "RSA":
        return "RS256"
    return {("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}.get((str(kind), str(curve)))


def _object(document: bytes) -> dict[str, Any]:
    try:
        found = json.loads(document)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise IssuerRefused("it is no JSON object")
    return found


def is_of(text: str | bytes, issuer: Issuer) -> bool:
    """Return whether a token claims to be of this issuer. The claim is not verified."""
    import jwt

    if len(text) > MAX_TOKEN_BYTES:
        return False
    try:
        said = jwt.decode(text, options={"verify_signature": False})
    except (jwt.InvalidTokenError, RecursionError):
        return False
    return said.get("iss") == issuer.issuer


def key_id_of(text: str | bytes) -> str:
    """Return the id of the key that a token claims to be signed with, which is not verified; "" for none."""
    import jwt

    try:
        found = jwt.get_unverified_header(text).get("kid")
    except (jwt.InvalidTokenError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def verify(
    text: str | bytes,
    issuer: Issuer,
    keys: Mapping[str, tuple[Any, str]],
    now_s: float,
    revoked: Revocations,
    *,
    earliest_s: float | None = None,
) -> Token:
    """Verify a token of the issuer, and return it with its subject and roles here. `now_s` and `earliest_s` are as in
    `core/security/tokens.py:verify`. Raises TokenRefused, and UnknownKey if its key is not among `keys`."""
    import jwt

    if len(text) > MAX_TOKEN_BYTES:
        raise TokenRefused(f"a token of {len(text)} bytes, the limit is {MAX_TOKEN_BYTES}")
    try:
        header = jwt.get_unverified_header(text)
        if header.get("alg") not in ALGORITHMS:
            known = ", ".join(ALGORITHMS)
            raise TokenRefused(f"its algorithm is {str(header.get('alg'))[:20]!r}, and only {known} count")
        key_id = header.get("kid")
        if not isinstance(key_id, str):
            raise TokenRefused("it names no key (kid)")
        if key_id not in keys:
            raise UnknownKey(f"it is signed with key {key_id[:100]!r}, which {issuer.issuer} has not published")
        key, algorithm = keys[key_id]
        if header["alg"] != algorithm:
            raise TokenRefused(f"its algorithm is {header['alg']!r}, and that of its key is {algorithm}")
        options: Any = {
            "require": ["exp", "iat", "aud", "iss", issuer.principal_claim], "verify_exp": False, "verify_iat": False,
            "verify_nbf": False, "verify_sub": False, "verify_jti": False,
        }  # fmt: skip
        said = jwt.decode(
            text, key, algorithms=[algorithm], audience=issuer.audience, issuer=issuer.issuer, options=options
        )
    except jwt.InvalidAudienceError:
        raise TokenRefused(f"it is not for audience {issuer.audience}") from None
    except jwt.InvalidIssuerError:
        raise TokenRefused(f"it is not of {issuer.issuer}") from None
    except (jwt.InvalidTokenError, RecursionError) as error:
        raise TokenRefused(f"it is no good token: {error}") from None
    token = _token(said, text, issuer)
    _check_times(said, token, now_s, now_s if earliest_s is None else earliest_s)
    if why := revoked.why(token):
        raise TokenRefused(why)
    return token


def _check_times(said: Mapping[str, Any], token: Token, now_s: float, earliest_s: float) -> None:
    if now_s >= token.expires_s:
        raise TokenExpired(token.token_id, token.known_as, now_s - token.expires_s)
    begins_s = max(token.issued_s, _time(said, "nbf") if "nbf" in said else token.issued_s)
    if begins_s > earliest_s + CLOCK_S:
        raise TokenRefused(f"token {token.token_id} is from the future; set the clocks of both machines")


def _token(said: Mapping[str, Any], text: str | bytes, issuer: Issuer) -> Token:
    subject, groups = said[issuer.principal_claim], said.get(issuer.groups_claim, [])
    good = isinstance(subject, str) and subject.isprintable() and 0 < len(subject.encode()) <= _MOST_SUBJECT_BYTES
    if not good:
        raise TokenRefused(
            f"its claim {issuer.principal_claim!r} is no text of 1 to {_MOST_SUBJECT_BYTES} printable bytes"
        )
    groups = [groups] if isinstance(groups, str) else groups
    if not isinstance(groups, list) or not all(isinstance(one, str) for one in groups):
        raise TokenRefused(f"its claim {issuer.groups_claim!r} is no list of texts")
    mapped = issuer.roles or {}
    roles = {mapped.get(group, GROUP_ROLE + group) for group in groups}
    if issuer.admin_groups & set(groups):
        roles.add(ADMIN)
    raw = text if isinstance(text, bytes) else text.encode()
    token_id = f"{OIDC}:{hashlib.sha256(raw).hexdigest()[:16]}"
    return Token(token_id, subject, tuple(sorted(roles)), _time(said, "iat"), _time(said, "exp"), OIDC)


def _time(said: Mapping[str, Any], name: str) -> float:
    found = said[name]
    if not isinstance(found, int | float) or isinstance(found, bool):
        raise TokenRefused(f"its time {name} is no number")
    try:
        seconds = float(found)
    except OverflowError:
        seconds = float("inf")
    if not isfinite(seconds):
        raise TokenRefused(f"its time {name} is no time")
    return seconds

"""Tokens: JWTs that name a subject and its roles, for one cluster, signed with EdDSA or RS256.

Pure: keys, revocations and the time are given. Needs the extra `security`. Not here: keeping keys and revocations
(`metadata/records/security.py`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from buckram.core.security.principal import Principal
from buckram.errors import ConfigError
from buckram.extras import needs

ISSUER = "buckram"
MAX_TOKEN_BYTES = 8 * 1024
CLOCK_S = 300.0
"""Seconds by which the clock of the maker of a token may be ahead."""
ADMIN = "admin"
"""Role of administrators, who may do everything."""
OIDC = "oidc"
"""Scheme of principals who logged in at an issuer outside the cluster (`core/security/oidc.py`)."""
_LEAST_RSA_BITS = 2048


def need_extra(who: str) -> None:
    """Raise ConfigError if the packages that tokens need are not installed. `who`: the feature, for the error."""
    try:
        import cryptography
        import jwt
    except ImportError:
        raise ConfigError(needs(who, "security")) from None
    assert cryptography is not None
    assert jwt is not None


class TokenRefused(Exception):
    """A token that is refused; the text gives the reason, and discloses only names and times of the token."""


class TokenExpired(TokenRefused):
    """A token that has expired; its signature was verified. `subject`: its owner."""

    def __init__(self, token_id: str, subject: str, ago_s: float) -> None:
        super().__init__(f"token {token_id} of {subject} has expired {ago_s:.0f} s ago")
        self.subject = subject


@dataclass(frozen=True, slots=True)
class Token:
    """Contents of a verified token. Times are in seconds since 1970."""

    token_id: str
    subject: str
    roles: tuple[str, ...]
    issued_s: float
    expires_s: float
    scheme: str = "token"

    @property
    def principal(self) -> Principal:
        return Principal(f"{self.scheme}:{self.subject}", self.roles, ADMIN in self.roles)

    @property
    def known_as(self) -> str:
        """Return the name by which the subject's tokens are revoked, and which operators see."""
        return f"{OIDC}:{self.subject}" if self.scheme == OIDC else self.subject


CERTIFICATE = "certificate:"
"""Prefix of the id by which a certificate is revoked, before its serial number in hexadecimal digits."""


def certificate_id(serial: int) -> str:
    """Return the id by which a certificate is revoked."""
    return f"{CERTIFICATE}{serial:x}"


@dataclass(frozen=True, slots=True)
class Revocations:
    """Revoked tokens and certificates by their ids, and subjects, each with the time up to which its tokens are revoked
    that were issued until then."""

    tokens: frozenset[str] = frozenset()
    subjects: Mapping[str, float] | None = None

    def why(self, token: Token) -> str:
        """Return why the token is revoked; "" if it is not."""
        if token.token_id in self.tokens:
            return f"token {token.token_id} was revoked"
        # The clock of an issuer may be ahead of the one that revoked.
        issued_s = token.issued_s - (CLOCK_S if token.scheme == OIDC else 0.0)
        if issued_s <= (self.subjects or {}).get(token.known_as, float("-inf")):
            return f"the tokens of {token.known_as} were revoked"
        return ""

    def why_certificate(self, serial: int) -> str:
        """Return why the certificate with this serial number is revoked; "" if it is not."""
        return f"its certificate {serial:x} was withdrawn" if certificate_id(serial) in self.tokens else ""


def ends_of(text: str) -> float | None:
    """Return when a token claims to expire, in seconds since 1970; None for text that is no token. The claim is not
    verified, and only good for telling the token's owner why it is refused."""
    try:
        said = json.loads(base64.urlsafe_b64decode(text.split(".")[1] + "=="))
        return float(said["exp"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def audience(cluster: str, purpose: str) -> str:
    """Return the audience of a token, the only one that accepts it: the cluster, or a purpose in it."""
    return f"{cluster} {purpose}" if purpose else cluster


def verify(
    text: str | bytes,
    keys: Mapping[str, bytes],
    cluster: str,
    now_s: float,
    revoked: Revocations,
    *,
    earliest_s: float | None = None,
) -> Token:
    """Verify a token, and return its contents. `keys`: public keys (PEM) by key id. Raises TokenRefused.

    While the time is in doubt, `now_s` is the latest that it may be, and `earliest_s` the earliest: the token has to
    count at both.
    """
    import jwt

    if len(text) > MAX_TOKEN_BYTES:
        raise TokenRefused(f"a token of {len(text)} bytes, the limit is {MAX_TOKEN_BYTES}")
    try:
        key_id = jwt.get_unverified_header(text).get("kid")
        pem = keys.get(key_id) if isinstance(key_id, str) else None
        if pem is None:
            raise TokenRefused("it is signed with a key that this cluster does not know")
        key, algorithm = public_key(pem)
        # Times are compared here, with the time that is given; the algorithm is the key's, never the token's.
        options: Any = {
            "require": ["sub", "exp", "iat", "jti", "aud"], "verify_exp": False, "verify_iat": False,
            "verify_nbf": False,
        }  # fmt: skip
        said = jwt.decode(text, key, algorithms=[algorithm], audience=cluster, issuer=ISSUER, options=options)
        token = _token(said)
    except jwt.InvalidAudienceError:
        raise TokenRefused("it is for another cluster") from None
    except jwt.InvalidTokenError as error:
        raise TokenRefused(f"it is no good token: {error}") from None
    if now_s >= token.expires_s:
        raise TokenExpired(token.token_id, token.subject, now_s - token.expires_s)
    if token.issued_s > (now_s if earliest_s is None else earliest_s) + CLOCK_S:
        raise TokenRefused(f"token {token.token_id} is from the future; set the clocks of both machines")
    why = revoked.why(token)
    if why:
        raise TokenRefused(why)
    return token


def _token(said: Mapping[str, Any]) -> Token:
    subject, token_id, roles = said["sub"], said["jti"], said.get("roles", [])
    numbers = [said["iat"], said["exp"]]
    if not isinstance(roles, list) or not all(isinstance(one, str) for one in (subject, token_id, *roles)):
        raise TokenRefused("its subject, id and roles are not texts")
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
        raise TokenRefused("its times are not numbers")
    outside = said.get("scheme") == OIDC and subject.startswith(f"{OIDC}:")
    scheme, name = (OIDC, subject.removeprefix(f"{OIDC}:")) if outside else ("token", subject)
    return Token(token_id, name, tuple(roles), float(numbers[0]), float(numbers[1]), scheme)


def sign(token: Token, cluster: str, key_id: str, private_key: bytes) -> str:
    """Return the signed text of a token. `private_key`: PEM, of Ed25519 or RSA."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(private_key, password=None)
    algorithm = "EdDSA" if isinstance(key, Ed25519PrivateKey) else "RS256"
    said = {
        "iss": ISSUER, "aud": cluster, "sub": token.known_as, "jti": token.token_id, "roles": list(token.roles),
        "iat": int(token.issued_s), "exp": round(token.expires_s),
    }  # fmt: skip
    if token.scheme != "token":  # a release that does not know the scheme uses the subject as it is, which is unique
        said["scheme"] = token.scheme
    return jwt.encode(said, private_key, algorithm=algorithm, headers={"kid": key_id})


def public_key(pem: bytes) -> tuple[Any, str]:
    """Return the key and the one algorithm that it is good for. Raises TokenRefused."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem)
    except ValueError as error:
        raise TokenRefused(f"the key that it names is none: {error}") from None
    if isinstance(key, Ed25519PublicKey):
        return key, "EdDSA"
    if isinstance(key, RSAPublicKey) and key.key_size >= _LEAST_RSA_BITS:
        return key, "RS256"
    raise TokenRefused(f"the key that it names is neither Ed25519 nor RSA of {_LEAST_RSA_BITS} bits or more")


def new_signing_key() -> tuple[bytes, bytes]:
    """Make an Ed25519 key: private and public PEM."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

"""SASL DIGEST-MD5 (RFC 2831, quality of protection `auth`), both sides, as Apache's SASL plug-in uses it.

The mechanism is old and weak by today's measure, but Apache's bookies and clients use it; put TLS around it.
Pure: nonces are given.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

SERVICE = "bookkeeper"
"""Apache's name of the protocol and of the server, and so of the realm."""
PLUGIN = "sasl"
MAX_BYTES = 4096
_FIELD = re.compile(r'\s*([A-Za-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^",\s]*))\s*(?:,|$)')
_COUNT = "00000001"


class SaslRefused(Exception):
    """A message that violates the mechanism, or a wrong password."""


def parse(message: bytes) -> dict[str, str]:
    """Return the fields of a message. Raises SaslRefused for one that is malformed or names a field twice."""
    if len(message) > MAX_BYTES:
        raise SaslRefused(f"a message of {len(message)} bytes, the limit is {MAX_BYTES}")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise SaslRefused("a message that is no text") from None
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        field = _FIELD.match(text, at)
        if field is None:
            raise SaslRefused("a message that is no list of fields")
        name, quoted, plain = field.group(1).lower(), field.group(2), field.group(3)
        if name in found:
            raise SaslRefused(f"{name} stands there twice")
        found[name] = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = field.end()
    return found


def challenge(nonce: str) -> bytes:
    """Return the first message of the server, with its nonce."""
    return f'realm="{SERVICE}",nonce="{nonce}",qop="auth",charset=utf-8,algorithm=md5-sess'.encode()


def response(said: bytes, user: str, password: str, cnonce: str) -> bytes:
    """Return the client's answer to a challenge. Raises SaslRefused for a challenge that is not supported."""
    fields = parse(said)
    nonce, realm = fields.get("nonce", ""), fields.get("realm", "")
    if not nonce or fields.get("algorithm") != "md5-sess" or "auth" not in fields.get("qop", "auth").split(","):
        raise SaslRefused("a challenge without nonce, or of another algorithm or quality of protection")
    uri = f"{SERVICE}/{SERVICE}"
    proof = _proof("AUTHENTICATE", user, realm, password, nonce, cnonce, uri)
    parts = [
        "charset=utf-8", f'username="{_quoted(user)}"', f'realm="{_quoted(realm)}"', f'nonce="{_quoted(nonce)}"',
        f"nc={_COUNT}", f'cnonce="{_quoted(cnonce)}"', f'digest-uri="{uri}"', "maxbuf=65536", f"response={proof}",
        "qop=auth",
    ]  # fmt: skip
    return ",".join(parts).encode()


def check_server(said: bytes, challenged: bytes, user: str, password: str, cnonce: str) -> None:
    """Raise SaslRefused unless the server has proved that it knows the password, too."""
    fields = parse(challenged)
    uri = f"{SERVICE}/{SERVICE}"
    proof = _proof("", user, fields.get("realm", ""), password, fields.get("nonce", ""), cnonce, uri)
    if not hmac.compare_digest(parse(said).get("rspauth", ""), proof):
        raise SaslRefused("the server does not know the password")


def accept(answer: bytes, nonce: str, passwords: Mapping[str, str]) -> tuple[str, bytes]:
    """Return the user of a client's answer, and the last message of the server.

    Raises SaslRefused, with the same text for an unknown user and for a wrong password.
    """
    fields = parse(answer)
    user, cnonce, uri = fields.get("username", ""), fields.get("cnonce", ""), fields.get("digest-uri", "")
    realm, said = fields.get("realm", ""), fields.get("response", "")
    # An unknown user costs the same time as a wrong password.
    password, other = passwords.get(user, ""), fields.get("authzid")
    right = _proof("AUTHENTICATE", user, realm, password, nonce, cnonce, uri, other)
    fits = (
        fields.get("nonce") == nonce
        and fields.get("nc") == _COUNT
        and fields.get("qop", "auth") == "auth"
        and realm == SERVICE
        and other in (None, user)  # Apache's client says whom it wants to act as, which is itself
        and uri.partition("/")[0] == SERVICE
        and bool(cnonce)
    )
    proved = hmac.compare_digest(said.encode(), right.encode())
    if not (fits and proved and user in passwords and passwords[user]):
        raise SaslRefused("unknown user or wrong password")
    return user, b"rspauth=" + _proof("", user, realm, password, nonce, cnonce, uri, other).encode()


def _proof(
    method: str, user: str, realm: str, password: str, nonce: str, cnonce: str, uri: str, other: str | None = None
) -> str:
    secret = _md5(f"{user}:{realm}:{password}".encode())
    acting = "" if other is None else f":{other}"
    session = _md5(secret + f":{nonce}:{cnonce}{acting}".encode()).hex()
    request = _md5(f"{method}:{uri}".encode()).hex()
    return _md5(f"{session}:{nonce}:{_COUNT}:{cnonce}:auth:{request}".encode()).hex()


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')

"""Authentication and authorization of WebHDFS requests, by the tokens and grants of the cluster like all of a gateway.

A token comes as `Authorization: Bearer`, which Hadoop's client gets by OAuth2's client credentials: the secret that it
sends to `RequestAuthenticator.token_endpoint` is a token of the cluster, and so is the access token that it gets back.
Or it comes as Hadoop's own delegation token, the text that its clients carry as `delegation=`. That has the layout of
Hadoop's class Token: two byte strings and two texts, each with its length before it, in base64 for URLs. The token of
the cluster is the password in it, which Hadoop writes into no log. Without tokens whoever is on this machine may do
everything, and others may read. `user.name` proves nothing and is ignored.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response

from buckram.core.security.acl import PERMISSIONS
from buckram.core.security.object_names import NameRange
from buckram.core.security.principal import Principal
from buckram.core.security.required_permissions import NEEDS, Effect, lacking
from buckram.core.security.tokens import MAX_TOKEN_BYTES, Token
from buckram.core.tenants.fair_share import holder_of
from buckram.errors import NoSuchNamespace
from buckram.serve.http.application import ANYBODY
from buckram.serve.http.body import read_body
from buckram.serve.http.limits import HttpLimits
from buckram.serve.http.origins import Origins
from buckram.serve.http.problems import UNKEPT, HttpProblem, json_answer, refusing
from buckram.serve.http.refusal_audit import note_refused
from buckram.serve.http.tokens import ClusterTokens, bearer_of, check_no_token
from buckram.serve.webhdfs.paths import FilePath
from buckram.serve.webhdfs.problems import RemoteProblem, problem_of
from buckram.serve.webhdfs.protocol_names import ACCESS, INVALID_TOKEN

KIND = b"WEBHDFS delegation"


def encode(token: str, subject: str, service: str = "") -> str:
    """The text of a delegation token with a token of the cluster in it."""
    parts = (subject.encode(), token.encode(), KIND, service.encode())
    raw = b"".join(_length(len(part)) + part for part in parts)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(text: str) -> str:
    """The token of the cluster in a delegation token. Raises ValueError."""
    if len(text) > 2 * MAX_TOKEN_BYTES:
        raise ValueError(f"it has {len(text)} characters, the limit is {2 * MAX_TOKEN_BYTES}")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        _, rest = _split(raw)
        password, _ = _split(rest)
        return password.decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError, IndexError):
        raise ValueError("it is no token that this gateway gave: ask for one with op=GETDELEGATIONTOKEN") from None


def _length(number: int) -> bytes:
    """A number from 0 on as WritableUtils.writeVInt writes it."""
    if number <= 127:
        return bytes((number,))
    size = (number.bit_length() + 7) // 8
    return bytes((256 - 112 - size,)) + number.to_bytes(size, "big")


def _split(raw: bytes) -> tuple[bytes, bytes]:
    """The byte string at the beginning, and what follows. Raises ValueError, IndexError."""
    first, at = raw[0], 1
    number = first
    if first > 127:
        size = 256 - 112 - first
        if not 1 <= size <= 4:
            raise ValueError("a negative length")
        number, at = int.from_bytes(raw[1 : 1 + size], "big"), 1 + size
    if at + number > len(raw):
        raise ValueError("cut short")
    return raw[at : at + number], raw[at + number :]


_ONLOOKER = Principal("onlooker")


@dataclass(frozen=True, slots=True)
class Visitor:
    """The authenticated sender of a request, with its token and grants."""

    principal: Principal
    allowed: Callable[[str], frozenset[str]]
    """Returns the permissions on a namespace."""
    sees: Callable[[str], bool]
    """Returns whether there is any permission on a namespace or on something in it."""
    denied: Callable[[str, str], Sequence[NameRange]] = lambda namespace, permission: ()
    """Returns the names of objects in a namespace on which a permission is denied."""
    token: str = ""
    verified: Token | None = None

    @property
    def holder(self) -> str:
        """The holder of this principal's share in limits that principals divide (`holder_of`)."""
        return holder_of(self.principal.name)

    def require(self, effect: Effect, path: FilePath, *, below: bool = False, making: bool = False) -> None:
        """Raise RemoteProblem if a permission that the effect needs was not granted, or is denied.

        A namespace that may not be seen looks as if it did not exist, unless something is to be made in it (`making`).
        Nothing is looked up before. `below`: the permission is needed for everything below the path, too.
        """
        if self.may(effect, path, below=below):
            return
        if not making and not self.sees(path.namespace):
            raise refusing(problem_of(NoSuchNamespace(path.namespace)))
        raise self.refused(effect, path, below=below)

    def may(self, effect: Effect, path: FilePath, *, below: bool = False) -> bool:
        """Return whether all permissions that the effect needs were granted, and none of them is denied."""
        return not self._lacking(effect, path, below)

    def _lacking(self, effect: Effect, path: FilePath, below: bool) -> list[str]:
        lacks = lacking(effect, self.allowed(path.namespace))
        return lacks or [one for one in sorted(NEEDS[effect]) if self._is_denied(one, path, below)]

    def _is_denied(self, permission: str, path: FilePath, below: bool) -> bool:
        inside = f"{path.name}/" if path.name else ""
        return any(
            _is_in(names, path.name) or (below and names.reaches(inside))
            for names in self.denied(path.namespace, permission)
        )

    def seen_in(self, namespace: str) -> Callable[[str], bool]:
        """Return a predicate: whether a name in a namespace that may be listed is not denied, by the grants of this
        moment.
        """
        denied = [names for one in NEEDS[Effect.LIST] for names in self.denied(namespace, one)]
        return lambda name: not any(_is_in(names, name) for names in denied)

    def refused(self, effect: Effect, path: FilePath, why: str = "", *, below: bool = False) -> RemoteProblem:
        """Return the error for an effect without the permissions that it needs; `why` gives a reason that is not
        obvious.
        """
        permissions = ", ".join(self._lacking(effect, path, below))
        if not lacking(effect, self.allowed(path.namespace)):
            what = f"all that is in {path}" if below else str(path)
            return RemoteProblem(
                ACCESS,
                f"{self.principal} is denied `{permissions}` on {what}{f', and {why}' if why else ''} "
                "(see `buckram acl list`)",
            )
        return RemoteProblem(
            ACCESS,
            f"{self.principal} has no permission `{permissions}` on namespace {path.namespace}"
            f"{f', and {why}' if why else ''}: `buckram acl grant` grants it; a gateway without tokens lets other "
            "machines read only",
        )


class RequestAuthenticator:
    """Authenticates a request before its body is read.

    `is_local`: whether a request comes from this machine. `open_to_all`: without tokens others may change things too.
    """

    def __init__(
        self,
        tokens: ClusterTokens | None,
        origins: Origins,
        *,
        is_local: Callable[[Request], bool],
        open_to_all: bool = False,
    ) -> None:
        self._tokens, self._origins, self._is_local, self._open_to_all = tokens, origins, is_local, open_to_all

    def enter(self, request: Request, parameters: Mapping[str, str]) -> Visitor:
        """Raises RemoteProblem for a page of another site, and for a token that is missing or does not count."""
        try:
            self._origins.check(request)
        except HttpProblem as problem:
            raise RemoteProblem(ACCESS, problem.message) from None
        tokens = self._tokens
        if tokens is None:
            self._check_no_token(request, parameters)
            everything = self._open_to_all or self._is_local(request)
            granted = frozenset(PERMISSIONS) if everything else frozenset({"read"})
            return Visitor(ANYBODY if everything else _ONLOOKER, lambda namespace: granted, lambda namespace: True)
        text = self._token_of(request, parameters)
        try:
            verified = tokens.verified(text)
        except HttpProblem as problem:
            raise RemoteProblem(INVALID_TOKEN, problem.message) from None
        principal = verified.principal
        return Visitor(
            principal,
            lambda namespace: tokens.acl.allowed(principal, namespace),
            lambda namespace: tokens.acl.sees(principal, namespace),
            lambda namespace, permission: tokens.acl.denied_objects(principal, namespace, permission),
            text,
            verified,
        )

    async def meet(self, request: Request, parameters: Mapping[str, str]) -> None:
        """Wait until the issuer of the request's token has been asked for its keys, if need be; call it before
        `enter`.
        """
        if self._tokens is not None:
            with suppress(RemoteProblem):  # which `enter` raises
                await self._tokens.meet(request, self._token_of(request, parameters))

    def _check_no_token(self, request: Request, parameters: Mapping[str, str]) -> None:
        text = ""
        with suppress(ValueError):
            text = decode(parameters.get("delegation", ""))
        try:
            check_no_token(request, text)
        except HttpProblem as problem:
            raise RemoteProblem(INVALID_TOKEN, problem.message) from None

    def _token_of(self, request: Request, parameters: Mapping[str, str]) -> str:
        delegation = parameters.get("delegation", "")
        if delegation and "authorization" not in request.headers:
            try:
                return decode(delegation)
            except ValueError as error:
                raise RemoteProblem(INVALID_TOKEN, f"delegation token: {error}") from None
        try:
            return bearer_of(request)
        except HttpProblem:
            raise RemoteProblem(
                ACCESS,
                "this gateway asks for a token of the cluster: `buckram spark-conf` prints the settings of Spark for "
                "it; other clients send `Authorization: Bearer TOKEN`",
            ) from None

    async def token_endpoint(self, request: Request, limits: HttpLimits, now_s: float) -> Response:
        """OAuth2's client credentials (RFC 6749, section 4.4)."""
        raw = await read_body(request, limits, do="send a shorter form")
        try:
            form = parse_qs(raw.decode("ascii"), max_num_fields=16)
        except (UnicodeDecodeError, ValueError):
            return _refused(request, 400, "invalid_request", "the body is no form")
        if form.get("grant_type") != ["client_credentials"]:
            return _refused(request, 400, "unsupported_grant_type", "needs grant_type=client_credentials")
        if self._tokens is None:
            return _refused(request, 400, "invalid_request", "this gateway asks for no tokens: turn OAuth2 off")
        secret = form.get("client_secret", [""])[0]
        await self._tokens.meet(request, secret)
        try:
            found = self._tokens.verified(secret)
        except HttpProblem as problem:
            note_refused(request, problem)
            return _refused(request, 401, "invalid_client", problem.message)
        left = max(int(found.expires_s - now_s), 0)
        answer = {"access_token": secret, "token_type": "bearer", "expires_in": left}
        return json_answer(request, answer, headers=UNKEPT)


def _is_in(names: NameRange, name: str) -> bool:
    """Return whether a range of names holds a file, or a directory with all that is in it; the empty name is the
    namespace.
    """
    return names.has(name) or names.has_all(f"{name}/" if name else "")


def _refused(request: Request, status: int, error: str, why: str) -> Response:
    return json_answer(request, {"error": error, "error_description": why}, status)

"""Who asks for files, and what they may do: tokens and grants of the cluster, as for everything else of a gateway.

A token comes as `Authorization: Bearer`, which Hadoop's client gets by OAuth2's client credentials: the secret that it
sends to `Door.token_endpoint` is a token of the cluster, and so is the access token that it gets back. Or it comes as
Hadoop's own delegation token. Without tokens whoever is on this machine may do everything, and others may read.
`user.name` proves nothing and is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response

from buckram.core.security.acl import PERMISSIONS
from buckram.core.security.effects import Effect, lacking
from buckram.core.security.fair_share import holder_of
from buckram.core.security.principal import Principal
from buckram.core.security.tokens import Token
from buckram.http.application import ANYBODY
from buckram.http.body import read_body
from buckram.http.limits import HttpLimits
from buckram.http.origins import Origins
from buckram.http.problems import HttpProblem, json_answer
from buckram.http.tokens import ClusterTokens, bearer_of, check_no_token
from buckram.webhdfs import java_tokens
from buckram.webhdfs.java_classes import ACCESS, INVALID_TOKEN
from buckram.webhdfs.problems import RemoteProblem

_ONLOOKER = Principal("onlooker")


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who sends a request, and with which token."""

    principal: Principal
    allowed: Callable[[str], frozenset[str]]
    """What may be done with a namespace."""
    token: str = ""
    verified: Token | None = None

    @property
    def holder(self) -> str:
        """Who it is in tables that principals share."""
        return holder_of(self.principal.name)

    def require(self, effect: Effect, namespace: str) -> None:
        """Raises RemoteProblem for what needs a permission that was not granted."""
        if not self.may(effect, namespace):
            raise self.refused(effect, namespace)

    def may(self, effect: Effect, namespace: str) -> bool:
        """Whether all permissions that it needs were granted."""
        return not lacking(effect, self.allowed(namespace))

    def refused(self, effect: Effect, namespace: str, why: str = "") -> RemoteProblem:
        """The error for what needs a permission that was not granted; `why`, where that is not obvious."""
        permissions = ", ".join(lacking(effect, self.allowed(namespace)))
        return RemoteProblem(
            ACCESS,
            f"{self.principal} has no permission `{permissions}` on namespace {namespace}"
            f"{f', and {why}' if why else ''}: `buckram acl grant` gives it; a gateway without tokens lets other "
            "machines read only",
        )


class Door:
    """Finds out who asks, before anything of a body is read.

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
            return Visitor(ANYBODY if everything else _ONLOOKER, lambda namespace: granted)
        text = self._token_of(request, parameters)
        try:
            verified = tokens.verified(text)
        except HttpProblem as problem:
            raise RemoteProblem(INVALID_TOKEN, problem.message) from None
        principal = verified.principal
        return Visitor(principal, lambda namespace: tokens.acl.allowed(principal, namespace), text, verified)

    def _check_no_token(self, request: Request, parameters: Mapping[str, str]) -> None:
        text = ""
        with suppress(ValueError):
            text = java_tokens.decode(parameters.get("delegation", ""))
        try:
            check_no_token(request, text)
        except HttpProblem as problem:
            raise RemoteProblem(INVALID_TOKEN, problem.message) from None

    def _token_of(self, request: Request, parameters: Mapping[str, str]) -> str:
        delegation = parameters.get("delegation", "")
        if delegation and "authorization" not in request.headers:
            try:
                return java_tokens.decode(delegation)
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
        try:
            found = self._tokens.verified(secret)
        except HttpProblem as problem:
            return _refused(request, 401, "invalid_client", problem.message)
        left = max(int(found.expires_s - now_s), 0)
        answer = {"access_token": secret, "token_type": "bearer", "expires_in": left}
        return json_answer(request, answer, headers={"Cache-Control": "no-store"})


def _refused(request: Request, status: int, error: str, why: str) -> Response:
    return json_answer(request, {"error": error, "error_description": why}, status)


__all__ = ["Door", "Visitor"]

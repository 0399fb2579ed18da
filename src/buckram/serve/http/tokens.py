"""Authentication by bearer tokens of the cluster, and the grants of each principal.

Not here: what a request needs (`serve/hrana/database_access.py`, `serve/gateway/shared/authentication.py`), pages in
browsers (`serve/http/origins.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Self

from starlette.requests import Request

from buckram.core.cluster.believed_time import TellsTime
from buckram.core.security.acl import Acl
from buckram.core.security.oidc import Issuer
from buckram.core.security.principal import Principal
from buckram.core.security.tokens import Token, TokenRefused, need_extra
from buckram.errors import AccessRefused, ConfigError
from buckram.metadata.records.security_watcher import FollowedSecurity
from buckram.seams import MetadataStore
from buckram.serve.http.problems import HttpProblem

_BEARER, _SCHEME = "bearer", "buckram-forwarded"
_JSON = "eyJ"
"""Prefix of the cluster's tokens, which are JSON Web Tokens."""
VOUCHED_S = 30.0
"""Lifetime of the token of a forwarded request, seconds: its time on the way, and the skew of both clocks."""
Vouch = Callable[[Principal, str], Awaitable[str]]
"""The Authorization header with which a server sends on a request of a principal to a path."""


class OnceOnly:
    """Ids of tokens that were used, each kept until it has expired, so that none is accepted twice."""

    def __init__(self) -> None:
        self._taken: dict[str, float] = {}

    def take(self, token_id: str, expires_s: float, now_s: float) -> bool:
        """Record the use of an id; return whether it is the first one. Times in seconds since 1970."""
        # The oldest first. One that expires before those in front of it stays until they are gone.
        while self._taken and next(iter(self._taken.values())) <= now_s:
            del self._taken[next(iter(self._taken))]
        if token_id in self._taken:
            return False
        self._taken[token_id] = expires_s
        return True


class ClusterTokens:
    """Bearer tokens (`buckram token create`) and grants (`buckram acl grant`). `async with`, before the server's.

    `vouch` is for requests that this server sends on: the header says who asked, for one request to one path within
    seconds, and the other server's `authenticate` takes it. The caller's own token goes nowhere.

    ConfigError for a store that is not opened directly: only who opens it sees keys and grants.
    """

    def __init__(self, store: MetadataStore, time: TellsTime, issuer: Issuer | None = None) -> None:
        """`issuer`: whose tokens count as well."""
        need_extra("--tokens")
        self._uri = store.uri
        self._security = FollowedSecurity(store, time, issuer=issuer)
        self._taken = OnceOnly()

    async def __aenter__(self) -> Self:
        try:
            await self._security.start()
        except AccessRefused:
            raise ConfigError(
                f"--tokens needs the metadata store itself, and {self._uri} is served by bookies: give a sqlite://, "
                "zk:// or etcd:// URI"
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._security.close()

    async def vouch(self, principal: Principal, path: str) -> str:
        """Return the Authorization header of a forwarded request (Vouch). Raises MetadataError."""
        now_s = self._security.now_s()
        scheme, _, subject = principal.name.partition(":")
        token = Token(secrets.token_hex(16), subject, principal.roles, now_s, now_s + VOUCHED_S, scheme)
        return f"{_SCHEME} {await self._security.pass_for(token, _purpose(path))}"

    async def authenticate(self, request: Request, base: str = "") -> Principal:
        """Authenticate a request for a server (Authenticate). `base`: prefix of its path here, which the forwarding
        server's path lacks.
        """
        scheme, text = _credential(request)
        if scheme != _SCHEME:
            await self.meet(request)
            return self.verified(bearer_of(request)).principal
        try:
            token = self._security.verify(text, _purpose(request.scope["path"].removeprefix(base)))
            if not self._taken.take(token.token_id, token.expires_s, self._security.now_s()):
                raise TokenRefused("it was used before, and is valid for one request")
        except TokenRefused as error:
            why = f"what another server vouches for is not valid: {error}"
            raise HttpProblem(401, "UNAUTHORIZED", why) from None
        return token.principal

    async def meet(self, request: Request, token: str = "") -> None:
        """Wait until the issuer of the request's token, or of `token`, has been asked for its keys, if need be; call
        it before verifying.
        """
        await self._security.meet(token or _credential(request)[1])

    def watched_token(self, request: Request) -> Callable[[], str]:
        """Return a function: why the request's token, which was valid, no longer is; empty while it is."""
        if _credential(request)[0] == _SCHEME:
            return lambda: ""  # That of the caller is the other server's to watch.
        token = self.verified(bearer_of(request))
        return lambda: self.why_over(token)

    def verified(self, token: str) -> Token:
        """Verify a token. Raises HttpProblem 401 if it is invalid."""
        try:
            return self._security.verify(token)
        except TokenRefused as error:
            raise _unknown(f"the token is not valid: {error}") from None

    def why_over(self, token: Token) -> str:
        """Return why a token that was verified is no longer valid; empty if it is."""
        return self._security.why_over(token)

    @property
    def acl(self) -> Acl:
        """The grants of this moment."""
        return self._security.state.acl


def bearer_of(request: Request) -> str:
    """The token of a request. Raises HttpProblem 401 for one without."""
    scheme, token = _credential(request)
    if scheme != _BEARER or not token:
        raise _unknown("send a token of this cluster: `Authorization: Bearer TOKEN`")
    return token


def check_no_token(request: Request, text: str = "") -> None:
    """For a server that checks no tokens: raise HttpProblem 401 for a request that shows one, in its header or as this
    `text`: its sender believes to be held to his grants, and would not be. Words that are no token pass, since some
    clients of databases send one always."""
    scheme, sent = _credential(request)
    for word in (sent if scheme == _BEARER else "", text):
        if word.startswith(_JSON) and word.count(".") == 2:
            raise _unknown(
                "this server was started without --tokens and checks none: leave the token out, or start it so"
            )


def while_granted(
    principal: Principal,
    allowed: Callable[[str], frozenset[str]],
    permission: str,
    name: str,
    why_over: Callable[[], str],
) -> Callable[[], str]:
    """Return a function for long answers: why one has to end, because of the token (`why_over`) or of the grants on
    `name`; empty otherwise.
    """

    def over() -> str:
        if why := why_over():
            return why
        granted = permission in allowed(name)
        return "" if granted else f"{principal} has no permission `{permission}` on {name} any more"

    return over


def _credential(request: Request) -> tuple[str, str]:
    """Return the scheme in lower case and the credential of a request's Authorization; both empty without
    the header.
    """
    scheme, _, text = request.headers.get("authorization", "").strip().partition(" ")
    return scheme.lower(), text.strip()


def _purpose(path: str) -> str:
    return f"forwarded {path}"


def _unknown(why: str) -> HttpProblem:
    return HttpProblem(401, "UNAUTHORIZED", why, headers={"WWW-Authenticate": "Bearer"})

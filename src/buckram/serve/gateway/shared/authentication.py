"""Authentication and authorization of a gateway: tokens, sessions of browsers, and the grants of the cluster.

A gateway without tokens lets clients on its own machine do everything, and others read (`open_to_all`: do everything,
too). A browser that logs in with a token gets a cookie, which scripts cannot read; a change that comes with the cookie
needs the CSRF token of the session as well, which only a page of the gateway gets. The token behind a session is
checked again with each request: when it is revoked or expires, the session is over. Not here: the tokens themselves
(`serve/http/tokens.py`), pages of other sites (`serve/http/origins.py`).
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from starlette.requests import Request

from buckram.core.security.acl import PERMISSIONS
from buckram.core.security.object_names import NameRange
from buckram.core.security.principal import Principal
from buckram.core.security.tokens import Token
from buckram.core.tenants.fair_share import Owned
from buckram.seams import Clock
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.gateway.shared.operations import SQL, Allowed, Operation
from buckram.serve.http.application import ANYBODY
from buckram.serve.http.origins import Origins
from buckram.serve.http.problems import HttpProblem
from buckram.serve.http.refusal_audit import known_as
from buckram.serve.http.tokens import ClusterTokens, Vouch, bearer_of, check_no_token

ONLOOKER = Principal("onlooker")
"""Principal of a client on another machine, at a gateway without tokens."""


class _Granted:
    """The grants of one principal (Allowed)."""

    def __init__(self, tokens: ClusterTokens, principal: Principal) -> None:
        self._tokens, self._principal = tokens, principal

    def __call__(self, name: str) -> frozenset[str]:
        return self._tokens.acl.allowed(self._principal, name)

    def objects(self, namespace: str, permission: str) -> Sequence[NameRange]:
        return self._tokens.acl.objects(self._principal, namespace, permission)

    def sees(self, namespace: str) -> bool:
        return self._tokens.acl.sees(self._principal, namespace)

    @property
    def everything(self) -> bool:
        return self._principal.admin


class _Everywhere:
    """The same permissions on everything, at a gateway without tokens (Allowed)."""

    def __init__(self, permissions: frozenset[str]) -> None:
        self._permissions = permissions

    def __call__(self, name: str) -> frozenset[str]:
        return self._permissions

    def objects(self, namespace: str, permission: str) -> Sequence[NameRange]:
        return (NameRange(""),) if permission in self._permissions else ()

    def sees(self, namespace: str) -> bool:
        return True

    everything = True


class Access:
    """Authenticates the sender of a request before its body is read."""

    def __init__(
        self, tokens: ClusterTokens | None, sessions: Sessions, origins: Origins, *, open_to_all: bool = False
    ) -> None:
        self.tokens, self._sessions, self._origins, self._open_to_all = tokens, sessions, origins, open_to_all
        self._everything, self._reading = _Everywhere(frozenset(PERMISSIONS)), _Everywhere(frozenset({"read"}))

    async def who(self, request: Request, operation: Operation) -> Principal:
        """Return the principal of a request, as which it is known from then on.

        Raises HttpProblem: 401 for an unknown sender, 403 for a page of another site or a missing permission.
        """
        self._origins.check(request)
        if operation.needs == "nothing":
            known_as(request, ONLOOKER)
            return ONLOOKER
        if operation.statements:
            principal = await self.authenticate(request)
            known_as(request, principal)
            return principal
        if self.tokens is not None:
            await self.tokens.meet(request)
        principal = self._principal(request, operation)
        everything = self.allowed(principal).everything if operation.needs == "operator" else principal.admin
        known_as(request, principal)
        if operation.needs in ("operator", "administrator") and not everything:
            raise HttpProblem(
                403,
                "FORBIDDEN",
                f"{principal} is no administrator of the cluster: ask with a token that has the role admin",
            )
        return principal

    async def authenticate(self, request: Request) -> Principal:
        """Return the principal that sends statements to a database: by a token and never by a session, or as vouched
        for by the server that forwards the request. Raises HttpProblem 401.
        """
        if self.tokens is None:
            check_no_token(request)
            return ANYBODY if self._open_to_all or is_local(request) else ONLOOKER
        return await self.tokens.authenticate(request, SQL)

    @property
    def vouch(self) -> Vouch | None:
        """The function that makes the Authorization header of a forwarded request; None on a gateway without tokens."""
        return None if self.tokens is None else self.tokens.vouch

    def allowed(self, principal: Principal) -> Allowed:
        """Return what a principal may do."""
        if self.tokens is None:
            return self._everything if principal.admin else self._reading
        return _Granted(self.tokens, principal)

    def watched(self, request: Request) -> Callable[[], str]:
        """Return a function: why the request's token or session, which was valid, no longer is; empty while it is."""
        tokens = self.tokens
        if tokens is None:
            return lambda: ""
        session = None if "authorization" in request.headers else self._sessions.find(request)
        if session is None:
            return tokens.watched_token(request)
        token = session.token
        return lambda: tokens.why_over(token)

    def _principal(self, request: Request, operation: Operation) -> Principal:
        if self.tokens is None:
            return self._without_tokens(request, operation)
        if "authorization" not in request.headers and (session := self._sessions.find(request)) is not None:
            if why := self.tokens.why_over(session.token):
                raise HttpProblem(401, "UNAUTHORIZED", f"the session is over: {why}; log in with another token")
            if operation.changes:
                check_csrf(request, session)
            return session.token.principal
        return self.tokens.verified(bearer_of(request)).principal

    def _without_tokens(self, request: Request, operation: Operation) -> Principal:
        check_no_token(request)
        if self._open_to_all or is_local(request):
            return ANYBODY
        if operation.changes:
            raise HttpProblem(
                403,
                "READ_ONLY",
                "this gateway has no tokens, so other machines may only read: start it with --tokens, or with --open "
                "where every client that can connect may change everything",
            )
        return ONLOOKER


def is_local(request: Request) -> bool:
    """Return whether a request comes from this machine."""
    return _is_loopback(request.client.host if request.client is not None else "")


@lru_cache(1024)
def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


# -- sessions of browsers ---------------------------------------------------------------------------------

COOKIE = "buckram_session"
CSRF_HEADER = "buckram-csrf"


@dataclass(frozen=True, slots=True)
class Session:
    """`expires_us`: when it is over, in microseconds UTC, for people. `ends_at`: the same as the loop's time, which
    decides."""

    token: Token
    csrf: str
    expires_us: int
    ends_at: float


class Sessions:
    """The sessions of one gateway; a browser logs in again at another one, or after a restart."""

    def __init__(self, limits: GatewayLimits, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self._sessions: dict[str, Session] = {}
        """By the secret in the cookie, the oldest first."""
        self._owned: Owned[str] = Owned()
        """Their secrets by principal."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, token: Token) -> tuple[str, Session]:
        """Begin a session; return it and the secret for its cookie.

        If its principal has too many, his oldest one ends; if there are too many in all, the oldest of the principal
        with most.
        """
        now, loop_s = self._clock.wall_us(), asyncio.get_running_loop().time()
        while self._sessions and self._sessions[first := next(iter(self._sessions))].ends_at <= loop_s:
            self._forget(first)
        who = token.principal.name
        while self._owned.count(who) >= self._limits.sessions_of_principal:
            self._forget(self._owned.oldest(who))
        while len(self._sessions) >= self._limits.sessions:
            self._forget(self._owned.oldest_of_most())
        expires = min(now + round(self._limits.session_s * 1e6), round(token.expires_s * 1e6))
        ends_at = loop_s + max(expires - now, 0) / 1e6
        secret, session = secrets.token_urlsafe(32), Session(token, secrets.token_urlsafe(32), expires, ends_at)
        self._sessions[secret] = session
        self._owned.add(who, secret)
        return secret, session

    def _forget(self, secret: str) -> None:
        session = self._sessions.pop(secret, None)
        if session is not None:
            self._owned.remove(session.token.principal.name, secret)

    def find(self, request: Request) -> Session | None:
        """The session of a request's cookie; None without one, or when it is over."""
        secret = request.cookies.get(COOKIE, "")
        session = self._sessions.get(secret)
        if session is not None and session.ends_at <= asyncio.get_running_loop().time():
            self._forget(secret)
            return None
        return session

    def end(self, request: Request) -> None:
        """Forget the session of a request, if it has one."""
        self._forget(request.cookies.get(COOKIE, ""))

    def cookie(self, secret: str, session: Session, *, secure: bool) -> str:
        """The Set-Cookie header that begins a session; an empty `secret` ends it in the browser."""
        seconds = max(0, int(session.ends_at - asyncio.get_running_loop().time())) if secret else 0
        words = [f"{COOKIE}={secret}", "Path=/", "HttpOnly", "SameSite=Strict", f"Max-Age={seconds}"]
        return "; ".join([*words, "Secure"] if secure else words)


def check_csrf(request: Request, session: Session) -> None:
    """Raises HttpProblem 403 unless the request has the CSRF token of its session."""
    given = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(given.encode(), session.csrf.encode()):
        raise HttpProblem(
            403,
            "CSRF_TOKEN_WRONG",
            "a change with a browser's session needs its CSRF token in the header Buckram-CSRF: ask GET /v2/session",
        )

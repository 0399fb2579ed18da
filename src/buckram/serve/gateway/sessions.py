"""Sessions of browsers: a login with a token gives the browser a cookie, which scripts cannot read.

Every change that comes with the cookie needs the CSRF token of the session as well, which only a page of the gateway
itself gets. The token behind a session is checked again with each request: when it is revoked or expires, the session
is over. Not here: what a session may do (`access.py`).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from dataclasses import dataclass

from starlette.requests import Request

from buckram.core.security.tokens import Token
from buckram.core.tenants.fair_share import Owned
from buckram.seams import Clock
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.http.problems import HttpProblem

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


__all__ = ["COOKIE", "CSRF_HEADER", "Session", "Sessions", "check_csrf"]

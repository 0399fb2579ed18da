"""Login and logout of browsers, the current principal, and whether the gateway serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.authentication import ONLOOKER, Access, Session, Sessions, check_csrf
from buckram.serve.gateway.shared.operations import Ask, Operation
from buckram.serve.http.problems import HttpProblem, json_answer

SESSION = "/v2/session"
SHOWN = schema.record(
    principal=schema.TEXT,
    administrator=schema.YES_OR_NO,
    changes=schema.YES_OR_NO,
    tokens=schema.YES_OR_NO,
    csrf=schema.or_null(schema.TEXT),
    expires_us=schema.or_null(schema.WHOLE),
)


class SessionPages:
    """The sessions of browsers. `secure`: the gateway is reached by https, so its cookies are for https alone."""

    title = "Sessions"

    def __init__(self, access: Access, sessions: Sessions, *, secure: bool) -> None:
        self._access, self._sessions, self._secure = access, sessions, secure

    def operations(self) -> Sequence[Operation]:
        health = schema.record(status=schema.one_of("ok"))
        return (
            Operation("health", "GET", "/health", "Report that the gateway serves.", "nothing", self._health, health),
            Operation(
                "showSession",
                "GET",
                SESSION,
                "Show the principal of the request, and what it may do.",
                "login",
                self._show,
                SHOWN,
            ),
            Operation(
                "logIn",
                "POST",
                SESSION,
                "Begin a browser's session: the answer sets its cookie.",
                "nothing",
                self._log_in,
                SHOWN,
                201,
                body=schema.record(token=schema.TEXT),
            ),
            Operation(
                "logOut",
                "DELETE",
                SESSION,
                "End a browser's session.",
                "nothing",
                self._log_out,
                schema.record(ended=schema.YES_OR_NO),
            ),
        )

    async def _health(self, ask: Ask) -> dict[str, Any]:
        return {"status": "ok"}

    async def _show(self, ask: Ask) -> dict[str, Any]:
        session = self._sessions.find(ask.request) if "authorization" not in ask.request.headers else None
        return {
            "principal": str(ask.principal),
            "administrator": ask.principal.admin,
            "changes": ask.principal != ONLOOKER,
            "tokens": self._access.tokens is not None,
            "csrf": None if session is None else session.csrf,
            "expires_us": None if session is None else session.expires_us,
        }

    async def _log_in(self, ask: Ask) -> Response:
        if self._access.tokens is None:
            raise HttpProblem(409, "NO_SECURITY", "this gateway asks for no tokens: there is nothing to log in to")
        text = ask.body["token"].strip()
        await self._access.tokens.meet(ask.request, text)
        token = self._access.tokens.verified(text)
        self._sessions.end(ask.request)
        secret, session = self._sessions.begin(token)
        shown = {
            "principal": str(token.principal),
            "administrator": token.principal.admin,
            "changes": True,
            "tokens": True,
            "csrf": session.csrf,
            "expires_us": session.expires_us,
        }
        return json_answer(ask.request, shown, 201, self._cookie(secret, session))

    async def _log_out(self, ask: Ask) -> Response:
        session = self._sessions.find(ask.request)
        if session is None:
            return json_answer(ask.request, {"ended": False})
        check_csrf(ask.request, session)
        self._sessions.end(ask.request)
        return json_answer(ask.request, {"ended": True}, headers=self._cookie("", session))

    def _cookie(self, secret: str, session: Session) -> dict[str, str]:
        return {"Set-Cookie": self._sessions.cookie(secret, session, secure=self._secure), "Cache-Control": "no-store"}

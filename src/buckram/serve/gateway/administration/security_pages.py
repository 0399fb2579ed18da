"""Tokens and grants of the cluster, for administrators; login and logout of browsers, the current principal, and
whether the gateway serves.

Not here: enforcing them (`serve/gateway/shared/authentication.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response

from buckram.cluster import Client
from buckram.core.security.acl import PERMISSIONS, Acl, Grant, check_granted
from buckram.metadata.records.pending_audit_events import leave_note
from buckram.metadata.records.security import SecurityStore
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.authentication import ONLOOKER, Access, Session, Sessions, check_csrf
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.gateway.shared.operations import Ask, Need, Operation
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


_DAY_S = 86_400
TOKENS, GRANTS, DENIALS = "/v2/tokens", "/v2/grants", "/v2/denials"
_GRANT = schema.record(
    principal=schema.TEXT, namespace=schema.TEXT, permissions=schema.array(schema.one_of(*PERMISSIONS))
)


_Change = Callable[[Acl, str, str, list[str]], Acl]
"""Makes of all rules those with one that is changed."""


class SecurityPages:
    """Pages of tokens and grants; `enabled`: whether the gateway requires tokens; without that it makes none either."""

    title = "Security"

    def __init__(self, client: Client, *, enabled: bool) -> None:
        self._client, self._enabled = client, enabled

    def operations(self) -> Sequence[Operation]:
        made = schema.record(id=schema.TEXT, subject=schema.TEXT, expires_s=schema.WHOLE, token=schema.TEXT)
        asked = schema.record(
            "roles",
            "expires_in_s",
            subject=schema.TEXT,
            roles=schema.array(schema.TEXT),
            expires_in_s={**schema.COUNT, "minimum": 1, "maximum": 3650 * _DAY_S},
        )
        tokens = schema.record(tokens=schema.array(schema.ANY_OBJECT))
        revoked = schema.record(revoked=schema.TEXT)
        grants = schema.record(grants=schema.array(_GRANT), denials=schema.array(_GRANT))
        who: Need = "administrator"
        return (
            Operation("listTokens", "GET", TOKENS, "List the tokens that were made.", who, self._tokens, tokens),
            Operation("createToken", "POST", TOKENS, "Make a token.", who, self._create, made, 201, body=asked),
            Operation("revokeToken", "DELETE", TOKENS + "/{token}", "Revoke a token.", who, self._revoke, revoked),
            Operation("listGrants", "GET", GRANTS, "List grants and denials.", who, self._grants, grants),
            Operation(
                "addGrant", "POST", GRANTS, "Grant permissions to a principal.", who, self._grant, grants, body=_GRANT
            ),
            Operation(
                "removeGrant",
                "POST",
                GRANTS + "/remove",
                "Revoke permissions of a principal.",
                who,
                self._take,
                grants,
                body=_GRANT,
            ),
            Operation(
                "addDenial",
                "POST",
                DENIALS,
                "Deny permissions to a principal, whatever is granted.",
                who,
                self._deny,
                grants,
                body=_GRANT,
            ),
            Operation(
                "removeDenial",
                "POST",
                DENIALS + "/remove",
                "Remove a denial.",
                who,
                self._undeny,
                grants,
                body=_GRANT,
            ),
        )

    async def _tokens(self, ask: Ask) -> dict[str, Any]:
        return {"tokens": sorted(await self._store().tokens(), key=lambda one: float(one["issued_s"]))}

    async def _create(self, ask: Ask) -> dict[str, Any]:
        store, body = self._store(), ask.body
        now = self._client.services.clocks.moment().low / 1e6  # of two times the one by which it ends earlier
        lasts = body.get("expires_in_s", 30 * _DAY_S)
        made, text = await store.create_token(body["subject"], tuple(body.get("roles", ())), now, now + lasts)
        await self._note(ask, "token", f"token {made.token_id}", f"made for {body['subject']}")
        return {"id": made.token_id, "subject": made.subject, "expires_s": round(made.expires_s), "token": text}

    async def _revoke(self, ask: Ask) -> dict[str, Any]:
        token = ask.path["token"]
        await self._store().revoke_token(token)
        await self._note(ask, "token", f"token {token}", "revoked")
        return {"revoked": token}

    async def _grants(self, ask: Ask) -> dict[str, Any]:
        return _shown(await self._store().acl())

    async def _grant(self, ask: Ask) -> dict[str, Any]:
        return await self._changed(ask, "grant", Acl.granting, new=True)

    async def _take(self, ask: Ask) -> dict[str, Any]:
        return await self._changed(ask, "revoke", Acl.revoking)

    async def _deny(self, ask: Ask) -> dict[str, Any]:
        return await self._changed(ask, "deny", Acl.denying, new=True)

    async def _undeny(self, ask: Ask) -> dict[str, Any]:
        return await self._changed(ask, "undeny", Acl.undenying)

    async def _changed(self, ask: Ask, action: str, change: _Change, *, new: bool = False) -> dict[str, Any]:
        """Change a rule and note it. `new`: the words of the rule have to be good ones."""
        who, what, permissions = _asked(ask)
        if new:
            check_granted(what)
        found: Acl = await self._store().change_acl(lambda acl: change(acl, who, what, permissions))
        await self._note(ask, action, f"{who} on {what}", ",".join(permissions))
        return _shown(found)

    async def _note(self, ask: Ask, action: str, what: str, detail: str) -> None:
        await leave_note(self._client.services.store, action, what, detail=f"{detail}, by {ask.principal}")

    def _store(self) -> SecurityStore:
        if not self._enabled:
            raise HttpProblem(
                409, "NO_SECURITY", "this gateway asks for no tokens: start it with --tokens to make and grant some"
            )
        return SecurityStore(self._client.services.store)


def _asked(ask: Ask) -> tuple[str, str, list[str]]:
    body = ask.body
    if ":" not in body["principal"] or not body["namespace"] or not body["permissions"]:
        raise bad_request(
            "a grant needs a principal such as token:alice or role:dev, a namespace or pattern, and permissions"
        )
    return body["principal"], body["namespace"], body["permissions"]


def _shown(acl: Acl) -> dict[str, Any]:
    return {"grants": _rows(acl.grants), "denials": _rows(acl.denials)}


def _rows(rules: Sequence[Grant]) -> list[dict[str, Any]]:
    return [
        {"principal": one.who, "namespace": one.namespaces, "permissions": sorted(one.permissions)} for one in rules
    ]

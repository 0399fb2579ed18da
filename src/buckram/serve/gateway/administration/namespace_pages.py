"""Namespaces: list, create, show, set, delete; their policies and quotas."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from buckram.cluster import Client
from buckram.core.streams.policy import merged
from buckram.core.tenants.quotas import NAMES
from buckram.metadata.records.pending_audit_events import leave_note
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.gateway.shared.operations import AFTER, LIMIT, PREFIX, Ask, Operation, Parameter
from buckram.serve.http.problems import HttpProblem

NAMESPACES = "/v2/namespaces"
NAMESPACE = NAMESPACES + "/{namespace}"
_PAGE = 1000
"""Namespaces read at a time for a client that may not see all."""
_LIMITS = schema.mapping(schema.or_null(schema.COUNT))
SHOWN = schema.record(
    namespace=schema.TEXT,
    overrides=schema.ANY_OBJECT,
    policy=schema.ANY_OBJECT,
    quotas=schema.mapping(schema.COUNT),
)
_PARTLY = Parameter(
    "partly", "List namespaces, too, of which one may use only some streams or objects.", schema.YES_OR_NO, False
)
_MADE = schema.record("policy", "quotas", namespace=schema.TEXT, policy=schema.SETTINGS, quotas=_LIMITS)
_SET = schema.record("policy", "quotas", policy=schema.SETTINGS, quotas=_LIMITS)


class NamespacePages:
    """The namespaces of the cluster."""

    title = "Namespaces"

    def __init__(self, client: Client) -> None:
        self._client = client

    def operations(self) -> Sequence[Operation]:
        listed = schema.record(namespaces=schema.array(schema.TEXT), next=schema.or_null(schema.TEXT))
        deleted = schema.record(namespace=schema.TEXT, deleted=schema.YES_OR_NO)
        return (
            Operation(
                "listNamespaces",
                "GET",
                NAMESPACES,
                "List the namespaces that one may read, by their names.",
                "login",
                self._list,
                listed,
                parameters=(PREFIX, AFTER, LIMIT, _PARTLY),
            ),
            Operation(
                "createNamespace",
                "POST",
                NAMESPACES,
                "Create a namespace.",
                "administrator",
                self._create,
                SHOWN,
                201,
                body=_MADE,
            ),
            Operation(
                "showNamespace",
                "GET",
                NAMESPACE,
                "Show the policy and the quotas of a namespace.",
                "read",
                self._show,
                SHOWN,
            ),
            Operation(
                "setNamespace",
                "PATCH",
                NAMESPACE,
                "Change the policy (permission admin) and the quotas (administrators); null takes one back.",
                "admin",
                self._set,
                SHOWN,
                body=_SET,
            ),
            Operation(
                "deleteNamespace",
                "DELETE",
                NAMESPACE,
                "Delete a namespace without streams.",
                "administrator",
                self._delete,
                deleted,
            ),
        )

    async def _list(self, ask: Ask) -> dict[str, Any]:
        query, limit = ask.query, ask.query["limit"]
        await self._client.namespaces.get("default")  # which is made at its first use
        after, found, more = query["after"] or "", list[str](), True
        page = limit if ask.allowed.everything else _PAGE
        while more and len(found) < limit:
            names = await self._client.namespaces.list(prefix=query["prefix"], after=after, limit=page)
            found += [name for name in names if self._is_listed(ask, name)]
            after, more = (names[-1] if names else after), len(names) == page
        found = found[:limit]
        return {"namespaces": found, "next": found[-1] if len(found) == limit else None}

    def _is_listed(self, ask: Ask, name: str) -> bool:
        return "read" in ask.allowed(name) or (ask.query["partly"] and ask.allowed.sees(name))

    async def _create(self, ask: Ask) -> dict[str, Any]:
        name = ask.body["namespace"]
        quotas = _known_quotas(ask.body.get("quotas", {}))
        await self._client.namespaces.create(name, **ask.body.get("policy", {}))
        if quotas:
            await self._client.namespaces.set_quotas(name, **quotas)
        return await self._shown(name)

    async def _show(self, ask: Ask) -> dict[str, Any]:
        return await self._shown(ask.path["namespace"])

    async def _set(self, ask: Ask) -> dict[str, Any]:
        name, quotas = ask.path["namespace"], _known_quotas(ask.body.get("quotas", {}))
        if quotas and not ask.principal.admin:
            raise HttpProblem(403, "FORBIDDEN", "quotas are for administrators of the cluster: leave them out")
        if policy := ask.body.get("policy"):
            await self._client.namespaces.set(name, **policy)
        if quotas:
            await self._client.namespaces.set_quotas(name, **quotas)
            said = " ".join(f"{key}={value}" for key, value in quotas.items())
            await leave_note(self._client.services.store, "quota", f"namespace {name}", name, said)
        return await self._shown(name)

    async def _delete(self, ask: Ask) -> dict[str, Any]:
        name = ask.path["namespace"]
        await self._client.namespaces.delete(name)
        return {"namespace": name, "deleted": True}

    async def _shown(self, name: str) -> dict[str, Any]:
        overrides = (await self._client.namespaces.get(name)).policy
        quotas = await self._client.namespaces.quotas(name)
        return {
            "namespace": name,
            "overrides": dict(overrides),
            "policy": dataclasses.asdict(merged(overrides)),
            "quotas": quotas.limits(),
        }


def _known_quotas(quotas: Mapping[str, int | None]) -> Mapping[str, int | None]:
    """Raises HttpProblem 400 for a quota that there is not."""
    for name in quotas:
        if name not in NAMES:
            raise bad_request(f"quota {name[:60]!r} is unknown; there are: {', '.join(NAMES)}")
    return quotas

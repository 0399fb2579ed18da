"""Operations on the cluster as a whole: status, bookies, gateways, replication, usage, the audit trail, and a history.

The history has samples of the last hour, for plots. Each gateway keeps its own, since its start.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from buckram.cluster import Client
from buckram.core.health.findings import why_kept
from buckram.core.health.states import Severity
from buckram.core.ledgers.service_info import valid_bookie_id
from buckram.core.tenants.audit_trail import ACTIONS, AuditEvent
from buckram.core.tenants.audit_trail import NAMESPACE as AUDIT_NAMESPACE
from buckram.core.tenants.audit_trail import STREAM as AUDIT_STREAM
from buckram.errors import BuckramError, InvalidArgument, NoSuchNamespace, NoSuchStream
from buckram.healing.operations.dependency_check import OperationRefused
from buckram.healing.operations.operator_calls import ask_readonly
from buckram.healing.overview import overview
from buckram.health.gathering import Gatherer
from buckram.metadata.records.tenants import TenantStore
from buckram.metadata.records.underreplication import Underreplication
from buckram.runtime.process.tasks import TaskScope
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.gateway.shared.gateway_registry import Peers
from buckram.serve.gateway.shared.operations import LIMIT, Ask, Operation, Parameter
from buckram.serve.http.problems import HttpProblem
from buckram.serve.json_views.bookies import bookie_rows, bookie_shown
from buckram.serve.json_views.status import healing_json, status_json, status_seen, usage_rows
from buckram.types import BookieId

BOOKIE = "/v2/bookies/{bookie}"
_PROBLEM = schema.record(
    what=schema.TEXT,
    where=schema.TEXT,
    why=schema.TEXT,
    do=schema.TEXT,
    severity=schema.one_of(*Severity),
    runbook=schema.TEXT,
)
_SPACE = schema.record(
    id=schema.TEXT,
    state=schema.TEXT,
    free_bytes=schema.or_null(schema.WHOLE),
    total_bytes=schema.or_null(schema.WHOLE),
)
STATUS = schema.record(
    *("bookies", "free_bytes", "total_bytes", "under_replicated", "unavailable", "queue"),
    more=True,
    healthy=schema.YES_OR_NO,
    problems=schema.array(_PROBLEM),
    bookies=schema.array(_SPACE),
    free_bytes=schema.COUNT,
    total_bytes=schema.COUNT,
    under_replicated=schema.COUNT,
    unavailable=schema.COUNT,
    queue=schema.array(schema.ANY_OBJECT),
)
BOOKIE_ROW = schema.record(
    more=True,
    id=schema.TEXT,
    host=schema.or_null(schema.TEXT),
    port=schema.or_null(schema.WHOLE),
    state=schema.one_of("writable", "readonly", "down"),
    asked=schema.TEXT,
)
_HEALING = schema.record(
    more=True,
    enabled=schema.YES_OR_NO,
    auditor=schema.or_null(schema.TEXT),
    delay_s=schema.NUMBER,
    workers=schema.array(schema.ANY_OBJECT),
    queue=schema.array(schema.ANY_OBJECT),
)
_SAMPLE = schema.record(
    time_us=schema.WHOLE,
    stored_bytes=schema.COUNT,
    in_bytes_per_s=schema.NUMBER,
    out_bytes_per_s=schema.NUMBER,
    under_replicated=schema.COUNT,
)
_AUDIT = (
    Parameter("principal", "Only events of this principal, such as token:alice.", schema.TEXT, ""),
    Parameter("action", "Only this action.", schema.one_of(*ACTIONS), ""),
    Parameter("namespace", "Only of this namespace.", schema.TEXT, ""),
    Parameter("what", "Only about something with this in its name.", schema.TEXT, ""),
    LIMIT,
)
_HOW_IT_IS = (
    "Show the health of the cluster: everything for administrators, for others findings about what they may see."
)
_LOOKED_AT = 20_000
"""Number of the newest events that a query of the audit trail searches."""


class ClusterPages:
    """The cluster that the gateway is in."""

    title = "Cluster"

    def __init__(self, client: Client, peers: Peers, history: History) -> None:
        self._client, self._peers, self._history = client, peers, history
        self._gatherer: Gatherer | None = None

    async def close(self) -> None:
        """Close the connections over which bookies are asked for their health. Idempotent."""
        gatherer, self._gatherer = self._gatherer, None
        if gatherer is not None:
            await gatherer.close()

    def operations(self) -> Sequence[Operation]:
        return (*self._looking(), *self._changing())

    def _looking(self) -> Sequence[Operation]:
        rows, shown = schema.record(bookies=schema.array(BOOKIE_ROW)), schema.ANY_OBJECT
        peers = schema.record(gateways=schema.array(schema.record(id=schema.TEXT, url=schema.TEXT)))
        usage = schema.record(namespaces=schema.mapping(schema.ANY_OBJECT))
        hour = schema.record(samples=schema.array(_SAMPLE))
        audit = schema.record(events=schema.array(schema.ANY_OBJECT))
        return (
            Operation("showStatus", "GET", "/v2/status", _HOW_IT_IS, "login", self._status, STATUS),
            Operation(
                "showHistory", "GET", "/v2/history", "Show samples of the last hour.", "operator", self._hour, hour
            ),
            Operation("listBookies", "GET", "/v2/bookies", "List all bookies.", "login", self._bookies, rows),
            Operation(
                "showBookie", "GET", BOOKIE, "Show what a bookie reports of itself.", "operator", self._bookie, shown
            ),
            Operation("listGateways", "GET", "/v2/gateways", "List all gateways.", "login", self._gateways, peers),
            Operation(
                "showReplication",
                "GET",
                "/v2/replication",
                "Show which ledgers lack copies, who copies them, and why others wait.",
                "operator",
                self._replication,
                _HEALING,
            ),
            Operation(
                "showUsage",
                "GET",
                "/v2/usage",
                "Show what namespaces store, do and may do, as bookies published it last.",
                "login",
                self._usage,
                usage,
            ),
            Operation(
                "searchAudit",
                "GET",
                "/v2/audit",
                "List the newest events of the audit trail, the newest first.",
                "administrator",
                self._audit,
                audit,
                parameters=_AUDIT,
            ),
        )

    def _changing(self) -> Sequence[Operation]:
        enabled = schema.record(enabled=schema.YES_OR_NO)
        switched = schema.record(enabled=schema.YES_OR_NO, changed=schema.YES_OR_NO)
        asked = schema.record(bookie=schema.TEXT, state=schema.TEXT)
        return (
            Operation(
                "switchReplication",
                "PUT",
                "/v2/replication",
                "Let lost copies be made again, or begin no further ones.",
                "administrator",
                self._switch,
                switched,
                body=enabled,
            ),
            Operation(
                "setBookieReadonly",
                "PUT",
                BOOKIE + "/readonly",
                "Ask a bookie to take no new entries, or to take them again.",
                "administrator",
                self._readonly,
                asked,
                body=schema.record(readonly=schema.YES_OR_NO),
            ),
        )

    # -- looking ------------------------------------------------------------------------------------------

    async def _status(self, ask: Ask) -> dict[str, Any]:
        found = await self._looker().look()
        return status_json(found) if ask.allowed.everything else status_seen(found, ask.sees)

    def _looker(self) -> Gatherer:
        if self._gatherer is None:
            self._gatherer = Gatherer.of(self._client)
        return self._gatherer

    async def _hour(self, ask: Ask) -> dict[str, Any]:
        return {"samples": self._history.as_json()}

    async def _bookies(self, ask: Ask) -> dict[str, Any]:
        return {"bookies": await bookie_rows(self._client)}

    async def _bookie(self, ask: Ask) -> dict[str, Any]:
        """Show a bookie, and why it may not be decommissioned, so that the console offers that only when it would
        succeed.
        """
        bookie = bookie_of(ask)
        shown = await bookie_shown(self._client, bookie)
        down = shown["state"] == "down"
        why = why_kept(await self._looker().about(bookie), bookie) if down else ""
        return {**shown, "may_be_decommissioned": down and not why, "why_kept": why}

    async def _gateways(self, ask: Ask) -> dict[str, Any]:
        return {"gateways": [peer._asdict() for peer in await self._peers.shown()]}

    async def _replication(self, ask: Ask) -> dict[str, Any]:
        services = self._client.services
        return healing_json(await overview(services.store, services.runtime.clock.wall_us() // 1000))

    async def _usage(self, ask: Ask) -> dict[str, Any]:
        tenants = TenantStore(self._client.services.store)
        await tenants.turn_on()
        rows = usage_rows(await tenants.published(), await tenants.quotas(), "")
        return {"namespaces": {name: row for name, row in rows.items() if "read" in ask.allowed(name)}}

    async def _audit(self, ask: Ask) -> dict[str, Any]:
        query, found = dict(ask.query), list[dict[str, Any]]()
        limit, ns = query.pop("limit"), self._client.namespace(AUDIT_NAMESPACE)
        try:
            info = await ns.info(AUDIT_STREAM)
        except (NoSuchStream, NoSuchNamespace):
            raise InvalidArgument("there is no audit trail yet: run bookies with [auth] audit = 'on'") from None
        start = max(info.earliest, info.end - _LOOKED_AT)
        async with ns.read(AUDIT_STREAM, start=start, stop=info.end, on_truncated="skip") as reader:
            async for record in reader:
                event = AuditEvent.of_record(record)
                if event.matches(**query):
                    found.append(event.row())
                    del found[:-limit]
        return {"events": found[::-1]}

    # -- changing -----------------------------------------------------------------------------------------

    async def _switch(self, ask: Ask) -> dict[str, Any]:
        store, on = self._client.services.store, ask.body["enabled"]
        return {"enabled": on, "changed": await Underreplication(store.keys, store.root, "").enable(on)}

    async def _readonly(self, ask: Ask) -> dict[str, Any]:
        bookie, wanted = bookie_of(ask), ask.body["readonly"]
        with refusals():
            return {"bookie": bookie, "state": (await ask_readonly(self._client, bookie, wanted)).state}


@contextmanager
def refusals() -> Iterator[None]:
    """Turn Refused, raised when the current state forbids a change, into HttpProblem 409 with its reason."""
    try:
        yield
    except OperationRefused as error:
        raise HttpProblem(409, "REFUSED", str(error)) from None


def bookie_of(ask: Ask) -> BookieId:
    """The bookie of the path. Raises HttpProblem 400."""
    bookie = ask.path["bookie"]
    if not valid_bookie_id(bookie):
        raise bad_request(f"bookie {bookie[:80]!r} is no bookie id: GET /v2/bookies lists them")
    return bookie


# -- history ----------------------------------------------------------------------------------------------

EVERY_S, KEPT = 10.0, 360
_MOST_MARKS = 1000
"""Marks of ledgers that are counted: more are as bad."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment, by the newest figures of its bookies. `under_replicated` is at most 1,000."""

    time_us: int
    stored_bytes: int
    in_bytes_per_s: float
    out_bytes_per_s: float
    under_replicated: int


class History:
    """The history of one gateway. `start` and `close`; while the metadata store is away no samples are taken."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._scope = TaskScope("history")

    def start(self) -> None:
        """Sample from now on."""
        self._scope.keep(self._keep, "keep")

    async def close(self) -> None:
        """Sample no more. Idempotent."""
        await self._scope.close()

    def as_json(self) -> list[dict[str, Any]]:
        """The samples, the oldest first."""
        return [asdict(one) for one in self._samples]

    async def take(self) -> None:
        """Take a sample now. Raises MetadataUnavailable."""
        store = self._client.services.store
        tenants, tree = TenantStore(store), Underreplication(store.keys, store.root, "")
        total = (await tenants.published()).total.values()
        marks = 0
        async for _ in tree.marked():
            marks += 1
            if marks == _MOST_MARKS:
                break
        self._samples.append(
            Sample(
                self._client.services.runtime.clock.wall_us(),
                sum(one.stored_bytes for one in total),
                sum(one.in_bytes_per_s for one in total),
                sum(one.out_bytes_per_s for one in total),
                marks,
            )
        )

    async def _keep(self) -> None:
        while True:
            with suppress(BuckramError):
                await self.take()
            await asyncio.sleep(EVERY_S)

"""The page of a gateway's operations, docs/reference/gateway.md, from the table that it serves (generate_docs.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buckram.serve.gateway.administration.cluster_pages import ClusterPages
from buckram.serve.gateway.administration.maintenance_pages import MaintenancePages
from buckram.serve.gateway.administration.namespace_pages import NamespacePages
from buckram.serve.gateway.administration.security_pages import SecurityPages, SessionPages
from buckram.serve.gateway.database_pages import DatabasePages, HranaPages
from buckram.serve.gateway.objects.object_pages import ObjectPages
from buckram.serve.gateway.objects.removal_pages import RemovalPages
from buckram.serve.gateway.objects.upload_pages import UploadPages
from buckram.serve.gateway.openapi import needed
from buckram.serve.gateway.shared.job_pages import JobPages
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.gateway.shared.operations import Operation, OperationGroup
from buckram.serve.gateway.streams.ledger_pages import LedgerPages
from buckram.serve.gateway.streams.record_pages import RecordPages
from buckram.serve.gateway.streams.stream_pages import StreamPages

_NO: Any = None
"""Placeholder for arguments that a part needs only when it answers a request."""


def parts() -> Sequence[OperationGroup]:
    """Return every group of operations, in the order of the page."""
    limits = GatewayLimits()
    return (
        RecordPages(_NO, _NO, _NO, _NO, limits),
        StreamPages(_NO, _NO),
        DatabasePages(_NO, limits),
        HranaPages(_NO, _NO, limits),
        ObjectPages(_NO, _NO, limits),
        RemovalPages(_NO, _NO),
        UploadPages(_NO),
        LedgerPages(_NO, _NO, _NO, limits),
        NamespacePages(_NO),
        ClusterPages(_NO, _NO, _NO),
        MaintenancePages(_NO, _NO),
        JobPages(_NO),
        SecurityPages(_NO, enabled=True),
        SessionPages(_NO, _NO, secure=True),
    )


def page(note: str) -> str:
    """Return the page's text."""
    lines = [
        "# HTTP of a gateway\n",
        note,
        "`buckram gateway` serves these operations, and `/v2/openapi.json` describes them to programs (OpenAPI 3.1).\n"
        "[Gateway](../howto/gateway.md) shows how they are used. Errors are JSON with `code` and `message`, which\n"
        "names the value, the limit and what to do. Every change may come with an `Idempotency-Key`, other than\n"
        "statements of SQL.\n",
    ]
    rows: dict[str, list[str]] = {}
    for part in parts():
        rows.setdefault(part.title, []).extend(map(_row, part.operations()))
    for title, of_title in rows.items():
        lines.append(f"## {title}\n\n| operation | what it does | parameters and body |\n|---|---|---|")
        lines += [*of_title, ""]
    return "\n".join(lines)


def _row(one: Operation) -> str:
    given = [f"`{row.name}`: {row.what}" for row in one.parameters]
    given += [f"Header `{name}`: {what}" for name, what in one.headers.items()]
    if one.body is not None:
        names = ", ".join(f"`{name}`" for name in one.body.get("properties", {}))
        given.append(f"Body: {names}.")
    given += [f"Body `{media}`: {what}." for media, what in one.takes.items()]
    given += [f"Answer `{media}`: {what}." for media, what in one.gives.items()]
    return f"| `{one.method} {one.path}` | {one.what} {needed(one)} | {'<br>'.join(given)} |"

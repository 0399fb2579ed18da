"""The OpenAPI 3.1 document of a gateway, made from the operations that it serves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.idempotency import HEADER
from buckram.serve.gateway.shared.operations import GATEWAY, Operation, OperationGroup, Parameter

PATH = "/v2/openapi.json"
_NAMES = re.compile(r"{(\w+)}")
_NUMBERS = ("ledger", "offset")
PROBLEM = schema.record(more=True, code=schema.TEXT, message=schema.TEXT)
"""Schema of every error: a code for programs, and a message that names the value, the limit and what to do."""
_HEADERS = {
    HEADER.title(): "The same key again: the request is carried out once, and answered alike.",
    GATEWAY: "The id of a gateway, as its answers have it in the same header: any other one refuses the request (421).",
}
"""Request headers of every operation that changes something."""
_NEEDS = {
    "nothing": "Needs nothing.",
    "login": "Needs a login, where the gateway asks for tokens.",
    "operator": "Needs an administrator of the cluster, where the gateway asks for tokens.",
    "administrator": "Needs an administrator of the cluster.",
}


def document(parts: Sequence[OperationGroup]) -> dict[str, Any]:
    """Return the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for part in parts:
        for one in part.operations():
            paths.setdefault(one.path, {})[one.method.lower()] = _operation(part.title, one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Buckram gateway",
            "version": version("buckram"),
            "description": "Streams, ledgers, objects and the administration of a Buckram cluster.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": part.title} for part in parts],
        "security": [{"token": []}, {"session": []}, {}],
        "paths": paths,
        "components": {
            "schemas": {"Problem": PROBLEM},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "buckram_session"},
            },
        },
    }


def needed(operation: Operation) -> str:
    """Return a sentence that describes the authorization that an operation needs."""
    return _NEEDS.get(operation.needs, f"Needs the permission `{operation.needs}` on the {operation.subject}.")


def _operation(tag: str, one: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": one.name,
        "tags": [tag],
        "summary": one.what,
        "description": needed(one),
        "parameters": [*map(_of_path, _NAMES.findall(one.path)), *map(_of_query, one.parameters)],
        "responses": {
            str(one.status): _said("It held.", one),
            **{str(status): _said(what, one) for status, what in one.others.items()},
            "default": {
                "description": "The condition was not met.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    found["parameters"] += [_of_header(name, what) for name, what in one.headers.items()]
    if one.changes:
        counting = {name: what for name, what in _HEADERS.items() if one.keyed or name != HEADER.title()}
        found["parameters"] += [_of_header(name, what) for name, what in counting.items()]
    if one.takes:
        bodies = {media: {"schema": {"description": what}} for media, what in one.takes.items()}
        found["requestBody"] = {"required": True, "content": bodies}
    elif one.body is not None:
        content = {"application/json": {"schema": one.body}}
        found["requestBody"] = {"required": bool(one.body.get("required")), "content": content}
    return found


def _said(what: str, one: Operation) -> dict[str, Any]:
    return {"description": what} if one.method == "HEAD" else {"description": what, "content": _answers(one)}


def _answers(one: Operation) -> dict[str, Any]:
    """Where an answer is a record a line, or an event each, the schema is that of one record."""
    whole = {"application/json": {"schema": one.answer}} if "application/x-ndjson" not in one.gives else {}
    whole = {} if "text/event-stream" in one.gives or not one.answer else whole
    lines = ("application/x-ndjson", "text/event-stream")
    return whole | {
        media: {"schema": {**(one.answer if media in lines else {}), "description": what}}
        for media, what in one.gives.items()
    }


def _of_path(name: str) -> dict[str, Any]:
    kind = schema.COUNT if name in _NUMBERS else schema.TEXT
    return {"name": name, "in": "path", "required": True, "schema": kind}


def _of_header(name: str, what: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": what, "schema": schema.TEXT}


def _of_query(one: Parameter) -> dict[str, Any]:
    kind = dict(one.schema) if one.default is None else {**one.schema, "default": one.default}
    return {"name": one.name, "in": "query", "required": False, "description": one.what, "schema": kind}

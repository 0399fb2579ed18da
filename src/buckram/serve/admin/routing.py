"""Routes of a bookie's HTTP API: paths, methods, parameters and bodies, with the answers for what is none of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from buckram.runtime.net.http_server import Answer, Handler, Request, text_answer
from buckram.serve.operations.jobs import JobError
from buckram.serve.operations.registry import ANY, Group, Registry


class RequestError(Exception):
    """The request cannot be answered as it is; the text says what is wrong with it, or with the bookie."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class BookieOperation:
    """One method of a path. `what` is its row in docs/reference/http.md."""

    method: str
    path: str
    what: str
    handler: Handler


class Router:
    """Finds the handler of a request."""

    def __init__(self, fallback: Handler, *groups: Group[BookieOperation]) -> None:
        """`fallback`: answers requests for all other paths."""
        self._fallback = fallback
        self._operations = Registry(groups)

    async def __call__(self, request: Request) -> Answer:
        known = self._operations.at(request.path)
        if not known:
            return await self._fallback(request)
        operation = known.get(request.method) or known.get(ANY)
        if operation is None:
            status = 405 if request.path in METHOD_NOT_ALLOWED else 404  # as Apache's bookies answer
            return text_answer(f"Not found method. Should be {' or '.join(known)} method", status)
        try:
            return await operation.handler(request)
        except (RequestError, JobError) as error:
            return text_answer(str(error), error.status)


METHOD_NOT_ALLOWED = ("/api/v1/bookie/gc", "/api/v1/bookie/entry_location_compact")


def whole_number(request: Request, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """A parameter of the query. Raises Wrong (400)."""
    given = request.query.get(name)
    if given is None:
        return default
    sign = given[:1] == "-" and least < 0
    digits = given[1:] if sign else given
    if not (digits.isascii() and digits.isdigit()) or not least <= int(given[:20]) <= most:
        raise RequestError(400, f"{name} = {given[:40]!r}: needs a whole number from {least} to {most}")
    return int(given)


def needed_ledger(request: Request, missing: str) -> int:
    """The parameter ledger_id. Raises Wrong: 404 with the text `missing`, as Apache's, where it is not there."""
    if "ledger_id" not in request.query:
        raise RequestError(404, missing)
    return whole_number(request, "ledger_id", 0)


def asked(request: Request, name: str) -> bool:
    """A parameter of the query that is true or false; false if it is not there. Raises Wrong (400)."""
    given = request.query.get(name, "false").lower()
    if given not in ("true", "false"):
        raise RequestError(400, f"{name} = {given[:40]!r}: needs true or false")
    return given == "true"


def body_object(request: Request, empty: int, why_empty: str, bad: int = 400) -> dict[str, Any]:
    """The body, a JSON object. Raises Wrong: with the status `empty` for no body, and `bad` for anything else."""
    if not request.body.strip():
        raise RequestError(empty, why_empty)
    try:
        found = json.loads(request.body)
    except ValueError as error:
        raise RequestError(bad, f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise RequestError(bad, f"the body has to be a JSON object, not {type(found).__name__}")
    return found


def flag(body: Mapping[str, Any], name: str) -> bool | None:
    """A member that is true or false, or not there. Raises Wrong (400)."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(400, f"{name} = {value!r}: needs true or false")
    return value

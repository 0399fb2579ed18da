"""Dispatcher: from a request to an operation's handler and back. It authenticates first, then reads the body.

Not here: the operations (`shared/operations.py`), authentication and authorization (`shared/authentication.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from buckram.core.security.principal import Principal
from buckram.core.tenants.fair_share import holder_of
from buckram.errors import BuckramError, InvariantViolation
from buckram.seams import Span, Traces
from buckram.serve.gateway.shared.authentication import Access
from buckram.serve.gateway.shared.error_answers import bad_request, problem_of
from buckram.serve.gateway.shared.idempotency import HEADER, Fingerprint, Repeats
from buckram.serve.gateway.shared.memory_budget import MemoryBudget
from buckram.serve.gateway.shared.operations import GATEWAY, Ask, Operation, granted_name
from buckram.serve.gateway.shared.schema import fault
from buckram.serve.gateway.streams.writers import Elsewhere
from buckram.serve.http.body import LESS, limited_pieces, read_body
from buckram.serve.http.limits import LOGIN_BYTES, MIB, HttpLimits
from buckram.serve.http.problems import UNKEPT, HttpProblem, has_header, header, json_answer, redirect
from buckram.serve.http.refusal_audit import note_refused
from buckram.serve.operations.jobs import JobError

Endpoint = Callable[[Request], Awaitable[Response]]
JSON = "application/json"
_KEY, _MEANT = HEADER.lower().encode(), GATEWAY.lower().encode()
_GRANTED = ("read", "append", "create", "delete", "admin")
_STREAMED_BYTES = 12 * MIB
"""Bytes that a body which its handler reads in pieces takes in memory, including what is on its way to bookies."""
_QUERIES, _QUERY_BYTES = 256, 512
"""Cached parsed queries of each operation, and the maximum bytes of a cached one: clients repeat the same few."""


class Dispatcher:
    """Turns operations into endpoints for Starlette."""

    def __init__(
        self,
        access: Access,
        repeats: Repeats,
        room: MemoryBudget,
        limits: HttpLimits,
        own_id: str,
        traces: Traces | None = None,
    ) -> None:
        """`own_id`: that of this gateway. `traces`: follows some requests; None: none."""
        self._access, self._repeats, self._room, self._limits = access, repeats, room, limits
        self._own_id, self._traces = own_id, traces

    def endpoint(self, operation: Operation) -> Endpoint:
        serve = self._serving(operation)
        unkept = operation.changes or operation.needs == "administrator"  # Tokens are among them.

        async def named(request: Request) -> Response:
            self._check_meant(request)
            answer = await serve(request)
            answer.headers[GATEWAY] = self._own_id
            if unkept:
                for header_name, value in UNKEPT.items():
                    answer.headers.setdefault(header_name, value)
            return answer

        return named

    def _serving(self, operation: Operation) -> Endpoint:
        name, parsed = f"{operation.method} {operation.path}", _parsing(operation)
        changes, keyed = operation.changes, operation.keyed
        # Of whoever is not known yet, nothing larger than a login is read, or kept room for.
        limits, do = self._limits, LESS
        if operation.needs == "nothing":
            limits, do = replace(self._limits, body_bytes=LOGIN_BYTES), "a login needs no more"

        async def serve(request: Request) -> Response:
            principal = await self._access.who(request, operation)
            if self._traces is None or operation.needs == "nothing":
                return await known(request, principal)
            with self._traces.request(name, header(request, b"traceparent")) as span:
                work = known(request, principal)
                return await (work if span is None else _noted(operation, span, work))

        async def known(request: Request, principal: Principal) -> Response:
            allowed = self._access.allowed(principal)
            path: Mapping[str, str] = request.scope["path_params"]
            watched = partial(self._access.watched, request)
            bare = Ask(request, principal, allowed, path, parsed(request.scope["query_string"]), watched=watched)
            if operation.needs in _GRANTED:
                making = operation.makes or bare.query.get("create") is True
                name = granted_name(path, statements=operation.statements)
                bare.require(operation.needs, name, making=making)
            if not changes:
                return await self._answered(operation, bare)
            if operation.streamed:
                return await self._streamed(operation, bare)
            media = self._media(operation, request)
            with self._room.holding(holder_of(principal.name), _size(request, limits.body_bytes)):
                raw = await read_body(request, limits, do=do)
                ask = self._with_body(operation, bare, media, raw)
                if not keyed or not has_header(request, _KEY):
                    return await self._answered(operation, ask)
                key = header(request, _KEY)
                fingerprint = Fingerprint(request.method, _target(request), raw)
                return await self._repeats.once(principal.name, key, fingerprint, self._whole(operation, ask))

        return serve

    def _check_meant(self, request: Request) -> None:
        """Raises HttpProblem 421 for a request that is for another process: keys of requests are known to one only."""
        meant = header(request, _MEANT, self._own_id)
        if meant != self._own_id:
            raise HttpProblem(
                421,
                "OTHER_GATEWAY",
                f"{GATEWAY} {meant[:60]!r}: this gateway is {self._own_id}, perhaps since a restart; check whether the "
                "request was carried out before you send it without this header",
                headers={GATEWAY: self._own_id},
            )

    async def _streamed(self, operation: Operation, bare: Ask) -> Response:
        """The handler reads the body while it comes, and so the fingerprint of the request is known at its end."""
        request, fingerprint = bare.request, Fingerprint(bare.request.method, _target(bare.request))
        for name in operation.headers:
            fingerprint.add(f"{name}: {request.headers.get(name, '')}\n".encode())
        key = request.headers.get(HEADER)

        async def pieces(most: int) -> AsyncIterator[bytes]:
            async for piece in limited_pieces(request, self._limits, most, do="send larger ones with a client library"):
                if key is not None:
                    fingerprint.add(piece)
                yield piece

        async def rest() -> None:
            async for _ in pieces(sys.maxsize):
                pass

        ask = replace(bare, pieces=pieces)
        size = min(_size(request, self._limits.body_bytes), _STREAMED_BYTES)
        with self._room.holding(ask.holder, size):
            if key is None:
                return await self._answered(operation, ask)
            return await self._repeats.once(ask.principal.name, key, fingerprint, self._whole(operation, ask), rest)

    async def _answered(self, operation: Operation, ask: Ask) -> Response:
        try:
            found = await operation.handler(ask)
        except Elsewhere as error:
            return redirect(error.url + _target(ask.request))
        except JobError as error:
            raise HttpProblem(error.status, error.code, str(error)) from None
        except InvariantViolation:
            raise
        except BuckramError as error:
            raise problem_of(error) from error
        return found if isinstance(found, Response) else json_answer(ask.request, found, operation.status)

    async def _whole(self, operation: Operation, ask: Ask) -> Response:
        """The same; a problem becomes an answer, which can be kept."""
        try:
            return await self._answered(operation, ask)
        except HttpProblem as problem:
            note_refused(ask.request, problem)
            return json_answer(ask.request, problem.content(), problem.status, problem.headers)

    def _media(self, operation: Operation, request: Request) -> str:
        """The media type of the body. Raises HttpProblem 415 before the body is read."""
        given = header(request, b"content-type").partition(";")[0].strip().lower()
        known = operation.takes or {JSON: ""}
        if given in known:
            return given
        if not given or (given == "application/x-www-form-urlencoded" and operation.takes):  # curl says so by itself
            return next(iter(known))
        raise HttpProblem(
            415,
            "UNSUPPORTED_MEDIA_TYPE",
            f"Content-Type {given[:100]!r} is not taken here: send one of {', '.join(known)}",
            value=given[:100],
        )

    def _with_body(self, operation: Operation, bare: Ask, media: str, raw: bytes) -> Ask:
        if operation.takes:
            return replace(bare, raw=raw, media=media)
        body = _object(raw)
        if operation.body is None and body:
            raise bad_request(f"{operation.name} takes no body: leave it out")
        if operation.body is not None and (trouble := fault(body, operation.body)):
            raise bad_request(trouble)
        return replace(bare, body=body)


def _parsing(operation: Operation) -> Callable[[bytes], Mapping[str, Any]]:
    """Return a function that parses the parameters of a query. Raises HttpProblem 400."""

    def parsed(query: bytes) -> Mapping[str, Any]:
        return operation.parsed(parse_qsl(query.decode("latin-1"), keep_blank_values=True))

    kept = lru_cache(_QUERIES)(parsed)
    return lambda query: kept(query) if len(query) <= _QUERY_BYTES else parsed(query)


async def _noted(operation: Operation, span: Span, work: Awaitable[Response]) -> Response:
    """Return the response of `work`, and record its outcome in the span, which ends with it."""
    span.note("http.request.method", operation.method)
    span.note("http.route", operation.path)
    error = "it was not answered"
    try:
        response = await work
        span.note("http.response.status_code", response.status_code)
        error = ""
        return response
    except HttpProblem as problem:
        span.note("http.response.status_code", problem.status)
        error = problem.code if problem.status >= 500 else ""
        raise
    finally:
        span.end(error)


def _size(request: Request, limit: int) -> int:
    """Return the memory to reserve for a body: its Content-Length up to the limit, or the limit for a chunked one."""
    declared = header(request, b"content-length")
    if declared.isdigit() and len(declared) < 19:
        return min(int(declared), limit)
    return limit if has_header(request, b"transfer-encoding") else 0


def _target(request: Request) -> str:
    """Path and query, as they were sent."""
    query: str = request.scope["query_string"].decode("latin-1")
    path: str = request.scope["raw_path"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _object(raw: bytes) -> Any:
    if not raw.strip():
        return {}
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise HttpProblem(400, "NOT_JSON", f"the body is no JSON: {error}; send one JSON object") from None

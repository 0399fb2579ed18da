"""Shared parts of the operations on objects: open namespaces, paths and schemas, streamed bodies, refusals.

A gateway opens the objects of a namespace at their first use and closes them when idle. A read leaves a namespace
without objects as it is: only the first put makes its index. Not here: the operations (`object_pages.py`,
`upload_pages.py`, `removal_pages.py`), headers (`object_headers.py`), the objects (`state/objects/objects.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from buckram.cluster import Client
from buckram.core.objects.rows import LOG
from buckram.core.security.object_names import object_name
from buckram.core.security.required_permissions import Effect, lacking
from buckram.errors import NoSuchObject, NoSuchStream, ObjectChanged, ObjectExists
from buckram.runtime.process.handle_cache import BorrowedHandle, HandleCache
from buckram.serve.gateway.objects.object_headers import METADATA, Precondition
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.error_answers import code_of, with_unknown_outcome
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.gateway.shared.operations import Ask, Parameter
from buckram.serve.http.problems import HttpProblem
from buckram.serve.http.streamed_answers import while_allowed
from buckram.state.objects.objects import Objects
from buckram.state.objects.refusals import absent

# -- open namespaces --------------------------------------------------------------------------------------


class OpenObjects:
    """The open namespaces of one gateway, for objects and for files (`serve/webhdfs/`). `close` seals what was put."""

    def __init__(self, client: Client, limits: GatewayLimits, sign: str) -> None:
        """Make it for a cluster; `sign`: name of this process for others while it leads an index."""
        self._client, self._sign = client, sign
        self.shelf: HandleCache[Objects] = HandleCache(
            "objects",
            self._open,
            Objects.close,
            lambda objects: objects.ended,
            idle_s=limits.writer_idle_s,
            most_open=limits.object_namespaces,
        )

    @property
    def namespaces(self) -> list[str]:
        """Those that are open now."""
        return self.shelf.names

    async def take(self, namespace: str) -> BorrowedHandle[Objects]:
        """The objects of a namespace, in use until `give` is called. Raises NoSuchNamespace, HandleClosed."""
        return await self.shelf.take(namespace)

    async def found(self, namespace: str) -> BorrowedHandle[Objects] | None:
        """Return the objects of a namespace like `take`; None if none was ever put. Raises NoSuchNamespace,
        HandleClosed.
        """
        if namespace not in self.shelf.names:
            space = self._client.namespace(namespace)
            await self._client.namespaces.get(namespace)
            with suppress(NoSuchStream):
                await space.store.read(space.log_name(LOG))
                return await self.take(namespace)
            return None
        return await self.take(namespace)

    async def close(self) -> None:
        """Close all of them. Idempotent."""
        await self.shelf.close()

    async def _open(self, namespace: str) -> Objects:
        await self._client.namespaces.get(namespace)
        return await self._client.objects(namespace, process=self._sign)


T = TypeVar("T")


# -- paths and schemas ------------------------------------------------------------------------------------

OBJECTS = "/v2/namespaces/{namespace}/objects"
OBJECT = OBJECTS + "/{object}"
BYTES = "application/octet-stream"
ROW = schema.record(
    object=schema.TEXT,
    bytes=schema.COUNT,
    digest=schema.TEXT,
    version=schema.COUNT,
    time=schema.WHOLE,
    expires=schema.or_null(schema.WHOLE),
    metadata=schema.TEXTS,
)
"""Schema of an object in answers."""
_YEAR_S = 366 * 86_400
_SECONDS = {**schema.WHOLE, "minimum": 1, "maximum": 100 * _YEAR_S}
EXPIRES = Parameter("expires_s", "Delete the object after so many seconds.", _SECONDS)
PUT_HEADERS = {
    "If-Match": "The ETag that the object has to have; 412 otherwise.",
    "If-None-Match": "`*`: no object of this name may be there; 412 otherwise.",
    METADATA: 'What is to be kept with it: a JSON object of texts, such as {"author": "ann"}.',
}
"""Headers that apply when an object is put, with their descriptions."""


# -- calls ------------------------------------------------------------------------------------------------

Put = Callable[[Objects, AsyncIterator[bytes]], Awaitable[T]]
"""Puts the bytes of a body somewhere."""


class ObjectCalls:
    """Opens the objects of one gateway's requests, puts their bodies, and limits their time."""

    def __init__(self, opened: OpenObjects, limits: GatewayLimits) -> None:
        self._opened, self._limits = opened, limits

    async def use(self, namespace: str) -> BorrowedHandle[Objects] | None:
        """Return the objects of a namespace, in use until `give` is called; None if none was ever put."""
        return await self._opened.found(namespace)

    @asynccontextmanager
    async def made(self, namespace: str) -> AsyncIterator[Objects]:
        """The objects of a namespace, for a change that may be the first one."""
        use = await self._opened.take(namespace)
        try:
            yield use.item
        finally:
            use.give()

    @asynccontextmanager
    async def found(self, namespace: str) -> AsyncIterator[Objects | None]:
        """Yield the objects of a namespace; None if none was ever put."""
        use = await self.use(namespace)
        try:
            yield None if use is None else use.item
        finally:
            if use is not None:
                use.give()

    @asynccontextmanager
    async def there(self, ask: Ask, name: str = "") -> AsyncIterator[Objects]:
        """The objects of the namespace. Raises NoSuchObject where there are none at all."""
        async with self.found(ask.path["namespace"]) as objects:
            if objects is None:
                raise no_object(ask, name)
            yield objects

    async def put_body(self, ask: Ask, objects: Objects, put: Put[T]) -> T:
        """Put the body of a request as it arrives. The cluster's time for each piece, and for the end of the put, is
        limited. Raises HttpProblem, 504 beyond that limit.
        """
        try:
            async with asyncio.timeout(None) as deadline:
                return await put(objects, self._paced(ask, deadline))
        except TimeoutError:
            raise self._unknown(f"object {ask.path['namespace']}/{ask.object}") from None

    async def _paced(self, ask: Ask, deadline: asyncio.Timeout) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        over = ask.watch("append", object_name(ask.path["namespace"], ask.object))
        given = ask.pieces(self._limits.object_bytes)
        async for piece in while_allowed(given, over, "nothing of the object was put"):
            deadline.reschedule(loop.time() + self._limits.append_wait_s)
            yield piece
            deadline.reschedule(None)
        deadline.reschedule(loop.time() + self._limits.append_wait_s)

    async def in_time(self, ask: Ask, work: Awaitable[T]) -> T:
        """Return the result of `work`. Raises HttpProblem 504 if it takes longer than `append_wait_s`."""
        try:
            async with asyncio.timeout(self._limits.append_wait_s):
                return await work
        except TimeoutError:
            raise self._unknown(f"the objects of {ask.path['namespace']}") from None

    def _unknown(self, what: str) -> HttpProblem:
        problem = HttpProblem(
            504,
            "OUTCOME_UNKNOWN",
            f"{what}: nothing was acknowledged within {self._limits.append_wait_s:g} s, and the change may still be "
            "made; check before you send it again, or send it with a condition",
            headers={"Retry-After": "1"},
        )
        return with_unknown_outcome(problem)


def permitted(ask: Ask, name: str, asked: Precondition) -> Precondition:
    """The condition under which this principal may put an object: replacing one is deleting it."""
    full = object_name(ask.path["namespace"], name)
    if not lacking(Effect.REPLACE, ask.allowed(full)):
        return asked
    if asked.if_match is not None:
        ask.require("delete", full)
    return Precondition(if_absent=True)


def require_all(ask: Ask, permission: str, name: str, *, making: bool = False) -> None:
    """Check a permission (`Ask.require`) on an object, and on everything in it if it is a directory."""
    namespace = ask.path["namespace"]
    full = object_name(namespace, name)
    ask.require(permission, full, making=making)
    ask.require(permission, f"{full}/", of=full, making=making)
    if not any(names.has_all(f"{name}/") for names in ask.allowed.objects(namespace, permission)):
        why = f"{ask.principal} has no permission `{permission}` on all that is in {full}/ (see `buckram acl list`)"
        raise HttpProblem(403, "FORBIDDEN", why, value=f"{full}/")


def no_object(ask: Ask, name: str = "") -> NoSuchObject:
    """The error of a name under which there is none; default the name in the path."""
    full = f"{ask.path['namespace']}/{name or ask.object}"
    return NoSuchObject(full, absent(full))


def problem_with(error: ObjectExists | ObjectChanged, status: int) -> HttpProblem:
    """The answer to a condition that did not hold."""
    return HttpProblem(status, code_of(error), str(error))


def refused(
    ask: Ask, name: str, asked: Precondition, error: ObjectExists | ObjectChanged, *, status: int
) -> HttpProblem:
    """Return the problem of a condition that did not hold: 403 if `permitted` added it, as replacing needs `delete`."""
    if asked:
        return problem_with(error, status)
    full = object_name(ask.path["namespace"], name)
    return HttpProblem(
        403,
        "FORBIDDEN",
        f"{ask.principal} has no permission `delete` on {full}, which is there already, and putting it would replace "
        "it (`buckram acl grant` grants it): choose another name",
        value=full,
    )

"""Objects over HTTP: list, head, get, put, delete, copy, rename.

Every operation is checked by the names of its objects, so that a grant may be for those that begin with a prefix.
Whoever may not delete an object may not replace it either. Not here: headers (`object_headers.py`), sending the bytes
(`http/pieces.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.responses import Response

from buckram.core.objects.rows import check_object_name
from buckram.core.security.object_names import object_name
from buckram.errors import NoSuchObject, ObjectChanged, ObjectExists
from buckram.gateway import schema
from buckram.gateway.failures import bad_request, code_of
from buckram.gateway.limits import GatewayLimits
from buckram.gateway.object_headers import (
    METADATA,
    Condition,
    check_unchanged,
    condition_of,
    headers_of,
    metadata_of,
    range_of,
)
from buckram.gateway.object_lists import Page
from buckram.gateway.open_objects import OpenObjects
from buckram.gateway.operations import AFTER, LIMIT, PREFIX, Ask, Operation, Parameter
from buckram.gateway.room import Room
from buckram.http.limits import MIB
from buckram.http.pieces import LOOK_S, PiecesAnswer, begun
from buckram.http.problems import HttpProblem
from buckram.objects.objects import DirectoryInfo, ObjectInfo, Objects
from buckram.objects.refusals import absent
from buckram.views.objects import object_json

T = TypeVar("T")
OBJECTS = "/v2/namespaces/{namespace}/objects"
OBJECT = OBJECTS + "/{object}"
COPY, RENAME = "/v2/namespaces/{namespace}/copy-object", "/v2/namespaces/{namespace}/rename-object"
BYTES = "application/octet-stream"
_SENT_BYTES = 4 * MIB
"""Of an object that is sent so much is in memory at once."""
_TRIES = 3
_YEAR_S = 366 * 86_400
ROW = schema.record(
    object=schema.TEXT,
    bytes=schema.COUNT,
    digest=schema.TEXT,
    version=schema.COUNT,
    time=schema.WHOLE,
    expires=schema.or_null(schema.WHOLE),
    metadata=schema.TEXTS,
)
_PLACED = schema.record("if_absent", source=schema.TEXT, name=schema.TEXT, if_absent=schema.YES_OR_NO)
_CONDITIONS = {
    "If-Match": "The ETag that the object has to have; 412 otherwise.",
    "If-None-Match": "`*`: no object of this name may be there; 412 otherwise.",
}
_READ_CONDITIONS = {
    "If-Match": "412 unless the object has this ETag.",
    "If-None-Match": "304 if the object has this ETag.",
}


class ObjectPages:
    """The objects of namespaces."""

    title = "Objects"

    def __init__(self, opened: OpenObjects, room: Room, limits: GatewayLimits) -> None:
        self._opened, self._room, self._limits = opened, room, limits

    def operations(self) -> Sequence[Operation]:
        return (*self._of_many(), *self._reading(), *self._changing(), *self._of_names())

    def _of_many(self) -> Sequence[Operation]:
        directory = Parameter(
            "directory", "Only what is right in this directory, with the directories there; empty: the outermost one."
        )
        listed = schema.record(
            objects=schema.array(ROW), directories=schema.array(schema.TEXT), next=schema.or_null(schema.TEXT)
        )
        return (
            Operation(
                "listObjects",
                "GET",
                OBJECTS,
                "List the objects that one may read, by their names.",
                "login",
                self._list,
                listed,
                parameters=(PREFIX, directory, AFTER, LIMIT),
            ),
        )

    def _reading(self) -> Sequence[Operation]:
        # HEAD comes first, because Starlette takes it for a GET otherwise.
        return (
            Operation(
                "headObject",
                "HEAD",
                OBJECT,
                f"Size, ETag, Buckram-Digest, {METADATA} of an object, as headers.",
                "read",
                self._head,
                {},
                headers=_READ_CONDITIONS,
                others={304: "The client has it."},
            ),
            Operation(
                "getObject",
                "GET",
                OBJECT,
                "The bytes of an object, or a range of them.",
                "read",
                self._get,
                {},
                headers={"Range": "Bytes from and to, as in bytes=0-99.", "If-Range": "An ETag.", **_READ_CONDITIONS},
                gives={BYTES: "the bytes"},
                others={206: "The range.", 304: "The client has it."},
            ),
        )

    def _changing(self) -> Sequence[Operation]:
        seconds = {**schema.WHOLE, "minimum": 1, "maximum": 100 * _YEAR_S}
        expires = Parameter("expires_s", "The object goes by itself after so many seconds.", seconds)
        gone = schema.record(object=schema.TEXT, deleted=schema.YES_OR_NO)
        metadata = 'What is to be kept with it: a JSON object of texts, such as {"author": "ann"}.'
        return (
            Operation(
                "putObject",
                "PUT",
                OBJECT,
                "Put an object as a whole or not at all; to replace one the permission `delete` is needed as well.",
                "append",
                self._put,
                ROW,
                201,
                parameters=(expires,),
                takes={BYTES: "the bytes; any other media type does as well"},
                headers={**_CONDITIONS, METADATA: metadata},
                streamed=True,
            ),
            Operation(
                "deleteObject",
                "DELETE",
                OBJECT,
                "Delete an object.",
                "delete",
                self._delete,
                gone,
                headers={"If-Match": _CONDITIONS["If-Match"]},
            ),
        )

    def _of_names(self) -> Sequence[Operation]:
        renamed = schema.record(source=schema.TEXT, object=schema.TEXT)
        return (
            Operation(
                "copyObject",
                "POST",
                COPY,
                "Put the object `source` under another name, too. Needs `read` on the one and `append` on the other.",
                "login",
                self._copy,
                ROW,
                201,
                body=_PLACED,
            ),
            Operation(
                "renameObject",
                "POST",
                RENAME,
                "Give the object or directory `source` another name. Needs `read` and `delete` on the one name and all "
                "below it, and `append` on the other.",
                "login",
                self._rename,
                renamed,
                body=_PLACED,
            ),
        )

    # -- listing ------------------------------------------------------------------------------------------

    async def _list(self, ask: Ask) -> dict[str, Any]:
        namespace, query = ask.path["namespace"], ask.query
        if query["directory"] is not None and query["prefix"]:
            raise bad_request("prefix and directory exclude each other: give one of them")
        ranges = ask.allowed.objects(namespace, "read")
        if not ranges:
            ask.require("read", object_name(namespace, query["prefix"]))
        async with self._found(namespace) as objects:
            if objects is None:
                return {"objects": [], "directories": [], "next": None}
            page = Page(query["after"] or "", query["limit"])
            if query["directory"] is None:
                found = await page.by_prefix(objects, ranges, query["prefix"])
            else:
                found = await page.of_directory(objects, ranges, query["directory"].strip("/"))
        return {
            "objects": [object_json(namespace, one) for one in found if isinstance(one, ObjectInfo)],
            "directories": [one.name for one in found if isinstance(one, DirectoryInfo)],
            "next": page.next,
        }

    # -- reading ------------------------------------------------------------------------------------------

    async def _head(self, ask: Ask) -> Response:
        async with self._there(ask) as objects:
            info = await objects.info(ask.object)
        if check_unchanged(ask.request.headers, info):
            return Response(b"", 304, headers_of(info))
        return Response(b"", 200, {**headers_of(info), "Content-Length": str(info.size)}, BYTES)

    async def _get(self, ask: Ask) -> Response:
        use = await self._opened.found(ask.path["namespace"])
        if use is None:
            raise _absent(ask)
        held = self._room.held()

        def done() -> None:
            held.release()
            use.give()

        try:
            held.add(_SENT_BYTES)
            answer = await self._answer(ask, use.item, done)
        except BaseException:
            done()
            raise
        if not isinstance(answer, PiecesAnswer):
            done()
        return answer

    async def _answer(self, ask: Ask, objects: Objects, done: Callable[[], None]) -> Response:
        """The bytes of one version: where another one comes in between, it begins again."""
        headers = ask.request.headers
        for left in reversed(range(_TRIES)):
            info = await objects.info(ask.object)
            if check_unchanged(headers, info):
                return Response(b"", 304, headers_of(info))
            part = range_of(headers, info)
            start, stop = part or (0, info.size)
            try:
                pieces = await begun(_pieces(objects, info, start, stop))
            except (ObjectChanged, NoSuchObject):
                if not left:
                    raise
                continue
            said = headers_of(info)
            if part is not None:
                said["Content-Range"] = f"bytes {start}-{stop - 1}/{info.size}"
            status = 200 if part is None else 206
            over = ask.watch("read", object_name(ask.path["namespace"], info.name))
            return PiecesAnswer(
                pieces,
                size=stop - start,
                media=BYTES,
                stuck_s=self._limits.stuck_s,
                status=status,
                headers=said,
                over=over,
                ended=done,
            )
        raise AssertionError("unreachable")

    # -- changing -----------------------------------------------------------------------------------------

    async def _put(self, ask: Ask) -> dict[str, Any]:
        name, namespace, headers = ask.object, ask.path["namespace"], ask.request.headers
        asked, metadata = condition_of(headers), metadata_of(headers)
        condition = self._permitted(ask, name, asked)
        use = await self._opened.take(namespace)
        try:
            async with asyncio.timeout(None) as deadline:
                info = await use.item.put(
                    name,
                    self._paced(ask, deadline),
                    if_absent=condition.if_absent,
                    if_match=condition.if_match,
                    metadata=metadata,
                    expires_s=ask.query["expires_s"],
                )
        except TimeoutError:
            raise self._unknown(f"object {namespace}/{name}") from None
        except (ObjectExists, ObjectChanged) as error:
            raise _refused(ask, name, asked, error, status=412) from None
        finally:
            use.give()
        return object_json(namespace, info)

    async def _paced(self, ask: Ask, deadline: asyncio.Timeout) -> AsyncIterator[bytes]:
        """The body. What the cluster does with a piece, and with all of it at the end, has a limit of time."""
        loop = asyncio.get_running_loop()
        over, look = ask.watch("append", object_name(ask.path["namespace"], ask.object)), loop.time() + LOOK_S
        async for piece in ask.pieces(self._limits.object_bytes):
            if loop.time() >= look:
                if why := over():
                    raise HttpProblem(403, "FORBIDDEN", f"{why}; nothing of the object was put")
                look = loop.time() + LOOK_S
            deadline.reschedule(loop.time() + self._limits.append_wait_s)
            yield piece
            deadline.reschedule(None)
        deadline.reschedule(loop.time() + self._limits.append_wait_s)

    async def _delete(self, ask: Ask) -> dict[str, Any]:
        condition = condition_of(ask.request.headers)
        if condition.if_absent:
            raise bad_request("If-None-Match: only what is there can be deleted; leave it out")
        async with self._there(ask) as objects:
            try:
                await self._in_time(ask, objects.delete(ask.object, if_match=condition.if_match))
            except ObjectChanged as error:
                raise _problem(error, 412) from None
        return {"object": f"{ask.path['namespace']}/{ask.object}", "deleted": True}

    async def _copy(self, ask: Ask) -> dict[str, Any]:
        namespace, (source, name, asked) = ask.path["namespace"], _placed(ask)
        ask.require("read", object_name(namespace, source))
        ask.require("append", object_name(namespace, name))
        condition = self._permitted(ask, name, asked)
        async with self._there(ask, source) as objects:
            try:
                info = await self._in_time(ask, objects.copy(source, name, if_absent=condition.if_absent))
            except ObjectExists as error:
                raise _refused(ask, name, asked, error, status=409) from None
        return object_json(namespace, info)

    async def _rename(self, ask: Ask) -> dict[str, Any]:
        namespace, (source, name, asked) = ask.path["namespace"], _placed(ask)
        for permission, place in (("read", source), ("delete", source), ("append", name)):
            # It may be a directory, whose objects all get other names.
            ask.require(permission, object_name(namespace, place))
            ask.require(permission, object_name(namespace, f"{place}/"))
        condition = self._permitted(ask, name, asked)
        async with self._there(ask, source) as objects:
            try:
                await self._in_time(ask, objects.rename(source, name, if_absent=condition.if_absent))
            except ObjectExists as error:
                raise _refused(ask, name, asked, error, status=409) from None
        return {"source": f"{namespace}/{source}", "object": f"{namespace}/{name}"}

    # -- inside -------------------------------------------------------------------------------------------

    def _permitted(self, ask: Ask, name: str, asked: Condition) -> Condition:
        """The condition under which this principal may put an object: replacing one is deleting it."""
        full = object_name(ask.path["namespace"], name)
        if "delete" in ask.allowed(full):
            return asked
        if asked.if_match is not None:
            ask.require("delete", full)
        return Condition(if_absent=True)

    @asynccontextmanager
    async def _found(self, namespace: str) -> AsyncIterator[Objects | None]:
        use = await self._opened.found(namespace)
        try:
            yield None if use is None else use.item
        finally:
            if use is not None:
                use.give()

    @asynccontextmanager
    async def _there(self, ask: Ask, name: str = "") -> AsyncIterator[Objects]:
        """The objects of the namespace. Raises NoSuchObject where there are none at all."""
        async with self._found(ask.path["namespace"]) as objects:
            if objects is None:
                raise _absent(ask, name)
            yield objects

    async def _in_time(self, ask: Ask, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._limits.append_wait_s):
                return await work
        except TimeoutError:
            raise self._unknown(f"the objects of {ask.path['namespace']}") from None

    def _unknown(self, what: str) -> HttpProblem:
        return HttpProblem(
            504,
            "OUTCOME_UNKNOWN",
            f"{what}: nothing was acknowledged within {self._limits.append_wait_s:g} s, and the change may still be "
            "made; look before it is sent again, or send it with a condition",
            headers={"Retry-After": "1"},
        )


async def _pieces(objects: Objects, info: ObjectInfo, start: int, stop: int) -> AsyncGenerator[bytes]:
    async for piece in objects.read(info.name, start=start, length=stop - start, version=info.version):
        yield piece


def _placed(ask: Ask) -> tuple[str, str, Condition]:
    body = ask.body
    source, name = check_object_name(body["source"]), check_object_name(body["name"])
    return source, name, Condition(if_absent=body.get("if_absent", False))


def _absent(ask: Ask, name: str = "") -> NoSuchObject:
    full = f"{ask.path['namespace']}/{name or ask.object}"
    return NoSuchObject(full, absent(full))


def _problem(error: ObjectExists | ObjectChanged, status: int) -> HttpProblem:
    return HttpProblem(status, code_of(error), str(error))


def _refused(ask: Ask, name: str, asked: Condition, error: ObjectExists | ObjectChanged, *, status: int) -> HttpProblem:
    """What is said of a condition that did not hold: 403 if it was not the request's own."""
    if asked:
        return _problem(error, status)
    full = object_name(ask.path["namespace"], name)
    return HttpProblem(
        403,
        "FORBIDDEN",
        f"{ask.principal} has no permission `delete` on {full}, which is there already, and putting it would replace "
        "it (`buckram acl grant` gives it): choose another name",
        value=full,
    )


__all__ = ["OBJECT", "OBJECTS", "ROW", "ObjectPages"]

"""Objects over HTTP: list, head, get, put, delete, copy, rename.

Every operation is checked by the names of its objects, so that a grant may cover a prefix of names. Replacing an object
needs the permission to delete it. A page of a list has only the objects that the client may see, which are found
without reading through the others. Not here: grants (`core/security/acl.py:Acl.objects`), objects that are put in parts
(`upload_pages.py`), deleting many (`removal_pages.py`), what these share (`object_calls.py`), sending the bytes
(`serve/http/streamed_answers.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

from starlette.responses import Response

from buckram.core.objects.rows import check_object_name
from buckram.core.security.object_names import NameRange, object_name
from buckram.errors import NoSuchObject, ObjectChanged, ObjectExists
from buckram.serve.gateway.objects.object_calls import (
    BYTES,
    EXPIRES,
    OBJECT,
    OBJECTS,
    PUT_HEADERS,
    ROW,
    ObjectCalls,
    no_object,
    permitted,
    problem_with,
    refused,
    require_all,
)
from buckram.serve.gateway.objects.object_headers import (
    METADATA,
    Precondition,
    check_unchanged,
    condition_of,
    headers_of,
    metadata_of,
    range_of,
)
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.gateway.shared.memory_budget import MemoryBudget
from buckram.serve.gateway.shared.operations import AFTER, LIMIT, PREFIX, Ask, Operation, Parameter
from buckram.serve.http.limits import MIB
from buckram.serve.http.streamed_answers import PiecesAnswer, begun
from buckram.serve.json_views.objects import object_json
from buckram.state.objects.objects import DirectoryInfo, ObjectInfo, Objects
from buckram.state.objects.refusals import NO_DIRECTORY

_PAGE = 1000
"""Entries of a directory read at a time for a client that may not see all of it."""
Entry = ObjectInfo | DirectoryInfo


class Page:
    """Makes one page: at most `limit` entries after `after`, the `next` of the page before, or empty for the first."""

    def __init__(self, after: str, limit: int) -> None:
        self._after, self._limit = after, limit
        self.next: str | None = None
        """The `after` of the next page; None if this was the last one."""

    async def by_prefix(self, objects: Objects, ranges: Sequence[NameRange], prefix: str) -> Sequence[Entry]:
        """Objects whose names begin with the prefix and are in one of the ranges, which are disjoint and in order."""
        found: list[ObjectInfo] = []
        for names in ranges:
            wanted = names.from_prefix(prefix)
            if wanted is None:
                continue
            found += await self._of_range(objects, wanted, 1 if wanted.exact else self._limit - len(found))
            if len(found) == self._limit:
                self.next = found[-1].name
                break
        return found

    async def _of_range(self, objects: Objects, wanted: NameRange, most: int) -> Sequence[ObjectInfo]:
        """The first names of a range, as many as that; a range with holes takes another look behind each."""
        found: list[ObjectInfo] = []
        after = self._after
        while len(found) < most:
            page = await objects.list(prefix=wanted.text, after=after, limit=most)
            found += [one for one in page if wanted.has(one.name)]
            if wanted.exact or len(page) < most:
                break
            after = wanted.behind(page[-1].name)
        return found[:most]

    async def of_directory(self, objects: Objects, ranges: Sequence[NameRange], directory: str) -> Sequence[Entry]:
        """Return the entries of a directory: objects in the ranges, and directories that contain such objects.

        Raises NoSuchObject for a directory that does not exist or of which the client may see nothing.
        """
        found: list[Entry] = []
        whole = any(names.has_all(f"{directory}/" if directory else "") for names in ranges)
        after, more, size = _marker(self._after), True, self._limit + 1 if whole else _PAGE
        while more and len(found) <= self._limit:
            page = await objects.entries(directory, after=after, limit=size)
            found += [one for one in page if whole or await _is_seen(objects, one, ranges)]
            after, more = (page[-1] if page else after), len(page) == size
        if not found and directory and not whole:
            raise NoSuchObject(f"{objects.namespace}/{directory}", NO_DIRECTORY)
        if len(found) > self._limit:
            found = found[: self._limit]
            self.next = _key(found[-1])
        return found


async def _is_seen(objects: Objects, entry: Entry, ranges: Sequence[NameRange]) -> bool:
    if isinstance(entry, ObjectInfo):
        return any(names.has(entry.name) for names in ranges)
    prefix = f"{entry.name}/"
    if any(names.has_all(prefix) for names in ranges):
        return True
    for wanted in (names.from_prefix(prefix) for names in ranges):
        if wanted is not None and any(map(wanted.has, await _first(objects, wanted.text))):
            return True
    return False


async def _first(objects: Objects, prefix: str) -> Sequence[str]:
    return [one.name for one in await objects.list(prefix=prefix, limit=1)]


def _key(entry: Entry) -> str:
    """Return the `after` that continues behind an entry of a directory."""
    return f"{entry.name}/" if isinstance(entry, DirectoryInfo) else entry.name


def _marker(after: str) -> Entry | None:
    if not after:
        return None
    if after.endswith("/"):
        return DirectoryInfo(after.rstrip("/"), 0, False, 0)
    return ObjectInfo(after, 0, 0, "", 0, None, {})


COPY, RENAME = "/v2/namespaces/{namespace}/copy-object", "/v2/namespaces/{namespace}/rename-object"
_SENT_BYTES = 4 * MIB
"""Bytes that an object takes in memory while it is sent."""
_TRIES = 3
_PLACED = schema.record("if_absent", source=schema.TEXT, name=schema.TEXT, if_absent=schema.YES_OR_NO)
_READ_CONDITIONS = {
    "If-Match": "412 unless the object has this ETag.",
    "If-None-Match": "304 if the object has this ETag.",
}


class ObjectPages:
    """The objects of namespaces."""

    title = "Objects"

    def __init__(self, calls: ObjectCalls, room: MemoryBudget, limits: GatewayLimits) -> None:
        self._calls, self._room, self._limits = calls, room, limits

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
                f"Get size, ETag, Buckram-Digest and {METADATA} of an object, as headers.",
                "read",
                self._head,
                {},
                headers=_READ_CONDITIONS,
                others={304: "The client has this version."},
            ),
            Operation(
                "getObject",
                "GET",
                OBJECT,
                "Get the bytes of an object, or a range of them.",
                "read",
                self._get,
                {},
                headers={"Range": "Bytes from and to, as in bytes=0-99.", "If-Range": "An ETag.", **_READ_CONDITIONS},
                gives={BYTES: "the bytes"},
                others={206: "The range.", 304: "The client has this version."},
            ),
        )

    def _changing(self) -> Sequence[Operation]:
        recursive = Parameter("recursive", "Delete a directory, too, with everything in it.", schema.YES_OR_NO, False)
        gone = schema.record(object=schema.TEXT, deleted=schema.YES_OR_NO)
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
                parameters=(EXPIRES,),
                takes={BYTES: "the bytes; any other media type is accepted, too"},
                headers=PUT_HEADERS,
                streamed=True,
                makes=True,
            ),
            Operation(
                "deleteObject",
                "DELETE",
                OBJECT,
                "Delete an object; or a directory in one step, which needs `delete` on all that is in it.",
                "delete",
                self._delete,
                gone,
                parameters=(recursive,),
                headers={"If-Match": PUT_HEADERS["If-Match"]},
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
            ask.require("read", object_name(namespace, query["prefix"]), of=namespace)
        async with self._calls.found(namespace) as objects:
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
        async with self._calls.there(ask) as objects:
            info = await objects.info(ask.object)
        if check_unchanged(ask.request.headers, info):
            return Response(b"", 304, headers_of(info))
        return Response(b"", 200, {**headers_of(info), "Content-Length": str(info.size)}, BYTES)

    async def _get(self, ask: Ask) -> Response:
        use = await self._calls.use(ask.path["namespace"])
        if use is None:
            raise no_object(ask)
        held = self._room.held(ask.holder)

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
        condition = permitted(ask, name, asked)

        async def put(objects: Objects, pieces: AsyncIterator[bytes]) -> ObjectInfo:
            return await objects.put(
                name,
                pieces,
                if_absent=condition.if_absent,
                if_match=condition.if_match,
                metadata=metadata,
                expires_s=ask.query["expires_s"],
            )

        async with self._calls.made(namespace) as objects:
            try:
                info = await self._calls.put_body(ask, objects, put)
            except (ObjectExists, ObjectChanged) as error:
                raise refused(ask, name, asked, error, status=412) from None
        return object_json(namespace, info)

    async def _delete(self, ask: Ask) -> dict[str, Any]:
        condition, recursive = condition_of(ask.request.headers), ask.query["recursive"]
        if condition.if_absent:
            raise bad_request("If-None-Match: only what is there can be deleted; leave it out")
        if recursive and condition:
            raise bad_request("If-Match and recursive exclude each other: a directory has no version")
        if recursive:
            require_all(ask, "delete", ask.object)
        async with self._calls.there(ask) as objects:
            if recursive:
                await self._calls.in_time(ask, objects.remove(ask.object, recursive=True))
            else:
                try:
                    await self._calls.in_time(ask, objects.delete(ask.object, if_match=condition.if_match))
                except ObjectChanged as error:
                    raise problem_with(error, 412) from None
        return {"object": f"{ask.path['namespace']}/{ask.object}", "deleted": True}

    async def _copy(self, ask: Ask) -> dict[str, Any]:
        namespace, (source, name, asked) = ask.path["namespace"], _placed(ask)
        ask.require("read", object_name(namespace, source))
        ask.require("append", object_name(namespace, name), making=True)
        condition = permitted(ask, name, asked)
        async with self._calls.there(ask, source) as objects:
            try:
                info = await self._calls.in_time(ask, objects.copy(source, name, if_absent=condition.if_absent))
            except ObjectExists as error:
                raise refused(ask, name, asked, error, status=409) from None
        return object_json(namespace, info)

    async def _rename(self, ask: Ask) -> dict[str, Any]:
        namespace, (source, name, asked) = ask.path["namespace"], _placed(ask)
        # It may be a directory, whose objects all get other names.
        require_all(ask, "read", source)
        require_all(ask, "delete", source)
        require_all(ask, "append", name, making=True)
        condition = permitted(ask, name, asked)
        async with self._calls.there(ask, source) as objects:
            try:
                await self._calls.in_time(ask, objects.rename(source, name, if_absent=condition.if_absent))
            except ObjectExists as error:
                raise refused(ask, name, asked, error, status=409) from None
        return {"source": f"{namespace}/{source}", "object": f"{namespace}/{name}"}


async def _pieces(objects: Objects, info: ObjectInfo, start: int, stop: int) -> AsyncGenerator[bytes]:
    async for piece in objects.read(info.name, start=start, length=stop - start, version=info.version):
        yield piece


def _placed(ask: Ask) -> tuple[str, str, Precondition]:
    body = ask.body
    source, name = check_object_name(body["source"]), check_object_name(body["name"])
    return source, name, Precondition(if_absent=body.get("if_absent", False))

"""Objects in parts over HTTP: begin an upload, put its parts from any number of clients, complete it, or give it up.

An upload is named by its object and its number together, so that what one may do with it is what one may do with the
object, and a part that was meant for another object is refused. Not here: objects that are put at once
(`object_pages.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from buckram.core.objects.index import MAX_PARTS
from buckram.core.security.object_names import object_name
from buckram.errors import NoSuchObject, ObjectChanged, ObjectExists
from buckram.serve.gateway.objects.object_calls import BYTES, EXPIRES, PUT_HEADERS, ROW, ObjectCalls, permitted, refused
from buckram.serve.gateway.objects.object_headers import condition_of, metadata_of
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.gateway.shared.operations import LIMIT, PREFIX, Ask, Operation, Parameter
from buckram.serve.json_views.objects import object_json, upload_json
from buckram.state.objects.objects import Objects
from buckram.state.objects.values import PartInfo, UploadInfo

UPLOADS = "/v2/namespaces/{namespace}/uploads"
UPLOAD = UPLOADS + "/{object}"
COMPLETE = "/v2/namespaces/{namespace}/complete-upload/{object}"
_LARGEST = (1 << 63) - 1
_UPLOAD = Parameter("upload", "The number of the upload.", {**schema.COUNT, "maximum": _LARGEST})
_PART = schema.record(part=schema.COUNT, bytes=schema.COUNT, digest=schema.TEXT)
_BEGUN = schema.record(upload=schema.COUNT, object=schema.TEXT)
_OPEN = schema.record(
    upload=schema.COUNT, object=schema.TEXT, time=schema.WHOLE, parts=schema.COUNT, bytes=schema.COUNT
)


class UploadPages:
    """Uploads of objects in parts."""

    title = "Uploads"

    def __init__(self, calls: ObjectCalls) -> None:
        self._calls = calls

    def operations(self) -> Sequence[Operation]:
        return (*self._looking(), *self._putting(), *self._ending())

    def _looking(self) -> Sequence[Operation]:
        after_upload = Parameter(
            "after", "Only uploads that began after this one: `next` of the page before.", schema.COUNT, 0
        )
        after_part = Parameter("after", "Only parts behind this one: `next` of the page before.", schema.WHOLE, -1)
        return (
            Operation(
                "listUploads",
                "GET",
                UPLOADS,
                "List the uploads that were neither completed nor given up, of objects that one may put.",
                "login",
                self._list,
                schema.record(uploads=schema.array(_OPEN), next=schema.or_null(schema.COUNT)),
                parameters=(PREFIX, after_upload, LIMIT),
            ),
            Operation(
                "listParts",
                "GET",
                UPLOAD,
                "List the parts of an upload that are there.",
                "append",
                self._parts,
                schema.record(parts=schema.array(_PART), next=schema.or_null(schema.COUNT)),
                parameters=(_UPLOAD, after_part, LIMIT),
            ),
        )

    def _putting(self) -> Sequence[Operation]:
        number = Parameter(
            "part", "Its place in the object, 0 for the first one.", {**schema.COUNT, "maximum": MAX_PARTS - 1}
        )
        return (
            Operation(
                "beginUpload",
                "POST",
                UPLOAD,
                "Begin an object that is put in parts. It is given up when it was not completed for a week.",
                "append",
                self._begin,
                _BEGUN,
                201,
                makes=True,
            ),
            Operation(
                "putPart",
                "PUT",
                UPLOAD,
                "Put a part of an upload as a whole or not at all, in the place of one of the same number.",
                "append",
                self._put,
                _PART,
                201,
                parameters=(_UPLOAD, number),
                takes={BYTES: "the bytes; any other media type is accepted, too"},
                streamed=True,
            ),
        )

    def _ending(self) -> Sequence[Operation]:
        parts = {**schema.COUNT, "minimum": 1, "maximum": MAX_PARTS}
        return (
            Operation(
                "completeUpload",
                "POST",
                COMPLETE,
                "Make the object of the parts 0 to `parts` - 1, in one step; to replace one needs `delete` as well.",
                "append",
                self._complete,
                ROW,
                201,
                parameters=(EXPIRES,),
                body=schema.record(upload=schema.COUNT, parts=parts),
                headers=PUT_HEADERS,
            ),
            Operation(
                "abortUpload",
                "DELETE",
                UPLOAD,
                "Abort an upload and free its space; one that has ended is left as it is.",
                "append",
                self._abort,
                schema.record(upload=schema.COUNT, object=schema.TEXT, aborted=schema.YES_OR_NO),
                parameters=(_UPLOAD,),
            ),
        )

    # -- looking ------------------------------------------------------------------------------------------

    async def _list(self, ask: Ask) -> dict[str, Any]:
        namespace, query = ask.path["namespace"], ask.query
        ranges = ask.allowed.objects(namespace, "append")
        if not ranges:
            ask.require("append", object_name(namespace, query["prefix"]), of=namespace)
        found: list[UploadInfo] = []
        async with self._calls.found(namespace) as objects:
            after, more = query["after"], objects is not None
            while objects is not None and more and len(found) < query["limit"]:
                page = await objects.uploads(prefix=query["prefix"], after=after, limit=query["limit"])
                found += [one for one in page if any(names.has(one.name) for names in ranges)]
                after, more = (page[-1].upload if page else after), bool(page)
        found = found[: query["limit"]]
        return {
            "uploads": [upload_json(namespace, one) for one in found],
            "next": found[-1].upload if len(found) == query["limit"] else None,
        }

    async def _parts(self, ask: Ask) -> dict[str, Any]:
        async with self._calls.there(ask) as objects:
            upload = await self._upload_of(ask, objects)
            found = await objects.parts(upload, after=ask.query["after"], limit=ask.query["limit"])
        more = len(found) == ask.query["limit"]
        return {"parts": [_part_json(one) for one in found], "next": found[-1].number if more else None}

    # -- putting ------------------------------------------------------------------------------------------

    async def _begin(self, ask: Ask) -> dict[str, Any]:
        async with self._calls.made(ask.path["namespace"]) as objects:
            upload = await self._calls.in_time(ask, objects.begin_upload(ask.object))
        return {"upload": upload, "object": f"{ask.path['namespace']}/{ask.object}"}

    async def _put(self, ask: Ask) -> dict[str, Any]:
        part = _given(ask, "part")
        async with self._calls.there(ask) as objects:
            upload = await self._upload_of(ask, objects)

            async def put(objects: Objects, pieces: AsyncIterator[bytes]) -> PartInfo:
                return await objects.new_part(upload, part, pieces)

            return _part_json(await self._calls.put_body(ask, objects, put))

    # -- ending -------------------------------------------------------------------------------------------

    async def _complete(self, ask: Ask) -> dict[str, Any]:
        name, headers = ask.object, ask.request.headers
        asked, metadata = condition_of(headers), metadata_of(headers)
        condition = permitted(ask, name, asked)
        async with self._calls.there(ask) as objects:
            await self._check_upload(ask, objects, ask.body["upload"])
            work = objects.complete_upload(
                ask.body["upload"],
                ask.body["parts"],
                if_absent=condition.if_absent,
                if_match=condition.if_match,
                metadata=metadata,
                expires_s=ask.query["expires_s"],
            )
            try:
                info = await self._calls.in_time(ask, work)
            except (ObjectExists, ObjectChanged) as error:
                raise refused(ask, name, asked, error, status=412) from None
        return object_json(ask.path["namespace"], info)

    async def _abort(self, ask: Ask) -> dict[str, Any]:
        upload = _given(ask, "upload")
        async with self._calls.there(ask) as objects:
            present = await objects.upload_name(upload)
            is_there = present is not None and ask.sees(object_name(ask.path["namespace"], present))
            if is_there:
                await self._check_upload(ask, objects, upload)
                await self._calls.in_time(ask, objects.abort_upload(upload))
        return {"upload": upload, "object": f"{ask.path['namespace']}/{ask.object}", "aborted": is_there}

    # -- inside -------------------------------------------------------------------------------------------

    async def _upload_of(self, ask: Ask, objects: Objects) -> int:
        """The number of the upload in the query, which is one of the object in the path."""
        upload = _given(ask, "upload")
        await self._check_upload(ask, objects, upload)
        return upload

    async def _check_upload(self, ask: Ask, objects: Objects, upload: int) -> None:
        if await objects.upload_name(upload) != ask.object:
            full = f"{ask.path['namespace']}/{ask.object}"
            raise NoSuchObject(
                full,
                f"has no upload {upload}: it was completed, aborted, expired after a week, or is of another object; "
                f"GET {UPLOADS.format(namespace=ask.path['namespace'])} lists those that are there",
            )


def _given(ask: Ask, name: str) -> int:
    """A number that the query has to have. Raises HttpProblem 400."""
    found: int | None = ask.query[name]
    if found is None:
        raise bad_request(f"{name} is missing: give it in the query, as in ?upload=7&part=0")
    return found


def _part_json(part: PartInfo) -> dict[str, Any]:
    return {"part": part.number, "bytes": part.size, "digest": part.digest}

"""WebHdfs: the requests of WebHDFS, as Hadoop's client sends them, on the files of a cluster.

CREATE and OPEN are answered with a redirect to the same gateway first, as that client needs; with `data=true` they
carry the bytes. What files cannot do here (append, truncate, links, attributes) is refused by name.
Not here: rules of files (`files.py`), who may do what (`access.py`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from buckram.cluster import Client
from buckram.core.security.required_permissions import Effect
from buckram.errors import BuckramError, InvariantViolation, ObjectExists
from buckram.runtime.process.handle_cache import HandleCache
from buckram.serve.http.body import body_pieces
from buckram.serve.http.limits import HttpLimits
from buckram.serve.http.problems import SAFE, UNKEPT, json_answer, json_media, redirect
from buckram.serve.http.refusal_audit import known_as
from buckram.serve.http.streamed_answers import PiecesAnswer, begun
from buckram.serve.webhdfs import access
from buckram.serve.webhdfs.access import RequestAuthenticator, Visitor
from buckram.serve.webhdfs.files import Files
from buckram.serve.webhdfs.limits import CLUSTER_KEY, TOKEN_PATH, FileLimits, files_url
from buckram.serve.webhdfs.paths import (
    PREFIX,
    SERVER_DEFAULTS,
    FilePath,
    block_locations,
    file_path,
    flag,
    namespace_status,
    requested_parameters,
    requested_path,
    root_status,
    status_of,
    summary_of,
    whole,
)
from buckram.serve.webhdfs.problems import RemoteProblem, illegal, problem_of
from buckram.serve.webhdfs.protocol_names import ABSENT, ACCESS, ILLEGAL, UNSUPPORTED, Repeat, repeat_of
from buckram.serve.webhdfs.transfer_limit import TransferLimit
from buckram.state.objects.objects import DirectoryInfo, ObjectInfo, Objects

_DATA = "data"
"""The parameter of the second step of CREATE and OPEN."""
_OCTETS = "application/octet-stream"
_MAKING = ("CREATE", "MKDIRS")
"""Operations that create something: lacking the permission is answered the same whether or not the namespace exists."""
_WHY_NOT = {
    "APPEND": "files are immutable, put as a whole: write a new one (Spark's state stores and logs do)",
    "TRUNCATE": "files are immutable, put as a whole: write a new one",
    "CONCAT": "files are immutable, put as a whole: write a new one",
    "CREATESYMLINK": "there are no links: use the path itself",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One request, after the checks that all operations share."""

    request: Request
    visitor: Visitor
    path: FilePath
    parameters: Mapping[str, str]

    @property
    def repeat(self) -> Repeat:
        """The marks of the request that tell whether it is a repetition."""
        return repeat_of(self.request.headers)


Handler = Callable[[Call], Awaitable[Response]]


class WebHdfs:
    """`routes` for an application. `shelf` has the objects of namespaces, which the gateway serves as such, too.

    `scheme`: http or https, as clients reach this gateway.
    """

    def __init__(
        self,
        client: Client,
        door: RequestAuthenticator,
        shelf: HandleCache[Objects],
        *,
        scheme: str = "http",
        limits: FileLimits | None = None,
    ) -> None:
        self._limits = limits or FileLimits()
        self._door, self._scheme = door, scheme
        self._clocks, self._cluster = client.services.clocks, client.services.identities.cluster
        self.files = Files(client, self._limits, shelf)
        self.transfers = TransferLimit(self._limits.transfers)
        self._form_limits = replace(HttpLimits(), body_bytes=self._limits.form_bytes)
        self._operations: dict[tuple[str, str], tuple[Effect | None, Handler]] = {
            ("GET", "GETFILESTATUS"): (Effect.LIST, self._status),
            ("GET", "GETFILELINKSTATUS"): (Effect.LIST, self._status),
            ("GET", "LISTSTATUS"): (Effect.LIST, self._list),
            ("GET", "LISTSTATUS_BATCH"): (Effect.LIST, self._list_batch),
            ("GET", "GETCONTENTSUMMARY"): (Effect.LIST, self._summary),
            ("GET", "OPEN"): (Effect.READ, self._open),
            ("GET", "GETFILEBLOCKLOCATIONS"): (Effect.LIST, self._locations),
            ("GET", "GET_BLOCK_LOCATIONS"): (Effect.LIST, self._locations),
            ("GET", "CHECKACCESS"): (Effect.LIST, self._check_access),
            ("GET", "GETSERVERDEFAULTS"): (None, self._defaults),
            ("GET", "GETHOMEDIRECTORY"): (None, self._home),
            ("GET", "GETDELEGATIONTOKEN"): (None, self._token),
            ("PUT", "RENEWDELEGATIONTOKEN"): (None, self._renew),
            ("PUT", "CANCELDELEGATIONTOKEN"): (None, self._cancel),
            ("PUT", "CREATE"): (Effect.ADD, self._create),
            ("PUT", "MKDIRS"): (Effect.ADD, self._mkdirs),
            ("PUT", "RENAME"): (Effect.ADD, self._rename),
            ("PUT", "SETPERMISSION"): (Effect.SET, self._accept),
            ("PUT", "SETOWNER"): (Effect.SET, self._accept),
            ("PUT", "SETTIMES"): (Effect.SET, self._accept),
            ("PUT", "SETREPLICATION"): (Effect.SET, self._set_replication),
            ("DELETE", "DELETE"): (Effect.REMOVE, self._delete),
        }

    def routes(self) -> Sequence[Route]:
        """The routes for an application."""
        methods = ["GET", "PUT", "POST", "DELETE"]
        return (
            Route(TOKEN_PATH, self._oauth2, methods=["POST"]),
            Route(PREFIX, self._serve, methods=methods),
            Route(PREFIX + "/{path:path}", self._serve, methods=methods),
        )

    async def _oauth2(self, request: Request) -> Response:
        return await self._door.token_endpoint(request, self._form_limits, self._clocks.now() / 1e6)

    async def _serve(self, request: Request) -> Response:
        parameters = requested_parameters(request)
        await self._door.meet(request, parameters)
        visitor = self._door.enter(request, parameters)
        known_as(request, visitor.principal)
        path = requested_path(request)
        name = parameters.get("op", "").upper()
        effect, handler = self._operation(request.method, name, parameters)
        if effect is not None and path.namespace:
            visitor.require(effect, path, below=effect is Effect.REMOVE, making=name in _MAKING)
        elif effect not in (None, Effect.LIST, Effect.READ) and name != "MKDIRS":
            raise RemoteProblem(ACCESS, "the root has namespaces only, which `buckram namespace create` makes")
        try:
            return await handler(Call(request, visitor, path, parameters))
        except InvariantViolation:
            raise
        except BuckramError as error:
            raise problem_of(await self.files.cause(path, error)) from error

    def _operation(self, method: str, name: str, parameters: Mapping[str, str]) -> tuple[Effect | None, Handler]:
        found = self._operations.get((method, name))
        if found is None:
            known = sorted(op for _, op in self._operations)
            why = _WHY_NOT.get(name, f"there are: {', '.join(known)}")
            if not name:
                raise illegal("op", "", f"the name of an operation; {why}")
            raise RemoteProblem(UNSUPPORTED, f"{method} op={name[:60]} is not supported here: {why}")
        return found

    # -- looking ------------------------------------------------------------------------------------------

    async def _status(self, call: Call) -> Response:
        if not call.path.namespace:
            found = root_status(len(await self._visible(call)))
        else:
            found = status_of(await self.files.status(call.path))
        return json_answer(call.request, {"FileStatus": found})

    async def _visible(self, call: Call) -> list[str]:
        return [name for name in await self.files.namespaces() if call.visitor.may(Effect.LIST, FilePath(name, ""))]

    async def _list(self, call: Call) -> Response:
        if not call.path.namespace:
            found = [namespace_status(name) for name in await self._visible(call)]
            return json_answer(call.request, {"FileStatuses": {"FileStatus": found}})
        info = await self.files.status(call.path)
        if isinstance(info, ObjectInfo):
            return json_answer(call.request, {"FileStatuses": {"FileStatus": [status_of(info)]}})
        end = self.transfers.begin(call.visitor.holder)
        try:
            pieces = await begun(self._listing(call))
        except BaseException:
            end()
            raise
        media = json_media(call.request)
        return PiecesAnswer(pieces, size=None, media=media, stuck_s=self._limits.stuck_s, ended=end)

    async def _listing(self, call: Call) -> AsyncGenerator[bytes, None]:
        before = b'{"FileStatuses":{"FileStatus":['
        async for page in self.files.pages(call.path):
            rows = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in _rows(call, page)]
            if not rows:
                continue
            yield before + ",".join(rows).encode()
            before = b","
        yield (b"" if before == b"," else before) + b"]}}"

    async def _list_batch(self, call: Call) -> Response:
        rest = 0
        if not call.path.namespace:
            rows = [namespace_status(name) for name in await self._visible(call)]
        else:
            info = await self.files.status(call.path)
            if isinstance(info, ObjectInfo):
                rows = [status_of(info)]
            else:
                after = call.parameters.get("startafter", "")
                page, rest = await self.files.page(call.path, after)
                # Where nothing of a page may be seen, clients would not know how to go on.
                while not (rows := _rows(call, page)) and rest:
                    page, rest = await self.files.page(call.path, page[-1].name.rpartition("/")[2])
        listing = {"partialListing": {"FileStatuses": {"FileStatus": rows}}, "remainingEntries": rest}
        return json_answer(call.request, {"DirectoryListing": listing})

    async def _summary(self, call: Call) -> Response:
        _below_root(call)
        found = await self.files.summary(call.path, call.visitor.seen_in(call.path.namespace))
        return json_answer(call.request, {"ContentSummary": summary_of(*found)})

    async def _locations(self, call: Call) -> Response:
        info = await self.files.file(call.path)
        return json_answer(call.request, block_locations(info.size))

    async def _check_access(self, call: Call) -> Response:
        _below_root(call)
        await self.files.status(call.path)
        if "w" in call.parameters.get("fsaction", ""):
            call.visitor.require(Effect.ADD, call.path)
        return Response(b"", 200)

    async def _defaults(self, call: Call) -> Response:
        return json_answer(call.request, {"FsServerDefaults": SERVER_DEFAULTS, CLUSTER_KEY: self._cluster})

    async def _home(self, call: Call) -> Response:
        return json_answer(call.request, {"Path": "/default"})

    async def _open(self, call: Call) -> Response:
        start, length = whole(call.parameters, "offset") or 0, whole(call.parameters, "length")
        if not flag(call.parameters, _DATA):
            _check_offset(call, await self.files.file(call.path), start)
            return self._redirect(call)
        end, use = self.transfers.begin(call.visitor.holder), None
        try:
            use = await self.files.take(call.path)
            info, pieces = await use.item.reading(call.path.name, start=start, length=length)
            _check_offset(call, info, start)
            pieces = await begun(pieces)
        except BaseException:
            end()
            if use is not None:
                use.give()
            raise
        size = info.size - start if length is None else min(length, info.size - start)

        def ended() -> None:
            end()
            use.give()

        return PiecesAnswer(
            pieces,
            size=size,
            media=_OCTETS,
            stuck_s=self._limits.stuck_s,
            headers={"ETag": f'"{info.version}"', **SAFE},
            ended=ended,
        )

    # -- changing -----------------------------------------------------------------------------------------

    async def _create(self, call: Call) -> Response:
        asked = flag(call.parameters, "overwrite")
        overwrite = asked and call.visitor.may(Effect.REPLACE, call.path)
        try:
            if not flag(call.parameters, _DATA):
                await self.files.check_new(call.path, overwrite)
                return self._redirect(call)
            with self.transfers.one(call.visitor.holder):
                await self.files.create(call.path, body_pieces(call.request), overwrite, call.repeat.attempt)
        except ObjectExists as error:
            if overwrite == asked:
                raise
            why = f"{call.path} is there already, and creating it would replace it"
            raise call.visitor.refused(Effect.REPLACE, call.path, why) from error
        place = files_url(f"{self._scheme}://{call.request.headers.get('host', '')}{call.path}")
        return Response(b"", 201, {"Location": place})

    async def _mkdirs(self, call: Call) -> Response:
        await self.files.mkdirs(call.path)
        return json_answer(call.request, {"boolean": True})

    async def _rename(self, call: Call) -> Response:
        text = call.parameters.get("destination", "")
        if not text:
            raise illegal("destination", "", "the new path, such as /default/orders")
        target = file_path(text)
        for effect in (Effect.READ, Effect.REMOVE):  # Its old name is there no more.
            call.visitor.require(effect, call.path, below=True)
        if target.namespace:
            call.visitor.require(Effect.ADD, target, below=True, making=True)
        if "renameoptions" not in call.parameters:
            done = await self.files.rename_into(call.path, target, repeated=call.repeat.repeated)
            return json_answer(call.request, {"boolean": done})
        options = {one.strip().upper() for one in call.parameters["renameoptions"].split(",")} - {"", "NONE"}
        if not options <= {"OVERWRITE", "TO_TRASH"}:
            raise illegal("renameoptions", call.parameters["renameoptions"], "NONE or OVERWRITE")
        if "OVERWRITE" in options and target.namespace:
            call.visitor.require(Effect.REPLACE, target)
        await self.files.rename(call.path, target, replace="OVERWRITE" in options, repeated=call.repeat.repeated)
        return Response(b"", 200, media_type=_OCTETS)

    async def _delete(self, call: Call) -> Response:
        recursive = flag(call.parameters, "recursive")
        done = await self.files.delete(call.path, recursive, repeated=call.repeat.repeated)
        return json_answer(call.request, {"boolean": done})

    async def _accept(self, call: Call) -> Response:
        """Accept a change of owner, permissions or times without effect: those are the namespace's, but clients need
        success.
        """
        await self.files.status(call.path)
        return Response(b"", 200, media_type=_OCTETS)

    async def _set_replication(self, call: Call) -> Response:
        await self.files.file(call.path)
        return json_answer(call.request, {"boolean": True})

    # -- tokens -------------------------------------------------------------------------------------------

    async def _token(self, call: Call) -> Response:
        visitor = call.visitor
        if visitor.verified is None:
            return json_answer(call.request, {"Token": None})
        text = access.encode(visitor.token, visitor.verified.subject, call.parameters.get("service", ""))
        return json_answer(call.request, {"Token": {"urlString": text}}, headers=UNKEPT)

    async def _renew(self, call: Call) -> Response:
        """Answer when the token expires; renewing a token of the cluster changes nothing."""
        verified = call.visitor.verified
        if verified is None:
            raise RemoteProblem(ILLEGAL, "this gateway asks for no tokens, so there is none to renew")
        return json_answer(call.request, {"long": int(verified.expires_s * 1000)})

    async def _cancel(self, call: Call) -> Response:
        """The token of the cluster goes on: others may use it. `buckram token revoke` ends it."""
        return Response(b"", 200, media_type=_OCTETS)

    def _redirect(self, call: Call) -> Response:
        request = call.request
        path = request.scope["raw_path"].partition(b"?")[0].decode("ascii")
        host = request.headers.get("host", "")
        url = f"{self._scheme}://{host}{path}?{request.url.query}&{_DATA}=true"
        if flag(call.parameters, "noredirect"):
            return json_answer(request, {"Location": url})
        return redirect(url)


def _rows(call: Call, page: Sequence[ObjectInfo | DirectoryInfo]) -> list[dict[str, Any]]:
    sees = call.visitor.seen_in(call.path.namespace)
    return [status_of(one, one.name.rpartition("/")[2]) for one in page if sees(one.name)]


def _check_offset(call: Call, info: ObjectInfo, start: int) -> None:
    if start > info.size:
        raise illegal("offset", str(start), f"at most {info.size}, the size of {call.path}")


def _below_root(call: Call) -> None:
    if not call.path.namespace:
        raise RemoteProblem(ABSENT, f"op={call.parameters['op'][:60]} needs a path below the root, such as /default")

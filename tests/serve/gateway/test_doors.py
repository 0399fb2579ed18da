"""What one may do is decided by its effect, whichever door one comes through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import combinations

import pytest
from tests.serve.gateway.kit import Api, serving
from tests.serve.gateway.shared.test_authentication import Guarded, guarded
from tests.serve.webhdfs.kit import Remote, Web

from buckram.cluster import Client
from buckram.core.security.acl import PERMISSIONS
from buckram.core.security.required_permissions import NEEDS, Effect, lacking

L, R, A, W, X = Effect.LIST, Effect.READ, Effect.ADD, Effect.REPLACE, Effect.REMOVE
T, S, F, M, N = Effect.TRIM, Effect.SET, Effect.FOLLOW, Effect.MAKE, Effect.ADMINISTER
BY_PATH: dict[str, Effect] = {
    **dict.fromkeys(("readRecords", "getRecord", "tailRecords", "headObject", "getObject"), R),
    **dict.fromkeys(("showStream", "listStreams", "listSegments", "listCursors", "showNamespace"), L),
    **dict.fromkeys(("listDatabases", "showDatabase"), L),
    **dict.fromkeys(("backupDatabase", "backupReplica"), R),
    **dict.fromkeys(("moveCursor", "deleteCursor"), F),
    **dict.fromkeys(("appendRecords", "putObject", "fillDatabase"), A),
    **dict.fromkeys(("beginUpload", "putPart", "listParts", "completeUpload", "abortUpload"), A),
    **dict.fromkeys(("setStream", "endStream", "sealStream"), S),
    **dict.fromkeys(("runPipeline", "openCursor", "runPipelineV2", "executeStatement", "executeBatch"), R),
    "truncateStream": T,
    "createStream": M,
    "loadDatabase": M,
    "deleteStream": X,
    "deleteObject": X,
    "setNamespace": N,
}
"""The least effect of each operation whose path says what it is about. Statements of SQL that change something need
`append` as well, which they are asked for by what they do (`tests/serve/hrana/test_database_access.py`)."""
BY_HANDLER = {
    "copyObject",
    "renameObject",
    "listObjects",
    "deleteObjects",
    "listUploads",
    *("listLedgers", "createLedger", "showLedger", "appendEntries", "readEntries", "closeLedger", "recoverLedger"),
    "deleteLedger",
    *("listNamespaces", "showUsage", "showJob", "cancelJob"),
}
"""Those that need to look into the body, or at the owner of a ledger, to know what they are about."""
OF_ALL = {"showStatus", "listBookies", "listGateways", "showSession"}
"""What everybody sees who has logged in; of the status only what concerns him."""
OF_OPERATORS = {"showHistory", "showBookie", "showReplication"}
"""What only those see who may see the whole cluster."""
MAKING = {"createStream", "loadDatabase", "putObject", "beginUpload"}
"""What makes something new: whoever may do nothing there is refused (403); anything else is not there for him (404)."""
NOBODY = {"health", "logIn", "logOut", "showHranaVersion"}


async def test_each_operation_of_the_gateway_has_an_effect(client: Client) -> None:
    async with serving(client) as gateway:
        operations = [one for part in gateway.parts for one in part.operations()]
    for one in operations:
        if one.name in BY_PATH:
            assert lacking(BY_PATH[one.name], {one.needs}) == [], one.name
        elif one.needs == "login":
            assert one.name in BY_HANDLER | OF_ALL, f"{one.name}: what does it do to what? Give it a row here"
        elif one.needs == "operator":
            assert one.name in OF_OPERATORS, one.name
        else:
            assert one.needs == "administrator" or one.name in NOBODY, one.name
    assert {one.name for one in operations if one.makes} == MAKING
    assert {*BY_PATH, *BY_HANDLER, *OF_ALL, *OF_OPERATORS} <= {one.name for one in operations}
    assert set(NEEDS) == set(Effect)


# -- objects, through the gateway's own paths and through those of Hadoop ----------------------------------------------


class Door:
    """One principal's way to the objects of namespace `shop`."""

    def __init__(self, api: Api, web: Web, who: dict[str, str]) -> None:
        self._api, self._web, self._who = api, web, who

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, who: dict[str, str]) -> AsyncIterator[Door]:
        api, web = await Api.to(url), await Web.to(url, **who)
        yield cls(api, web, who)
        await api.raw.close()
        await web.close()

    async def v2(self, head: str, body: bytes | dict[str, object] = b"") -> int:
        answer = await self._api.ask(head.replace("~", "/v2/namespaces/shop"), body, **self._who)
        return answer.status

    async def files(self, call: Awaitable[object]) -> int:
        try:
            await call
        except Remote as error:
            return error.status
        return 200

    def ways(self) -> dict[str, tuple[tuple[Effect, ...], Callable[[], Awaitable[int]]]]:
        """What is tried, by its name: the effects that it has, and the call. It gives the status of the answer."""
        v2, web, files = self.v2, self._web, self.files
        octets = b"new"
        placed = {"source": "there", "name": "elsewhere"}
        onto = {"source": "there", "name": "other"}
        return {
            "v2 list": ((L,), lambda: self._listed()),
            "v2 read": ((R,), lambda: v2("GET ~/objects/there")),
            "v2 add": ((A,), lambda: v2("PUT ~/objects/new", octets)),
            "v2 replace": ((W,), lambda: v2("PUT ~/objects/there", octets)),
            "v2 remove": ((X,), lambda: v2("DELETE ~/objects/there")),
            "v2 copy": ((R, A), lambda: v2("POST ~/copy-object", placed)),
            "v2 copy onto": ((R, W), lambda: v2("POST ~/copy-object", onto)),
            "v2 rename": ((R, X, A), lambda: v2("POST ~/rename-object", placed)),
            "v2 rename onto": ((R, X, W), lambda: v2("POST ~/rename-object", onto)),
            "files list": ((L,), lambda: files(web.list("/shop"))),
            "files status": ((L,), lambda: files(web.status("/shop/there"))),
            "files read": ((R,), lambda: files(web.open("/shop/there"))),
            "files add": ((A,), lambda: files(web.create("/shop/new", octets))),
            "files directory": ((A,), lambda: files(web.mkdirs("/shop/folder"))),
            "files replace": ((W,), lambda: files(web.create("/shop/there", octets))),
            "files remove": ((X,), lambda: files(web.delete("/shop/there"))),
            "files rename": ((R, X, A), lambda: files(web.rename("/shop/there", "/shop/elsewhere"))),
            "files rename onto": ((R, X, W), lambda: files(web.rename2("/shop/there", "/shop/other", "OVERWRITE"))),
        }

    async def _listed(self) -> int:
        """A list has what one may see."""
        answer = await self._api.ask("GET /v2/namespaces/shop/objects", **self._who)
        assert answer.status != 200 or answer.value["objects"]
        return answer.status


@pytest.fixture
async def place(client: Client) -> AsyncIterator[Guarded]:
    async with guarded(client) as place:
        yield place


NAMES = (
    *("v2 list", "v2 read", "v2 add", "v2 replace", "v2 remove", "v2 copy", "v2 copy onto", "v2 rename"),
    *("v2 rename onto", "files list", "files status", "files read", "files add", "files directory", "files replace"),
    *("files remove", "files rename", "files rename onto"),
)
MADE = {"v2 add", "v2 replace", "files add", "files directory", "files replace"}
SUBSETS = [set(some) for size in range(5) for some in combinations(("read", "append", "delete", "create"), size)]


@pytest.mark.parametrize("granted", SUBSETS, ids=lambda some: "+".join(sorted(some)) or "nothing")
async def test_objects(place: Guarded, granted: set[str]) -> None:
    assert granted <= set(PERMISSIONS)
    who, root = await place.bearer("ann"), await place.bearer("root", "admin")
    if granted:
        await place.grant("token:ann", "shop", *granted)
    operator = await Api.to(place.gateway.url)
    for name in NAMES:
        for old in ("new", "elsewhere", "folder"):
            await operator.ask(f"DELETE /v2/namespaces/shop/objects/{old}?recursive=true", **root)
        for kept in ("there", "other"):
            await operator.value(f"PUT /v2/namespaces/shop/objects/{kept}", b"old", status=201, **root)
        async with Door.opened(place.gateway.url, who) as door:
            assert set(door.ways()) == set(NAMES)
            effects, call = door.ways()[name]
            allowed = all(not lacking(effect, granted) for effect in effects)
            # Who may do nothing at all there is told what he is told of what is not there, unless he would make it.
            refused = 403 if granted or name in MADE else 404
            status = await call()
            assert status < 300 if allowed else status == refused, f"{name} with {sorted(granted)}: {status}"
    await operator.raw.close()

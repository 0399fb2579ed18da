"""A bookie that tells of itself what a test has it tell, for states that a real one gets into by accident only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tests.support.scripted_bookie import ScriptedBookie

from buckram.cluster import Client
from buckram.core.cluster.bookie_report import BookieReport
from buckram.core.cluster.cookie import Cookie, encode_dirs, serialise_cookie
from buckram.core.wire.introduction import INCARNATION_PROPERTY
from buckram.core.wire.messages import BookieInfoReply, GetBookieInfo, Trouble
from buckram.core.wire.server_protocol import Incoming, encode_reply
from buckram.errors import Code
from buckram.healing.operations.decommission import forget
from buckram.metadata.tree.memory import MemoryTree
from buckram.metadata.uri import open_store
from buckram.runtime.production import production_runtime
from buckram.types import BookieAddress, BookieInfo

TB = 10**12
OWN = {INCARNATION_PROPERTY: "its-own"}


class TellingBookie(ScriptedBookie):
    """`told` is its answer to whoever asks how it is."""

    def __init__(self, name: str) -> None:
        super().__init__(name, production_runtime(), MemoryTree())
        self.told = BookieInfoReply(Code.OK, TB, TB)

    async def register(self, *, readonly: bool = False) -> None:
        """`telling` does that: it knows the cluster."""

    def say(
        self,
        report: BookieReport | bytes | None,
        troubles: tuple[Trouble, ...] = (),
        *,
        free: int = TB,
        total: int = TB,
    ) -> None:
        said = report.encode() if isinstance(report, BookieReport) else report
        self.told = BookieInfoReply(Code.OK, total, free, troubles=troubles, report=said)

    def answer(self, item: Incoming) -> bytes:
        request, context = item
        return encode_reply(context, self.told) if isinstance(request, GetBookieInfo) else super().answer(item)


@asynccontextmanager
async def telling(
    client: Client,
    name: str = "teller",
    *,
    member: bool = True,
    registered: bool = True,
    readonly: bool = False,
    properties: Mapping[str, str] = OWN,
) -> AsyncIterator[TellingBookie]:
    """One more bookie of a client's cluster, with a cookie as a `member`. An empty name is that of its address."""
    store = client.services.store
    sessions = await open_store(store.uri)
    bookie = TellingBookie(name)
    await bookie.start()
    bookie.name = name or f"127.0.0.1:{bookie.port}"
    try:
        if member:
            cookie = Cookie(bookie.name, "/none", encode_dirs(["/none"]), await store.instance_id())
            await store.write_cookie(bookie.name, serialise_cookie(cookie), None)
        if registered:
            info = BookieInfo(bookie.name, BookieAddress("127.0.0.1", bookie.port), dict(properties))
            await sessions.register(info, readonly=readonly)
        yield bookie
    finally:
        await sessions.close()
        await bookie.kill()
        await forget(store, bookie.name)

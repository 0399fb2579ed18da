"""The gateway of `buckram up`: a thread beside the bookies, with the console at an address of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING

from buckram.cli.gateway import check_installed, history_places
from buckram.cli.options import oidc_issuer
from buckram.cli.output import remark
from buckram.cli.up_threads import ClusterThread
from buckram.errors import ConfigError

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.http.server import Listening


@contextmanager
def running_gateway(uri: str, port: int, *, tokens: bool) -> Iterator[str | None]:
    """Run a gateway meanwhile, and give its URL; None where it cannot run, which is said. Port 0 is any."""
    try:
        check_installed()
        from buckram.http.server import bind, url_of

        listening = bind("127.0.0.1", port, "the gateway's address")
    except ConfigError as error:
        remark(f"there is no gateway and no console: {error}")
        yield None
        return
    with listening, _thread(uri, listening, url_of(listening), tokens):
        yield url_of(listening)


def _thread(uri: str, listening: Listening, url: str, tokens: bool) -> ClusterThread:
    async def serve(client: Client, thread: ClusterThread) -> None:
        from buckram.gateway.server import Gateway
        from buckram.http.tokens import ClusterTokens

        async with AsyncExitStack() as stack:
            store, clocks = client.services.store, client.services.clocks
            known = await stack.enter_async_context(ClusterTokens(store, clocks, oidc_issuer())) if tokens else None
            places = history_places(tokens)
            gateway = Gateway(client, listening.dup(), advertise=url, tokens=known, history=places)
            await stack.enter_async_context(gateway)
            await asyncio.Event().wait()

    return ClusterThread("gateway", uri, serve, otherwise="run one: `buckram gateway`")


__all__ = ["running_gateway"]

"""The gateway of `buckram up`: a thread beside the bookies, with the console at an address of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING

from buckram.cli.gateway import check_installed, history_places
from buckram.cli.shared.options import oidc_issuer
from buckram.cli.shared.output import remark
from buckram.cli.up.background_threads import ClusterThread
from buckram.config import TlsConfig
from buckram.errors import ConfigError

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.serve.http.server import Listening


@contextmanager
def running_gateway(uri: str, port: int, *, tls: TlsConfig | None) -> Iterator[str | None]:
    """Run a gateway during the block; yield its URL, or None if it cannot run, which is reported. Port 0 is any. With
    `tls` it requires tokens, too."""
    try:
        check_installed()
        from buckram.serve.http.server import bind, url_of

        listening = bind("127.0.0.1", port, "the gateway's address")
    except ConfigError as error:
        remark(f"there is no gateway and no console: {error}")
        yield None
        return
    url = url_of(listening, "http" if tls is None else "https")
    with listening, _thread(uri, listening, url, tls):
        yield url


def _thread(uri: str, listening: Listening, url: str, tls: TlsConfig | None) -> ClusterThread:
    async def serve(client: Client, thread: ClusterThread) -> None:
        from buckram.serve.gateway.server import Gateway
        from buckram.serve.http.tokens import ClusterTokens

        async with AsyncExitStack() as stack:
            store, clocks = client.services.store, client.services.clocks
            known = None if tls is None else ClusterTokens(store, clocks, oidc_issuer())
            if known is not None:
                await stack.enter_async_context(known)
            places = history_places(tls is not None)
            gateway = Gateway(client, listening.dup(), advertise=url, tokens=known, tls=tls, history=places)
            await stack.enter_async_context(gateway)
            await asyncio.Event().wait()

    return ClusterThread("gateway", uri, serve, otherwise="run one: `buckram gateway`")


__all__ = ["running_gateway"]

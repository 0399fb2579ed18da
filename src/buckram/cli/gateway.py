"""`buckram gateway`: streams, ledgers and the administration of a cluster over HTTP, and the web console."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import click

from buckram.cli.logs import service_log
from buckram.cli.options import connected, json_option, metadata_option, run_async
from buckram.cli.output import emit
from buckram.cli.serving import Reach, serving_options, stop_event
from buckram.disk.descriptors import raise_limit
from buckram.errors import ConfigError, InvalidArgument


@click.command()
@serving_options
@click.option("--open", "open_to_all", is_flag=True, help="Without --tokens: let other machines change things, too.")
@metadata_option
@json_option
def gateway(open_to_all: bool, uri: str | None, as_json: bool, **reached: Any) -> None:
    """Serve the cluster over HTTP until SIGINT or SIGTERM: streams and ledgers for any language, and a web console.

    Any number of gateways may run; a client is sent on to the one that writes its stream. Without --tokens whoever is
    on this machine may do everything, and others may read. With it a client sends a token (`buckram token create`) as
    `Authorization: Bearer TOKEN`, and grants decide (`buckram acl grant`); in a browser one logs in with it.

    \b
    Examples:
      buckram gateway --port 8080
      buckram gateway --host 0.0.0.0 --port 8443 --tokens --tls-cert gateway.pem --tls-key gateway.key
    """
    reach = Reach.of(reached)
    if open_to_all and reach.tokens:
        raise InvalidArgument("--open and --tokens exclude each other: with tokens grants decide who may change what")
    raise_limit()
    with service_log("warning"):
        run_async(_serve(reach, open_to_all, uri, as_json))


async def _serve(reach: Reach, open_to_all: bool, uri: str | None, as_json: bool) -> None:
    check_installed()
    from buckram.gateway.server import Gateway
    from buckram.http.server import bind
    from buckram.http.tokens import ClusterTokens
    from buckram.net.runtime import production_runtime

    stop = stop_event()
    with bind(reach.host, reach.port, "--host and --port") as listening:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(connected(uri, service="buckram-gateway"))
            tokens = ClusterTokens(client.services.store, production_runtime().clock) if reach.tokens else None
            if tokens is not None:
                await stack.enter_async_context(tokens)
            server = await stack.enter_async_context(
                Gateway(
                    client,
                    listening,
                    advertise=reach.advertise,
                    tokens=tokens,
                    open_to_all=open_to_all,
                    hosts=reach.hosts,
                    pages=reach.pages,
                    tls=reach.tls,
                )
            )
            if as_json:
                emit({"url": server.url, "webhdfs": server.url.partition("://")[2]})
            else:
                print(f"{server.url} serves the cluster and its console", flush=True)
            await stop.wait()


def check_installed() -> None:
    """Raise ConfigError without the extra `serve`."""
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise ConfigError(f"the gateway needs more ({error}): pip install 'buckram[serve]'") from None
    del starlette, uvicorn


__all__ = ["check_installed", "gateway"]

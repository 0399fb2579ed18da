"""`buckram gateway`: streams, ledgers and the administration of a cluster over HTTP, and the web console."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.shared.options import cluster_options, connected, oidc_issuer, run_async
from buckram.cli.shared.output import emit
from buckram.cli.shared.serving import (
    ChosenLimits,
    ServerAddress,
    leave_start_to_itself,
    limit_option,
    service_log,
    serving_options,
    stop_event,
)
from buckram.cli.stream.janitor import janitor_places
from buckram.errors import ConfigError, InvalidArgument
from buckram.extras import needs
from buckram.runtime.disk.descriptors import raise_limit
from buckram.serve.gateway.shared.limits import HTTP_LIMITS, GatewayLimits
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.http.limits import HttpLimits
from buckram.serve.webhdfs.limits import files_url
from buckram.state.db.settings import DatabaseLimits

if TYPE_CHECKING:
    from buckram.core.streams.external.history import OffloadPlaces


@click.command()
@serving_options
@limit_option(GatewayLimits, HranaLimits, DatabaseLimits, HttpLimits)
@click.option("--open", "open_to_all", is_flag=True, help="Without --tokens, let other machines change things, too.")
@cluster_options
def gateway(open_to_all: bool, limits: tuple[str, ...], uri: str | None, as_json: bool, **reached: Any) -> None:
    """Serve the cluster over HTTP, with a web console.

    Streams, ledgers, objects and databases are there for any language, until SIGINT or SIGTERM.

    Any number of gateways may run; a client is sent on to the one that writes its stream. Without --tokens every
    client on this machine may do everything, and others may read. With it a client sends a token (`buckram token
    create`) as `Authorization: Bearer TOKEN`, and grants decide (`buckram acl grant`); in a browser it is the login.

    \b
    Examples:
      buckram gateway --port 8080
      buckram gateway --host 10.0.0.7 --port 8443 --tokens --tls-cert gateway.pem --tls-key gateway.key
    """
    reach = ServerAddress.of(reached)
    if open_to_all and reach.tokens:
        raise InvalidArgument("--open and --tokens exclude each other: with tokens grants decide who may change what")
    chosen = ChosenLimits(limits).of(GatewayLimits(), HranaLimits(), DatabaseLimits(), HTTP_LIMITS)
    raise_limit()
    with service_log("warning"):
        run_async(_serve(reach, open_to_all, chosen, uri, as_json))


async def _serve(
    reach: ServerAddress, open_to_all: bool, limits: Sequence[Any], uri: str | None, as_json: bool
) -> None:
    check_installed()
    from buckram.serve.gateway.server import Gateway
    from buckram.serve.http.server import bind
    from buckram.serve.http.tokens import ClusterTokens

    stop = stop_event()
    of_gateway, of_streams, of_databases, of_http = limits
    with bind(reach.host, reach.port, "--host and --port") as listening:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(connected(uri, service="buckram-gateway"))
            tokens = (
                ClusterTokens(client.services.store, client.services.clocks, oidc_issuer()) if reach.tokens else None
            )
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
                    ca=reach.ca,
                    history=history_places(reach.tokens),
                    limits=of_gateway,
                    http_limits=of_http,
                    hrana_limits=of_streams,
                    database_limits=of_databases,
                )
            )
            if as_json:
                emit({"url": server.url, "files": files_url(server.url), "webhdfs": server.url.partition("://")[2]})
            else:
                print(f"{server.url} serves the cluster and its console", flush=True)
            leave_start_to_itself()
            await stop.wait()


def history_places(judged: bool) -> OffloadPlaces | None:
    """Where the gateway may read history: the places of janitors, and without them nowhere if grants are `judged`."""
    places = janitor_places()[1]
    return places if judged or places.listed else None


def check_installed() -> None:
    """Raise ConfigError without the extra `serve`."""
    try:
        import starlette
        import uvicorn
    except ImportError:
        raise ConfigError(needs("the gateway", "serve")) from None
    del starlette, uvicorn

"""`buckram db serve`: databases over HTTP, for the clients of libSQL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import click

from buckram.cli.shared import completion, values
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
from buckram.serve.hrana.limits import HTTP_LIMITS, HranaLimits
from buckram.serve.http.limits import HttpLimits
from buckram.state.db.settings import DatabaseLimits


@click.command("serve")
@click.argument("names", nargs=-1, required=True, metavar="NAME|NAMESPACE/...", shell_complete=completion.namespaces)
@click.option(
    "--idle", default="5m", show_default=True, help="Time after which an unused database of a namespace is closed."
)
@limit_option(DatabaseLimits, HranaLimits, HttpLimits)
@serving_options
@cluster_options
def serve(
    names: tuple[str, ...],
    idle: str,
    limits: tuple[str, ...],
    uri: str | None,
    as_json: bool,
    **reached: Any,
) -> None:
    """Serve databases over HTTP by libSQL's protocol (Hrana). It ends with SIGINT or SIGTERM.

    NAME is NAMESPACE/DATABASE (default/ may be left out), which is made if it does not exist. NAMESPACE/ with the slash
    serves all databases of a namespace, each opened at its first request. Servers of the same database elect a leader,
    and the others send requests on to it. Without --tokens any client that can connect may do everything, other than
    pages in browsers; with it a client sends a token (`buckram token create`) as `Authorization: Bearer TOKEN`, and
    needs the permission `read` on the namespace or the database, and `append` to change it (`buckram acl grant`).

    \b
    Examples:
      buckram db serve shop/main tenants/ --port 8080
      buckram db serve shop/main --limit result_bytes=256MiB --limit transaction_s=30s
      buckram db serve shop/main --host 10.0.0.7 --port 8443 --tokens --tls-cert db.pem --tls-key db.key
    """
    namespaces = [name[:-1] for name in names if name.endswith("/")]
    databases = [name for name in names if not name.endswith("/")]
    reach = ServerAddress.of(reached)
    chosen = ChosenLimits(limits).of(DatabaseLimits(), HranaLimits(), HTTP_LIMITS)
    with service_log("warning"):
        run_async(_serve(databases, namespaces, reach, values.duration("--idle", idle), chosen, uri, as_json))


async def _serve(
    names: Sequence[str],
    namespaces: Sequence[str],
    reach: ServerAddress,
    idle_s: float,
    limits: Sequence[Any],
    uri: str | None,
    as_json: bool,
) -> None:
    from buckram.serve.hrana.database_access import TokenAccess
    from buckram.serve.hrana.server import DatabaseServer
    from buckram.serve.http.origins import Origins
    from buckram.serve.http.server import bind

    stop = stop_event()
    of_databases, of_streams, of_http = limits
    advertised = urlsplit(reach.advertise or "").hostname or ""
    origins = Origins([*reach.hosts, advertised], reach.pages)
    with bind(reach.host, reach.port, "--host and --port") as listening:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(connected(uri))
            access = TokenAccess(client.services.store, client.services.clocks, oidc_issuer()) if reach.tokens else None
            if access is not None:
                await stack.enter_async_context(access)
            server = await stack.enter_async_context(
                DatabaseServer(
                    client,
                    names,
                    listening,
                    namespaces=namespaces,
                    advertise=reach.advertise,
                    idle_s=idle_s,
                    access=access,
                    origins=origins,
                    tls=reach.tls,
                    ca=reach.ca,
                    database_limits=of_databases,
                    limits=of_streams,
                    http_limits=of_http,
                )
            )
            if as_json:
                emit({"url": server.url, **server.report()})
            else:
                print(f"{server.url} serves {server.databases.described()}", flush=True)
            leave_start_to_itself()
            await stop.wait()

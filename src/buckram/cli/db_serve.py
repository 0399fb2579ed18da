"""`buckram db serve`: databases over HTTP, for the clients of libSQL."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

import click

from buckram.cli import completion, values
from buckram.cli.options import connected, json_option, metadata_option, run_async
from buckram.cli.output import emit
from buckram.errors import InvalidArgument


@click.command("serve")
@click.argument("names", nargs=-1, required=True, metavar="NAME|NAMESPACE/...", shell_complete=completion.namespaces)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0 takes a free one.")
@click.option("--advertise", metavar="URL", help="Where other servers reach this one; default its address.")
@click.option("--idle", default="5m", show_default=True, help="A namespace's database closes when unused for so long.")
@metadata_option
@json_option
def serve(
    names: tuple[str, ...],
    host: str,
    port: int,
    advertise: str | None,
    idle: str,
    uri: str | None,
    as_json: bool,
) -> None:
    """Serve databases over HTTP by libSQL's protocol (Hrana), until SIGINT or SIGTERM.

    NAME is NAMESPACE/DATABASE (default/ may be left out), which is made if it does not exist. NAMESPACE/ with the slash
    serves all databases of a namespace, each opened when somebody asks for it. Servers of the same database elect a
    leader, and the others send requests on to it. There is no authentication yet: whoever can connect may do
    everything.

    \b
    Example:
      buckram db serve shop/main tenants/ --port 8080
    """
    namespaces = [name[:-1] for name in names if name.endswith("/")]
    databases = [name for name in names if not name.endswith("/")]
    if advertise is not None and not advertise.startswith(("http://", "https://")):
        raise InvalidArgument(f"--advertise {advertise!r}: needs a URL such as http://10.0.0.7:8080")
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if os.environ.get("BUCKRAM_DEBUG") else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    run_async(_serve(databases, namespaces, host, port, advertise, values.duration("--idle", idle), uri, as_json))


async def _serve(
    names: Sequence[str],
    namespaces: Sequence[str],
    host: str,
    port: int,
    advertise: str | None,
    idle_s: float,
    uri: str | None,
    as_json: bool,
) -> None:
    from buckram.hrana.server import DatabaseServer
    from buckram.http.server import bind

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with bind(host, port, "--host and --port") as listening:
        async with (
            connected(uri) as client,
            DatabaseServer(
                client, names, listening, namespaces=namespaces, advertise=advertise, idle_s=idle_s
            ) as server,
        ):
            if as_json:
                emit({"url": server.url, **server.report()})
            else:
                print(f"{server.url} serves {server.databases.described()}", flush=True)
            await stop.wait()


__all__ = ["serve"]

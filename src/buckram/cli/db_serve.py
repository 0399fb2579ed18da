"""`buckram db serve`: databases over HTTP, for the clients of libSQL."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple
from urllib.parse import urlsplit

import click

from buckram.cli import completion, values
from buckram.cli.logs import service_log
from buckram.cli.options import connected, json_option, metadata_option, run_async
from buckram.cli.output import emit
from buckram.config import TlsConfig
from buckram.errors import InvalidArgument

FILE = click.Path(exists=True, dir_okay=False)


@click.command("serve")
@click.argument("names", nargs=-1, required=True, metavar="NAME|NAMESPACE/...", shell_complete=completion.namespaces)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0 takes a free one.")
@click.option("--advertise", metavar="URL", help="Where other servers reach this one; default its address.")
@click.option("--idle", default="5m", show_default=True, help="A namespace's database closes when unused for so long.")
@click.option("--tokens", is_flag=True, help="Ask clients for tokens of the cluster, and let grants decide.")
@click.option("--tls-cert", type=FILE, help="PEM file: the certificate to show. With --tls-key the server speaks TLS.")
@click.option("--tls-key", type=FILE, help="PEM file: the private key of the certificate; mode 0600.")
@click.option("--tls-ca", type=FILE, help="PEM file: who is trusted to certify other servers of the databases.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name by which clients reach the server.")
@click.option("--allow-origin", "pages", multiple=True, metavar="URL", help="Origin of web pages that may use it.")
@metadata_option
@json_option
def serve(
    names: tuple[str, ...],
    host: str,
    port: int,
    advertise: str | None,
    idle: str,
    tokens: bool,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    hosts: tuple[str, ...],
    pages: tuple[str, ...],
    uri: str | None,
    as_json: bool,
) -> None:
    """Serve databases over HTTP by libSQL's protocol (Hrana), until SIGINT or SIGTERM.

    NAME is NAMESPACE/DATABASE (default/ may be left out), which is made if it does not exist. NAMESPACE/ with the slash
    serves all databases of a namespace, each opened when somebody asks for it. Servers of the same database elect a
    leader, and the others send requests on to it. Without --tokens whoever can connect may do everything, other than
    pages in browsers; with it a client sends a token (`buckram token create`) as `Authorization: Bearer TOKEN`, and
    needs the permission `read` on the namespace or the database, and `append` to change it (`buckram acl grant`).

    \b
    Examples:
      buckram db serve shop/main tenants/ --port 8080
      buckram db serve shop/main --host 0.0.0.0 --port 8443 --tokens --tls-cert db.pem --tls-key db.key
    """
    namespaces = [name[:-1] for name in names if name.endswith("/")]
    databases = [name for name in names if not name.endswith("/")]
    if advertise is not None and not advertise.startswith(("http://", "https://")):
        raise InvalidArgument(f"--advertise {advertise!r}: needs a URL such as http://10.0.0.7:8080")
    tls = _tls(tls_cert, tls_key, tls_ca)
    reach = _Reach(host, port, advertise, values.duration("--idle", idle), tokens, tls, hosts, pages)
    with service_log("warning"):
        run_async(_serve(databases, namespaces, reach, uri, as_json))


class _Reach(NamedTuple):
    """How clients reach the server, and what it asks of them."""

    host: str
    port: int
    advertise: str | None
    idle_s: float
    tokens: bool
    tls: TlsConfig | None
    hosts: Sequence[str]
    pages: Sequence[str]


def _tls(certificate: str | None, key: str | None, ca: str | None) -> TlsConfig | None:
    if bool(certificate) != bool(key):
        raise InvalidArgument("--tls-cert and --tls-key go together: give both, or none")
    return TlsConfig("required", ca or "", certificate, key or "") if certificate else None


async def _serve(
    names: Sequence[str], namespaces: Sequence[str], reach: _Reach, uri: str | None, as_json: bool
) -> None:
    from buckram.hrana.access import TokenAccess
    from buckram.hrana.server import DatabaseServer, allow
    from buckram.http.application import anybody
    from buckram.http.origins import Origins
    from buckram.http.server import bind
    from buckram.net.runtime import production_runtime

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    advertised = urlsplit(reach.advertise or "").hostname or ""
    origins = Origins([*reach.hosts, advertised], reach.pages, any_host=reach.tokens)
    with bind(reach.host, reach.port, "--host and --port") as listening:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(connected(uri))
            access = TokenAccess(client.services.store, production_runtime().clock) if reach.tokens else None
            if access is not None:
                await stack.enter_async_context(access)
            server = await stack.enter_async_context(
                DatabaseServer(
                    client,
                    names,
                    listening,
                    namespaces=namespaces,
                    advertise=reach.advertise,
                    idle_s=reach.idle_s,
                    authenticate=anybody if access is None else access.authenticate,
                    authorize=allow if access is None else access.authorize,
                    origins=origins,
                    tls=reach.tls,
                )
            )
            if as_json:
                emit({"url": server.url, **server.report()})
            else:
                print(f"{server.url} serves {server.databases.described()}", flush=True)
            await stop.wait()


__all__ = ["serve"]

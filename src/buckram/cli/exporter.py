"""`buckram exporter`: metrics of the cluster as a whole for Prometheus."""

from __future__ import annotations

import os

import click

from buckram.cli.shared import values
from buckram.cli.shared.options import cluster_options, connected, run_async
from buckram.cli.shared.output import emit, remark
from buckram.cli.shared.serving import notify_ready, service_log, stoppable


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:9110",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; port 0 picks a free one.",
)
@click.option(
    "--every", default="15s", show_default=True, metavar="TIME", help="Interval between two looks at the cluster."
)
@click.option(
    "--streams", type=click.IntRange(0, 100_000), default=1000, show_default=True, help="Maximum number of streams."
)
@cluster_options
def exporter(listen: str, every: str, streams: int, uri: str | None, as_json: bool) -> None:
    """Serve metrics of streams, cursors, databases and more.

    It serves those of namespaces and lost copies, too, until Ctrl-C. One exporter is enough.

    Bookies serve their own (`bookie run --metrics`). It only reads, and a scrape costs the cluster nothing: what it
    saw last is shown. Dashboards and alert rules for both are in deploy/.

    \b
    Example:
      buckram exporter --listen 0.0.0.0:9110
    """
    from buckram.addresses import join, parse_address

    address, pause = parse_address(listen, "--listen"), max(values.duration("--every", every), 0.1)

    async def main() -> None:
        from buckram.health.gathering import Gatherer
        from buckram.runtime.net.http_server import serve_http
        from buckram.runtime.net.tcp import TcpNetwork
        from buckram.serve.cluster_exporter import Exporter, cluster, health

        async with connected(uri) as client:
            gatherer = Gatherer.of(client)
            made = Exporter(cluster(client, streams), pause, health(gatherer))
            listener = await serve_http(TcpNetwork(), address, made.answer)
            try:
                ended = stoppable(made.run())
                if as_json:
                    emit({"host": address.host, "port": listener.port, "pid": os.getpid()})
                else:
                    remark(f"metrics at http://{join(address.host, listener.port)}/metrics; Ctrl-C ends it")
                notify_ready()
                await ended
            finally:
                await listener.close()
                await gatherer.close()

    with service_log("warning"):
        run_async(main())

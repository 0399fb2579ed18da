"""`buckram cluster`: what concerns a cluster's metadata as a whole."""

from __future__ import annotations

import click

from buckram.cli.options import cluster_uri, json_option, metadata_option, run_async
from buckram.cli.output import emit


@click.group()
def cluster() -> None:
    """Prepare a cluster's metadata store."""


@cluster.command("init")
@metadata_option
@json_option
def init(uri: str | None, as_json: bool) -> None:
    """Make an empty cluster in a metadata store; harmless where there is one already.

    \b
    Example:
      buckram cluster init --metadata sqlite:///var/lib/buckram/metadata.db
    """
    where = cluster_uri(uri)
    instance = run_async(_init(where))
    if as_json:
        emit({"uri": where, "instance_id": instance})
    else:
        click.echo(f"cluster {instance} in {where}")


async def _init(uri: str) -> str:
    from buckram.metadata.uri import init_cluster, open_store

    store = await open_store(uri)
    try:
        await init_cluster(store)
        return await store.instance_id()
    finally:
        await store.close()

"""`buckram cluster require`: what clients of the cluster must insist on."""

from __future__ import annotations

import click

from buckram.cli.shared.options import cluster_uri, json_option, metadata_option, run_async
from buckram.cli.shared.output import emit


@click.group()
def require() -> None:
    """Set what clients of a cluster must insist on. It holds from now on until it is switched off."""


@require.command("identity")
@click.option("--off", is_flag=True, help="Take it back: bookies that do not say who they are may be used again.")
@metadata_option
@json_option
def identity(off: bool, uri: str | None, as_json: bool) -> None:
    """Refuse bookies that do not identify themselves. Those are Apache's, and bookies of earlier releases.

    Clients read this when they connect and follow it: connections to such a bookie are closed, and it gets no new
    ledgers. Ledgers that only such bookies hold cannot be read meanwhile.

    \b
    Examples:
      buckram cluster require identity --metadata sqlite:///var/lib/buckram/metadata.db
      buckram cluster require identity --off
    """
    where = cluster_uri(uri)
    silent = run_async(_set(where, required=not off))
    if as_json:
        emit({"uri": where, "identity_required": not off, "silent_bookies": silent})
        return
    click.echo(f"{where}: bookies {'need not' if off else 'must'} say who they are")
    for name in silent:
        click.echo(f"  bookie {name} does not{'' if off else ': clients refuse it until it is upgraded'}")


async def _set(uri: str, *, required: bool) -> list[str]:
    """Set the requirement; return the registered bookies that do not identify themselves."""
    from buckram.core.wire.introduction import answers_introductions
    from buckram.metadata.uri import open_store

    store = await open_store(uri)
    try:
        await store.instance_id()
        await store.require_identity(required)
        seen = await store.bookies()
    finally:
        await store.close()
    registered = {**seen.readonly, **seen.writable}
    return sorted(name for name, info in registered.items() if not answers_introductions(info))

"""`buckram cluster accept-time`: an operator confirms that clocks which were set are right."""

from __future__ import annotations

from typing import Any

import click

from buckram.cli.shared.confirm import confirm_loss
from buckram.cli.shared.options import cluster_uri, json_option, metadata_option, run_async, yes_option
from buckram.cli.shared.output import emit


@click.command("accept-time")
@metadata_option
@yes_option
@json_option
def accept_time(uri: str | None, yes: bool, as_json: bool) -> None:
    """Believe the clocks now that were set. Bookies do so in an hour by themselves, if nothing speaks against it.

    Until then nothing is ended by its age. It is said on a machine whose clock is right: bookies that show the same
    time believe their clocks within seconds, and their clients follow them. What has ended by that time goes then.

    \b
    Example:
      buckram cluster accept-time --yes
    """
    from buckram.core.cluster.wall_time import shown
    from buckram.runtime.production import production_runtime

    where = cluster_uri(uri)
    now = production_runtime().clock.wall_us()
    confirm_loss(
        f"Is it {shown(now)}?",
        yes,
        f"nothing is accepted (what has ended by {shown(now)} goes as soon as the bookies believe it)",
    )
    recorded = run_async(_accept(where, now))
    if as_json:
        emit({"accepted_us": now, "accepted": shown(now), "recorded_us": recorded})
        return
    click.echo(f"bookies whose clocks show {shown(now)} believe them within 15 s (`buckram doctor` names the others)")


async def _accept(uri: str, now: int) -> dict[str, Any]:
    """Write it down; what bookies recorded before."""
    from buckram.core.cluster.wall_time import shown
    from buckram.metadata.records.pending_audit_events import leave_note
    from buckram.metadata.records.recorded_time import read_times, write_accepted
    from buckram.metadata.uri import open_store

    store = await open_store(uri)
    try:
        await store.instance_id()
        await write_accepted(store, now)
        await leave_note(store, "accept", "time", detail=shown(now))
        return {bookie: one.time_us for bookie, one in (await read_times(store)).items()}
    finally:
        await store.close()

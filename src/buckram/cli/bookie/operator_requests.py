"""Requests of an operator to one bookie: its state, a collection of garbage, the removal or reuse of its id.

The commands are `buckram bookie readonly`, `writable`, `maintenance`, `collect`, `forget` and `rejoin`. States are
requested of a bookie whether it runs or not; `collect` needs a running one, and `forget` and `rejoin` refuse while it
runs or a ledger names it. Not here: decommissioning (`cli/bookie/decommission.py`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from buckram.cli.bookie.decommission import exit_if_refused
from buckram.cli.shared import completion, values
from buckram.cli.shared.options import cluster_options, connected, run_async
from buckram.cli.shared.output import counted, emit, table
from buckram.core.cluster.bookie_report import Collected, KeptGarbage
from buckram.core.ledgers.service_info import check_bookie_id
from buckram.errors import InvalidArgument

# -- the state of a bookie --------------------------------------------------------------------------------


@click.command("readonly")
@click.argument("bookie_id", shell_complete=completion.bookies)
@cluster_options
def readonly(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Have a bookie take no new entries until `bookie writable`. This holds after a restart, too. It serves reads.

    \b
    Example:
      buckram bookie readonly bookie-1
    """
    _ask(bookie_id, uri, as_json, True)


@click.command("writable")
@click.argument("bookie_id", shell_complete=completion.bookies)
@cluster_options
def writable(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Let a bookie take new entries again. This takes back `readonly`, `drain` and `maintenance`.

    Exit code 1 if it stays read-only for another reason, such as a full disk.

    \b
    Example:
      buckram bookie writable bookie-1
    """
    _ask(bookie_id, uri, as_json, False)


def _ask(bookie_id: str, uri: str | None, as_json: bool, wanted: bool) -> None:
    checked = check_bookie_id(bookie_id)

    async def main() -> str:
        from buckram.healing.operations.operator_calls import ask_readonly

        async with connected(uri) as client:
            return (await ask_readonly(client, checked, wanted)).state

    with exit_if_refused():
        state = run_async(main())
    if as_json:
        emit({"bookie": checked, "state": state})
    elif state == "down":
        print(f"bookie {checked} is down; it is {'readonly' if wanted else 'writable'} when it starts")
    else:
        print(f"bookie {checked} is {state}")


@click.command("maintenance")
@click.argument("bookie_id", shell_complete=completion.bookies)
@click.option("--for", "duration", metavar="DURATION", help="Duration, such as 30m.")
@click.option("--end", is_flag=True, help="End the maintenance now.")
@cluster_options
def maintenance(bookie_id: str, duration: str | None, end: bool, uri: str | None, as_json: bool) -> None:
    """Announce that a bookie will be away for a while. No new ensembles get it, and nothing is copied meanwhile.

    It ends by itself. The time is counted by the auditor and the bookie, each by its own monotonic clock; `until` is
    what this machine's clock makes of it. Refused with exit code 1 where entries would have fewer copies than Qa.

    \b
    Example:
      buckram bookie maintenance bookie-1 --for 30m
    """
    checked = check_bookie_id(bookie_id)
    if (duration is None) == (not end):
        raise InvalidArgument("give the duration of the maintenance, as in --for 30m, or end it with --end")
    for_s = 0.0 if duration is None else values.duration("--for", duration)

    async def main() -> None:
        from buckram.healing.operations.operator_calls import begin_maintenance, end_maintenance

        async with connected(uri) as client:
            if end:
                await end_maintenance(client, checked)
            else:
                await begin_maintenance(client, checked, for_s)

    with exit_if_refused():
        run_async(main())
    until = None if end else (datetime.now(UTC) + timedelta(seconds=for_s)).isoformat(timespec="seconds")
    if as_json:
        emit({"bookie": checked, "until": until})
    elif end:
        print(f"bookie {checked} is not in maintenance")
    else:
        print(f"bookie {checked} may be away until {until}: its ledgers are not copied until then")


# -- garbage ----------------------------------------------------------------------------------------------


@click.command("collect")
@click.argument("bookie_id", shell_complete=completion.bookies)
@cluster_options
def collect(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Have a bookie delete now what metadata does not place there. It also gives back the space of dead data.

    It is one more round of its regular collection, with the same proofs: a ledger that metadata lacks is deleted only
    at a second look ([bookie] collection_age_s) after the first, so one that was deleted a moment ago goes in a later
    round.

    \b
    Example:
      buckram bookie collect bookie-1
    """
    checked = check_bookie_id(bookie_id)

    async def main() -> Collected:
        from buckram.healing.operations.operator_calls import collect_now

        async with connected(uri) as client:
            return await collect_now(client, checked)

    with exit_if_refused():
        found = run_async(main())
    if as_json:
        emit({"bookie": checked, **found.as_json()})
    else:
        freed = f"{counted(found.ledgers, 'ledger')} deleted, {megabytes(found.bytes_reclaimed)} MB given back"
        print(f"bookie {checked}: {freed} of {megabytes(found.bytes_reclaimable)} MB of unneeded data")
        print_kept(found.kept)


def print_kept(kept: tuple[KeptGarbage, ...]) -> None:
    """Print a table of the data that a bookie keeps, and why."""
    rows: list[tuple[Any, ...]] = [
        ("?" if one.bytes is None else megabytes(one.bytes), one.ledgers or "", one.why) for one in kept
    ]
    if rows:
        table(("KEPT MB", "LEDGERS", "WHY"), rows)


def megabytes(size: int) -> float:
    return round(size / 1e6, 1)


# -- the id of a bookie -----------------------------------------------------------------------------------


@click.command("forget")
@click.argument("bookie_id", shell_complete=completion.bookies)
@cluster_options
def forget(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Remove the cookie of a bookie that is gone for good.

    It is refused with exit code 1 while the bookie is registered or any ledger names it. Its old directory cannot join
    the cluster afterwards; an empty one under the same id can.

    \b
    Example:
      buckram bookie forget bookie-1
    """
    checked = check_bookie_id(bookie_id)

    async def main() -> None:
        from buckram.health.removal_gate import forget_bookie

        async with connected(uri) as client:
            await forget_bookie(client, checked)

    with exit_if_refused():
        run_async(main())
    if as_json:
        emit({"bookie": bookie_id, "forgotten": True})
    else:
        click.echo(f"bookie {bookie_id} is forgotten")


@click.command("rejoin")
@click.argument("bookie_id", shell_complete=completion.bookies)
@cluster_options
def rejoin(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Let a bookie come back with an empty directory. It keeps its id; its disk was lost or replaced.

    It is refused with exit code 1 while the bookie is registered, or any ledger names it: have that copied first
    (`buckram bookie decommission`, or wait for autorecovery). A directory that still has its data needs no permission.

    \b
    Example:
      buckram bookie rejoin bookie-1
    """
    checked = check_bookie_id(bookie_id)

    async def main() -> None:
        from buckram.healing.operations.operator_calls import allow_rejoin
        from buckram.health.removal_gate import check_removable

        async with connected(uri) as client:
            await check_removable(client, checked)
            await allow_rejoin(client, checked)

    with exit_if_refused():
        run_async(main())
    if as_json:
        emit({"bookie": checked, "may_rejoin": True})
    else:
        click.echo(f"no ledger names bookie {checked}: start it with an empty directory and --id {checked}")

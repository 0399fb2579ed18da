"""`buckram bookie readonly`, `writable` and `maintenance`: the state requested of a bookie, running or not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from buckram.cli.bookie.decommission import exit_if_refused
from buckram.cli.shared import completion, values
from buckram.cli.shared.options import connected, json_option, metadata_option, run_async
from buckram.cli.shared.output import emit
from buckram.core.ledgers.service_info import check_bookie_id
from buckram.errors import InvalidArgument


@click.command("readonly")
@click.argument("bookie_id", shell_complete=completion.bookies)
@metadata_option
@json_option
def readonly(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Have a bookie take no new entries until `bookie writable`. This holds after a restart, too. It serves reads.

    \b
    Example:
      buckram bookie readonly bookie-1
    """
    _ask(bookie_id, uri, as_json, True)


@click.command("writable")
@click.argument("bookie_id", shell_complete=completion.bookies)
@metadata_option
@json_option
def writable(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Let a bookie take new entries again. This takes back `readonly`, `drain` and `maintenance`.

    Exit code 1 when it stays read-only for another reason, as a full disk is one.

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
@click.option("--for", "duration", metavar="DURATION", help="How long, for example 30m.")
@click.option("--end", is_flag=True, help="End it now.")
@metadata_option
@json_option
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
        raise InvalidArgument("say how long the maintenance is: --for 30m; or end it: --end")
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
        print(f"bookie {checked} is in no maintenance")
    else:
        print(f"bookie {checked} may be away until {until}: nothing of it is copied until then")

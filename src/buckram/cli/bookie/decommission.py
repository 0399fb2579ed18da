"""`buckram bookie drain`, `decommission` and `replace`: a bookie gives everything away, and nothing depends on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.shared import completion, values
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import cluster_options, connected, run_async
from buckram.cli.shared.output import counted, emit, progress, remark
from buckram.core.ledgers.service_info import check_bookie_id
from buckram.errors import InvalidArgument

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.healing.operations.decommission import DecommissionProgress, Departure, OnProgress

_SHOWN = 10
rate_option = click.option(
    "--rate", "rate", metavar="SIZE", help="Maximum bytes copied per second, such as 20MB.", default=None
)


def rate_of(given: str | None) -> int:
    """Return bytes per second; 0 if no rate is given. Raises InvalidArgument for a rate of 0."""
    if given is None:
        return 0
    rate = values.size("--rate", given.removesuffix("/s"))
    if rate < 1:
        raise InvalidArgument(
            f"--rate {given}: nothing would ever be copied, it needs 1 byte or more in a second; without --rate the "
            "limit of the replicators counts, and `buckram autorecovery disable` stops all copying"
        )
    return rate


class Kept(click.ClickException):
    """The bookie was kept: the command was not carried out. The message says why, and what to do."""

    exit_code = Exit.FAILED


@contextmanager
def exit_if_refused() -> Iterator[None]:
    """Turn a refusal in the block into a line on standard error, and exit code 1."""
    from buckram.healing.operations.dependency_check import OperationRefused

    try:
        yield
    except OperationRefused as refusal:
        raise Kept(str(refusal)) from None


@click.command("drain")
@click.argument("bookie_id", shell_complete=completion.bookies)
@rate_option
@cluster_options
def drain(bookie_id: str, rate: str | None, uri: str | None, as_json: bool) -> None:
    """Empty a bookie that lives by copying all that it holds.

    It becomes read-only and serves reads, while others get copies of all that it holds.

    At the end it is proven that no ledger names it, so that it can be stopped, and removed with `bookie forget`.
    Ctrl-C only stops watching: the copying goes on, the same command continues, `bookie writable` takes it back.
    Exit code 1, with the reasons, when it is refused or cannot finish now.

    \b
    Example:
      buckram bookie drain bookie-3
    """
    checked, limit = check_bookie_id(bookie_id), rate_of(rate)

    async def leave(client: Client, show: OnProgress) -> Departure:
        from buckram.healing.operations.decommission import drain as empty

        return await empty(client, checked, show, rate=limit)

    found = _run(uri, as_json, leave)
    _tell(found, as_json, f"bookie {checked} can be stopped; then remove it: `buckram bookie forget {checked}`")


@click.command("decommission")
@click.argument("bookie_id", shell_complete=completion.bookies)
@rate_option
@cluster_options
def decommission(bookie_id: str, rate: str | None, uri: str | None, as_json: bool) -> None:
    """Take a bookie out for good, once its copies are elsewhere.

    Stop it first; then all that it held is copied to others, and its cookie is removed. Refused while its process
    answers, and while a restore of the metadata is not accepted.

    Autorecovery has to run somewhere (`buckram up`, `buckram autorecovery run`). Exit code 1 with the reasons when some
    ledgers cannot be copied; the bookie stays known then, and the command can be given again.

    \b
    Example:
      buckram bookie decommission bookie-3
    """
    checked, limit = check_bookie_id(bookie_id), rate_of(rate)

    async def leave(client: Client, show: OnProgress) -> Departure:
        from buckram.healing.operations.decommission import decommission as take_out
        from buckram.health.removal_gate import check_removable

        await check_removable(client, checked)
        return await take_out(client, checked, show, rate=limit)

    _tell(_run(uri, as_json, leave), as_json, f"bookie {checked} is decommissioned")


@click.command("replace")
@click.argument("old", shell_complete=completion.bookies)
@click.argument("new", required=False, default="", shell_complete=completion.bookies)
@rate_option
@cluster_options
def replace(old: str, new: str, rate: str | None, uri: str | None, as_json: bool) -> None:
    """Put a bookie in the place of another, and forget that one.

    This is done as `drain` does while OLD lives, and else as `decommission` does.

    NEW gets what OLD holds wherever the placement is no worse for it; else, or where no NEW is named, the placement
    chooses. OLD is removed at the end, and its process ends by itself with exit code 5.

    \b
    Example:
      buckram bookie replace bookie-3 bookie-4
    """
    leaving, coming, limit = check_bookie_id(old), check_bookie_id(new) if new else "", rate_of(rate)

    async def leave(client: Client, show: OnProgress) -> Departure:
        from buckram.healing.operations.decommission import replace_bookie
        from buckram.health.removal_gate import check_removable

        await check_removable(client, leaving)
        return await replace_bookie(client, leaving, coming, show, rate=limit)

    _tell(_run(uri, as_json, leave), as_json, f"bookie {leaving} is replaced, and its process ends")


def _run(
    uri: str | None, as_json: bool, leave: Callable[[Client, OnProgress], Coroutine[Any, Any, Departure]]
) -> Departure:
    async def main() -> Departure:
        async with connected(uri) as client:
            with copying("ledgers", as_json) as show:
                return await leave(client, show)

    with exit_if_refused():
        return run_async(main())


@contextmanager
def copying(noun: str, as_json: bool) -> Iterator[OnProgress]:
    """Shows how far copying is, on standard error: as a bar at a terminal, with --json as lines of JSON."""
    if as_json:
        said: list[object] = []

        def line(now: DecommissionProgress) -> None:
            if said[-1:] != [now]:
                said[:] = [now]
                remark(json.dumps(asdict(now)))

        yield line
        return
    with progress(noun, None, rest=True) as advance:
        seen = [0]

        def bar(now: DecommissionProgress) -> None:
            eta = "" if now.eta_s is None else f", {now.eta_s:.0f} s left"
            advance(now.done - seen[0], now.total, f"{now.bytes_per_s / 1e6:.1f} MB/s{eta}")
            seen[0] = now.done

        yield bar


def _tell(found: Departure, as_json: bool, what: str) -> None:
    if as_json:
        emit(
            {
                "bookie": found.bookie,
                "ledgers": found.ledgers,
                "entries_copied": found.entries,
                "remaining": len(found.remaining),
                "reasons": {str(ledger): why for ledger, why in list(found.reasons.items())[:_SHOWN]},
            }
        )
    elif found.done:
        print(f"{what}: {counted(found.ledgers, 'ledger')} moved, no ledger names it any more")
    if not found.done:
        for ledger in found.remaining[:_SHOWN]:
            remark(f"ledger {ledger}: {found.reasons.get(ledger, 'not copied yet')}")
        remark(
            f"{counted(len(found.remaining), 'ledger')} still "
            f"{'needs' if len(found.remaining) == 1 else 'need'} bookie {found.bookie}; its cookie stays, and the same "
            "command continues"
        )
        raise click.exceptions.Exit(Exit.FAILED)

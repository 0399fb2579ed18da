"""`buckram audit`: who created, deleted, truncated, fenced, granted, or failed to log in."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.shared import values
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import cluster_options, connected, run_async, watch_async
from buckram.cli.shared.output import counted, emit
from buckram.core.tenants.audit_trail import ACTIONS, NAMESPACE, STREAM, AuditEvent, Break, Chain, ChainCheck, shown
from buckram.errors import InvalidArgument, NoSuchNamespace, NoSuchStream

if TYPE_CHECKING:
    from buckram.cluster import Client


@click.group()
def audit() -> None:
    """Search and verify the audit trail of a cluster. With `[auth] audit = on` bookies write it to system/audit."""


@audit.command("tail")
@click.option(
    "-n", "count", type=click.IntRange(min=0), default=20, show_default=True, help="Number of the newest events."
)
@click.option("--follow", "-f", is_flag=True, help="Continue with new events until Ctrl-C.")
@cluster_options
def tail(count: int, follow: bool, uri: str | None, as_json: bool) -> None:
    """Show the newest events. The times that it prints are UTC (Z).

    \b
    Example:
      buckram audit tail -n 100
    """

    async def main() -> None:
        async with connected(uri) as client:
            info = await _existing(client)
            start = max(info[0], info[1] - count)
            async for event in _events(client, start=start, stop=None if follow else info[1], follow=follow):
                _show(event, as_json)

    (watch_async if follow else run_async)(main())


@audit.command("search")
@click.option("--principal", default="", metavar="P", help="Only events of this principal, such as token:alice.")
@click.option("--action", type=click.Choice(ACTIONS), default=None, help="Only events of this action.")
@click.option("--namespace", default="", metavar="NAME", help="Only events of this namespace.")
@click.option("--what", default="", metavar="TEXT", help="Only events about something with this in its name.")
@click.option(
    "--since", default="1d", show_default=True, metavar="TIME", help=f"Only events from this time on: {values.MOMENTS}."
)
@click.option("--until", default="", metavar="TIME", help="Only events before this time; as --since.")
@cluster_options
def search(
    principal: str,
    action: str | None,
    namespace: str,
    what: str,
    since: str,
    until: str,
    uri: str | None,
    as_json: bool,
) -> None:
    """Show the events of a period that match all given options. The times that it prints are UTC (Z).

    \b
    Example:
      buckram audit search --action delete --namespace shop --since 7d
    """
    now = int(time.time() * values.US)
    after = values.moment("--since", since, now)
    before = values.moment("--until", until, now) if until else now + values.US

    async def main() -> None:
        async with connected(uri) as client:
            earliest, end = await _existing(client)
            async for event in _events(client, start=earliest, stop=end, follow=False):
                asked = event.matches(principal=principal, action=action or "", namespace=namespace, what=what)
                if asked and after <= event.time_us < before:
                    _show(event, as_json)

    run_async(main())


@audit.command("verify")
@cluster_options
@click.pass_context
def verify(context: click.Context, uri: str | None, as_json: bool) -> None:
    """Check whether events are missing or were changed.

    Each bookie numbers its events from each of its starts on, and each event has the digest of the one before. Events
    removed by retention from the beginning do not count as missing. Exit code 1: something is missing or changed. Keep
    the digests that this prints, or a copy of the events ([bookie] audit_sink), elsewhere: an administrator of the
    cluster can rewrite the whole trail.

    \b
    Example:
      buckram audit verify
    """

    async def main() -> ChainCheck:
        async with connected(uri) as client:
            earliest, end = await _existing(client)
            check = ChainCheck(from_start=earliest == 0)
            ns = client.namespace(NAMESPACE)
            async with ns.read(STREAM, start=earliest, stop=end, on_truncated="skip") as reader:
                async for record in reader:
                    check.see(record.offset, record.value or b"")
            return check

    check = run_async(main())
    if as_json:
        emit(_check_json(check))
    else:
        _show_check(check)
    if not check.whole:
        context.exit(Exit.FAILED)


def _check_json(check: ChainCheck) -> dict[str, Any]:
    return {
        "whole": check.whole,
        "before_chain": check.before_chain,
        "unchained_later": check.unchained_later,
        "unreadable": check.unreadable,
        "more_unreadable": check.more_unreadable,
        "chains": [{"whole": chain.whole, **asdict(chain)} for chain in check.chains.values()],
    }


def _show_check(check: ChainCheck) -> None:
    if check.before_chain:
        later = f", {check.unchained_later} of them later than one that has" if check.unchained_later else ""
        print(f"before the chain: {counted(check.before_chain, 'event')} of releases that had none{later}")
    for chain in check.chains.values():
        times = f"{values.iso(chain.first_us)} to {values.iso(chain.last_us)}"
        state = "whole" if chain.whole else "BROKEN"
        print(f"{state}: bookie {shown(chain.bookie) or '-'}, chain {shown(chain.chain)}, {_range(chain)}, {times}")
        if chain.repeated:
            print(f"  {counted(chain.repeated, 'event')} written twice, as happens when an answer is lost")
        for broken in chain.breaks:
            print(f"  {_break(broken)}")
        if chain.more_breaks:
            print(f"  and {chain.more_breaks} more")
        print(f"  digest of the last one: {chain.digest}")
    for offset in check.unreadable:
        print(f"BROKEN: the record at offset {offset} of {NAMESPACE}/{STREAM} is no event")
    if check.more_unreadable:
        print(f"  and {check.more_unreadable} more")
    print("whole" if check.whole else "BROKEN: something is missing or was changed")


def _range(chain: Chain) -> str:
    begins = "" if chain.first == 1 else " (earlier events are gone)"
    return f"events {chain.first} to {chain.last}{begins}"


def _break(broken: Break) -> str:
    numbers = f"event {broken.first}" if broken.first == broken.last else f"events {broken.first} to {broken.last}"
    if broken.what == "missing":
        return f"{numbers} missing before offset {broken.offset}"
    return f"{numbers}: one was changed or put in, seen at offset {broken.offset}"


async def _existing(client: Client) -> tuple[int, int]:
    """Return the first offset of the trail, and the one after its last."""
    try:
        info = await client.namespace(NAMESPACE).info(STREAM)
    except (NoSuchStream, NoSuchNamespace):
        raise InvalidArgument(
            "there is no audit trail yet: run bookies with [auth] audit = 'on', as `buckram up --secure` does"
        ) from None
    return info.earliest, info.end


async def _events(client: Client, *, start: int, stop: int | None, follow: bool) -> AsyncIterator[AuditEvent]:
    reading = client.namespace(NAMESPACE).read(STREAM, start=start, stop=stop, follow=follow, on_truncated="skip")
    async with reading as reader:
        async for record in reader:
            yield AuditEvent.of_record(record)


def _show(event: AuditEvent, as_json: bool) -> None:
    if as_json:
        emit(event.row())
        return
    words = [event.principal or "-", event.action, event.what, event.result]
    words += [f"({event.detail})"] if event.detail else []
    print("  ".join([values.iso(event.time_us), *map(shown, words)]), flush=True)

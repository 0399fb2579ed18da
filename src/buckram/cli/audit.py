"""`buckram audit`: who created, deleted, truncated, fenced, granted, or failed to log in."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from buckram.cli import values
from buckram.cli.options import connected, json_option, metadata_option, run_async, watch_async
from buckram.cli.output import emit
from buckram.core.tenants.audit import ACTIONS, NAMESPACE, STREAM, AuditEvent
from buckram.errors import InvalidArgument, NoSuchNamespace, NoSuchStream

if TYPE_CHECKING:
    from buckram.client.client import Client


@click.group()
def audit() -> None:
    """The audit trail of a cluster. Bookies with `[auth] audit = on` write it into the stream system/audit."""


@audit.command("tail")
@click.option("-n", "count", type=click.IntRange(min=0), default=20, show_default=True, help="So many of the newest.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes.")
@metadata_option
@json_option
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
@click.option("--principal", default="", metavar="P", help="Of this principal, such as token:alice.")
@click.option("--action", type=click.Choice(ACTIONS), default=None, help="Only this action.")
@click.option("--namespace", default="", metavar="NAME", help="Of this namespace.")
@click.option("--what", default="", metavar="TEXT", help="About something with this in its name.")
@click.option("--since", default="1d", show_default=True, metavar="TIME", help=f"From then on: {values.MOMENTS}.")
@click.option("--until", default="", metavar="TIME", help="Until then; as --since.")
@metadata_option
@json_option
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
    """Show the events of a time that fit all that is asked for. The times that it prints are UTC (Z).

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


async def _existing(client: Client) -> tuple[int, int]:
    """The first offset of the trail, and the one after its last."""
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
            yield AuditEvent.parse(record.value or b"")


def _show(event: AuditEvent, as_json: bool) -> None:
    if as_json:
        emit(event.row())
        return
    words = [values.iso(event.time_us), event.principal or "-", event.action, event.what, event.result]
    words += [f"({event.detail})"] if event.detail else []
    print("  ".join(words), flush=True)

"""`buckram autorecovery`: run, status, enable, disable, delay, proceed."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import click

from buckram.cli.shared import values
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import cluster_options, connected, run_async
from buckram.cli.shared.output import counted, emit, remark, table
from buckram.cli.shared.serving import leave_start_to_itself, service_log, stoppable
from buckram.config import load
from buckram.serve.json_views.status import healing_json

if TYPE_CHECKING:
    from buckram.healing.overview import Overview


@click.group()
def autorecovery() -> None:
    """Restore copies that were lost with their bookies."""


@autorecovery.command("run")
@cluster_options
def run(uri: str | None, as_json: bool) -> None:
    """Audit and copy until Ctrl-C, in this process. Any number may run; `buckram up` runs one.

    On ZooKeeper the work is shared with Apache's auditors and workers. Settings: section [healing] of the
    configuration page, as BUCKRAM_HEALING_*.

    \b
    Example:
      buckram autorecovery run
    """
    name = f"{socket.gethostname()}-{os.getpid()}"
    config, _ = load("healing", None, os.environ)

    async def main() -> None:
        from buckram.healing.daemon import heal

        async with connected(uri) as client:
            ended = stoppable(heal(client, name, config))
            if as_json:
                emit({"name": name, "pid": os.getpid()})
            else:
                remark(f"autorecovery {name} runs; Ctrl-C ends it")
            leave_start_to_itself()
            await ended

    with service_log():
        run_async(main())


@autorecovery.command("status")
@cluster_options
def status(uri: str | None, as_json: bool) -> None:
    """Show ledgers that lack copies, who copies, and why others wait. Exit code 1 while there are any.

    \b
    Example:
      buckram autorecovery status
    """

    async def main() -> Overview:
        from buckram.healing.overview import overview

        async with connected(uri) as client:
            services = client.services
            return await overview(services.store, services.runtime.clock.wall_us() // 1000)

    found = run_async(main())
    if as_json:
        emit(healing_json(found))
    else:
        _print(found)
    if found.queue or found.brake is not None:
        raise click.exceptions.Exit(Exit.FAILED)


def _print(found: Overview) -> None:
    if found.brake is not None:
        print(f"COPYING IS STOPPED: {found.brake.why}: {', '.join(found.brake.bookies)}")
        print("  start them again, or let copying go on without them: `buckram autorecovery proceed`")
    if not found.enabled:
        print("autorecovery is disabled: `buckram autorecovery enable`")
    print(f"auditor: {found.auditor or 'none; start one with `buckram autorecovery run`'}")
    print(f"ledgers of a lost bookie are copied after {found.delay_s:g} s")
    for one in found.workers:
        print(f"replicator {one.worker}: {one.bytes_per_s / 1e6:.1f} MB/s")
    for line in check_lines(found):
        print(line)
    if not found.queue:
        print("every ledger has all its copies, as far as is known")
        return
    print(f"{counted(len(found.queue), 'ledger')} lack copies")
    rows = [(one.ledger, one.state, _seconds(one.age_s), _seconds(one.eta_s), one.why) for one in found.queue]
    table(("LEDGER", "STATE", "FOR", "ETA", "WHY"), rows)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s"


def check_lines(found: Overview, *, placement: bool = True) -> list[str]:
    """Return lines that report problems found by the last runs of the periodic checks."""
    lines: list[str] = []
    digests = found.checks.get("digests", {})
    if placement and found.misplaced:
        broken = counted(found.misplaced, "ledger")
        lines.append(f"{broken} broke the placement at the last check; `buckram placement check` names and moves them")
    if digests.get("skipped"):
        skipped = counted(int(digests["skipped"]), "ledger")
        lines.append(f"of {skipped} digests could not be checked: they have none, or a MAC and no password on record")
    unreadable = [check for check, result in found.checks.items() if result.get("unreadable")]
    if unreadable:
        lines.append(f"unreadable records were met by: {', '.join(unreadable)}; see `buckram cluster check`")
    return lines


@autorecovery.command("enable")
@cluster_options
def enable(uri: str | None, as_json: bool) -> None:
    """Let auditors and workers of the whole cluster work. Those of Apache are included."""
    _switch(uri, as_json, True)


@autorecovery.command("disable")
@cluster_options
def disable(uri: str | None, as_json: bool) -> None:
    """Begin no further copies in the whole cluster. Copies in progress are completed."""
    _switch(uri, as_json, False)


def _switch(uri: str | None, as_json: bool, on: bool) -> None:
    async def main() -> bool:
        from buckram.metadata.records.underreplication import Underreplication

        async with connected(uri) as client:
            store = client.services.store
            return await Underreplication(store.keys, store.root, "").enable(on)

    changed = run_async(main())
    if as_json:
        emit({"enabled": on, "changed": changed})
    else:
        print(f"autorecovery is {'enabled' if on else 'disabled'}{'' if changed else ', as it was'}")


@autorecovery.command("delay")
@click.argument("seconds")
@cluster_options
def delay(seconds: str, uri: str | None, as_json: bool) -> None:
    """Set how long a bookie may be away before its ledgers are copied. It applies to bookies already away, too.

    Giving the current value again triggers an audit now: it no longer waits for bookies that are away at this moment.

    \b
    Example:
      buckram autorecovery delay 5m
    """
    chosen = round(values.duration("SECONDS", seconds))

    async def main() -> None:
        from buckram.metadata.records.underreplication import Underreplication

        async with connected(uri) as client:
            store = client.services.store
            tree = Underreplication(store.keys, store.root, "")
            await tree.prepare()
            await tree.set_delay(chosen)

    run_async(main())
    if as_json:
        emit({"delay_s": chosen})
    else:
        print(f"ledgers of a lost bookie are copied after {chosen} s")


@autorecovery.command("proceed")
@cluster_options
def proceed(uri: str | None, as_json: bool) -> None:
    """Copy although many bookies were lost at once. It declares that they will not come back; see `buckram autorecovery
    status`."""

    async def main() -> tuple[str, ...]:
        from buckram.healing.status_store import HealingStatusStore

        async with connected(uri) as client:
            return await HealingStatusStore(client.services.store).proceed()

    bookies = run_async(main())
    if as_json:
        emit({"bookies": list(bookies)})
    elif bookies:
        print(f"copying goes on without {', '.join(bookies)}")
    else:
        print("copying was not stopped, nothing has to proceed")

"""`buckram bookie`: run one (bookie_run.py), list them, and ask one of them directly."""

from __future__ import annotations

import base64
from typing import Any

import click

from buckram.cli.bookie.decommission import decommission, drain, replace
from buckram.cli.bookie.operator_requests import (
    collect,
    forget,
    maintenance,
    megabytes,
    print_kept,
    readonly,
    rejoin,
    writable,
)
from buckram.cli.bookie.run import clear_limbo, config, run
from buckram.cli.shared import completion
from buckram.cli.shared.options import cluster_options, connected, raw_option, run_async
from buckram.cli.shared.output import emit, table
from buckram.cli.shared.serving import log_level
from buckram.cli.shared.stdout import Payload
from buckram.core.cluster.bookie_report import KeptGarbage
from buckram.core.entries.entry import Digest
from buckram.core.wire.availability import EntryList
from buckram.core.wire.messages import (
    ListEntries,
    ListEntriesReply,
    Read,
    ReadReply,
)
from buckram.errors import (
    BookieError,
    BookieIOError,
    BuckramError,
    Code,
    NoSuchEntry,
    NoSuchLedger,
    UnknownLedgerState,
)
from buckram.serve.json_views.bookies import bookie_rows, bookie_shown, check_known
from buckram.types import DigestType

ID = click.IntRange(min=0)
_ledger_option = click.option("--ledger", "ledger_id", type=ID, required=True, help="Id of the ledger.")
_COLUMNS = ("id", "host", "port", "state")


@click.group()
def bookie() -> None:
    """Run bookies, list them, and look at what one holds."""


for _command in (
    run,
    drain,
    decommission,
    replace,
    readonly,
    writable,
    maintenance,
    forget,
    rejoin,
    collect,
    config,
    clear_limbo,
    log_level,
):
    bookie.add_command(_command)


@bookie.command("list")
@cluster_options
def list_bookies(uri: str | None, as_json: bool) -> None:
    """List every bookie that the cluster knows, and its state.

    A bookie is writable, readonly or down; the state requested by an operator is shown, too.

    \b
    Example:
      buckram bookie list
    """

    async def main() -> list[dict[str, Any]]:
        async with connected(uri) as client:
            return await bookie_rows(client)

    found = run_async(main())
    if as_json:
        emit({"bookies": found})
    else:
        keys = (*_COLUMNS, "asked") if any(row["asked"] for row in found) else _COLUMNS
        table([key.upper() for key in keys], [["" if row[key] is None else row[key] for key in keys] for row in found])


@bookie.command("show")
@click.argument("bookie_id", shell_complete=completion.bookies)
@cluster_options
def show(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Show one bookie: address, state, disk, memory, and troubles. Also unneeded data that it still keeps, and why.

    Numbers of its collection are those of the newest round; `buckram bookie collect` runs one now.

    `loss` is 0, or the number of the newest loss of a bookie that may lack acknowledged data. That ends by itself when
    the ledgers that name it are complete there; `buckram bookie clear-limbo --loss` lets an operator declare the same.

    \b
    Example:
      buckram bookie show bookie-1
    """

    async def main() -> dict[str, Any]:
        async with connected(uri) as client:
            return await bookie_shown(client, bookie_id)

    found = run_async(main())
    if as_json:
        emit(found)
        return
    memory, kept = found.pop("memory"), found.pop("kept")
    disk, troubles = found.pop("disk"), found.pop("troubles")
    if found["state"] == "down":
        print(f"bookie {bookie_id} is down: the cluster knows its cookie, and it is not registered")
        print("  start it again; if it is gone for good, `buckram cluster check` says what to do")
        return
    for key, value in found.items():
        print(f"{key:>20}  {'' if value is None else value}")
    for name, figure in disk.items():
        print(f"{name:>20}  {figure}")
    for trouble in troubles:
        print(f"{trouble['what']}: {trouble['why']}\n  {trouble['do']}")
    if memory:
        print()
        rows = [[name, *(_mb(use[key]) for key in ("bytes", "limit_bytes"))] for name, use in memory.items()]
        table(("memory of", "MB", "at most"), rows)
    if kept:
        print()
        print_kept(tuple(KeptGarbage(**one) for one in kept))


def _mb(size: int | None) -> float | str:
    return "" if size is None else megabytes(size)


@bookie.command("entries")
@click.argument("bookie_id", shell_complete=completion.bookies)
@_ledger_option
@cluster_options
def entries(bookie_id: str, ledger_id: int, uri: str | None, as_json: bool) -> None:
    """List the entries of a ledger that this bookie itself holds.

    \b
    Example:
      buckram bookie entries bookie-1 --ledger 7
    """
    runs = run_async(_entries(uri, bookie_id, ledger_id))
    if as_json:
        held = [entry for first, count in runs for entry in range(first, first + count)]
        emit({"ledger": ledger_id, "entries": held})
        return
    for first, count in runs:
        print(f"{first}..{first + count - 1}" if count > 1 else first)


async def _entries(uri: str | None, bookie_id: str, ledger_id: int) -> list[tuple[int, int]]:
    async with connected(uri) as client:
        await check_known(client, bookie_id)
        reply = await client.services.pool.call(bookie_id, ListEntries(ledger_id))
    if not isinstance(reply, ListEntriesReply) or reply.code is not Code.OK:
        raise _problem(bookie_id, reply.code, ledger_id)
    return list(EntryList.decode(reply.availability).runs())


@bookie.command("read")
@click.argument("bookie_id", shell_complete=completion.bookies)
@_ledger_option
@click.option("--entry", "entry_id", type=ID, required=True, help="Id of the entry.")
@raw_option
@cluster_options
def read(bookie_id: str, ledger_id: int, entry_id: int, raw: bool, uri: str | None, as_json: bool) -> None:
    """Print one entry of this bookie, with its digest checked.

    \b
    Example:
      buckram bookie read bookie-1 --ledger 7 --entry 0
    """
    shown = run_async(_read(uri, bookie_id, ledger_id, entry_id))
    if as_json:
        payload = base64.b64encode(shown.pop("payload")).decode()
        emit({**shown, "payload_base64": payload})
    else:
        Payload(raw=raw).write(shown["payload"] + b"\n")


async def _read(uri: str | None, bookie_id: str, ledger_id: int, entry_id: int) -> dict[str, Any]:
    async with connected(uri) as client:
        await check_known(client, bookie_id)
        metadata = (await client.services.store.read_ledger(ledger_id)).metadata
        reply = await client.services.pool.call(bookie_id, Read(ledger_id, entry_id))
    if not isinstance(reply, ReadReply) or reply.code is not Code.OK or reply.body is None:
        raise _problem(bookie_id, reply.code, ledger_id, entry_id)
    digest = Digest(metadata.digest_type or DigestType.DUMMY, metadata.password or b"")
    entry = digest.open(ledger_id, entry_id, reply.body)
    return {
        "ledger": ledger_id,
        "entry": entry_id,
        "last_add_confirmed": entry.last_add_confirmed,
        "length": entry.length,
        "payload": entry.payload,
    }


def _problem(bookie_id: str, code: Code, ledger_id: int, entry_id: int | None = None) -> BuckramError:
    if code is Code.NO_LEDGER:
        return NoSuchLedger(ledger_id)
    if code is Code.NO_ENTRY and entry_id is not None:
        return NoSuchEntry(ledger_id, entry_id, f"bookie {bookie_id} does not hold it")
    if code is Code.UNKNOWN_LEDGER_STATE:
        return UnknownLedgerState(
            bookie_id, f"may have lost data of ledger {ledger_id} and does not know whether it had the entry"
        )
    error: BookieError = BookieIOError(bookie_id, f"answered {code.name} for ledger {ledger_id}")
    return error

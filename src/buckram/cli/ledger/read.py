"""`buckram ledger read` and `ledger tail`: entries as lines, as JSON lines, or raw."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.shared.options import cluster_options, connected, password_option, run_async, watch_async
from buckram.cli.shared.output import emit, remark, transfer
from buckram.cli.shared.stdout import Payload
from buckram.core.streams.names import owner_of
from buckram.errors import InvalidArgument
from buckram.types import Entry

if TYPE_CHECKING:
    from buckram.cluster import Client


class _Number(click.IntRange):
    """The id of a ledger or of an entry."""

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return super().convert(value, param, context)
        except click.BadParameter:
            self.fail(f"{value!r}: needs a number from 0 on, such as 7", param, context)


LEDGER = _Number(min=0)
_first_option = click.option("--first", type=LEDGER, default=0, show_default=True, help="First entry.")
_raw_option = click.option("--raw", is_flag=True, help="Print payloads one after another, unchanged.")
WINDOW_ENTRIES = 10_000


@click.command("read")
@click.argument("ledger_id", type=LEDGER)
@_first_option
@click.option("--last", type=LEDGER, help="Last entry, inclusive; default the last readable one.")
@_raw_option
@password_option
@cluster_options
def read(
    ledger_id: int, first: int, last: int | None, raw: bool, password: str, uri: str | None, as_json: bool
) -> None:
    """Print entries, one payload a line. It never fences; an open ledger is read up to its last confirmed entry.

    \b
    Example:
      buckram ledger read 7 --first 100 --last 199
    """
    if last is not None and last < first:
        raise InvalidArgument(f"--first {first} --last {last}: the last entry must not come before the first")
    run_async(_read(uri, ledger_id, first, last, raw, password, as_json))


async def _read(
    uri: str | None, ledger_id: int, first: int, last: int | None, raw: bool, password: str, as_json: bool
) -> None:
    async with connected(uri) as client, await client.open(ledger_id, password=password) as reader:
        await _hint_stream(client, ledger_id, frames=not as_json and not raw)
        end = await reader.read_last_confirmed() if last is None else last
        with transfer("entries", count=max(end - first + 1, 0), reading=True) as bar:
            while first <= end:
                window = min(end, first + WINDOW_ENTRIES - 1)
                if as_json:
                    entries = await reader.read(first, window)
                    size = sum(len(entry.payload) for entry in entries)
                    _print_json(entries)
                else:
                    payloads = await reader.read_payloads(first, window)
                    size = sum(map(len, payloads))
                    _print_payloads(payloads, raw)
                bar.advance(window - first + 1, size)
                first = window + 1


async def _hint_stream(client: Client, ledger_id: int, *, frames: bool) -> None:
    """Hint that the ledger belongs to a stream, whose entries are binary frames of records. Raises InvalidArgument if
    such frames would be printed on a terminal."""
    owner = owner_of((await client.metadata(ledger_id)).custom_metadata)
    if owner is None:
        return
    hint = f"ledger {ledger_id} belongs to stream {owner[0]}: `buckram stream read {owner[0]}` prints its records"
    if frames and sys.stdout.isatty():
        raise InvalidArgument(f"{hint}; its entries are binary: --json or --raw prints them all the same")
    remark(hint)


def _print_json(entries: Sequence[Entry]) -> None:
    for entry in entries:
        emit({"entry": entry.entry_id, "payload_base64": base64.b64encode(entry.payload).decode()})


def _print_payloads(payloads: Sequence[bytes], raw: bool) -> None:
    end, out = b"" if raw else b"\n", Payload(raw=raw)
    out.write(b"".join(payload + end for payload in payloads))
    out.flush()


@click.command("tail")
@click.argument("ledger_id", type=LEDGER)
@_first_option
@_raw_option
@password_option
@cluster_options
def tail(ledger_id: int, first: int, raw: bool, password: str, uri: str | None, as_json: bool) -> None:
    """Print entries as they become readable, until the end. The end is the closing of the ledger, or Ctrl-C.

    \b
    Example:
      buckram ledger tail 7
    """
    watch_async(_tail(uri, ledger_id, first, raw, password, as_json))


async def _tail(uri: str | None, ledger_id: int, first: int, raw: bool, password: str, as_json: bool) -> None:
    async with connected(uri) as client, await client.open(ledger_id, password=password) as reader:
        await _hint_stream(client, ledger_id, frames=not as_json and not raw)
        async for entry in reader.tail(start=first):
            if as_json:
                _print_json([entry])
            else:
                _print_payloads([entry.payload], raw)

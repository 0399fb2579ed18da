"""`buckram ledger read`, `tail` and `write`: entries as lines, as JSON lines, or raw.

Lines of standard input become entries as fast as the cluster takes them. Not here: ledgers as a whole
(`cli/ledger/commands.py`), their copies (`cli/ledger/check.py`).
"""

from __future__ import annotations

import asyncio
import base64
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.shared.options import (
    cluster_options,
    connected,
    custom_metadata,
    ledger_options,
    password_option,
    quorum,
    run_async,
    watch_async,
)
from buckram.cli.shared.output import Bar, Degraded, emit, input_size, remark, transfer
from buckram.cli.shared.stdin import Lines
from buckram.cli.shared.stdout import Payload
from buckram.core.streams.names import owner_of
from buckram.errors import EntryTooLarge, InvalidArgument, LedgerError
from buckram.runtime.process.tasks import TaskScope
from buckram.types import Entry

if TYPE_CHECKING:
    from buckram.client.write.writer import Writer
    from buckram.cluster import Client

BATCHES_IN_FLIGHT = 32
BATCH_ENTRIES = 2_000
VISIBLE_SECONDS = 2.0


class LineTooLong(EntryTooLarge):
    """A line that cannot be an entry; those before it are in the ledger, which is closed."""

    def __init__(self, ledger_id: int, line: int, size: int, limit: int) -> None:
        LedgerError.__init__(
            self,
            ledger_id,
            f"line {line} of the input has {size} bytes or more, an entry may have {limit}: the ledger is closed "
            f"with the {line - 1} lines before it; split the line, or raise max_frame_bytes here and at the bookies",
        )
        self.size, self.limit = size, limit


@click.command("write")
@ledger_options
@click.option("--close", "close", is_flag=True, help="Close the ledger at the end of the input; else it stays open.")
@click.option("--acks", is_flag=True, help="Print the highest acknowledged entry id as it advances, one number a line.")
@cluster_options
def write(
    ensemble: str,
    write_quorum: int | None,
    ack_quorum: int | None,
    digest: str,
    password: str,
    meta: tuple[str, ...],
    close: bool,
    acks: bool,
    uri: str | None,
    as_json: bool,
) -> None:
    """Make a ledger out of the lines of standard input.

    The first line of output names the ledger, the last says how many entries it got; both are JSON. SIGTERM and Ctrl-C
    end the input: all lines read so far are written, then the ledger is closed.

    \b
    Example:
      dmesg | buckram ledger write --close
    """
    del as_json  # the output is JSON in any case
    shape = quorum(ensemble, write_quorum, ack_quorum)

    async def main() -> None:
        async with connected(uri) as client:
            writer = await client.create(
                ensemble=str(shape), digest=digest, password=password, custom_metadata=custom_metadata(meta)
            )
            await _Copy(writer, close, acks).run(client, password)

    run_async(main())


class _Copy:
    """One run from standard input to one ledger."""

    def __init__(self, writer: Writer, close: bool, acks: bool) -> None:
        self._writer, self._close, self._acks = writer, close, acks
        self._entries = 0
        self._printed = -1
        self._degraded = Degraded()
        self._longest = 0
        self._too_long: LineTooLong | None = None
        self._failure: BaseException | None = None
        self._room = asyncio.Semaphore(BATCHES_IN_FLIGHT)

    async def run(self, client: Client, password: str) -> None:
        from buckram.client.write.engine import FRAME_RESERVE_BYTES

        emit({"ledger": self._writer.ledger_id})
        self._longest = client.services.net.max_frame_bytes - FRAME_RESERVE_BYTES
        lines = Lines(self._longest)
        loop = asyncio.get_running_loop()

        def end_input() -> None:
            self._close = True
            lines.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end_input)
        scope = TaskScope("ledger write")
        try:
            with transfer("entries", total=input_size(), show=not self._acks) as bar:
                await self._feed(lines, scope, bar)
                await self._writer.flush()
            if self._failure is not None:
                raise self._failure
            self._report_acks()
            if not self._close:
                await self._until_visible(client, password)
            if self._close:  # asked again: SIGTERM may have come with the end of the input
                await self._writer.close()
            else:
                await self._writer.abandon()
        finally:
            await scope.close()
        last = self._entries - 1
        emit({"ledger": self._writer.ledger_id, "entries": self._entries, "last_entry": last})
        if self._too_long is not None:
            raise self._too_long

    async def _feed(self, lines: Lines, scope: TaskScope, bar: Bar) -> None:
        async for whole in lines:
            batch = self._sound(whole)
            for begin in range(0, len(batch), BATCH_ENTRIES):
                part = batch[begin : begin + BATCH_ENTRIES]
                await self._room.acquire()
                if self._failure is not None:
                    return
                # Tasks start in the order they are made, so entries keep the order of the lines.
                scope.spawn(self._append(part), "append")
                self._entries += len(part)
                if bar.shown:
                    bar.advance(len(part), sum(map(len, part)) + len(part))
            if self._too_long is not None:
                self._close = True
                break
        for _ in range(BATCHES_IN_FLIGHT):
            await self._room.acquire()

    def _sound(self, batch: list[bytes]) -> list[bytes]:
        """Return the lines before the first that is too long; its error is remembered."""
        if max(map(len, batch)) <= self._longest:
            return batch
        index, line = next((n, line) for n, line in enumerate(batch) if len(line) > self._longest)
        number = self._entries + index + 1
        self._too_long = LineTooLong(self._writer.ledger_id, number, len(line), self._longest)
        return batch[:index]

    async def _append(self, part: list[bytes]) -> None:
        try:
            await self._writer.append_many(part)
            self._degraded.look(self._writer)
            self._report_acks()
        except Exception as error:
            # Kept for the feeding loop; flush and close raise the writer's own first failure as well.
            self._failure = self._failure or error
        finally:
            self._room.release()

    def _report_acks(self) -> None:
        confirmed = self._writer.last_confirmed
        if self._acks and confirmed > self._printed:
            self._printed = confirmed
            print(confirmed, flush=True)

    async def _until_visible(self, client: Client, password: str) -> None:
        """Readers of an open ledger see what its writer published: wait for that before this process goes."""
        ledger_id = self._writer.ledger_id
        try:
            async with asyncio.timeout(VISIBLE_SECONDS), client.open(ledger_id, password=password) as reader:
                if self._entries:
                    await anext(aiter(reader.tail(self._entries - 1)))
        except TimeoutError:
            remark(f"ledger {ledger_id}: its last entries become readable once it is recovered")


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

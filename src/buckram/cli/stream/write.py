"""`buckram stream write`: lines of standard input become records, as fast as the cluster takes them."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.namespace import has_blanks, refuse_blanks
from buckram.cli.shared import completion
from buckram.cli.shared.options import cluster_options, connected, run_async
from buckram.cli.shared.output import Bar, Degraded, emit, input_size, remark, transfer
from buckram.cli.shared.stdin import Lines
from buckram.core.streams.names import StreamName, stream_name
from buckram.errors import BuckramError, InvalidArgument, NoSuchStream, WriterExists, WriterLost
from buckram.runtime.process.tasks import TaskScope

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.serve.json_views.records import BadLine, JsonLines, PlainLines, Rows
    from buckram.streams.write.writer import StreamWriter

BATCHES_IN_FLIGHT = 32
BATCH_RECORDS = 2_000
LONGEST_LINE = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """The options of one run."""

    takeover: bool
    wait: bool
    create: bool
    end: bool
    acks: bool
    linger_ms: float
    writer: str
    producer: str | None
    sequence: int
    start: int | None
    lines: PlainLines | JsonLines


@click.command("write")
@click.argument("name", shell_complete=completion.streams)
@click.option("--takeover", is_flag=True, help="Fence the present writer and continue after it.")
@click.option("--wait", is_flag=True, help="Wait until the present writer has gone.")
@click.option("--create/--no-create", default=True, show_default=True, help="Create the stream if it does not exist.")
@click.option("--jsonl", is_flag=True, help="Each line is a JSON object, as `stream read --json` prints them.")
@click.option(
    "--key-separator", metavar="TEXT", help="The text of a line before this separator is the key of the record."
)
@click.option("--acks", is_flag=True, help="Print the highest acknowledged offset as it advances, one number a line.")
@click.option(
    "--end", is_flag=True, help="Mark the end of the stream after the last record; it can never be written again."
)
@click.option(
    "--linger-ms",
    type=click.FloatRange(0, 10_000),
    default=2.0,
    show_default=True,
    help="Longest wait for further records of the same entry, milliseconds.",
)
@click.option("--as", "writer", default="", metavar="NAME", help="Name of this writer, which others see.")
@click.option("--producer", metavar="ID", help="Idempotent: record n is sequence n of this producer.")
@click.option(
    "--sequence",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="With --producer, the sequence of the first record.",
)
@click.option(
    "--start",
    type=click.IntRange(0),
    help="With --producer, the first sequence of a producer that is new to the stream.",
)
@cluster_options
def write(
    name: str,
    takeover: bool,
    wait: bool,
    create: bool,
    jsonl: bool,
    key_separator: str | None,
    acks: bool,
    end: bool,
    linger_ms: float,
    writer: str,
    producer: str | None,
    sequence: int,
    start: int | None,
    uri: str | None,
    as_json: bool,
) -> None:
    """Append lines of standard input to a stream as records.

    With --jsonl a line is an object with value or value_base64 (null deletes a key), and optionally key or key_base64,
    headers, timestamp_us and txid. SIGTERM and Ctrl-C end the input: all lines read so far are written.

    \b
    Examples:
      dmesg | buckram stream write logs/kernel
      printf 'ann=1\\nbob=2\\n' | buckram stream write shop/carts --key-separator =
      buckram stream read a --json | buckram stream write b --jsonl
    """
    del as_json  # the last line is JSON in any case
    full = stream_name(name)
    if jsonl and key_separator is not None:
        raise InvalidArgument("--jsonl and --key-separator exclude each other: a JSON object has its key")
    if key_separator == "":
        raise InvalidArgument("--key-separator '': needs one character at least")
    if takeover and wait:
        raise InvalidArgument("--takeover and --wait exclude each other")
    if start is not None and producer is None:
        raise InvalidArgument(f"--start {start} says where a producer begins: give it with --producer")
    from buckram.serve.json_views.records import JsonLines, PlainLines

    separator = key_separator.encode() if key_separator is not None else None
    lines = JsonLines() if jsonl else PlainLines(separator)
    choice = Choice(takeover, wait, create, end, acks, linger_ms, writer, producer, sequence, start, lines)
    run_async(_Copy(full, choice).run(uri))


class _Copy:
    """One run from standard input to one stream."""

    def __init__(self, name: StreamName, choice: Choice) -> None:
        self._name, self._choice = name, choice
        self._lines = self._taken = self._records = 0
        self._first: int | None = None
        self._degraded = Degraded()
        self._last: int | None = None
        self._failure: BuckramError | None = None
        # What is wrong with a JSON record may come out as late as when it is appended: none may be behind it.
        self._in_flight = 1 if choice.lines.one_by_one else BATCHES_IN_FLIGHT
        self._room = asyncio.Semaphore(self._in_flight)

    async def run(self, uri: str | None) -> None:
        choice, loop = self._choice, asyncio.get_running_loop()
        async with connected(uri) as client:
            writer = await self._open(client)
            scope = TaskScope("stream write")
            try:
                source = Lines(LONGEST_LINE)
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, source.stop)
                scope.spawn(_when_lost(writer, source), "lost")
                with transfer("records", total=input_size(), show=not choice.acks) as bar:
                    await self._feed(writer, source, scope, bar)
                await self._finish(writer)
            finally:
                await scope.close()
                await writer.abandon()

    async def _refuse_new_name_with_blanks(self, client: Client) -> None:
        """Refuse to create a stream with blanks in its name, which may be a typing error."""
        if not self._choice.create or not has_blanks(self._name):
            return
        try:
            await client.namespace(self._name.namespace).info(self._name.stream)
        except NoSuchStream:
            refuse_blanks(self._name, "make it with `buckram stream create --force`")

    async def _open(self, client: Client) -> StreamWriter:
        choice = self._choice
        await self._refuse_new_name_with_blanks(client)

        async def attempt(*, wait: bool) -> StreamWriter:
            return await client.namespace(self._name.namespace).writer(
                self._name.stream,
                create=choice.create,
                takeover=choice.takeover,
                wait=wait,
                name=choice.writer,
                linger_ms=choice.linger_ms,
            )

        try:
            return await attempt(wait=False)
        except WriterExists as error:
            if not choice.wait:
                raise
            remark(f"stream {self._name}: waiting until writer {error.holder!r} has gone")
        return await attempt(wait=True)

    async def _finish(self, writer: StreamWriter) -> None:
        """Report what is stored, then the error. A refused line does not keep the lines before it from being stored."""
        from buckram.serve.json_views.records import BadLine

        failure = self._failure
        if failure is None and writer.lost.is_set():
            failure = WriterLost(writer.stream, writer.lost_reason)
        try:
            if self._choice.end and failure is None:
                await writer.end()
            elif failure is None or isinstance(failure, BadLine):
                await writer.close()
        except BuckramError as error:
            failure = failure or error
        emit(
            {
                "stream": writer.stream,
                "records": self._records,
                "first_offset": self._first,
                "last_offset": self._last,
            }
        )
        if failure is not None:
            raise failure

    async def _feed(self, writer: StreamWriter, source: Lines, scope: TaskScope, bar: Bar) -> None:
        bad: BadLine | None = None
        async for batch in source:
            for begin in range(0, len(batch), BATCH_RECORDS):
                await self._room.acquire()
                if self._failure is not None:
                    return
                part = batch[begin : begin + BATCH_RECORDS]
                rows, bad = self._choice.lines.parse(part, self._lines + 1, writer.max_record_bytes)
                # Tasks start in the order they are made, so records keep the order of the lines.
                size = sum(map(len, part)) + len(part) if bar.shown else 0
                scope.spawn(self._append(writer, self._arguments(rows), bar, size), "append")
                self._lines += len(part)
                if bad is not None:
                    break
            if bad is not None:
                break
        for _ in range(self._in_flight):
            await self._room.acquire()
        self._failure = self._failure or bad

    def _arguments(self, rows: Rows) -> dict[str, Any]:
        choice, arguments = self._choice, rows.arguments()
        if choice.producer is not None:
            arguments |= {"producer": choice.producer, "sequence": choice.sequence + self._taken, "start": choice.start}
        self._taken += len(rows.values)
        return arguments

    async def _append(self, writer: StreamWriter, arguments: dict[str, Any], bar: Bar, size: int) -> None:
        try:
            offsets = await writer.append_many(**arguments)
            self._degraded.look(writer)
            self._acknowledged(offsets)
            bar.advance(len(offsets), size)
        except BuckramError as error:
            self._failure = self._failure or error
        finally:
            self._room.release()

    def _acknowledged(self, offsets: range) -> None:
        self._records += len(offsets)
        if not offsets:
            return
        self._first = offsets[0] if self._first is None else min(self._first, offsets[0])
        if self._last is None or offsets[-1] > self._last:
            self._last = offsets[-1]
            if self._choice.acks:
                print(self._last, flush=True)


async def _when_lost(writer: StreamWriter, source: Lines) -> None:
    """End the input at once when the writer is lost, not with its next line."""
    await writer.lost.wait()
    source.stop()

"""`buckram stream read` and `stream tail`: records as lines, as JSON lines, or raw."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.shared import completion, values
from buckram.cli.shared.options import cluster_options, connected, run_async, watch_async
from buckram.cli.shared.output import shows_bar, transfer
from buckram.cli.shared.stdout import Payload
from buckram.core.streams.names import StreamName, stream_name
from buckram.errors import InvalidArgument

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.core.streams.records.batch import Record
    from buckram.streams.read.reader import StreamReader

_follow_option = click.option(
    "-f", "--follow", is_flag=True, help="Continue with new records until Ctrl-C or the end of the stream."
)

OFFSET = click.IntRange(min=0)
COMMIT_S = 0.5
"""Longest delay in seconds between printing records and committing them: a commit per batch would cost more than
reading."""


@dataclass(frozen=True, slots=True)
class Form:
    """Format in which records are printed."""

    as_json: bool
    raw: bool
    keys: str | None
    times: bool

    def show(self, records: Iterable[Record]) -> bytes:
        if self.as_json:
            from buckram.serve.json_views.records import record_line

            return "".join([record_line(record) for record in records]).encode()
        if self.raw:
            return b"".join(record.value or b"" for record in records)
        return b"".join(self._line(record) for record in records)

    def _line(self, record: Record) -> bytes:
        parts = [values.iso(record.timestamp).encode() + b" "] if self.times else []
        if self.keys is not None:
            parts += [record.key or b"", self.keys.encode()]
        return b"".join([*parts, record.value or b"", b"\n"])


def form_options(command: Any) -> Any:
    for option in (
        click.option("--times", is_flag=True, help="Begin each line with the event time (UTC)."),
        click.option("--key-separator", metavar="TEXT", help="Print the key and this separator before the value."),
        click.option("--raw", is_flag=True, help="Print values one after another, unchanged."),
    ):
        command = option(command)
    return command


@click.command("read")
@click.argument("name", shell_complete=completion.streams)
@click.option("--start", metavar="OFFSET", help='First offset, "earliest" or "latest"; default earliest.')
@click.option("--stop", type=OFFSET, help="Offset to end before; default: what is readable now.")
@click.option("--since", metavar="TIME", help=f"Only records appended at or after this time: {values.MOMENTS}.")
@click.option("--until", metavar="TIME", help="Only records appended before this time; as --since.")
@click.option("--txid", type=OFFSET, help="Begin at the first record with at least this transaction id.")
@click.option("-n", "--count", type=click.IntRange(1), help="Maximum number of records; default all.")
@click.option("--cursor", metavar="NAME", help="Begin at this durable cursor, if it exists.")
@click.option("--commit", is_flag=True, help="With --cursor: move it past what was printed.")
@_follow_option
@click.option("--skip-truncated", is_flag=True, help="Continue at the earliest offset if the position was truncated.")
@form_options
@cluster_options
def read(
    name: str,
    start: str | None,
    stop: int | None,
    since: str | None,
    until: str | None,
    txid: int | None,
    count: int | None,
    cursor: str | None,
    commit: bool,
    follow: bool,
    skip_truncated: bool,
    raw: bool,
    key_separator: str | None,
    times: bool,
    uri: str | None,
    as_json: bool,
) -> None:
    """Print the records of a stream, one value a line. Its writer is never disturbed.

    With --json a line is {"offset", "timestamp_us", "append_time_us", "key_base64", "value_base64"}, with headers,
    txid, producer and sequence where a record has them; `stream write --jsonl` takes the same form.

    \b
    Examples:
      buckram stream read logs/kernel --since 10m
      buckram stream read shop/orders --cursor billing --commit -n 100 --json
    """
    if commit and cursor is None:
        raise InvalidArgument("--commit needs --cursor NAME")
    full, form = stream_name(name), Form(as_json, raw, key_separator, times)
    begin = _start(start)

    async def main() -> None:
        async with connected(uri) as client:
            now = client.services.runtime.clock.wall_us()
            reader = client.namespace(full.namespace).read(
                full.stream,
                start=begin,
                stop=stop,
                start_time=None if since is None else values.moment("--since", since, now),
                stop_time=None if until is None else values.moment("--until", until, now),
                start_txid=txid,
                follow=follow,
                on_truncated="skip" if skip_truncated else "error",
                cursor=cursor,
            )
            expected = count
            if not follow and until is None and shows_bar(reading=True):
                end = stop if stop is not None else (await client.namespace(full.namespace).info(full.stream)).end
                left = max(end - await reader.open(), 0)
                expected = left if count is None else min(left, count)
            await _print(reader, form, count, commit, expected)

    (watch_async if follow else run_async)(main())


@click.command("tail")
@click.argument("name", shell_complete=completion.streams)
@click.option(
    "-n", "--count", type=click.IntRange(0), default=10, show_default=True, help="Number of records to begin with."
)
@_follow_option
@click.option(
    "--since", metavar="TIME", help=f"Instead of -n, records appended at or after this time: {values.MOMENTS}."
)
@form_options
@cluster_options
def tail(
    name: str,
    count: int,
    follow: bool,
    since: str | None,
    raw: bool,
    key_separator: str | None,
    times: bool,
    uri: str | None,
    as_json: bool,
) -> None:
    """Print the last records of a stream, and with -f new ones.

    \b
    Examples:
      buckram stream tail logs/kernel
      buckram stream tail -f --since 10m logs/kernel
    """
    full, form = stream_name(name), Form(as_json, raw, key_separator, times)

    async def main() -> None:
        async with connected(uri) as client:
            await _print(await _tail_reader(client, full, count, since, follow), form, None, False)

    (watch_async if follow else run_async)(main())


async def _tail_reader(client: Client, name: StreamName, count: int, since: str | None, follow: bool) -> StreamReader:
    ns = client.namespace(name.namespace)
    if since is not None:
        time = values.moment("--since", since, client.services.runtime.clock.wall_us())
        return ns.read(name.stream, start_time=time, follow=follow, on_truncated="skip")
    info = await ns.info(name.stream)
    begin = max(info.earliest, info.end - count)
    return ns.read(name.stream, start=begin, follow=follow, on_truncated="skip")


def _start(text: str | None) -> int | str:
    if text is None or text in ("earliest", "latest"):
        return text or "earliest"
    if not text.isdigit():
        raise InvalidArgument(f'--start {text!r}: needs an offset, "earliest" or "latest"')
    return int(text)


async def _print(
    reader: StreamReader, form: Form, count: int | None, commit: bool, expected: int | None = None
) -> None:
    """Print records until the end, `count`, or Ctrl-C, which is the way to end following. Printed records are committed
    soon after."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    out = Payload(raw=form.raw)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with reader, AsyncExitStack() as stack:
        bar = stack.enter_context(transfer("records", count=expected, reading=True))
        ended = asyncio.ensure_future(stopped.wait())
        printed: int | None = None
        due = loop.time() + COMMIT_S
        try:
            while not ended.done() and (count is None or count > 0):
                step = asyncio.ensure_future(reader.next_batch())
                pause = None if printed is None else max(due - loop.time(), 0.0)
                await asyncio.wait((step, ended), timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    # Cancelled reads lose nothing: the position moves with what is handed out.
                    step.cancel()
                    await asyncio.wait((step,))
                batch = None if step.cancelled() else step.result()
                if batch is None and not step.cancelled():
                    break
                if batch is not None:
                    batch = batch if count is None else batch.between(batch.first_offset, batch.first_offset + count)
                    count = None if count is None else count - len(batch)
                    data = form.show(batch.records()) if _needs_records(form) else _values(batch.values())
                    out.write(data)
                    out.flush()
                    bar.advance(len(batch), len(data))
                    printed = batch.next_offset if commit else None
                if printed is not None and loop.time() >= due:
                    await reader.commit(printed)
                    printed, due = None, loop.time() + COMMIT_S
        finally:
            ended.cancel()
        if printed is not None:
            await reader.commit(printed)


def _needs_records(form: Form) -> bool:
    return form.as_json or form.raw or form.times or form.keys is not None


def _values(rows: list[bytes | None]) -> bytes:
    return b"\n".join([row if row is not None else b"" for row in rows]) + b"\n"

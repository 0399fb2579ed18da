"""`buckram ledger write`: lines of standard input become entries, as fast as the cluster takes them."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import click

from buckram.cli.shared.options import cluster_options, connected, custom_metadata, ledger_options, quorum, run_async
from buckram.cli.shared.output import Bar, Degraded, emit, input_size, remark, transfer
from buckram.cli.shared.stdin import Lines
from buckram.errors import EntryTooLarge, LedgerError
from buckram.runtime.process.tasks import TaskScope

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

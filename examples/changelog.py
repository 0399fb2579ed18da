"""A table whose every change is a record: null deletes a key, reading it all builds the table again, and compaction
keeps it short. `python -m examples.changelog`
"""

from __future__ import annotations

import asyncio

from buckram import Namespace, StreamWriter, connect


class Table:
    """One process writes, any number follow."""

    def __init__(self, ns: Namespace, stream: str) -> None:
        self._ns, self._stream = ns, stream
        self.rows: dict[bytes, bytes] = {}
        self.position = 0
        """The offset after the last change that is in `rows`."""

    async def catch_up(self) -> None:
        """Apply what is there now; also over a compaction, whose first record repeats the whole table."""
        async for record in self._ns.read(self._stream, start=self.position, on_truncated="skip"):
            self.apply(record.key, record.value)
            self.position = record.offset + 1

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            self.rows.clear()  # a compaction begins here
        elif value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = value

    async def put(self, writer: StreamWriter, key: bytes, value: bytes | None) -> None:
        """Change a row; None deletes it. It is in the table when it is stored for good, not before."""
        self.position = await writer.append(value, key=key) + 1
        self.apply(key, value)

    async def compact(self, writer: StreamWriter) -> int:
        """Store the table as one batch, all of it or nothing, and forget the changes before. How many are left."""
        keys = list(self.rows)
        values = [self.rows[key] for key in keys]
        written = await writer.append_many([b"", *values], keys=[None, *keys], atomic=True)
        await writer.flush()
        # Others see the end of a stream a moment after it was acknowledged.
        async for _ in self._ns.read(self._stream, start=written[-1], stop=written[-1] + 1, follow=True):
            await self._ns.truncate(self._stream, before=written[0])
        self.position = written[-1] + 1
        return len(written)


async def main() -> None:
    async with connect() as client:
        ns = client.namespace()
        async with ns.writer("prices") as writer:
            table, follower = Table(ns, "prices"), Table(ns, "prices")
            await table.catch_up()
            for n in range(100):
                await table.put(writer, b"item-%d" % (n % 7), b"%d" % n)
            await table.put(writer, b"item-3", None)
            left = await table.compact(writer)
            await table.put(writer, b"item-0", b"1000")
        await follower.catch_up()
        print(f"{left} records after compaction; {len(follower.rows)} rows, item-0 = {follower.rows[b'item-0']!r}")
        print(f"the follower has the same table: {follower.rows == table.rows}")


if __name__ == "__main__":
    asyncio.run(main())

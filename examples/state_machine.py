"""A replicated state machine: whoever has the stream's lease leads, the others follow and stand by to take over.

The leader first reads up to `writer.next_offset`, so it knows all that was ever decided, and decides only after it.
`python -m examples.state_machine`
"""

from __future__ import annotations

import asyncio

from buckram import Namespace, StreamWriter, WriterLost, connect

LOG = "counter-log"


class Counter:
    """The state: a sum. Every replica applies the same records in the same order."""

    def __init__(self, name: str, ns: Namespace) -> None:
        self.name, self._ns = name, ns
        self.value, self.position = 0, 0

    async def replay(self, stop: int) -> None:
        """Apply what is decided below `stop`, waiting for it where it has just been acknowledged."""
        async for record in self._ns.read(LOG, start=self.position, stop=stop, follow=True):
            self.value += int(record.value or b"0")
            self.position = record.offset + 1

    async def lead(self, writer: StreamWriter, changes: list[int]) -> None:
        """Decide. `expect_offset` makes sure that nothing was decided that this replica has not applied."""
        await self.replay(writer.next_offset)
        for change in changes:
            await writer.append(b"%d" % change, expect_offset=self.position)
            self.value, self.position = self.value + change, self.position + 1

    async def stand_by(self, changes: list[int]) -> None:
        """Wait until the leader is gone, then lead."""
        async with self._ns.writer(LOG, name=self.name, wait=True) as writer:
            await self.lead(writer, changes)
            print(f"{self.name} led from {writer.next_offset - len(changes)} on: {self.value}")


async def main() -> None:
    async with connect() as one, connect() as two, connect() as three:
        first, second = Counter("first", one.namespace()), Counter("second", two.namespace())
        leading = await one.namespace().writer(LOG, name="first")
        await first.lead(leading, [1, 2, 3])
        print(f"first led: {first.value}")
        waiting = asyncio.create_task(second.stand_by([10, 20]))
        await one.close()  # the first leader is gone, and its lease with its session
        await waiting

        # A leader that hangs does not give its lease back: take over. It is fenced, so it decides nothing any more.
        hanging = await two.namespace().writer(LOG, name="second")
        third = Counter("third", three.namespace())
        async with three.namespace().writer(LOG, name="third", takeover=True) as writer:
            await third.lead(writer, [100])
            print(f"third took over: {third.value}")
            try:
                await hanging.append(b"1000")
            except WriterLost:
                print("second is fenced: its decision was not taken")
        check = Counter("check", three.namespace())
        await check.replay(third.position)
        print(f"all agree: {check.value == third.value == 136}")


if __name__ == "__main__":
    asyncio.run(main())

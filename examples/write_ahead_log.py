"""A database's write-ahead log: log first, then change; a checkpoint now and then, after which the log is truncated;
whoever starts next takes over, loads the newest checkpoint and replays the rest. `python -m examples.write_ahead_log`
"""

from __future__ import annotations

import asyncio
import json

from buckram import Client, Namespace, StreamWriter, WriterLost, connect


class Bank:
    """Balances in memory, safe in two streams: every transfer in `bank-log`, states in `bank-checkpoints`."""

    def __init__(self, ns: Namespace, log: StreamWriter, checkpoints: StreamWriter) -> None:
        self._ns, self._log, self._checkpoints = ns, log, checkpoints
        self.balances: dict[str, int] = {}
        self.replayed = 0

    @classmethod
    async def start(cls, client: Client) -> Bank:
        """Take over from whoever ran before, alive or not, and recover. The log's fence comes first."""
        ns = client.namespace()
        log = await ns.writer("bank-log", name="bank", takeover=True)
        bank = cls(ns, log, await ns.writer("bank-checkpoints", name="bank", takeover=True))
        position = 0
        newest = bank._checkpoints.next_offset
        if newest:
            state = json.loads((await ns.get("bank-checkpoints", newest - 1)).value or b"{}")
            bank.balances, position = state["balances"], state["position"]
        async for record in ns.read("bank-log", start=position, stop=log.next_offset):
            bank._apply(json.loads(record.value or b"null"))
            bank.replayed += 1
        return bank

    def _apply(self, transfer: tuple[str, str, int]) -> None:
        giver, taker, amount = transfer
        self.balances[giver] = self.balances.get(giver, 0) - amount
        self.balances[taker] = self.balances.get(taker, 0) + amount

    async def transfer(self, giver: str, taker: str, amount: int) -> None:
        """Done when it is logged. WriterLost: another process runs the bank now, and this one must stop."""
        await self._log.append(json.dumps([giver, taker, amount]).encode())
        self._apply((giver, taker, amount))

    async def checkpoint(self) -> None:
        """Nothing else may run meanwhile. Older checkpoints and the log before this one are not needed any more."""
        position = self._log.acknowledged
        state = {"balances": self.balances, "position": position}
        place = await self._checkpoints.append(json.dumps(state).encode())
        await self._checkpoints.roll()  # so that the space of older ones is given back
        await self._log.roll()
        await self._ns.truncate("bank-checkpoints", before=place)
        await self._ns.truncate("bank-log", before=position)


async def main() -> None:
    async with connect() as one, connect() as two:
        bank = await Bank.start(one)
        for n in range(50):
            await bank.transfer("ann", f"customer-{n % 3}", n)
        await bank.checkpoint()
        for n in range(7):
            await bank.transfer("bob", "ann", n)
        again = await Bank.start(two)  # the first process hangs, or was killed: it makes no difference
        print(f"recovered {again.replayed} transfers after the checkpoint: {again.balances == bank.balances}")
        try:
            await bank.transfer("ann", "bob", 1_000_000)
        except WriterLost:
            print("the first process cannot write any more")
        print(f"the log begins at {(await two.namespace().info('bank-log')).earliest}")


if __name__ == "__main__":
    asyncio.run(main())

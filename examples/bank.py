"""A bank: accounts in every process, and each transfer counts once, whoever dies. `python -m examples.bank`

A teller writes the token of a transfer down before it executes it. When the leader dies under it, it repeats the
transfer on the next one, under the same token.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from buckram import CommandRefused, CommandUnknown, Machine, NotLeader, UnknownCommand, connect


class Bank:
    """Balances by account. It also counts transfers, so that one that came twice would be seen."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}
        self.transfers = 0

    def apply(self, command: Any) -> int:
        match command:
            case ["open", account, amount]:
                if account in self.balances:
                    raise CommandRefused(f"account {account} exists")
                self.balances[account] = amount
            case ["transfer", source, target, amount]:
                if self.balances.get(source, 0) < amount:
                    raise CommandRefused(f"{source} has {self.balances.get(source, 0)}, not {amount}")
                self.balances[source] -= amount
                self.balances[target] += amount
                self.transfers += 1
            case _:
                raise UnknownCommand(str(command))
        return self.balances[command[1]]

    def snapshot(self) -> bytes:
        return json.dumps([self.balances, self.transfers], sort_keys=True).encode()

    def restore(self, data: bytes) -> None:
        self.balances, self.transfers = json.loads(data)


async def transfer(machines: list[Machine[Bank]], token: str, command: list[Any]) -> int:
    """Execute a transfer on whoever leads, as often as it takes."""
    while True:
        for machine in machines:
            try:
                return int(await machine.execute(command, token=token))
            except (NotLeader, CommandUnknown):
                await asyncio.sleep(0.02)


async def main() -> None:
    async with connect() as one, connect() as two:
        first = await one.namespace().machine("bank", Bank, process="first")
        await first.lead()
        second = await two.namespace().machine("bank", Bank, process="second")
        for account in ("ann", "ben"):
            await first.execute(["open", account, 100])
        tokens = [await first.token() for _ in range(20)]
        work = [transfer([first, second], token, ["transfer", "ann", "ben", 3]) for token in tokens]
        takeover = asyncio.create_task(second.lead(takeover=True))  # in the middle of the transfers
        await asyncio.gather(takeover, *work)
        print(f"{await second.leader()} leads; {await second.read(lambda bank: bank.transfers)} transfers of 20")
        print(f"balances: {await second.read(lambda bank: dict(bank.balances))}")
        again = await transfer([second], tokens[0], ["transfer", "ann", "ben", 3])
        print(f"again under its token: {again}; {await second.read(lambda bank: bank.transfers)} transfers")
        try:
            await second.execute(["transfer", "ann", "ben", 1000])
        except CommandRefused as refused:
            print(f"refused: {refused}")
        same = await first.read(lambda bank: bank.balances, "stale", after=second.applied)
        print(f"the follower has {same}")


if __name__ == "__main__":
    asyncio.run(main())

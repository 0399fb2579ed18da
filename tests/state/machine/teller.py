"""A process with a replica of the bank: it executes what comes as JSON lines on its standard input.

python -m tests.state.machine.teller URI NAME: each line is [NUMBER, TOKEN, COMMAND]; without a command a token is
given. Answers are [NUMBER, "ok" | "refused" | "again", VALUE]; "again": on another process, or here later. [-1, "open",
OFFSET] is written at the beginning, [-1, "leads", OFFSET] whenever it has become the leader.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from examples.bank import Bank

from buckram import BuckramError, CommandRefused, CommandUnknown, Machine, NotLeader, connect
from buckram.state.machine.settings import MachineSettings

SETTINGS = MachineSettings(snapshot_commands=200, digest_commands=50)


def say(*answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def answer(machine: Machine[Bank], number: int, token: str | None, command: list[Any] | None) -> None:
    try:
        if command is None:
            say(number, "ok", await machine.token())
        else:
            say(number, "ok", await machine.execute(command, token=token))
    except CommandRefused as refused:
        say(number, "refused", str(refused))
    except (NotLeader, CommandUnknown) as error:
        say(number, "again", str(error))
    except BuckramError as error:
        say(number, "error", f"{type(error).__name__}: {error}")


async def stand(machine: Machine[Bank]) -> None:
    while True:
        await machine.lead()
        say(-1, "leads", machine.applied)
        leader = await machine._replica.leading()
        await leader.gone.wait()


async def main(uri: str, name: str) -> None:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with (
        connect(uri) as client,
        client.namespace("shop").machine("bank", Bank, process=name, settings=SETTINGS) as machine,
        asyncio.TaskGroup() as tasks,
    ):
        say(-1, "open", machine.applied)
        standing = tasks.create_task(stand(machine))
        while line := await reader.readline():
            tasks.create_task(answer(machine, *json.loads(line)))
        standing.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

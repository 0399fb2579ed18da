"""A job scheduler: jobs run at their time, each on one worker, again if that dies. `python -m examples.job_scheduler`

The time is that of the log (`now_us`), so that every replica decides the same. A worker takes a job for a while; if it
has not said by then that the job is done, somebody else gets it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from buckram import CommandRefused, Machine, UnknownCommand, connect


class Scheduler:
    """Jobs by name: when they are due, who has them and until when, or that they are done."""

    now_us = 0

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}

    def apply(self, command: Any) -> Any:
        match command:
            case ["add", name, after_ms]:
                if name in self.jobs:
                    raise CommandRefused(f"job {name} exists")
                self.jobs[name] = {"due": self.now_us + after_ms * 1000, "worker": "", "done": ""}
            case ["take", worker, for_ms]:
                ready = [(job["due"], name) for name, job in self.jobs.items() if not job["done"]]
                due, name = min(ready, default=(0, ""))
                if not name or due > self.now_us:
                    return [None, (due - self.now_us) // 1000 if name else 0]  # so long there is nothing to do
                self.jobs[name] |= {"worker": worker, "due": self.now_us + for_ms * 1000}
                return [name, 0]
            case ["done", worker, name]:
                if self.jobs[name]["worker"] != worker:
                    raise CommandRefused(f"job {name} is {self.jobs[name]['worker']}'s by now")
                self.jobs[name]["done"] = worker
            case _:
                raise UnknownCommand(str(command))
        return None

    def snapshot(self) -> bytes:
        return json.dumps(self.jobs, sort_keys=True).encode()

    def restore(self, data: bytes) -> None:
        self.jobs = json.loads(data)


async def work(machine: Machine[Scheduler], worker: str, ran: list[str], *, die_at: str = "") -> None:
    """Run jobs until all are done."""
    while await machine.read(lambda state: any(not job["done"] for job in state.jobs.values())):
        name, wait_ms = await machine.execute(["take", worker, 300])
        if name is None:
            await asyncio.sleep(max(wait_ms, 1) / 1000)
            continue
        if name == die_at:
            print(f"{worker} dies with {name}")
            return
        ran.append(f"{name} by {worker}")
        await machine.execute(["done", worker, name])


async def main() -> None:
    ran: list[str] = []
    async with connect() as client, client.namespace().machine("scheduler", Scheduler) as machine:
        await machine.lead()
        for number in range(5):
            await machine.execute(["add", f"job-{number}", number * 50])
        await work(machine, "ann", ran, die_at="job-2")
        await work(machine, "ben", ran)
        print(f"{len(ran)} jobs ran: {', '.join(sorted(ran))}")


if __name__ == "__main__":
    asyncio.run(main())

"""One actor until SIGTERM: writes or reads and records what it saw.

`python -m buckram.chaos.actors ROLE --metadata URI --history FILE --name NAME --seed N`, and for those of databases
`--listen HOST:PORT` or `--replicas HOST:PORT,...`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
from pathlib import Path

from chaos.actors.customers import use_bank
from chaos.actors.ledgers import read_ledgers, recover_ledgers, write_ledgers
from chaos.actors.replicas import hold_replica
from chaos.actors.stage import Role, Stage
from chaos.actors.streams import read_streams, write_streams
from chaos.history import Recorder

ROLES: dict[str, Role] = {
    "ledger-writer": write_ledgers,
    "ledger-reader": read_ledgers,
    "recoverer": recover_ledgers,
    "stream-writer": write_streams,
    "stream-reader": read_streams,
    "customer": use_bank,
    "replica": hold_replica,
}


async def _act(role: Role, stage: Stage) -> None:
    loop, work = asyncio.get_running_loop(), asyncio.ensure_future(role(stage))
    loop.add_signal_handler(signal.SIGTERM, stage.stop.set)
    await work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--listen", default="")
    parser.add_argument("--replicas", default="")
    options = parser.parse_args()
    recorder = Recorder(options.history, options.name)
    rng = random.Random(f"{options.name} {options.seed}")
    stage = Stage(options.metadata, options.name, options.history, recorder, rng, options.listen)
    stage.replicas = tuple(options.replicas.split(",")) if options.replicas else ()
    asyncio.run(_act(ROLES[options.role], stage))
    recorder.close()


if __name__ == "__main__":
    main()

"""Kills commands before their changes, outside of pytest: `python -m tests.kills [COMMAND...] [--store S] [--at K]`.

Without `--at` every change of each command is a death, and so is its end, of which nobody hears. A line for each
command tells its changes, kills and failures; a failure prints the command that repeats it. Exit code 1 if there was
any. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kills.commands import COMMANDS
from tests.kills.harness import killed, undisturbed
from tests.kills.world import STORES, World, server


def replay(name: str, store: str, at: int) -> str:
    """Return the command that repeats one kill."""
    return f'.venv/bin/python -m tests.kills "{name}" --store {store} --at {at}'


def change_at(changes: Sequence[str], at: int) -> str:
    """Return what a change was in the undisturbed run."""
    return changes[at - 1] if at <= len(changes) else "its end"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"default all: {', '.join(COMMANDS)}")
    parser.add_argument("--store", choices=STORES, default="sqlite")
    parser.add_argument("--at", type=numbers, metavar="N[,N...]", help="changes to die before; 0: only list them")
    options = parser.parse_args()
    unknown = [name for name in options.commands if name not in COMMANDS]
    if unknown:
        parser.error(f"no command {unknown[0]!r}; known: {', '.join(COMMANDS)}")
    logging.getLogger("buckram").setLevel(logging.CRITICAL)  # Of the clusters in this process.
    total = {"commands": 0, "kills": 0, "failed": 0}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="buckram-kills-") as folder, server(options.store, Path(folder)) as store:
        world = World(Path(folder), store)
        try:
            for name in options.commands or COMMANDS:
                kills, failed = sweep(name, world, options.at)
                total = {
                    "commands": total["commands"] + 1,
                    "kills": total["kills"] + kills,
                    "failed": total["failed"] + failed,
                }
        finally:
            world.close()
    print(json.dumps({**total, "seconds": round(time.monotonic() - began, 1)}))
    return 1 if total["failed"] else 0


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def sweep(name: str, world: World, at: list[int] | None) -> tuple[int, int]:
    """Kill one command; return the numbers of kills and failures."""
    began, changes = time.monotonic(), undisturbed(COMMANDS[name](world)).changes
    if at == [0]:
        print("\n".join(f"{number:4} {change}" for number, change in enumerate(changes, 1)))
    places = range(1, len(changes) + 2) if at is None else filter(None, at)
    kills = failed = 0
    for place in places:
        try:
            killed(COMMANDS[name](world), place)
            kills += 1
        except Exception as error:  # whatever it is that cannot be read afterwards
            kills, failed = kills + 1, failed + 1
            told = change_at(changes, place)
            print(f"FAILED {name} on {world.store.kind}, killed before change {place}, {told}: {error!r}")
            print(f"  again: {replay(name, world.store.kind, place)}", flush=True)
    took = time.monotonic() - began
    print(
        f"{name} on {world.store.kind}: {len(changes)} changes, {kills} kills, {failed} failed, {took:.1f} s",
        flush=True,
    )
    return kills, failed


if __name__ == "__main__":
    sys.exit(main())

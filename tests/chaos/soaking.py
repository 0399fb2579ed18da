"""Many rounds with consecutive seeds from the command line, a line for each; a file can record which were done."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def options_of(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options --rounds, --seed and --resume."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="file that records the rounds already done")
    return parser


def run_rounds(
    options: argparse.Namespace, play: Callable[[int, Path], dict[str, Any]], replay: Callable[[int], str],
    summed: Callable[[list[dict[str, Any]]], dict[str, Any]] = lambda _: {},
) -> int:  # fmt: skip
    """Run each round in a directory of its own, which is kept if the round failed. Return the exit code.

    `replay` returns the command that repeats one round, `summed` additional sums for the last line.
    """
    done: dict[str, Any] = {}
    if options.resume and options.resume.exists():
        done = json.loads(options.resume.read_text())
    failed, began = 0, time.monotonic()
    for seed in range(options.seed, options.seed + options.rounds):
        if str(seed) in done:
            continue
        root = Path(tempfile.mkdtemp(prefix="buckram-round-"))
        try:
            outcome = done[str(seed)] = play(seed, root)
            print(f"round {seed}: {outcome}", file=sys.stderr, flush=True)
        except AssertionError as error:
            failed += 1
            print(f"round {seed} FAILED: {error}\nreplay: {replay(seed)}\nfiles: {root}", file=sys.stderr, flush=True)
            continue
        shutil.rmtree(root)
        if options.resume:
            options.resume.write_text(json.dumps(done))
    totals = {"rounds": len(done), "failed": failed, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(totals | summed(list(done.values()))))
    return 1 if failed else 0

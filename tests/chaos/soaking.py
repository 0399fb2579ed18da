"""Many rounds of something from the command line: seeds in a row, a file that remembers those done, a line for each."""

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
    """--rounds, --seed and --resume."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="file that remembers the rounds already done")
    return parser


def run_rounds(
    options: argparse.Namespace, play: Callable[[int, Path], dict[str, Any]], replay: Callable[[int], str],
    summed: Callable[[list[dict[str, Any]]], dict[str, Any]] = lambda _: {},
) -> int:  # fmt: skip
    """Play each seed below a directory of its own, which stays when it failed. `replay`: the command that repeats one;
    `summed`: more for the last line, from all outcomes. The exit code."""
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
    told = {"rounds": len(done), "failed": failed, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(told | summed(list(done.values()))))
    return 1 if failed else 0

"""What `make test` leaves to `make soak`: the only place that knows whether this is a soak.

`pytest.mark.share(3)` marks tests, single cases or a whole file, of which one in three runs in each `make test`: which
one changes with each commit (scripts/share.py), and `make soak` runs all of them. Tests of one file are counted
together, or those of one folder that have the same name, `share(3, "kills")`; at least one of those that are collected
runs. `pytest.mark.soak` marks what only a soak runs. A test whose name is given to pytest, or chosen with -k, always
runs. `soak(full, usual)` is for a number of rounds or lives, and `drawn` draws what a commit tries.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from scripts.share import share_of_this_run

T = TypeVar("T")
SOAK = os.environ.get("BUCKRAM_SOAK") == "1"


def soak(full: T, usual: T) -> T:
    """`full` in `make soak`, otherwise `usual`."""
    return full if SOAK else usual


def some_of(full: Sequence[T], count: int, soak: int = 0) -> Sequence[T]:
    """`count` neighbours of `full`, others with each commit; all, or the first `soak`, where nothing is left out.

    The latter is for seeds that a check of `make soak` runs in full by itself.
    """
    share = share_of_this_run()
    if SOAK or share is None:
        return full[: soak or len(full)]
    first = share * count % (len(full) - count + 1)
    return full[first : first + count]


def drawn(what: str) -> random.Random:
    """Numbers for a test that tries others with each commit; a run with the same share draws the same ones.

    `what` names the test, so that tests draw apart. In `make soak`, and where nothing is left out, each run draws anew.
    """
    share = share_of_this_run()
    return random.SystemRandom() if SOAK or share is None else random.Random(f"{what} {share}")


def stores(usual: str) -> list[str]:
    """The metadata stores that a long test runs on: SQLite and ZooKeeper in `make soak`, otherwise one."""
    return soak(["sqlite", "zk"], [usual])


def left_to_soak(items: Sequence[pytest.Item], share: int | None, named: Sequence[str] = ()) -> list[pytest.Item]:
    """The tests of `items` that this run leaves out, in their order.

    `share`: the number of the run's share; None leaves nothing out. `named`: names of tests that run in any case.
    """
    if share is None:
        return []
    left: list[pytest.Item] = []
    groups: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        if any(item.nodeid == name or item.nodeid.startswith((name + "[", name + "::")) for name in named):
            continue
        if item.get_closest_marker("soak"):
            left.append(item)
        elif mark := item.get_closest_marker("share"):
            of, name = _arguments(mark, item)
            groups.setdefault((name, of), []).append(item)
    for (name, of), members in groups.items():
        of = min(of, len(members))
        first = (share + zlib.crc32(name.encode())) % of
        left += [item for place, item in enumerate(members) if place % of != first]
    chosen = set(left)
    return [item for item in items if item in chosen]


def _arguments(mark: pytest.Mark, item: pytest.Item) -> tuple[int, str]:
    of, *rest = mark.args
    if not isinstance(of, int) or of < 1 or len(rest) > 1 or mark.kwargs:
        raise pytest.UsageError(f"{item.nodeid}: share{mark.args} is none: share(3) or share(3, 'name of a group')")
    return of, str(rest[0]) if rest else item.nodeid.partition("::")[0]


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out of `items` what this run leaves to `make soak`, unless all are wanted or chosen by keyword."""
    if SOAK or config.option.keyword:
        return
    left = left_to_soak(items, share_of_this_run(), [_nodeid(name, config) for name in config.args if "::" in name])
    if left:
        config.hook.pytest_deselected(items=left)
        without = set(left)
        items[:] = [item for item in items if item not in without]


def _nodeid(name: str, config: pytest.Config) -> str:
    path, _, test = name.partition("::")
    inside = os.path.relpath(config.invocation_params.dir / path, config.rootpath)
    return f"{Path(inside).as_posix()}::{test}"


__all__ = ["SOAK", "deselect", "drawn", "left_to_soak", "soak", "some_of", "stores"]

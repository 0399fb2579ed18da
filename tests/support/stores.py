"""Which metadata stores a long test runs on: one in `make test`, all of them in `make soak`."""

from __future__ import annotations

import os


def stores(usual: str) -> list[str]:
    """The store of `make test`; with BUCKRAM_SOAK=1 SQLite and ZooKeeper."""
    return ["sqlite", "zk"] if os.environ.get("BUCKRAM_SOAK") == "1" else [usual]

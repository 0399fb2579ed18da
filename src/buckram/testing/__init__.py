"""For users' own tests: `async with cluster(bookies=3) as c`, a real cluster in this process on loopback.

The fixture `buckram_cluster` (plugin.py) gives one to a pytest test. Nothing is imported before it is used,
because pytest loads this package with every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from buckram.testing.in_process import Cluster, cluster
    from buckram.testing.threaded import ThreadedCluster

__all__ = ["Cluster", "ThreadedCluster", "cluster"]


def __getattr__(name: str) -> Any:
    if name == "ThreadedCluster":
        from buckram.testing import threaded

        return threaded.ThreadedCluster
    if name in __all__:
        from buckram.testing import in_process

        return getattr(in_process, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""For tests of applications: `async with cluster(bookies=3) as c` runs a real cluster in this process on loopback.

A pytest test gets one by the fixture `buckram_cluster` (`plugin.py`). Modules are imported when they are used, because
every pytest run loads this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from buckram.testing.in_process import Cluster, ThreadedCluster, cluster

__all__ = ["Cluster", "ThreadedCluster", "cluster"]


def __getattr__(name: str) -> Any:
    if name == "ThreadedCluster":
        from buckram.testing import in_process

        return in_process.ThreadedCluster
    if name in __all__:
        from buckram.testing import in_process

        return getattr(in_process, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

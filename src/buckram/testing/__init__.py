"""For users' own tests: `async with cluster(bookies=3) as c`, a real cluster in this process on loopback.

The fixture `buckram_cluster` (plugin.py) gives one to a pytest test. Real bookies as child processes are in
processes.py. Nothing is imported before it is used, because pytest loads this package with every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from buckram.testing.cluster import Cluster, cluster

__all__ = ["Cluster", "cluster"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from buckram.testing import cluster as module

        # The function shadows its module under the package's name, as the public API promises.
        globals().update(Cluster=module.Cluster, cluster=module.cluster)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

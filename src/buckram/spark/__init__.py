"""Spark reads ledgers: `spark.read.format("buckram").option("metadata", uri).option("ledgers", "1-8").load()`.

source.py is the data source, planning.py decides the partitions, session.py starts a local session. Nothing here is
imported by bookies or the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from buckram.java import Java, find_java
    from buckram.spark.session import local_session, register
    from buckram.spark.source import BuckramDataSource

__all__ = ["BuckramDataSource", "Java", "find_java", "local_session", "register"]


def __getattr__(name: str) -> Any:
    # Lazily, because pyspark_buckram is imported in each of Spark's many Python processes.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "BuckramDataSource":
        from buckram.spark import source

        return source.BuckramDataSource
    if name in ("Java", "find_java"):
        from buckram import java

        return getattr(java, name)
    from buckram.spark import session

    return getattr(session, name)

"""Spark's data source `buckram`: it reads streams and ledgers and writes streams, in batches and in streaming queries.

    spark.read.format("buckram").option("metadata", uri).load("shop/orders")

`data_source.py` is the entry point for PySpark, `session.py` starts a local session. Neither bookies nor the client
import anything from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from buckram.launch.java import Java, find_java
    from buckram.spark.data_source import BuckramDataSource
    from buckram.spark.relay.hadoop_settings import configure
    from buckram.spark.session import local_session, register
    from buckram.spark.source.query_lag import lag
    from buckram.spark.source.sql_views import views

__all__ = ["BuckramDataSource", "Java", "configure", "find_java", "lag", "local_session", "register", "views"]


def __getattr__(name: str) -> Any:
    # Imports are lazy, because each of Spark's many Python processes imports pyspark_buckram.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from buckram.extras import needed_for

    with needed_for(f"buckram.spark.{name}", "spark"):
        if name == "BuckramDataSource":
            from buckram.spark import data_source as source

            return source.BuckramDataSource
        if name in ("Java", "find_java"):
            from buckram.launch import java

            return getattr(java, name)
        if name == "configure":
            from buckram.spark.relay import hadoop_settings as files

            return files.configure
        if name == "lag":
            from buckram.spark.source import query_lag as lags

            return lags.lag
        if name == "views":
            from buckram.spark.source import sql_views

            return sql_views.views
        from buckram.spark import session

        return getattr(session, name)

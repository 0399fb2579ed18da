"""Fixtures: the Spark session and the clusters of the Spark tests, for jobs."""

from __future__ import annotations

from tests.spark.conftest import any_cluster, cluster, spark, sqlite_cluster, stream, zk_cluster

__all__ = ["any_cluster", "cluster", "spark", "sqlite_cluster", "stream", "zk_cluster"]

"""Reads from Spark: planning, readers of batches and micro-batches, scans in executors, tables of the cluster.

The cursors and the lag of queries are here, too. Not here: databases (`spark/databases/`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Find the data source where earlier releases had it: Spark Connect sends it by the name of its module."""
    if name == "BuckramDataSource":  # by its name alone: this room imports nothing above it
        return import_module("buckram.spark.data_source").BuckramDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

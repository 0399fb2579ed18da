"""Whether a ZooKeeper server can be started here: tests that need one are skipped where it cannot, and fail in CI."""

from __future__ import annotations

import os

import pytest

from buckram.errors import ConfigError
from buckram.launch.java import find_java
from buckram.launch.zookeeper_server.settings import find_jars


def need_zookeeper() -> None:
    """Call it first in a fixture."""
    try:
        find_java(wanted_by="ZooKeeper")
        find_jars()
    except ConfigError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no ZooKeeper server can be started: {error}")
        pytest.skip(f"no ZooKeeper server can be started: {error}")

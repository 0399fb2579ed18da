"""DuckDB with its extension `iceberg` from PyPI, so that no test fetches anything."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


def duckdb_with_iceberg() -> Any:
    """A connection. Without the packages the test is skipped, except in CI.

    DuckDB loads only extensions that its makers signed, whoever packed them.
    """
    try:
        duckdb = import_module("duckdb")
        packages = [import_module(f"duckdb_extension_{name}") for name in ("avro", "iceberg")]
    except ImportError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{error.name} is not installed: `make setup-all` brings it")
    offline = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    connection = duckdb.connect(config=offline)
    for package in packages:
        (file,) = Path(str(package.__file__)).parent.glob(f"extensions/v{duckdb.__version__}/*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    return connection

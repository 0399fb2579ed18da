"""The default cluster, if none is named: from the environment, or the directory of `buckram up`.

Costs no imports, as every command looks here. Not here: reading URIs (`metadata/uri.py`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "BUCKRAM_METADATA"
DATA_DIR: Final = "buckram-data"
DATABASE: Final = "metadata.db"
DESCRIPTION: Final = "cluster.json"
"""File that `buckram up` writes beside the bookies; it names the metadata if that is a ZooKeeper or etcd of its own."""
KNOWN: Final = (
    "sqlite:///abs/path, memory:NAME, zk://host:port/ledgers, etcd://host:port/buckram, "
    "buckram://host:port for metadata that bookies serve"
)
IN_PYTHON: Final = "pass the URI of one, as in connect('sqlite:///abs/path/metadata.db')"


def sqlite_uri(path: Path) -> str:
    return f"sqlite://{path.absolute()}"


def default_uri(environment: Mapping[str, str], directory: Path, *, how: str = IN_PYTHON) -> str:
    """Return BUCKRAM_METADATA, else the URI of the cluster that `buckram up` started in `directory`.

    Raises ConfigError if there is neither. `how`: the way to name a cluster to the caller, for the error.
    """
    given = environment.get(VARIABLE, "")
    if given:
        return given
    database = directory / DATA_DIR / DATABASE
    if database.exists():
        return sqlite_uri(database)
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((directory / DATA_DIR / DESCRIPTION).read_bytes())
        if isinstance(found, dict) and isinstance(found.get("metadata"), str):
            return str(found["metadata"])
    from buckram.errors import ConfigError  # half of what help takes

    raise ConfigError(
        f"no cluster is named: run `buckram up` in {directory.absolute()}, or {how}, or set {VARIABLE} ({KNOWN})"
    )


def how_to_start(uri: str) -> str:
    """Return advice for starting bookies if none of a cluster runs. `uri`: that of its metadata."""
    scheme, _, path = uri.partition("://")
    directory = Path(path).parent
    if scheme == "sqlite" and (directory / DESCRIPTION).is_file():
        return f"start the cluster with `buckram up --data {directory}`"
    return "start them with `buckram up` where it was made, or `buckram bookie run` for each"

"""A real ZooKeeper server without a download: the jars are those that PySpark ships, the Java is any that is found.

`start_zookeeper(directory)` is one server, `start_ensemble(directory)` several that form a quorum. settings.py says
what a server is started with, settings.py what its directory holds, server.py runs the process and asks whether it is
ready, server.py runs a few of them. Not here: clients (metadata/zookeeper), the command (cli/metadata_servers.py).
"""

from __future__ import annotations

from buckram.errors import ForeignDirectory, PortInUse, ZooKeeperFailed
from buckram.launch.zookeeper_server.server import Ensemble, ZooKeeperServer, start_ensemble, start_zookeeper

__all__ = [
    "Ensemble",
    "ForeignDirectory",
    "PortInUse",
    "ZooKeeperFailed",
    "ZooKeeperServer",
    "start_ensemble",
    "start_zookeeper",
]

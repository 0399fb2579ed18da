"""Real etcd servers on this machine, out of an installed etcd 3.5 or later.

`start_etcd(directory)` is one server, `start_etcd_cluster(directory)` several that form a quorum. Not here: clients
(metadata/etcd), the command (cli/metadata_servers.py).
"""

from __future__ import annotations

from buckram.launch.etcd_server.server import (
    EtcdCluster,
    EtcdServer,
    EtcdSettings,
    find_etcd,
    start_etcd,
    start_etcd_cluster,
)

__all__ = ["EtcdCluster", "EtcdServer", "EtcdSettings", "find_etcd", "start_etcd", "start_etcd_cluster"]

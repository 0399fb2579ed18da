"""One server of the metadata: `python -m buckram.chaos.servers KIND --data DIR --number N --hosts H1,H2 --listen HOST`.

It writes the server's configuration and becomes the server, so that a fault of its process is a fault of the server.
All servers together are one ensemble of ZooKeeper or one cluster of etcd; each is on a machine of its own. It listens
at HOST; the others and clients reach it at its place in --hosts, which may be a relay.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from buckram.addresses import join
from buckram.launch.etcd_server.server import EtcdSettings, etcd_command, find_etcd
from buckram.launch.zookeeper_server.server import FOREIGN_VARIABLES
from buckram.launch.zookeeper_server.settings import Member, Settings, ZooKeeperDirectory, java_command, zoo_cfg

PORT, PEER_PORT, ELECTION_PORT = PORTS = 2181, 2182, 2183
_ETCD_TIMES = ("--heartbeat-interval=100", "--election-timeout=1000")


def zookeeper(data: Path, number: int, hosts: list[str], listen: str) -> list[str]:
    """Prepare server `number` (from 1); returns its command."""
    # A server binds what its own line says, so each has the others' lines alone in common with them.
    known = [*hosts[: number - 1], listen, *hosts[number:]]
    members = tuple(Member(n, PORT, PEER_PORT, ELECTION_PORT, host) for n, host in enumerate(known, 1))
    settings = Settings(host=listen, heap_mb=128, tick_ms=500, members=members, number=number)
    place = ZooKeeperDirectory(data, number)
    place.config.write_text(zoo_cfg(settings, place.data, PORT), encoding="ascii")
    place.close()
    for name in FOREIGN_VARIABLES:
        os.environ.pop(name, None)
    os.environ["LC_ALL"] = "C.UTF-8"
    return java_command(settings, place.path, place.config, place.log)


def etcd(data: Path, number: int, hosts: list[str], listen: str) -> list[str]:
    """Return the command line of an etcd server."""
    members = ",".join(f"etcd-{n}=http://{join(host, PEER_PORT)}" for n, host in enumerate(hosts, 1))
    reached = hosts[number - 1]
    options = (
        *_ETCD_TIMES,
        f"--advertise-client-urls=http://{reached}:{PORT}",
        f"--initial-advertise-peer-urls=http://{reached}:{PEER_PORT}",
    )
    settings = EtcdSettings(listen, name=f"etcd-{number}", members=members, options=options)
    data.mkdir(parents=True, exist_ok=True)
    return etcd_command(find_etcd(), settings, data / "data", PORT, PEER_PORT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("zookeeper", "etcd"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--hosts", required=True)
    parser.add_argument("--listen", required=True)
    options = parser.parse_args()
    make = zookeeper if options.kind == "zookeeper" else etcd
    command = make(options.data, options.number, options.hosts.split(","), options.listen)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

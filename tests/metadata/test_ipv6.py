"""URIs with `[::1]` reach real servers there: ZooKeeper and etcd. WebHDFS is in spark/test_checkpoint_files."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from buckram.launch.etcd_server import start_etcd
from buckram.launch.zookeeper_server import start_zookeeper
from buckram.metadata.uri import init_cluster, open_store


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no ::1")


async def _used(uri: str) -> None:
    store = await open_store(uri)
    try:
        assert "[::1]:" in store.uri
        await init_cluster(store)
        await store.keys.create("/ipv6/key", b"value")
        assert (await store.keys.get("/ipv6/key")).value == b"value"
    finally:
        await store.close()
    again = await open_store(uri)
    try:
        assert await again.instance_id()
        assert (await again.keys.get("/ipv6/key")).value == b"value"
    finally:
        await again.close()


async def test_etcd(tmp_path: Path) -> None:
    with start_etcd(tmp_path / "etcd", host="::1", sync=False) as server:
        assert server.address.startswith("[::1]:")
        await _used(f"etcd://{server.address}/buckram")


@pytest.mark.share(3)
async def test_zookeeper(tmp_path: Path) -> None:
    with start_zookeeper(tmp_path / "zk", host="::1", sync=False) as server:
        assert server.address.startswith("[::1]:")
        await _used(f"zk://{server.address}/ledgers")

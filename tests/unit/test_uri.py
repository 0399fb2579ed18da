"""Metadata URIs: which are understood, what the errors say, the default."""

from __future__ import annotations

from pathlib import Path

import pytest

from buckram.errors import ClusterNotInitialised, ConfigError
from buckram.metadata.uri import MetadataUri, default_uri, init_cluster, open_store, parse, sqlite_uri


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sqlite:///var/lib/x/metadata.db", MetadataUri("sqlite", "/var/lib/x/metadata.db")),
        ("SQLite:///m.db", MetadataUri("sqlite", "/m.db")),
        ("sqlite:///with blank/m%20.db", MetadataUri("sqlite", "/with blank/m%20.db")),
        ("memory:", MetadataUri("memory", "default")),
        ("memory:one", MetadataUri("memory", "one")),
        ("memory://one", MetadataUri("memory", "one")),
    ],
)
def test_uris_that_are_understood(uri: str, expected: MetadataUri) -> None:
    assert parse(uri) == expected
    assert parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("sqlite://relative/m.db", "absolute"),
        ("sqlite:m.db", "absolute"),
        ("sqlite:/m.db", "three slashes"),
        ("sqlite:///", "absolute"),
        ("sqlite:///dir/", "absolute"),
        ("sqlite:///a\0b", "absolute"),
        ("zk://h:2181/ledgers", "no ZooKeeper store yet"),
        ("zk+hierarchical://h1:2181;h2:2181/prod/ledgers", "no ZooKeeper store yet"),
        ("zk+null://h:2181/ledgers", "no ZooKeeper store yet"),
        ("metadata-store:zk:h:2181", "no ZooKeeper store yet"),
        ("zk:h1:2181,h2:2181/chroot", "no ZooKeeper store yet"),
        ("h1:2181,h2:2181/ledgers", "no ZooKeeper store yet"),
        ("localhost:2181", "no ZooKeeper store yet"),
        ("etcd://e1:2379/ledgers", "etcd is not supported"),
        ("oxia://h:6648/ns", "oxia is not supported"),
        ("http://example", "known are sqlite:///abs/path, memory:NAME"),
        ("", "known are"),
        ("sqlite", "known are"),
        ("/some/path", "known are"),
        (":", "known are"),
    ],
)
def test_uris_that_are_not(uri: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as error:
        parse(uri)
    assert repr(uri) in str(error.value)


def test_a_path_survives_the_way_through_a_uri(tmp_path: Path) -> None:
    for name in ("plain.db", "with blank.db", "100%25.db", "a#b?c.db", "ä.db"):
        assert parse(sqlite_uri(tmp_path / name)).path == str(tmp_path / name)
        assert str(parse(sqlite_uri(tmp_path / name))) == sqlite_uri(tmp_path / name)


def test_the_default(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="buckram up") as error:
        default_uri({}, tmp_path)
    assert str(tmp_path) in str(error.value)
    assert default_uri({"BUCKRAM_METADATA": "memory:x"}, tmp_path) == "memory:x"
    database = tmp_path / "buckram-data" / "metadata.db"
    database.parent.mkdir()
    database.touch()
    assert default_uri({}, tmp_path) == f"sqlite://{database}"
    assert default_uri({"BUCKRAM_METADATA": ""}, tmp_path) == f"sqlite://{database}"
    assert default_uri({"BUCKRAM_METADATA": "memory:x"}, tmp_path) == "memory:x"


async def test_opening(tmp_path: Path) -> None:
    for uri in (f"sqlite://{tmp_path}/deep/m.db", f"memory:{tmp_path.name}"):
        store = await open_store(uri)
        other = await open_store(uri)
        assert store.uri == uri
        with pytest.raises(ClusterNotInitialised, match=uri):
            await store.instance_id()
        assert not (tmp_path / "deep").exists() or uri.startswith("memory")
        chosen = await init_cluster(store)
        assert await init_cluster(other) == await other.instance_id() == chosen
        await store.close()
        await other.close()

"""Metadata URIs: which are understood, what the errors say, the default."""

from __future__ import annotations

from pathlib import Path

import pytest

from buckram.errors import ClusterNotInitialised, ConfigError
from buckram.metadata.default import default_uri, sqlite_uri
from buckram.metadata.etcd.uri import EtcdUri
from buckram.metadata.uri import ZOOKEEPER_AUTH, MetadataUri, init_cluster, open_store, parse
from buckram.metadata.zookeeper.ledger_managers import FLAT, HIERARCHICAL, LONG_HIERARCHICAL
from buckram.metadata.zookeeper.uri import ZkUri


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
        ("zk:h1:2181,h2:2181/chroot", "not a chroot"),
        ("zk://h:2181", "the ledgers root is missing"),
        ("zk://h:2181/", "the ledgers root is missing"),
        ("h:2181/", "the ledgers root is missing"),
        ("zk://h:2181/ledgers/", "ends with a slash"),
        ("metadata-store:zk:h:2181/prod/", "ends with a slash"),
        ("metadata-store:zk:h:2181/", "the ledgers root is missing"),
        ("zk://h:2181//ledgers", "not an absolute path"),
        ("zk://h:2181/a/../b", "not an absolute path"),
        ("zk://h:2181/ledgers?timeout=3", "options have no place"),
        ("zk://h:2181/buckram/x", "Buckram's own keys"),
        ("zk:///ledgers", "'' is not a host:port"),
        ("zk://h:99999/ledgers", "'h:99999' is not a host:port"),
        ("zk://h1:1;;h2:2/ledgers", "'' is not a host:port"),
        ("zk://a..b:2181/ledgers", "'a..b:2181' is not a host:port"),
        (f"zk://{64 * 'a'}:2181/ledgers", "is not a host:port"),
        ("zk://user@h:1/ledgers", "'user@h:1' is not a host:port"),
        ("zk+legacyhierarchical://h:2181/ledgers", "LAYOUT decides"),
        ("zk+ms://h:2181/ledgers", "not supported"),
        ("zk+tree://h:2181/ledgers", "known are flat, hierarchical, longhierarchical, null"),
        ("metadata-store:rocksdb:///data", "only zk: is supported"),
        ("etcd:e1:2379/buckram", "two slashes"),
        ("etcd://e1:2379", "the root is missing"),
        ("etcd://e1:2379/", "the root is missing"),
        ("etcd://e1:2379/a/", "without empty parts"),
        ("etcd://e1:2379/a/001/b", "'001' in the root is taken"),
        (f"etcd://e1:2379/{201 * 'a'}", "the limit is 200"),
        ("etcd://e1:2379,/a", "'' is not a host:port"),
        ("etcd://e1:99999/a", "'e1:99999' is not a host:port"),
        ("etcd://@e1:2379/a", "user's name is missing"),
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


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("zk://h:2181/ledgers", ZkUri(("h:2181",))),
        ("zk://h/ledgers", ZkUri(("h:2181",))),
        ("zk+null://h:2181/ledgers", ZkUri(("h:2181",))),
        ("zk+hierarchical://h1:2181;h2:2182/prod/ledgers",
         ZkUri(("h1:2181", "h2:2182"), "/prod/ledgers", HIERARCHICAL)),
        ("ZK+Flat://h1:2181,h2:2181/x", ZkUri(("h1:2181", "h2:2181"), "/x", FLAT)),
        ("zk+longhierarchical+more://h:2181/x", ZkUri(("h:2181",), "/x", LONG_HIERARCHICAL)),
        ("zk://[::1]:2181/buckram-test", ZkUri(("[::1]:2181",), "/buckram-test")),
        ("host:2181", ZkUri(("host:2181",))),
        ("zk:2181", ZkUri(("zk:2181",))),
        ("h1:2181;h2:2181/deep/root", ZkUri(("h1:2181", "h2:2181"), "/deep/root")),
        ("metadata-store:zk:h:2181/ledgers", ZkUri(("h:2181",), "/ledgers/ledgers")),
        ("metadata-store:zk:h1:2181,h2:2181/prod", ZkUri(("h1:2181", "h2:2181"), "/prod/ledgers")),
        ("metadata-store:zk:h:2181", ZkUri(("h:2181",))),
        ("metadata-store:h1:2181,h2:2181", ZkUri(("h1:2181", "h2:2181"))),
    ],
)  # fmt: skip
def test_uris_of_zookeeper(uri: str, expected: ZkUri) -> None:
    assert parse(uri) == expected
    assert parse(str(expected)) == expected


async def test_credentials_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ZOOKEEPER_AUTH, "secret")
    with pytest.raises(ConfigError, match="digest:user:password") as error:
        await open_store("zk://localhost:1/ledgers")
    assert "secret" not in str(error.value)


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


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("etcd://a:2379,b:1/buckram", EtcdUri(("a:2379", "b:1"), "/buckram")),
        ("etcd://a/prod/x", EtcdUri(("a:2379",), "/prod/x")),
        ("etcds://[::1]:5/x", EtcdUri(("[::1]:5",), "/x", tls=True)),
        ("etcd://ann@a:1/x", EtcdUri(("a:1",), "/x", user="ann")),
    ],
)
def test_uris_of_etcd(uri: str, expected: EtcdUri) -> None:
    assert parse(uri) == expected
    assert parse(str(expected)) == expected


def test_a_password_in_a_uri_is_not_shown() -> None:
    found = parse("etcd://ann:p%2Fw%40@a:1/x")
    assert found == EtcdUri(("a:1",), "/x", user="ann", password="p/w@")
    assert str(found) == "etcd://ann@a:1/x"
    assert "p/w" not in repr(found)
    with pytest.raises(ConfigError) as error:
        parse("etcd://ann:secret@a:1/")
    assert "secret" not in str(error.value)

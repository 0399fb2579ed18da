"""A real ZooKeeper that takes TLS and SASL DIGEST-MD5, and what our sessions make on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from tests.support.secure_kit import Files

from buckram import connect
from buckram.config import ClientConfig
from buckram.errors import AccessRefused, ConfigError, MetadataError, MetadataUnavailable
from buckram.launch.zookeeper_server import ZooKeeperServer, start_zookeeper
from buckram.metadata.uri import ZOOKEEPER_AUTH, ZOOKEEPER_CA, ZOOKEEPER_CERT, ZOOKEEPER_SHARED, open_store
from buckram.metadata.zookeeper.kazoo_session import KazooSession
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.testing import cluster

NETTY = (
    "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
    "client.portUnification=true",
    "ssl.clientAuth=none",
)


@dataclass
class Secured:
    server: ZooKeeperServer
    files: Files
    ca: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    files = Files(folder / "ca")
    both = folder / "server.pem"
    both.write_text(Path(files.bookie.key).read_text() + Path(files.bookie.certificate).read_text())
    jaas = folder / "jaas.conf"
    login = "org.apache.zookeeper.server.auth.DigestLoginModule"
    jaas.write_text(f'Server {{ {login} required user_alice="secret" user_bob="hidden"; }};\n')
    options = (
        *NETTY,
        f"ssl.keyStore.location={both}", "ssl.keyStore.type=PEM",
        f"ssl.trustStore.location={files.authority.certificate}", "ssl.trustStore.type=PEM",
        "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    )  # fmt: skip
    try:
        server = start_zookeeper(
            folder / "zk", sync=False, options=options, java_options=(f"-Djava.security.auth.login.config={jaas}",)
        )
    except ConfigError as error:
        pytest.skip(f"needs a real ZooKeeper: {error}")
    with server:
        yield Secured(server, files, str(files.authority.certificate))


def tls_of(secured: Secured) -> TlsFiles:
    return TlsFiles(secured.files.client, server_side=False)


async def test_sessions_go_through_tls_and_only_with_who_is_trusted(secured: Secured, tmp_path: Path) -> None:
    session = KazooSession(secured.server.address, tls=tls_of(secured).context)
    await session.create("/through-tls", b"x" * 300_000)
    for _ in range(5):
        assert (await session.get("/through-tls"))[0] == b"x" * 300_000
    await session.close()
    stranger = Files(tmp_path / "other")
    refused = KazooSession(
        secured.server.address, tls=TlsFiles(stranger.client, server_side=False).context, operation_timeout_s=2.0
    )
    with pytest.raises(MetadataUnavailable):
        await refused.get("/through-tls")
    await refused.close()


async def test_the_environment_says_how_to_enter(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"zk://{secured.server.address}/entered"
    monkeypatch.setenv(ZOOKEEPER_CA, secured.ca)
    monkeypatch.setenv(ZOOKEEPER_AUTH, "sasl:alice:secret")
    store = await open_store(uri)
    instance = await store.initialise()
    monkeypatch.setenv(ZOOKEEPER_AUTH, "sasl:bob:hidden")
    other = await open_store(uri)
    with pytest.raises(AccessRefused):
        await other.instance_id()
    monkeypatch.setenv(ZOOKEEPER_AUTH, "sasl:alice:wrong")
    wrong = await open_store(uri)
    with pytest.raises(MetadataError) as error:
        await wrong.instance_id()
    assert "wrong" not in str(error.value)
    assert await store.instance_id() == instance
    for one in (store, other, wrong):
        await one.close()
    monkeypatch.setenv(ZOOKEEPER_AUTH, "sasl:alice")
    with pytest.raises(ConfigError, match="sasl:user:password"):
        await open_store(uri)
    monkeypatch.delenv(ZOOKEEPER_AUTH)
    monkeypatch.setenv(ZOOKEEPER_CA, "/nowhere/ca.pem")
    with pytest.raises(ConfigError, match="/nowhere/ca"):
        await open_store(uri)
    monkeypatch.delenv(ZOOKEEPER_CA)
    monkeypatch.setenv(ZOOKEEPER_CERT, "/nowhere/cert.pem")
    with pytest.raises(ConfigError, match=ZOOKEEPER_CA):
        await open_store(uri)


@pytest.mark.parametrize("credential", ["digest:carol:word", "sasl:alice:secret"])
async def test_everything_that_a_cluster_makes_is_its_creators(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, credential: str
) -> None:
    """But the node that clusters of different owners share, and the counters of ids, which Apache's clients use."""
    scheme = credential.partition(":")[0]
    uri = f"zk://{secured.server.address}/mine-{scheme}"
    monkeypatch.setenv(ZOOKEEPER_CA, secured.ca)
    monkeypatch.setenv(ZOOKEEPER_AUTH, credential)
    async with cluster(bookies=1, metadata=uri), connect(uri, config=ClientConfig(local_read_bytes=0)) as client:
        await client.namespaces.create("shop", ensemble="1/1/1")
        async with client.namespace("shop").writer("orders") as writer:
            await writer.append(b"1")
        async with client.create(ensemble=1) as ledger:
            await ledger.append(b"x")
        found = _acls(secured, credential, [f"/mine-{scheme}", f"/buckram/mine-{scheme}"])
    assert len(found) > 20
    open_ones = {path for path, who in found.items() if who != scheme and "idgen" not in path.lower()}
    assert open_ones == set()


def _acls(secured: Secured, credential: str, tops: list[str]) -> dict[str, str]:
    """Who may do something with each node: the scheme of the only identity, or world."""
    scheme, user, password = credential.split(":")
    sasl = {"mechanism": "DIGEST-MD5", "username": user, "password": password} if scheme == "sasl" else None
    client = KazooClient(
        secured.server.address,
        use_ssl=True,
        ca=secured.ca,
        sasl_options=sasl,
        auth_data=[] if sasl else [(scheme, f"{user}:{password}")],
    )
    client.start()
    try:
        found: dict[str, str] = {}
        waiting = [top for top in tops if client.exists(top)]
        while waiting:
            path = waiting.pop()
            acls, _ = client.get_acls(path)
            found[path] = "world" if any(one.id.scheme == "world" for one in acls) else acls[0].id.scheme
            waiting += [f"{path}/{child}" for child in client.get_children(path)]
        return found
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize(("auth", "shared"), [("", "ledgers"), ("digest:a:b", "ledgers"), ("sasl:a:b", "all")])
async def test_a_tree_is_shared_where_logins_are_known_only(
    monkeypatch: pytest.MonkeyPatch, auth: str, shared: str
) -> None:
    monkeypatch.setenv(ZOOKEEPER_AUTH, auth)
    monkeypatch.setenv(ZOOKEEPER_SHARED, shared)
    with pytest.raises(ConfigError, match=ZOOKEEPER_SHARED):
        await open_store("zk://127.0.0.1:1/ledgers")

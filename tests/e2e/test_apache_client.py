"""`buckram apache-client`: what it issues opens Apache's ledger tree and bookies, nothing else, and not for longer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL
from tests.e2e.conftest import Up, buckram
from tests.support.polling import until

from buckram.cli.security.apache_client import FILES, ApacheAccess
from buckram.cli.up.cluster_directory import ClusterDirectory
from buckram.cli.up.security_files import FOLDER, ZOOKEEPER_USER, SecureDirectory, SecureStore
from buckram.config import TlsConfig
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.messages import GetBookieInfo
from buckram.errors import AccessRefused, ConfigError, InvalidArgument
from buckram.launch.zookeeper_server.settings import Settings, java_command
from buckram.metadata.zookeeper.access_lists import may_enter
from buckram.metadata.zookeeper.kazoo_link import ThreadingHandler, sasl_options
from buckram.metadata.zookeeper.kazoo_session import KazooSession
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.runtime.net.security.secure_network import SecureNetwork
from buckram.runtime.net.tcp import TcpNetwork

clusters = pytest.mark.share(6, "clusters")
LEDGER = "/ledgers/00/0000/L0000"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    try:
        java_command(Settings(), Path(), Path(), Path())
    except ConfigError as error:
        pytest.skip(f"no ZooKeeper can be started: {error}")
    running = Up(tmp_path_factory.mktemp("apache") / "data", "--zookeeper", "--bookies", 1, "--secure")
    try:
        yield running
    finally:
        running.stop()


class Holder:
    """Who has the files that were issued to a name."""

    def __init__(self, up: Up, name: str) -> None:
        self.guard = SecureDirectory(up.directory / FOLDER)
        self.folder, self.name = self.guard.path / "apache" / name, name
        self.address: str = up.ready["zookeeper"]
        self.port: int = up.ready["bookies"][0]["port"]
        self.password = SecureStore(self.guard, "zookeeper").logins()[f"apache-{name}"]
        pair = [(self.folder / f"client.{ending}").read_bytes() for ending in ("pem", "key")]
        self.kept = self.guard.path.parent / f"kept-by-{name}"
        self.kept.mkdir(exist_ok=True)
        for ending, data in zip(("pem", "key"), pair, strict=True):
            (self.kept / f"client.{ending}").write_bytes(data)
        (self.kept / "client.key").chmod(0o600)

    def tls(self) -> ssl.SSLContext:
        return TlsFiles(TlsConfig("required", str(self.guard.ca)), server_side=False).context()

    @contextlib.asynccontextmanager
    async def session(self, user: str = "") -> AsyncIterator[KazooSession]:
        known = SecureStore(self.guard, "zookeeper").password if user else self.password
        login = [("sasl", f"{user or f'apache-{self.name}'}:{known}")]
        session = KazooSession(self.address, auth=login, tls=self.tls, operation_timeout_s=5.0)
        try:
            yield session
        finally:
            await session.close()

    async def may_enter(self) -> bool:
        return await may_enter(self.address, f"apache-{self.name}", self.password, self.tls)

    async def connection(self) -> tuple[asyncio.Transport, asyncio.Queue[bytes]]:
        """To the bookie, with the certificate, also after it was deleted; what the bookie says."""
        pair = [str(self.kept / f"client.{ending}") for ending in ("pem", "key")]
        files = TlsFiles(TlsConfig("required", str(self.guard.ca), *pair), server_side=False)
        said: asyncio.Queue[bytes] = asyncio.Queue()

        class Heard(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                said.put_nowait(data)

            def connection_lost(self, exc: Exception | None) -> None:
                said.put_nowait(b"")

        transport, _ = await SecureNetwork(TcpNetwork(local=False), files).connect("127.0.0.1", self.port, Heard)
        transport.write(wire_v3.encode_request(GetBookieInfo(1), 7))
        return transport, said


def issued(up: Up, *arguments: str) -> dict[str, Any]:
    done = buckram("apache-client", *arguments, "--data", up.directory, "--json")
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    found: dict[str, Any] = done.json
    return found


async def heard(said: asyncio.Queue[bytes]) -> bytes:
    async with asyncio.timeout(10):
        return await said.get()


@clusters
async def test_a_certificate_and_a_login_are_issued_confined_and_withdrawn(up: Up) -> None:
    written = buckram("ledger", "write", "--ensemble", "1/1/1", "--close", uri=up.uri, stdin=b"a\n", env=admin(up))
    assert written.code == 0, written.err
    _make_creators_only(up, LEDGER)
    made = issued(up, "issue", "pulsar", "--expires", "2d")
    holder = Holder(up, "pulsar")
    _check_files(up, holder, made)
    again = buckram("apache-client", "issue", "pulsar", "--data", up.directory)
    assert (again.code != 0, "withdraw pulsar" in again.err) == (True, True)
    await _check_confined(holder)
    transport, said = await holder.connection()
    assert wire_v3.decode_reply((await heard(said))[4:])[0].code.name == "OK"

    assert issued(up, "withdraw", "pulsar") == {"name": "pulsar", "withdrawn": [made["serial"]]}
    assert await heard(said) == b""  # the open connection has ended
    await until(transport.is_closing)
    with contextlib.suppress(ConnectionError):
        _, refused = await holder.connection()
        assert await heard(refused) == b""
    assert not await holder.may_enter()
    assert not holder.folder.exists()
    (listed,) = issued(up, "list")["clients"]
    assert (listed["name"], listed["serial"], listed["withdrawn"]) == ("pulsar", made["serial"], True)
    assert not any(one["principal"] == "cert:apache-pulsar" for one in _grants(up))
    nothing = buckram("apache-client", "withdraw", "nobody", "--data", up.directory)
    assert (nothing.code != 0, "nothing was issued" in nothing.err) == (True, True)

    other = issued(up, "issue", "pulsar")
    assert other["serial"] != made["serial"]
    assert await Holder(up, "pulsar").may_enter()
    assert not await holder.may_enter()  # the password is another one
    read = buckram("ledger", "read", "0", uri=up.uri, env=admin(up))
    assert read.out == "a\n"


def admin(up: Up) -> dict[str, str]:
    guard = SecureDirectory(up.directory / FOLDER)
    return {**SecureStore(guard, "zookeeper").settings(), **guard.admin_settings()}


def _grants(up: Up) -> list[dict[str, Any]]:
    listed = buckram("acl", "list", "--json", uri=up.uri, env=admin(up))
    found: list[dict[str, Any]] = listed.json["grants"]
    return found


def _make_creators_only(up: Up, path: str) -> None:
    """As an earlier release made it."""
    guard = SecureDirectory(up.directory / FOLDER)
    tls = TlsFiles(TlsConfig("required", str(guard.ca)), server_side=False).context
    login = sasl_options(ZOOKEEPER_USER, SecureStore(guard, "zookeeper").password)
    client = KazooClient(up.ready["zookeeper"], handler=ThreadingHandler(tls), sasl_options=login)
    client.start()
    try:
        client.set_acls(path, CREATOR_ALL_ACL)
    finally:
        client.stop()
        client.close()


def _check_files(up: Up, holder: Holder, made: dict[str, Any]) -> None:
    assert made["folder"] == str(holder.folder)
    assert {path.name for path in holder.folder.iterdir()} == set(FILES)
    assert stat.S_IMODE(holder.folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in holder.folder.iterdir()}
    assert {name for name, mode in modes.items() if mode != 0o600} == {"client.pem"}
    assert holder.password not in json.dumps(made)
    logs = [*up.directory.glob("*.log"), *(up.directory / "zookeeper").glob("*.log")]
    assert not [log for log in logs if holder.password in log.read_text(errors="replace")]
    assert {"principal": "cert:apache-pulsar", "namespace": "default", "permissions": ["append", "read"]} in _grants(up)


async def _check_confined(holder: Holder) -> None:
    async with holder.session() as other, holder.session(ZOOKEEPER_USER) as own:
        value, found = await other.get(LEDGER)
        await other.set(LEDGER, value, found.version)
        # What it makes for itself alone is the cluster's as well.
        await other.create("/ledgers/00/0000/L9998")
        mine = KazooSession(
            holder.address, auth=[("sasl", f"apache-{holder.name}:{holder.password}")], tls=holder.tls, acl="creator"
        )
        await mine.create("/ledgers/00/0000/L9999", b"mine")
        await mine.close()
        assert (await own.get("/ledgers/00/0000/L9999"))[0] == b"mine"
        for name in ("L9998", "L9999"):
            await own.delete(f"/ledgers/00/0000/{name}", 0)
        assert await other.children("/ledgers/available") == ["bookie-1", "readonly"]
        layout = (await other.get("/ledgers/LAYOUT"))[1]
        for refused in (
            other.set("/ledgers/LAYOUT", b"", layout.version), other.delete("/ledgers/LAYOUT", layout.version),
            other.delete("/ledgers/idgen", 0), other.create("/elsewhere"), other.create("/ledgers/available/evil"),
            other.create("/ledgers/cookies/evil"), other.create("/ledgers/underreplication/evil"),
            other.create("/buckram/evil"), other.children("/buckram"), other.children("/buckram/ledgers"),
            other.children("/buckram/ledgers/security/signing"), other.create("/zookeeper/quota/evil"),
        ):  # fmt: skip
            with pytest.raises(AccessRefused):
                await refused


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "no cluster"),
        (("sqlite", False), "without --secure"),
        (("zookeeper", False), "without --secure"),
        (("sqlite", True), "not in ZooKeeper"),
        (("etcd", True), "not in ZooKeeper"),
    ],
)
def test_a_cluster_that_apaches_client_cannot_use_is_refused(
    tmp_path: Path, made: tuple[str, bool] | None, said: str
) -> None:
    if made is not None:
        ClusterDirectory(tmp_path, bookies=1, kind=made[0], secure=made[1]).write()
    with pytest.raises(ConfigError, match=said):
        ApacheAccess.of(str(tmp_path))


async def test_names_that_are_none(tmp_path: Path) -> None:
    ClusterDirectory(tmp_path, bookies=1, kind="zookeeper", secure=True, metadata="zk://127.0.0.1:1/ledgers").write()
    access = ApacheAccess.of(str(tmp_path))
    for name in ("../evil", "A", 'a"b', "x" * 41, "-", ""):
        for refused in (access.issue(name, 60.0), access.withdraw(name)):
            with pytest.raises(InvalidArgument, match="small letters"):
                await refused


def test_logins_outlive_a_start_and_are_changed_one_by_one(tmp_path: Path) -> None:
    store = SecureStore(SecureDirectory(tmp_path / FOLDER), "zookeeper")
    store.prepare()
    first = store.users_version()
    store.prepare()
    assert store.users_version() == first  # so that a start does not lead to another one
    for user, password in (("apache-a", "1"), ("apache-b", "2"), ("apache-a", None)):
        store.change_login(user, password)
    changed = store.users_version()
    store.prepare()
    users = (store.guard.path / "zookeeper.jaas").read_text()
    assert (store.users_version(), changed != first) == (changed, True)
    assert store.logins() == {"apache-b": "2"}
    assert 'user_apache-b="2"' in users
    assert f'user_{ZOOKEEPER_USER}="{store.password}"' in users
    assert "apache-a" not in users

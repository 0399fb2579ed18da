"""`buckram up --secure` with a ZooKeeper or etcd of its own: it takes TLS and a user's password, and nothing else."""

from __future__ import annotations

import asyncio
import ssl
import stat
from pathlib import Path

import pytest
from tests.e2e.conftest import Up, buckram, gone
from tests.e2e.test_secure import settings
from tests.e2e.test_secure_gateway import shown_at
from tests.support.polling import eventually

from buckram.cli.up.security_files import FOLDER, SETTINGS, SecureDirectory, SecureStore
from buckram.errors import ConfigError, MetadataError
from buckram.launch.etcd_server import find_etcd
from buckram.launch.zookeeper_server.settings import Settings as ZooKeeperSettings
from buckram.launch.zookeeper_server.settings import java_command
from buckram.metadata.etcd.keys import EtcdKeys
from buckram.metadata.zookeeper.kazoo_session import KazooSession

pytestmark = pytest.mark.share(10, "stores")


@pytest.fixture(params=["etcd", "zookeeper"])
def kind(request: pytest.FixtureRequest) -> str:
    try:
        if request.param == "etcd":
            find_etcd()
        else:
            java_command(ZooKeeperSettings(), Path(), Path(), Path())
    except ConfigError as error:
        pytest.skip(f"no {request.param} can be started: {error}")
    return str(request.param)


def test_its_store_is_for_its_administrators_and_its_clients_need_the_printed_line_only(
    tmp_path: Path, kind: str
) -> None:
    first = Up(tmp_path / "data", f"--{kind}", "--bookies", 1, "--secure")
    try:
        assert first.uri.startswith({"etcd": "etcds://", "zookeeper": "zk://"}[kind])
        written = buckram(
            "stream", "write", "numbers", "--json", uri=first.ready["service"], stdin=b"1\n2\n", env=settings(first)
        )
        assert written.code == 0, written.err
        inner = SecureStore(SecureDirectory(first.directory / FOLDER), kind)
        _check_files(first.directory / FOLDER, inner)
        known = inner.settings()
        asyncio.run(_check_refused(kind, str(first.ready[kind]), inner))
        asyncio.run(_check_renewed(str(first.ready[kind]), inner, first.pids))
        listed = buckram("token", "list", "--json", uri=first.uri, env=known)
        assert {one["subject"] for one in listed.json["tokens"]} >= {"admin", "client"}
    finally:
        assert first.stop() == 0
    again = Up(tmp_path / "data")
    try:
        assert again.ready["client"] == first.ready["client"]
        assert (again.uri, again.ready["store_settings"]) == (first.uri, first.ready["store_settings"])
        read = buckram("stream", "read", "numbers", uri=again.ready["service"], env=settings(again))
        assert read.out == "1\n2\n"
    finally:
        assert again.stop() == 0


async def _check_renewed(address: str, inner: SecureStore, pids: list[int]) -> None:
    """A certificate that is made anew counts without a restart."""
    port = int(address.rpartition(":")[2])
    before = shown_at(port, inner.guard.ca)
    renewed = buckram("certificate", "renew", str(inner.guard.path / f"{inner.kind}.pem"), "--json")
    assert renewed.code == 0, renewed.err

    async def other() -> bool:
        return await asyncio.to_thread(shown_at, port, inner.guard.ca) != before

    await eventually(other, f"{inner.kind} still shows the certificate that it had")
    assert not any(gone(pid) for pid in pids)


async def _check_refused(kind: str, address: str, inner: SecureStore) -> None:
    """Without TLS, without who it is, or with a wrong password nobody reads anything."""
    tls = ssl.create_default_context(cafile=str(inner.guard.ca))
    for context, password in ((None, None), (tls, None), (tls, "wrong")):
        session: EtcdKeys | KazooSession
        if kind == "etcd":
            known = None if password is None else ("root", password)
            session = EtcdKeys((address,), "/buckram", tls=context, credentials=known, timeout_s=1.0)
        else:
            login = [] if password is None else [("sasl", f"buckram:{password}")]
            way_in = None if context is None else (lambda: tls)
            session = KazooSession(address, auth=login, tls=way_in, operation_timeout_s=1.0)
        with pytest.raises(MetadataError):
            await session.get("/ledgers")
        await session.close()


def _check_files(folder: Path, inner: SecureStore) -> None:
    """What is secret is for its owner, and in no log or command line."""
    assert stat.S_IMODE((folder.parent / inner.kind).stat().st_mode) == 0o700
    secrets = {path for path in folder.iterdir() if path.suffix not in (".pem",) or path.name.endswith(".both.pem")}
    assert folder / SETTINGS in secrets
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    (password,) = [value.rpartition(":")[2] for name, value in inner.settings().items() if name.endswith("_AUTH")]
    assert password in (folder / SETTINGS).read_text()
    logs = [*folder.parent.glob("*.log"), *(folder.parent / inner.kind).glob("*.log")]
    assert not [log for log in logs if password in log.read_text(errors="replace")]
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _is_readable(path)]
    assert not [command for command in commands if password.encode() in command]


def _is_readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True

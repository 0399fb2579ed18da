"""SASL DIGEST-MD5 with Apache's: both kinds of client log in at both kinds of bookies, in one ensemble."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from javakit.programs import NEWEST
from tests.interop.apache import Java, JavaFailed, running
from tests.interop.clusters import PASSWORD, Cluster
from tests.interop.words import check, each_wire, entries

from buckram import connect
from buckram.config import ClientConfig
from buckram.errors import BuckramError

pytestmark = pytest.mark.share(2)

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
PLUGINS = "org.apache.bookkeeper.sasl"
USERS = f"""Bookie {{ {MODULE} required user_hd="testpwd"; }};
BookKeeper {{ {MODULE} required username="hd" password="PASSWORD"; }};
"""


@dataclass
class Asking:
    """A cluster whose bookies ask for a password, Apache's client with the right one, and our file of it."""

    cluster: Cluster
    java: Java
    password: Path


def _jaas(path: Path, password: str) -> list[str]:
    path.write_text(USERS.replace("PASSWORD", password))
    return [f"-Djava.security.auth.login.config={path}"]


@pytest.fixture(scope="module")
def asking(zookeeper: str, workdir: Path, java: Java) -> Iterator[Asking]:
    users, password = workdir / "sasl-users.conf", workdir / "sasl-password.conf"
    users.write_text("hd:testpwd\n")
    users.chmod(0o600)
    password.write_text("testpwd\n")
    options = _jaas(workdir / "jaas.conf", "testpwd")
    cluster = Cluster(
        f"zk+hierarchical://{zookeeper}/asking",
        workdir / "asking",
        # Apache's bookie asks, too, and cannot say so where ours looks whether all do.
        our_settings={
            "BUCKRAM_AUTH_LOGINS": "sasl",
            "BUCKRAM_AUTH_SASL_USERS": str(users),
            "BUCKRAM_AUTH_MIXED": "allowed",
        },
        their_settings={
            "bookieAuthProviderFactoryClass": f"{PLUGINS}.SASLBookieAuthProviderFactory",
            "saslJaasClientAllowedIds": "hd",
        },
        their_options=options,
    )
    try:
        cluster.init_with_ours()
        cluster.add(ours=1, theirs=1)
        with running(NEWEST, workdir / "sasl-java.log", options) as process:
            yield Asking(cluster, process, password)
    finally:
        cluster.close()


def _known(asking: Asking, wire: int) -> dict[str, object]:
    settings = {"clientAuthProviderFactoryClass": f"{PLUGINS}.SASLClientProviderFactory"}
    return {"uri": asking.cluster.uri, "wire": f"v{wire}", "client": f"sasl{wire}", "settings": settings}


@each_wire
async def test_both_clients_log_in_at_both_kinds_of_bookies(
    asking: Asking, wire: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")
    monkeypatch.setenv("BUCKRAM_AUTH_SASL_USER", "hd")
    monkeypatch.setenv("BUCKRAM_AUTH_SASL_PASSWORD_FILE", str(asking.password))
    config, known = ClientConfig(wire_protocol=wire, local_read_bytes=0), _known(asking, wire)
    async with connect(asking.cluster.uri, config=config) as client:
        async with client.create(ensemble="2/2/2", password=PASSWORD) as writer:
            await writer.append_many(entries(0, 99))
        assert asking.java.call("Handles.read", **known, ledger=writer.ledger_id, first=0, last=99)
        made = asking.java.call("Handles.create", **known, e=2, qw=2, qa=2)
        asking.java.call("Handles.add", **known, writer=made["writer"], count=100)
        asking.java.call("Handles.closeWriter", **known, writer=made["writer"])
        async with client.open(int(made["ledger"]), password=PASSWORD) as reader:
            await check(reader, 0, 99)
    asking.java.call("Handles.abandon", **known)


async def test_without_the_password_neither_client_gets_in(
    asking: Asking, java: Java, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")
    async with connect(asking.cluster.uri) as client:
        with pytest.raises(BuckramError):
            async with client.create(ensemble="2/2/2") as writer:
                await writer.append(b"x")
    known = {"uri": asking.cluster.uri, "wire": "v3", "client": "no-sasl"}
    made = java.call("Handles.create", **known, e=2, qw=2, qa=2)
    with pytest.raises(JavaFailed):
        java.call("Handles.add", **known, writer=made["writer"], count=1)
    java.call("Handles.abandon", **known)

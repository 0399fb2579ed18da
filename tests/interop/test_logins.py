"""TLS, SASL DIGEST-MD5 and both, right and wrong: both kinds of client get the same answer of both kinds of bookie."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from javakit.programs import NEWEST
from tests.interop.apache import Java, JavaFailed, running
from tests.interop.clusters import PASSWORD, Cluster
from tests.interop.words import check, entries

from buckram import connect
from buckram.config import ClientConfig, TlsConfig
from buckram.errors import BuckramError
from buckram.runtime.net.security.certificate_authority import Authority
from buckram.runtime.net.security.logins import secured_by
from buckram.runtime.net.tcp import TcpNetwork
from buckram.runtime.production import production_runtime
from buckram.seams import Runtime

pytestmark = pytest.mark.share(3, "doors")

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
SASL = "org.apache.bookkeeper.sasl"
AUTHORIZED = "org.apache.bookkeeper.tls.BookieAuthZFactory"
TLS = "org.apache.bookkeeper.tls.TLSContextFactory"
USERS = f"""Bookie {{ {MODULE} required user_hd="testpwd"; }};
BookKeeper {{ {MODULE} required username="hd" password="testpwd"; }};
Wrong {{ {MODULE} required username="hd" password="guessed"; }};
"""
WAYS = ("tls", "sasl", "both")
CREDENTIALS = ("right", "wrong certificate", "wrong password", "none")
CASES = [
    (way, shown)
    for way in WAYS
    for shown in CREDENTIALS
    if not (way == "tls" and "password" in shown) and not (way == "sasl" and "certificate" in shown)
]
KINDS, COUNT = ("ours", "theirs"), 20


def lets_in(way: str, shown: str, wire: int, client: str) -> bool:
    """What both kinds of bookie answer. Apache's v2 client with SASL inside TLS gets in at neither: its first AUTH is a
    v2 message in clear, and Apache's bookie answers START_TLS a second time, which that client cannot read."""
    return shown == "right" and not (client == "theirs" and wire == 2 and way == "both")


@dataclass
class Doors:
    """Clusters of one bookie each, by kind and way; what opens them; and Apache's client."""

    clusters: dict[tuple[str, str], Cluster]
    java: Java
    right: TlsConfig
    wrong: TlsConfig
    passwords: dict[str, Path]

    def cluster(self, kind: str, way: str) -> Cluster:
        """The bookies that ask for a password offer TLS, too."""
        return self.clusters[kind, "tls" if way == "tls" else "sasl"]

    def theirs(self, way: str, shown: str) -> dict[str, str]:
        """Settings of Apache's client."""
        settings: dict[str, str] = {}
        if way != "sasl" and shown != "none":
            tls = self.wrong if shown == "wrong certificate" else self.right
            settings |= tls_of("client", tls)
        if way != "tls" and shown != "none":
            settings["clientAuthProviderFactoryClass"] = f"{SASL}.SASLClientProviderFactory"
            settings["saslJaasClientSectionName"] = "Wrong" if shown == "wrong password" else "BookKeeper"
        return settings

    def ours(self, way: str, shown: str) -> Runtime:
        """The network of our client."""
        tls, environment = TlsConfig(), dict[str, str]()
        if way != "sasl" and shown != "none":
            tls = self.wrong if shown == "wrong certificate" else self.right
        if way != "tls" and shown != "none":
            password = self.passwords["wrong" if shown == "wrong password" else "right"]
            environment = {"BUCKRAM_AUTH_SASL_USER": "hd", "BUCKRAM_AUTH_SASL_PASSWORD_FILE": str(password)}
        return replace(production_runtime(), network=secured_by(environment, TcpNetwork(local=False), tls=tls))


def tls_of(prefix: str, tls: TlsConfig) -> dict[str, str]:
    return {
        "tlsProviderFactoryClass": TLS, "tlsClientAuthentication": "true", "tlsCertificatePath": tls.certificate,
        f"{prefix}KeyStoreType": "PEM", f"{prefix}KeyStore": tls.key,
        f"{prefix}TrustStoreType": "PEM", f"{prefix}TrustStore": tls.ca,
    }  # fmt: skip


def our_bookie(tls: TlsConfig, mode: str) -> dict[str, str]:
    return {
        "BUCKRAM_TLS_MODE": mode, "BUCKRAM_TLS_CA": tls.ca, "BUCKRAM_TLS_CERTIFICATE": tls.certificate,
        "BUCKRAM_TLS_KEY": tls.key, "BUCKRAM_TLS_CLIENT_CERTIFICATES": "required",
    }  # fmt: skip


@pytest.fixture(scope="module")
def doors(zookeeper: str, workdir: Path, have_java: None) -> Iterator[Doors]:
    authority, other = Authority(workdir / "logins-ca"), Authority(workdir / "logins-other-ca")
    bookie, client = authority.bookie("bookie", ["127.0.0.1"]), authority.client("client", "alice", units=("0:ops",))
    stranger, ca = other.client("client", "alice", units=("0:ops",)), str(authority.certificate)
    served = TlsConfig("required", ca, str(bookie.certificate), str(bookie.key))
    users, jaas = workdir / "logins-users.conf", workdir / "logins-jaas.conf"
    users.write_text("hd:testpwd\n")
    users.chmod(0o600)
    jaas.write_text(USERS)
    passwords = {word: workdir / f"logins-{word}.conf" for word in ("right", "wrong")}
    for word, path in passwords.items():
        path.write_text({"right": "testpwd", "wrong": "guessed"}[word] + "\n")
    options = [f"-Djava.security.auth.login.config={jaas}"]
    asks = {"BUCKRAM_AUTH_LOGINS": "sasl", "BUCKRAM_AUTH_SASL_USERS": str(users)}
    theirs_ask = {
        "bookieAuthProviderFactoryClass": f"{SASL}.SASLBookieAuthProviderFactory", "saslJaasClientAllowedIds": "hd",
    }  # fmt: skip
    by_certificate = {"bookieAuthProviderFactoryClass": AUTHORIZED, "authorizedRoles": "ops"}
    clusters: dict[tuple[str, str], dict[str, Any]] = {
        ("ours", "tls"): {"our_settings": our_bookie(served, "required")},
        ("ours", "sasl"): {"our_settings": our_bookie(served, "optional") | asks},
        ("theirs", "tls"): {"their_settings": tls_of("tls", served) | by_certificate},
        ("theirs", "sasl"): {"their_settings": tls_of("tls", served) | theirs_ask, "their_options": options},
    }
    made = {
        (kind, way): Cluster(f"zk+hierarchical://{zookeeper}/door-{kind}-{way}", workdir / f"door-{kind}-{way}", **how)
        for (kind, way), how in clusters.items()
    }
    try:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda one: _start(made[one], one[0]), made))
        with running(NEWEST, workdir / "logins-java.log", options) as java:
            right = TlsConfig("required", ca, str(client.certificate), str(client.key))
            wrong = TlsConfig("required", ca, str(stranger.certificate), str(stranger.key))
            yield Doors(made, java, right, wrong, passwords)
    finally:
        for cluster in made.values():
            cluster.close()


def _start(cluster: Cluster, kind: str) -> None:
    cluster.init_with_ours()
    cluster.add(**{kind: 1})


def apaches_client(doors: Doors, kind: str, way: str, shown: str, wire: int) -> int | None:
    """The ledger that it wrote and read; None: it was not let in."""
    settings = doors.theirs(way, shown) | {"addEntryTimeoutSec": "3", "startTLSTimeoutSec": "3"}
    known = {"uri": doors.cluster(kind, way).uri, "wire": f"v{wire}", "client": f"{way} {shown}", "settings": settings}
    made = doors.java.call("Handles.create", **known, e=1, qw=1, qa=1)
    try:
        doors.java.call("Handles.add", **known, writer=made["writer"], count=COUNT)
        doors.java.call("Handles.closeWriter", **known, writer=made["writer"])
        doors.java.call("Handles.read", **known, ledger=made["ledger"], first=0, last=COUNT - 1)
    except JavaFailed:
        return None
    finally:
        doors.java.call("Handles.abandon", **known)
    return int(made["ledger"])


async def our_client(doors: Doors, kind: str, way: str, shown: str, wire: int, read: int | None = None) -> int | None:
    """The same of ours; `read`: a ledger that Apache's client wrote."""
    config = ClientConfig(wire_protocol=wire, local_read_bytes=0)
    try:
        async with connect(doors.cluster(kind, way).uri, config=config, runtime=doors.ours(way, shown)) as client:
            if read is None:
                async with client.create(ensemble=1, password=PASSWORD) as writer:
                    await writer.append_many(entries(0, COUNT - 1))
                read = writer.ledger_id
            async with client.open(read, password=PASSWORD) as reader:
                await check(reader, 0, COUNT - 1)
    except BuckramError:
        return None
    return read


def reads(doors: Doors, known: dict[str, Any]) -> None:
    """Have Apache's client read. On a busy machine it may give up on a connection, and takes another one then."""
    tries = 3
    while True:
        try:
            doors.java.call("Handles.read", **known)
            return
        except JavaFailed as error:
            tries -= 1
            if not tries or "BKBookieHandleNotAvailable" not in str(error):
                raise


ASKED = [(kind, *case, wire) for wire in (2, 3) for case in CASES for kind in KINDS]


async def test_apaches_client_gets_the_same_answer_of_both_kinds_of_bookie(doors: Doors) -> None:
    with ThreadPoolExecutor(len(ASKED)) as threads:  # one that is not answered waits for seconds
        made = dict(zip(ASKED, threads.map(lambda one: apaches_client(doors, *one), ASKED), strict=True))
    found = {one: ledger is not None for one, ledger in made.items()}
    assert found == {one: lets_in(*one[1:], "theirs") for one in ASKED}
    for (kind, way, shown, wire), ledger in made.items():
        if ledger is not None:
            assert await our_client(doors, kind, way, shown, wire, read=ledger) == ledger


async def test_our_client_gets_the_same_answer_of_both_kinds_of_bookie(doors: Doors) -> None:
    made = dict(zip(ASKED, await asyncio.gather(*(our_client(doors, *one) for one in ASKED)), strict=True))
    found = {one: ledger is not None for one, ledger in made.items()}
    assert found == {one: lets_in(*one[1:], "ours") for one in ASKED}
    for (kind, way, shown, wire), ledger in made.items():
        if ledger is not None and lets_in(way, shown, wire, "theirs"):
            known = {
                "uri": doors.cluster(kind, way).uri, "wire": f"v{wire}", "client": f"reads {way}",
                "settings": doors.theirs(way, shown),
            }  # fmt: skip
            await asyncio.to_thread(reads, doors, {**known, "ledger": ledger, "first": 0, "last": COUNT - 1})
            doors.java.call("Handles.abandon", **known)

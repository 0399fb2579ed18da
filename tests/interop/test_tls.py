"""TLS with Apache's: both kinds of client on ensembles of both kinds of bookies, which ask for certificates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import Java
from tests.interop.catalogue import Row, rows
from tests.interop.clusters import PASSWORD, Cluster
from tests.interop.words import check, each_wire, entries

from buckram import connect
from buckram.config import ClientConfig, TlsConfig
from buckram.runtime.net.security.certificate_authority import Authority, Pair

pytestmark = pytest.mark.share(4)

FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"


@dataclass
class Secured:
    """A cluster where everything is TLS, and how each kind of client speaks to it."""

    cluster: Cluster
    ours: TlsConfig
    java: dict[str, str]


def _theirs(prefix: str, ca: Path, pair: Pair) -> dict[str, str]:
    return {
        "tlsProviderFactoryClass": FACTORY, "tlsClientAuthentication": "true",
        "tlsCertificatePath": str(pair.certificate),
        f"{prefix}KeyStoreType": "PEM", f"{prefix}KeyStore": str(pair.key),
        f"{prefix}TrustStoreType": "PEM", f"{prefix}TrustStore": str(ca),
    }  # fmt: skip


@pytest.fixture(scope="module")
def secured(zookeeper: str, workdir: Path, java: Java) -> Iterator[Secured]:
    authority = Authority(workdir / "authority")
    ca = authority.certificate
    bookie, client = authority.bookie("bookie", ["127.0.0.1"]), authority.client("client", "alice")
    settings = {"MODE": "required", "CA": ca, "CERTIFICATE": bookie.certificate, "KEY": bookie.key}
    settings["CLIENT_CERTIFICATES"] = "required"
    cluster = Cluster(
        f"zk+hierarchical://{zookeeper}/secured",
        workdir / "secured",
        our_settings={f"BUCKRAM_TLS_{name}": str(value) for name, value in settings.items()},
        their_settings=_theirs("tls", ca, bookie),
    )
    try:
        cluster.init_with_ours()
        cluster.add(ours=2, theirs=2)
        ours = TlsConfig("required", str(ca), str(client.certificate), str(client.key))
        yield Secured(cluster, ours, _theirs("client", ca, client))
    finally:
        cluster.close()


@each_wire
async def test_our_client_and_apaches_read_each_other_through_tls(secured: Secured, java: Java, wire: int) -> None:
    config = ClientConfig(wire_protocol=wire, local_read_bytes=0)
    known = {"uri": secured.cluster.uri, "wire": f"v{wire}", "client": f"tls{wire}", "settings": secured.java}
    async with connect(secured.cluster.uri, config=config, tls=secured.ours) as client:
        async with client.create(ensemble="4/4/3", password=PASSWORD) as writer:
            await writer.append_many(entries(0, 99))
        found: dict[str, Any] = java.call("Handles.read", **known, ledger=writer.ledger_id, first=0, last=99)
        assert found
        made = java.call("Handles.create", **known, e=4, qw=4, qa=3)
        java.call("Handles.add", **known, writer=made["writer"], count=100)
        java.call("Handles.closeWriter", **known, writer=made["writer"])
        async with client.open(int(made["ledger"]), password=PASSWORD) as reader:
            await check(reader, 0, 99)
    java.call("Handles.abandon", **known)


@pytest.mark.parametrize("row", rows("BatchChecks", "LacChecks"), ids=str)
def test_a_java_check_passes_through_tls(java: Java, secured: Secured, row: Row) -> None:
    cluster = secured.cluster
    java.call(
        f"{row.room}.{row.name}", uri=cluster.uri, wire=row.wire, digest=row.digest, bookies=cluster.bookies,
        settings=secured.java,
    )  # fmt: skip

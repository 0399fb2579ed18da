"""One writer through TLS: Apache's client on Apache's bookies, and ours on ours, in turns on one disk.

Servers have certificates and clients check them; there are no logins. TCP on both sides, because a Unix socket would
need no TLS. Settings of Apache's side are those of bench/java/sides.py. Not here: TLS beside clear text
(`security.py`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.harness import data_root
from bench.java.loads import Loaders
from bench.java.runs import OUTSTANDING
from bench.java.sides import OURS, ApacheSide, OurSide, Side
from bench.machines import LOOPBACK, bookie_place, helpers, zookeeper
from buckram.runtime.net.security.certificate_authority import Authority

SECONDS = float(os.environ.get("BENCH_SECONDS", "15"))
TURNS = 3
WARM_UP_S = 30.0
FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"


def measure() -> dict[str, Any]:
    """Return adds a second of each and their cost, medians of some turns, and the ratio of ours to Apache's."""
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=data_root()))
    authority = Authority(folder / "authority")
    ca, server = (
        authority.certificate,
        authority.bookie("bookie", sorted({LOOPBACK, *(bookie_place(n).host for n in range(OURS + 3))})),
    )
    ours = {"BUCKRAM_TLS_MODE": "required", "BUCKRAM_TLS_CA": str(ca), "BUCKRAM_SOCKETS": "tcp"}
    named = {"BUCKRAM_TLS_CERTIFICATE": str(server.certificate), "BUCKRAM_TLS_KEY": str(server.key)}
    theirs = {"tlsProviderFactoryClass": FACTORY, "tlsCertificatePath": str(server.certificate)}
    theirs |= {"tlsKeyStoreType": "PEM", "tlsKeyStore": str(server.key)}
    client = {"tlsProviderFactoryClass": FACTORY, "clientTrustStoreType": "PEM", "clientTrustStore": str(ca)}
    found: dict[str, list[dict[str, Any]]] = {"apache-2": [], "ours": []}
    try:
        with zookeeper(folder / "zookeeper") as address, _environment(ours):
            apache = ApacheSide(address, folder / "apache")
            sides: dict[str, Side] = {
                "apache-2": apache,
                "ours": OurSide(address, folder / "ours", environment={**ours, **named}),
            }
            for bookie in apache.bookies:
                bookie.settings = theirs
            loaders = Loaders(folder)
            try:
                for side in sides.values():
                    side.start()
                for turn in range(TURNS):
                    for name, side in sides.items():
                        warm = 2.0 if name == "ours" else 4.0 if turn else WARM_UP_S
                        request = {"uri": side.uri, "load": "write", "warm": warm, "seconds": SECONDS, "client": client}
                        request |= {"protocol": 2, "outstanding": OUTSTANDING[name]}
                        found[name].append(loaders[name].ask(request, folder, side.pids, helpers()))
                        side.tidy()
            finally:
                loaders.close()
                for side in sides.values():
                    side.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _figures(found)


def _figures(found: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    names = {"per_s": "adds_per_s", "p99_ms": "p99_ms", "client_us": "client_cpu_us", "servers_us": "bookies_cpu_us"}
    figures: dict[str, Any] = {}
    for side, runs in found.items():
        for figure, name in names.items():
            value = statistics.median(run[figure] for run in runs)
            figures[f"{side.removesuffix('-2')}_{name}"] = round(value, 2)
    pairs = zip(found["ours"], found["apache-2"], strict=True)
    figures["times_as_fast"] = round(statistics.median(ours["per_s"] / theirs["per_s"] for ours, theirs in pairs), 2)
    figures["foreign_cpu"] = max(run["foreign_share"] for runs in found.values() for run in runs)
    return figures


@contextlib.contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started in the block."""
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)

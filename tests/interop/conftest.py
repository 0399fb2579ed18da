"""Fixtures of the interop tests, and the line that says how many Java checks ran."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from javakit.programs import NEWEST, OLDER, NoJava
from tests.interop.apache import Java, class_path, outcome, running
from tests.interop.clusters import Cluster, Decommissioning, auto_recovery, our_autorecovery
from tests.interop.words import JAVA_DIGEST, Ask

from buckram.cluster import Client, connect
from buckram.config import ClientConfig
from buckram.launch.zookeeper_server import start_zookeeper

_DIRECTIONS = {
    "test_java_on_ours": "Java clients and tools on our bookies",
    "test_quota": "Java clients and tools on our bookies",
    "test_shell": "Java clients and tools on our bookies",
    "test_autorecovery": "Java clients and tools on our bookies",
    "test_shell_on_our_autorecovery": "Java clients and tools on our bookies",
    "test_ours_on_apache": "our client on Apache's bookies",
    "test_to_and_fro": "our client on Apache's bookies",
    "test_mixed": "mixed clusters",
    "test_rounds": "mixed clusters",
    "test_shared_autorecovery": "mixed clusters",
    "test_layouts": "mixed clusters",
    "test_replace": "mixed clusters",
    "test_pulsar": "Java clients and tools on our bookies",
    "test_distributedlog": "Java clients and tools on our bookies",
    "test_herddb": "Java clients and tools on our bookies",
    "test_pulsar_replace": "mixed clusters",
    "test_tls": "mixed clusters",
    "test_logins": "mixed clusters",
    "test_secured": "Java clients and tools on our bookies",
    "test_http": "mixed clusters",
    "test_older": "the older release line",
}
DECOMMISSIONING = ("decommissioning", "decommissioning_with_ours")
"""Fixtures that begin Apache's decommissionbookie, which waits for half a minute."""
_passed: dict[str, int] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    module = Path(report.nodeid.split("::")[0])
    if report.when == "call" and report.passed and module.parent.name == "interop" and module.stem in _DIRECTIONS:
        _passed[_DIRECTIONS[module.stem]] = _passed.get(_DIRECTIONS[module.stem], 0) + 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    parts = "; ".join(f"{direction}: {count}" for direction, count in _passed.items())
    terminalreporter.write_line(f"java checks: {sum(_passed.values())}" + (f" ({parts})" if parts else ""))


def _need(line: str) -> None:
    """Skip where there is no Java; a machine of continuous integration must have it."""
    try:
        class_path(line)
    except NoJava as reason:
        if os.environ.get("CI"):
            pytest.fail(f"the interop tests need Apache's Java software: {reason}")
        pytest.skip(f"the interop tests need Apache's Java software: {reason}")


@pytest.fixture(scope="session")
def have_java() -> None:
    _need(NEWEST)


@pytest.fixture(scope="session")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Remove the bookies' data, which is large, and keep the logs for the analysis of failures."""
    root = tmp_path_factory.mktemp("interop")
    yield root
    for path in [*root.rglob("*")]:
        if path.is_file() and path.suffix not in (".log", ".conf"):
            path.unlink()


@pytest.fixture(scope="session")
def zookeeper(have_java: None, workdir: Path) -> Iterator[str]:
    """Address of a ZooKeeper server that all clusters share."""
    server = start_zookeeper(workdir / "zookeeper", sync=False)
    try:
        yield server.address
    finally:
        server.kill()


@pytest.fixture(scope="session")
def java(have_java: None, workdir: Path) -> Iterator[Java]:
    with running(NEWEST, workdir / "java.log") as process:
        yield process


@pytest.fixture(scope="session")
def older_java(have_java: None, workdir: Path) -> Iterator[Java]:
    _need(OLDER)
    with running(OLDER, workdir / "older-java.log") as process:
        yield process


def _cluster(zookeeper: str, workdir: Path, name: str) -> Cluster:
    return Cluster(f"zk+hierarchical://{zookeeper}/{name}", workdir / name)


@pytest.fixture(scope="session")
def ours(zookeeper: str, workdir: Path) -> Iterator[Cluster]:
    """Three bookies of ours in a cluster that we set up."""
    cluster = _cluster(zookeeper, workdir, "ours")
    try:
        cluster.init_with_ours()
        cluster.add(ours=3)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def apache(zookeeper: str, workdir: Path, java: Java) -> Iterator[Cluster]:
    """Three bookies of Apache's in a cluster that Apache's shell set up."""
    cluster = _cluster(zookeeper, workdir, "apache")
    try:
        cluster.init_with_apache(java)
        cluster.add(theirs=3)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def mixed(zookeeper: str, workdir: Path, java: Java) -> Iterator[Cluster]:
    """Two bookies of ours and three of Apache's in a cluster that Apache's shell set up."""
    cluster = _cluster(zookeeper, workdir, "mixed")
    try:
        cluster.init_with_apache(java)
        cluster.add(ours=2, theirs=3)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
async def client(cluster: Cluster, wire: int) -> AsyncIterator[Client]:
    """Our client, on the cluster and the wire protocol of the test."""
    async with connect(cluster.uri, config=ClientConfig(wire_protocol=wire)) as connected:
        yield connected


@pytest.fixture
def ask(java: Java, cluster: Cluster, wire: int, request: pytest.FixtureRequest) -> Iterator[Ask]:
    """Apache's client, the same: a coroutine, so that ours goes on meanwhile. It is of this test alone, so that its
    opinion of bookies that were killed ends with it."""
    known = {"uri": cluster.uri, "wire": f"v{wire}", "client": request.node.name}

    async def call(step: str, digest: str = "crc32c", **args: object) -> Any:
        return await outcome(java.start(f"Handles.{step}", **known, digest=JAVA_DIGEST[digest], **args))

    yield call
    java.call("Handles.abandon", **known)


@pytest.fixture(scope="session")
def decommissioning(zookeeper: str, workdir: Path, java: Java) -> Iterator[Decommissioning]:
    """Apache's decommissionbookie on a cluster of ours; begun here, it takes more than 30 s."""
    cluster = _cluster(zookeeper, workdir, "decommissioning")
    try:
        cluster.init_with_ours()
        cluster.add(ours=3)
        with auto_recovery(java, cluster):
            yield Decommissioning.start(java, cluster)
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def decommissioning_with_ours(zookeeper: str, workdir: Path, java: Java) -> Iterator[Decommissioning]:
    """The same with our auditor and replicator, which wait for an hour if nobody asks."""
    cluster = _cluster(zookeeper, workdir, "decommissioning2")
    try:
        cluster.init_with_ours()
        cluster.add(ours=3)
        with our_autorecovery(cluster):
            yield Decommissioning.start(java, cluster)
    finally:
        cluster.close()


@pytest.fixture(scope="session", autouse=True)
def begin_the_slowest_first(request: pytest.FixtureRequest) -> None:
    """Start decommissionbookie, if its tests were chosen, so that its half minute passes during the other tests."""
    for name in DECOMMISSIONING:
        if any(name in getattr(item, "fixturenames", ()) for item in request.session.items):
            request.getfixturevalue(name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Looked at last. Interop tests come after all others, which need not share the machine with a dozen JVMs."""
    here = Path(__file__).parent

    def late(item: pytest.Item) -> bool:
        return any(name in getattr(item, "fixturenames", ()) for name in DECOMMISSIONING)

    items.sort(key=lambda item: (here in item.path.parents, late(item)))

"""What holds for every test, and what is too slow to start more than once."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from scripts.share import share_of_this_run, told
from tests.support import soak

from buckram.cluster import Client
from buckram.errors import ConfigError
from buckram.launch.etcd_server import EtcdServer, start_etcd
from buckram.launch.zookeeper_server import ZooKeeperServer, start_zookeeper
from buckram.namespace import Namespace
from buckram.testing import Cluster, cluster

# A busy machine makes an example slow, not wrong: what tests may cost is counted in CPU (tests/budget.toml).
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """What Hypothesis tries is decided by the share as well, so that the same share fails, or passes, again."""
    share = share_of_this_run()
    if not soak.SOAK and share is not None and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(share)


def pytest_report_header() -> str:
    return told(None if soak.SOAK else share_of_this_run())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    soak.deselect(config, items)


@pytest.fixture(autouse=True)
def logging_as_found() -> Iterator[None]:
    """The simulator's command silences logging for its process; the next test shall not inherit that."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def signals_as_found() -> Iterator[None]:
    """A command that serves takes over signals for good, since its process ends with it; a test's process goes on."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    found = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, found, strict=True):
        if signal.getsignal(number) is not handler and handler is not None:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A real server for all tests; each takes nodes of its own. Without Java they are left out, except under CI."""
    try:
        server = start_zookeeper(tmp_path_factory.mktemp("zookeeper"), sync=False)
    except ConfigError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"needs a real ZooKeeper: {error}")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A real server for all tests; each takes a root of its own. Without etcd they are left out, except under CI."""
    try:
        server = start_etcd(tmp_path_factory.mktemp("etcd"), sync=False)
    except ConfigError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"needs a real etcd: {error}")
    yield server
    server.stop()


@pytest.fixture
async def three_bookies() -> AsyncIterator[Cluster]:
    """An in-process cluster for one test. Folders that need another one have fixtures of their own."""
    async with cluster(bookies=3) as running:
        yield running


@pytest.fixture
async def client(three_bookies: Cluster) -> AsyncIterator[Client]:
    """A client of that cluster."""
    async with three_bookies.client() as connected:
        yield connected


@pytest.fixture
async def ns(client: Client) -> Namespace:
    """The namespace `shop`, which is made for the test."""
    await client.namespaces.create("shop")
    return client.namespace("shop")

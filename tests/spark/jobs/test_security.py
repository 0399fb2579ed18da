"""Jobs on a cluster with TLS, tokens and grants: executors enter as the driver does, and without that they say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.e2e.conftest import Up, buckram

from buckram.cli.up.security_files import FOLDER, SecureDirectory
from buckram.config import TlsConfig
from buckram.jobs import compact, orphans, scrub
from buckram.spark.shared.cluster_uri import ClusterUri

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    # Else the executors, which are processes of the bookies' own user, would need no token.
    settings = {"BUCKRAM_AUTH_UNIX_ADMIN": "0"}
    running = Up(tmp_path_factory.mktemp("secure") / "data", "--bookies", 3, "--secure", env=settings)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def cluster(secure: Up) -> ClusterUri:
    """The cluster for an administrator; no environment has any of it."""
    guard = SecureDirectory(secure.directory / FOLDER)
    return ClusterUri(secure.ready["service"], guard.admin_token, TlsConfig("required", str(guard.ca)))


def written(secure: Up, cluster: ClusterUri) -> None:
    env = {"BUCKRAM_CA": cluster.tls.ca, "BUCKRAM_TOKEN": cluster.token}
    for lines in (b"1\n2\n3\n", b"4\n5\n6\n"):
        done = buckram("stream", "write", "numbers", "--json", uri=str(cluster), stdin=lines, env=env)
        assert done.code == 0, done.err


def test_every_copy_is_read_with_the_way_in_of_the_driver(spark: SparkSession, secure: Up, cluster: ClusterUri) -> None:
    written(secure, cluster)
    found = scrub(spark, cluster)
    assert found.ledgers > 0
    assert found.healthy, found
    assert found.replicas >= 2 * found.ledgers
    assert scrub(spark, cluster, ledgers=[0]).healthy


def test_the_other_jobs_enter_too(spark: SparkSession, secure: Up, cluster: ClusterUri) -> None:
    written(secure, cluster)
    assert compact(spark, cluster, streams=["numbers"]).problems == []
    assert orphans(spark, cluster).problems == []

"""The end of the main job alone: the maintainers' table in a database whose leader is killed, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from examples.debian import maintainers
from examples.debian.load import NAMESPACE
from examples.debian.maintainers import Outcome, Row

from buckram.errors import ConfigError
from buckram.launch.etcd_server import find_etcd, start_etcd
from buckram.testing import cluster

pytestmark = pytest.mark.share(10, "clusters")

PARTS: list[Row] = [(f"maintainer {n % 97}", n % 3, n % 5) for n in range(1000)]


@pytest.fixture(params=["sqlite", "etcd"])
def metadata(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield "sqlite"
        return
    try:
        find_etcd()
    except ConfigError as error:
        pytest.skip(str(error))
    with start_etcd(tmp_path / "etcd") as etcd:
        yield f"etcd://{etcd.address}/buckram"


async def test_a_leader_that_is_killed_loses_nothing_and_doubles_nothing(metadata: str, tmp_path: Path) -> None:
    said: list[str] = []
    async with cluster(bookies=3, metadata=metadata) as running:
        async with running.client() as client:
            await client.namespaces.create(NAMESPACE, ensemble="3/3/2")
        outcome = await maintainers.keep(running.uri, tmp_path, PARTS, said.append)
    assert outcome.good, outcome
    assert (outcome.rows, outcome.packages, outcome.entries) == (97, sum(n % 3 for n in range(1000)), 2000)
    assert outcome.batches == 125
    assert outcome.sent_again >= outcome.known >= maintainers.SENT_AGAIN
    assert outcome.take_over_s > 0
    assert sum("kill -9" in text for text in said) == 1


def test_a_row_that_differs_or_a_replica_that_differs_is_no_success() -> None:
    good = Outcome(rows=1, packages=1, known=1, digests={"replica-1": "a", "replica-2": "a"})
    assert good.good
    assert not replace(good, different=1).good
    assert not replace(good, digests={"replica-1": "a", "replica-2": "b"}).good
    assert not replace(good, digests={"replica-1": "a"}).good
    assert not replace(good, faults=["page 3"]).good
    assert not Outcome().good

"""Apache's newest client on our bookies: every check of the Java programs, v2 and v3, all digest types.

INTEROP_ON=apache runs the same checks on Apache's own bookies: there each must hold, or the check is wrong.
"""

from __future__ import annotations

import os

import pytest
from tests.interop.apache import Java
from tests.interop.catalogue import Row, rows
from tests.interop.clusters import Cluster


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue(os.environ.get("INTEROP_ON", "ours"))
    return found


ROOMS = (
    "LedgerChecks", "LacChecks", "RecoveryChecks", "IdChecks", "HandleChecks", "BatchChecks", "RecentChecks",
    "AdminChecks",
)  # fmt: skip


@pytest.mark.parametrize("row", rows(*ROOMS), ids=str)
def test_a_java_check_passes(java: Java, cluster: Cluster, row: Row) -> None:
    java.call(f"{row.room}.{row.name}", uri=cluster.uri, wire=row.wire, digest=row.digest, bookies=cluster.bookies)

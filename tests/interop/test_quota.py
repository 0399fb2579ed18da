"""Apache's client at the quota of its namespace: it gets its rate, and never takes a bookie for a failed one."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.interop.apache import Java
from tests.interop.clusters import PASSWORD, Cluster
from tests.support.polling import wait_until
from tests.support.soak import soak

from buckram import connect
from buckram.serve.json_views.status import fresh

pytestmark = pytest.mark.share(4)

RATE = 400
SECONDS = soak(60, 5)


@pytest.mark.parametrize("wire", ["v2", "v3"])
async def test_a_java_writer_at_its_quota_keeps_its_bookies(ours: Cluster, java: Java, wire: str) -> None:
    namespace = f"java-{wire}"
    async with connect(ours.uri) as client:
        await client.namespaces.create(namespace)
        await client.namespaces.set_quotas(namespace, in_entries_per_s=RATE)
        for _ in range(2):  # the round of each bookie in which it was set may have begun before
            await fresh(client.services.store)
        known = {"uri": ours.uri, "wire": wire, "client": namespace}
        made = java.call("Handles.create", **known, e=3, qw=3, qa=2, custom={"buckram.namespace": namespace})
        try:
            java.call("Handles.startWriting", **known, writer=made["writer"], pause_us=0)
            moments = dict[int, float]()

            def reached(count: int) -> bool:
                state: dict[str, Any] = java.call("Handles.state", **known, writer=made["writer"])
                assert state["failed"] == 0, state
                moments[count] = time.monotonic()
                return int(state["acknowledged"]) >= count

            wait_until(lambda: reached(5 * RATE), "the writer is too slow")
            begin = 5 * RATE
            end = begin + SECONDS * RATE
            wait_until(lambda: reached(end), "the writer is too slow", seconds=2 * SECONDS)
            took = moments[end] - moments[begin]
            java.call("Handles.stopWriting", **known, writer=made["writer"])
            assert took == pytest.approx(SECONDS, rel=0.1)
            metadata = await client.metadata(int(made["ledger"]))
            assert len(metadata.fragments) == 1, metadata.fragments
            async with client.recover(int(made["ledger"]), password=PASSWORD) as reader:
                assert reader.last_confirmed >= end
        finally:
            java.call("Handles.abandon", **known)
            await client.namespaces.set_quotas(namespace, in_entries_per_s=None)

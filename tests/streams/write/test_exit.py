"""Programs that end without closing their writer; each runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from buckram import sync
from buckram.testing import ThreadedCluster

BLOCKING = """
import sys
from buckram import sync
client = sync.connect(sys.argv[1])
writer = client.namespace().writer(sys.argv[2])
for n in range(50):
    writer.append(b"%d" % n)
print("50 acknowledged")
"""
ASYNC = """
import asyncio, sys
from buckram import connect
async def main():
    client = await connect(sys.argv[1])
    writer = await client.namespace().writer(sys.argv[2])
    for n in range(50):
        await writer.append(b"%d" % n)
    print("50 acknowledged")
asyncio.run(main())
"""

BLOCKING_LEDGER = """
import sys
from buckram import sync
client = sync.connect(sys.argv[1])
writer = client.create(ensemble="3/3/2", password="secret")
for n in range(50):
    writer.append(b"%d" % n)
print(writer.ledger_id)
"""
ASYNC_LEDGER = """
import asyncio, sys
from buckram import connect
async def main():
    client = await connect(sys.argv[1])
    writer = await client.create(ensemble="3/3/2", password="secret")
    for n in range(50):
        await writer.append(b"%d" % n)
    print(writer.ledger_id)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(bookies=3) as running:
        yield running


@pytest.mark.parametrize(("stream", "program"), [("blocking", BLOCKING), ("async", ASYNC)])
def test_a_script_that_ends_without_closing_its_writer(cluster: ThreadedCluster, stream: str, program: str) -> None:
    """The last of its acknowledged records is readable, because the writer is sealed at exit."""
    done = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", program, cluster.uri, stream], capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "50 acknowledged\n"), done.stderr
    assert f"the writer of stream default/{stream} was not closed" in done.stderr
    with sync.connect(cluster.uri) as client:
        ns = client.namespace()
        assert [record.value for record in ns.read(stream)] == [b"%d" % n for n in range(50)]
        assert all(segment.sealed for segment in ns.segments(stream))
        assert ns.info(stream).writer is None


def test_a_script_that_closes_its_writer_is_not_warned(cluster: ThreadedCluster) -> None:
    program = BLOCKING + "writer.close()\n"
    done = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", program, cluster.uri, "closed"], capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("program", [BLOCKING_LEDGER, ASYNC_LEDGER], ids=["blocking", "async"])
def test_a_script_that_ends_without_closing_a_ledger_s_writer(cluster: ThreadedCluster, program: str) -> None:
    """Its last acknowledged entry is readable without a recovery by somebody else."""
    done = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", program, cluster.uri], capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ledger = int(done.stdout)
    assert f"the writer of ledger {ledger} was not closed" in done.stderr
    assert f"buckram ledger recover {ledger}" in done.stderr
    with sync.connect(cluster.uri) as client:
        assert client.metadata(ledger).last_entry == 49
        with client.open(ledger, password="secret") as reader:
            assert [entry.payload for entry in reader.read(0, 49)] == [b"%d" % n for n in range(50)]


@pytest.mark.parametrize("ending", ["writer.close()", "client.close()"])
def test_a_closed_or_abandoned_ledger_writer_is_left_alone_at_exit(cluster: ThreadedCluster, ending: str) -> None:
    """Closing the client abandons its writers, whose ledgers stay open."""
    done = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", BLOCKING_LEDGER + ending, cluster.uri],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    with sync.connect(cluster.uri) as client:
        assert client.metadata(int(done.stdout)).closed is (ending == "writer.close()")

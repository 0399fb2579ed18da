"""The client without async, against real bookies: threads, running loops, forks, batches, endings."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from tests.support.polling import wait_until

from buckram import sync
from buckram.config import ClientConfig
from buckram.errors import (
    BufferFull,
    EntryTooLarge,
    ForkedClient,
    HandleClosed,
    LedgerClosed,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
)
from buckram.testing import ThreadedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(bookies=3) as running:
        yield running


@pytest.fixture
def client(cluster: ThreadedCluster) -> Iterator[sync.Client]:
    with sync.connect(cluster.uri) as connected:
        yield connected


def test_write_read_list_delete(client: sync.Client) -> None:
    with client.create(custom_metadata={"k": "v"}) as writer:
        assert writer.append(b"a") == 0
        assert writer.append_many(b"%d" % i for i in range(2000)) == range(1, 2001)
        assert writer.last_confirmed == 2000
    assert client.metadata(writer.ledger_id).custom_metadata["k"] == b"v"
    with client.open(writer.ledger_id) as reader:
        assert reader.last_confirmed == reader.read_last_confirmed() == 2000
        assert reader.length == 1 + sum(len(b"%d" % i) for i in range(2000))
        assert reader.get(0).payload == b"a"
        assert [e.payload for e in reader.read(1, 3)] == [b"0", b"1", b"2"]
        assert reader.read_payloads(1, 2000) == [b"%d" % i for i in range(2000)]
        assert [e.entry_id for e in reader.entries()] == list(range(2001))
        assert sum(len(chunk) for chunk in reader.chunks(5, 105)) == 101
        assert [len(payload) for chunk in reader.payload_chunks(5, 105) for payload in chunk] == [
            len(entry.payload) for entry in reader.read(5, 105)
        ]
        with pytest.raises(NoSuchEntry):
            reader.get(2001)
    assert writer.ledger_id in list(client.list())
    assert client.repair(writer.ledger_id).healthy
    client.delete(writer.ledger_id)
    with pytest.raises(NoSuchLedger):
        client.open(writer.ledger_id)


def test_appends_without_waiting_keep_their_order_and_are_flushed(client: sync.Client) -> None:
    with client.create() as writer:
        futures = [writer.append_nowait(b"%d" % i) for i in range(5000)]
        writer.flush()
        assert [f.result(0) for f in futures] == list(range(5000))
        assert not futures[0].cancel()
    with client.open(writer.ledger_id) as reader:
        assert reader.read_payloads(0, 4999) == [b"%d" % i for i in range(5000)]


def fill(writer: sync.Writer, futures: list[Future[int]]) -> None:
    while True:
        futures.append(writer.append_nowait(b"x" * 5000))


def test_the_byte_limit_is_told_at_once(cluster: ThreadedCluster) -> None:
    with sync.connect(cluster.uri, config=ClientConfig(max_pending_bytes=100_000)) as client:
        with client.create() as writer:
            futures: list[Future[int]] = []
            with pytest.raises(BufferFull, match="100000"):
                fill(writer, futures)
            sent = len(futures)
            writer.flush()
            writer.append_nowait(b"there is room again")
        with client.open(writer.ledger_id) as reader:
            assert reader.last_confirmed == sent


def test_an_append_that_nobody_watches_fails_loudly_at_flush(client: sync.Client) -> None:
    writer = client.create()
    writer.append_nowait(b"x" * 6_000_000)
    with pytest.raises(EntryTooLarge):
        writer.flush()
    writer.append(b"still alive")
    client.recover(writer.ledger_id).close()
    writer.append_nowait(b"too late")
    with pytest.raises(LedgerFenced):
        writer.flush()
    with pytest.raises(LedgerFenced):
        writer.close()


def test_many_threads_share_a_client(client: sync.Client) -> None:
    def work(number: int) -> None:
        with client.create() as writer:
            for i in range(20):
                writer.append(b"%d-%d" % (number, i))
        with client.open(writer.ledger_id) as reader:
            got[number] = reader.read_payloads(0, 19)

    got: dict[int, list[bytes]] = {}
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert got == {n: [b"%d-%d" % (n, i) for i in range(20)] for n in range(6)}


def test_threads_share_a_writer(client: sync.Client) -> None:
    with client.create() as writer:

        def work() -> None:
            for future in [writer.append_nowait(b"x") for _ in range(300)]:
                ids.append(future.result(30))

        ids: list[int] = []
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(ids) == list(range(1200))


def test_tail_follows_a_writer_to_the_end(client: sync.Client) -> None:
    writer = client.create()

    def write() -> None:
        for i in range(30):
            writer.append(b"%d" % i)
        writer.close()

    with client.open(writer.ledger_id) as reader:
        tail = reader.tail()
        with pytest.raises(TimeoutError):
            tail.next_chunk(timeout_s=0.05)
        thread = threading.Thread(target=write)
        thread.start()
        assert [e.payload for e in tail] == [b"%d" % i for i in range(30)]
        assert tail.next_chunk() == []
        thread.join()
        early = reader.tail()
        assert next(early).entry_id == 0
        early.close()


async def test_it_works_inside_a_running_loop(cluster: ThreadedCluster) -> None:
    with sync.connect(cluster.uri) as client, client.create() as writer:
        assert writer.append(b"from a notebook") == 0
    await asyncio.sleep(0)


def test_closed_handles_say_so(cluster: ThreadedCluster) -> None:
    client = sync.connect(cluster.uri)
    writer = client.create()
    reader = client.open(writer.ledger_id)
    entries = reader.tail()
    blocked: list[BaseException] = []

    def wait() -> None:
        try:
            next(entries)
        except BaseException as error:
            blocked.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: bool(client._thread._waiting), "the thread does not wait for an entry")
    client.close()
    client.close()
    thread.join(10)
    assert isinstance(blocked[0], HandleClosed)
    calls = (lambda: writer.append(b"x"), lambda: writer.append_nowait(b"x"), lambda: reader.read(0, 0), client.list)
    for call in calls:
        with pytest.raises(HandleClosed):
            call()
    reader.close()
    assert not [t for t in threading.enumerate() if t.name == "buckram" and not t.daemon]


def test_append_after_close_and_errors_of_the_block_itself(client: sync.Client) -> None:
    writer = client.create()
    writer.close()
    with pytest.raises(LedgerClosed):
        writer.append(b"x")
    other = client.create()

    def fail() -> None:
        with other:
            other.append_nowait(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert client.metadata(other.ledger_id).closed


def test_blocking_call_in_a_callback_is_refused(client: sync.Client) -> None:
    with client.create() as writer:
        refused: list[BaseException] = []

        def callback(_: object) -> None:
            try:
                writer.append(b"never")
            except RuntimeError as error:
                refused.append(error)

        writer.append_nowait(b"x").add_done_callback(callback)
        writer.flush()
        writer.append(b"after the callback")
    assert len(refused) == 1


def test_dropped_iterators_do_no_harm(client: sync.Client) -> None:
    with client.create() as writer:
        writer.append_many([b"x"] * 3000)
    with client.open(writer.ledger_id) as reader:
        for _ in range(5):
            assert next(iter(reader.entries())).entry_id == 0
        gc.collect()
        assert len(reader.read(0, 2999)) == 3000


def test_a_forked_child_is_told_to_connect_again(client: sync.Client) -> None:
    with client.create() as writer:
        writer.append(b"x")
        reader = client.open(writer.ledger_id)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            said = []
            calls = (client.create, lambda: writer.append(b"x"), lambda: writer.append_nowait(b"x"), reader.tail)
            try:
                for call in calls:
                    try:
                        call()
                    except ForkedClient:
                        said.append("forked")
                reader.close()
                client.close()
            finally:
                os.write(write, ",".join(said).encode())
                os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        assert os.read(read, 100) == b"forked,forked,forked,forked"
        os.close(read)
        writer.append(b"the parent goes on")
        reader.close()


PROGRAM = """
import sys
from buckram import sync
client = sync.connect(sys.argv[1])
writer = client.create()
writer.append(b"x")
print(writer.ledger_id)
"""


def test_a_program_that_closes_nothing_ends_all_the_same(cluster: ThreadedCluster, client: sync.Client) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.uri], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    with client.recover(int(done.stdout)) as reader:
        assert reader.read_payloads(0, 0) == [b"x"]

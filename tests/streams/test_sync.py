"""Streams without async: the blocking classes have the same names and work from any thread."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator

import pytest

from buckram import namespace, sync
from buckram.config import ClientConfig
from buckram.errors import (
    BufferFull,
    ConfigError,
    HandleClosed,
    NoSuchStream,
    OffsetTruncated,
    RecordTooLarge,
    WriterExists,
    WriterLost,
)
from buckram.state.machine import machine as async_machine
from buckram.state.objects import objects as async_objects
from buckram.streams.read import reader
from buckram.streams.shared import namespaces as spaces
from buckram.streams.write import bulk as async_bulk
from buckram.streams.write import writer
from buckram.sync import machines, records, streams
from buckram.testing import ThreadedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(bookies=3) as running:
        yield running


@pytest.fixture
def ns(cluster: ThreadedCluster, request: pytest.FixtureRequest) -> Iterator[streams.Namespace]:
    name = request.node.name.removeprefix("test_")[:100]
    with sync.connect(cluster.uri) as client:
        client.namespaces.create(name)
        yield client.namespace(name)


OWN = {
    namespace.Namespace: {"create_machine_log", "log_name", "store", "database"},
    spaces.Namespaces: {"restore"},
    async_machine.Machine: {"check_writable"},
    async_objects.Objects: {
        "abandon",
        "ended",
        "new_part",
        "parts",
        "reading",
        "start",
        "statuses",
        "upload_name",
        "uploads",
    },
    async_bulk.Bulk: {"also", "check_target", "lists", "publish_if", "purpose", "schemas"},
    async_bulk.BulkLedger: {"append_entries", "arrow_entries"},
}
"""Methods that our own rooms use among themselves; and `database`, whose blocking way is buckram.db.connect."""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (writer.StreamWriter, records.StreamWriter), (reader.StreamReader, records.StreamReader),
        (namespace.Namespace, streams.Namespace), (spaces.Namespaces, streams.Namespaces),
        (async_machine.Machine, machines.Machine), (async_objects.Objects, machines.Objects),
        (async_bulk.Bulk, records.Bulk), (async_bulk.BulkLedger, records.BulkLedger),
    ],
)  # fmt: skip
def test_blocking_and_async_classes_have_the_same_methods(one: type, other: type) -> None:
    wanted = {name for name in dir(one) if not name.startswith("_")} - OWN.get(one, set())
    assert wanted <= {name for name in dir(other) if not name.startswith("_")}
    for name in wanted:
        function = getattr(one, name)
        if inspect.isfunction(function):
            mine = inspect.signature(getattr(other, name)).parameters
            for parameter in inspect.signature(function).parameters.values():
                assert mine[parameter.name].default == parameter.default, f"{one.__name__}.{name}({parameter})"


def test_records_are_written_and_read(ns: streams.Namespace) -> None:
    with ns.writer("s") as w:
        assert w.append(b"a", key=b"k", headers={"h": b"v"}) == 0
        assert w.append_many([b"b", None, b"d"]) == range(1, 4)
        futures = [w.append_nowait(b"%d" % n) for n in range(100)]
        w.flush()
        assert [future.result() for future in futures] == list(range(4, 104))
        assert (w.next_offset, w.acknowledged, w.pending_bytes) == (104, 104, 0)
        assert w.roll()
        assert w.append_nowait(bytearray(b"last"), txid=5).result(10) == 104
        with pytest.raises(RecordTooLarge):
            w.append(bytes(w.max_record_bytes + 1))
    assert w.closed
    found = list(ns.read("s"))
    assert [record.offset for record in found] == list(range(105))
    assert (found[0].key, found[0].headers, found[2].value, found[104].txid) == (b"k", (("h", b"v"),), None, 5)
    assert [len(batch) for batch in ns.read("s", start=1, stop=4).batches()] == [3]
    assert ns.get("s", 3).value == b"d"
    assert [segment.base for segment in ns.segments("s")] == [0, 104]
    assert (ns.info("s").end, ns.list(), ns.exists("s"), ns.exists("t")) == (105, ["s"], True, False)
    with pytest.raises(HandleClosed):
        w.append(b"x")
    with pytest.raises(NoSuchStream):
        next(ns.read("missing"))


def test_a_refused_record_fails_its_future_and_flush(ns: streams.Namespace) -> None:
    with ns.writer("s") as w:
        bad = w.append_nowait(bytes(w.max_record_bytes + 1))
        assert w.append_nowait(b"good").result(10) == 0
        with pytest.raises(RecordTooLarge):
            bad.result(10)
        with pytest.raises(RecordTooLarge):
            w.flush()
        w.flush()


def test_append_nowait_raises_when_the_buffer_is_full(cluster: ThreadedCluster) -> None:
    config = ClientConfig(max_pending_bytes=100_000)
    with sync.connect(cluster.uri, config=config) as client, client.namespace().writer("bounded") as w:

        def flood() -> None:
            for _ in range(1000):
                w.append_nowait(bytes(1000))

        with pytest.raises(BufferFull):
            flood()


def test_cursors_truncation_and_policy(ns: streams.Namespace) -> None:
    ns.create("s", properties={"a": "b"}, roll_s=5.0)
    with ns.writer("s") as w:
        w.append_many([b"%d" % n for n in range(10)])
    with ns.read("s", cursor="c") as r:
        assert [next(r).offset for _ in range(4)] == [0, 1, 2, 3]
        assert r.position == 4
        assert r.commit() == 4
        rest = r.next_batch()
        assert rest is not None
        assert (rest.first_offset, rest.next_offset) == (4, 10)
        assert r.commit(6) == 6
        r.seek(1)
        assert next(r).offset == 1
    assert next(ns.read("s", cursor="c")).offset == 6
    assert [(c.name, c.lag) for c in ns.cursors("s")] == [("c", 4)]
    ns.move_cursor("s", "c", 8)
    assert ns.truncate("s", before_cursors=True) == 8
    with pytest.raises(OffsetTruncated):
        ns.get("s", 7)
    ns.delete_cursor("s", "c")
    assert ns.set_policy("s", roll_s=None).overrides == {}
    assert ns.set_properties("s", {"a": None, "c": "d"}).properties == {"c": "d"}
    ns.delete("s")
    assert not ns.exists("s")


def test_a_follower_waits_in_its_own_thread(ns: streams.Namespace) -> None:
    seen: list[bytes | None] = []

    def follow() -> None:
        seen.extend(record.value for record in ns.read("s", follow=True))

    with ns.writer("s") as w:
        w.append(b"0")
        thread = threading.Thread(target=follow)
        thread.start()
        with ns.read("s", start=1, follow=True) as r:
            with pytest.raises(TimeoutError):
                r.next_batch(timeout_s=0.01)
            w.append_many([b"1", b"2"])
            got: list[bytes | None] = []
            while len(got) < 2:
                batch = r.next_batch(timeout_s=30)
                assert batch is not None
                got += batch.values()
            assert got == [b"1", b"2"]
        assert w.end() == 3
    thread.join(30)
    assert seen == [b"0", b"1", b"2"]
    assert ns.info("s").ended


def test_a_writer_notices_that_it_was_taken_over(ns: streams.Namespace) -> None:
    old = ns.writer("s", name="old")
    old.append(b"a")
    with pytest.raises(WriterExists, match="old"):
        ns.writer("s")
    with ns.writer("s", takeover=True) as new:
        assert new.next_offset == 1
        assert old.lost.wait(30)
        with pytest.raises(WriterLost):
            old.append(b"b")
        assert old.lost_reason
        new.append(b"b")
    old.abandon()
    assert [record.value for record in ns.read("s")] == [b"a", b"b"]


def test_a_bulk_step_without_async(ns: streams.Namespace) -> None:
    ns.create("s")
    step = ns.bulk("s", application="job", version=1)
    ledger = step.create_ledger()
    assert ledger.append_many([b"a", b"b"], keys=[b"k", None], timestamps=[1, 2]) == 2
    spare = step.create_ledger()
    done = step.publish([ledger.close()])
    assert (done.first_offset, done.next_offset) == (0, 2)
    assert step.published() == done
    step.abort([spare.ledger_id])
    assert [(r.key, r.timestamp) for r in ns.read("s")] == [(b"k", 1), (None, 2)]


def test_arrow(ns: streams.Namespace) -> None:
    pytest.importorskip("pyarrow")
    with ns.writer("s") as w:
        w.append_many([b"a", None])
    (batch,) = ns.read("s").arrow_batches()
    assert batch.column("value").to_pylist() == [b"a", None]


def test_arrow_batches_become_a_bulk_ledger(ns: streams.Namespace) -> None:
    pa = pytest.importorskip("pyarrow")
    ns.create("s")
    step = ns.bulk("s", application="job", version=1)
    ledger = step.create_ledger({"of": b"a test"})
    assert step.foreseen()
    assert ledger.append_arrow(pa.RecordBatch.from_pydict({"value": pa.array([b"a", None], pa.binary())})) == 2
    step.publish([ledger.close()])
    step.create_ledger().abandon()
    assert [record.value for record in ns.read("s")] == [b"a", None]


def test_connect_uses_the_environment_variables(cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKRAM_CLIENT_MAX_PENDING_BYTES", "1000")
    monkeypatch.setenv("BUCKRAM_NET_REQUEST_TIMEOUT_S", "7.5")
    with sync.connect(cluster.uri) as client:
        services = client._client.services
        assert (services.config.max_pending_bytes, services.net.request_timeout_s) == (1000, 7.5)
        assert client._config.max_pending_bytes == 1000
    with sync.connect(cluster.uri, config=ClientConfig()) as client:
        assert client._client.services.config == ClientConfig(), "what the caller says is worth more"
    monkeypatch.setenv("BUCKRAM_CLIENT_MAX_PENDING_BITES", "1000")
    with pytest.raises(ConfigError, match="BUCKRAM_CLIENT_MAX_PENDING_BITES"):
        sync.connect(cluster.uri)

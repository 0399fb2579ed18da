"""The small parts of net/: writes of one connection, task scopes, statistics, TCP on both event loops."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket

import pytest
from tests.support.net_kit import KEY, Sink, framed

from buckram.config import NetConfig
from buckram.core.wire.messages import Force, Read
from buckram.errors import BookieTooBusy, BookieUnavailable, InvalidArgument
from buckram.runtime.net import connection as connection_module
from buckram.runtime.net.connection import Connection
from buckram.runtime.net.tcp import TcpNetwork
from buckram.runtime.process.clock import SystemClock
from buckram.runtime.process.stats import MemoryStats, NullStats, PrometheusStats
from buckram.runtime.process.tasks import TaskScope
from buckram.runtime.production import production_runtime
from buckram.types import BookieAddress


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; `stuck` leaves it in the buffer, as for a peer that does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.stuck = False
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.writes)) if self.stuck else 0

    def abort(self) -> None:
        self.aborted = True


def connected(version: int = 2) -> tuple[Connection, MemoryTransport]:
    transport = MemoryTransport()
    connection = Connection("b1", BookieAddress("h", 1), version, NetConfig(), lambda _: None)
    connection.connection_made(transport)
    return connection, transport


async def test_writes_of_one_turn_leave_together() -> None:
    connection, transport = connected()
    sink = Sink()
    sent = b""
    for ledger in range(5):
        frames, acks = framed(ledger, 0, 3)
        connection.send_adds(frames, acks, [(sink, ledger, 0, 2)], False)
        sent += frames
    assert transport.writes == []
    assert connection.pending_bytes == len(sent)
    await asyncio.sleep(0)
    assert transport.writes == [sent]
    assert connection.pending_bytes == 0
    frames, acks = framed(9, 0, 3)
    connection.send_adds(frames, acks, [(sink, 9, 0, 2)], False)
    await asyncio.sleep(0)
    assert transport.writes[1] is frames or transport.writes[1] == frames
    connection.send_adds(*framed(10, 0, 3), [(sink, 10, 0, 2)], False)
    connection.send_adds(*framed(11, 0, 3), [(sink, 11, 0, 2)], False, at_once=True)
    assert transport.writes[2] == framed(10, 0, 3)[0] + framed(11, 0, 3)[0]
    await asyncio.sleep(0)
    assert len(transport.writes) == 3
    connection.fail(BookieUnavailable("b1", "end"))
    assert len(sink.said) == 24


async def test_what_the_peer_does_not_take_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_UNSENT_BYTES", 1000)
    connection, transport = connected()
    transport.stuck = True
    sink = Sink()
    frames, acks = framed(1, 0, 3, size=500)
    connection.send_adds(frames, acks, [(sink, 0, 0, 2)], False)
    await asyncio.sleep(0)
    assert connection.pending_bytes == len(frames)
    with pytest.raises(BookieTooBusy, match=str(len(frames))):
        connection.send_adds(frames, acks, [(sink, 1, 0, 2)], False)
    with pytest.raises(BookieTooBusy):
        await connection.call(Read(1, 1), 5.0)
    assert sink.said == {}
    connection.fail(BookieUnavailable("b1", "end"))
    assert set(sink.said) == {(0, 0), (0, 1), (0, 2)}


async def test_requests_outstanding_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_REQUESTS", 3)
    connection, _ = connected(3)
    calls = [asyncio.create_task(connection.call(Force(i), 5.0)) for i in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(BookieTooBusy, match="3 requests"):
        await calls[3]
    connection.fail(BookieUnavailable("b1", "end"))
    results = await asyncio.gather(*calls[:3], return_exceptions=True)
    assert [type(result) for result in results] == [BookieUnavailable] * 3
    assert len({id(result) for result in results}) == 3


async def test_pausing_is_visible_and_a_dead_connection_takes_nothing() -> None:
    connection, transport = connected()
    connection.pause_writing()
    assert connection.write_paused
    connection.resume_writing()
    assert not connection.write_paused
    connection.connection_lost(OSError("reset"))
    assert "reset" in str(connection.error)
    assert transport.aborted
    with pytest.raises(BookieUnavailable):
        await connection.call(Read(1, 0, True, KEY), 1.0)
    connection.data_received(b"\xff\xff\xff\xff")
    await connection.wait_gone()


async def test_a_retired_connection_closes_when_it_is_idle() -> None:
    connection, transport = connected()
    call = asyncio.create_task(connection.call(Read(1, 5), 5.0))
    await asyncio.sleep(0)
    connection.retire()
    assert connection.error is None
    connection.data_received(bytes.fromhex("00000018020200000000000200000000000000010000000000000005"))
    assert (await call).code.name == "NO_ENTRY"
    assert connection.error is not None
    assert transport.aborted
    idle, transport = connected()
    idle.retire()
    assert transport.aborted


# -- tasks ------------------------------------------------------------------------------------------------


async def test_a_scope_leaves_no_task() -> None:
    ended: list[str] = []

    async def stubborn(name: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            ended.append(name)
            raise

    scope = TaskScope("test")
    for name in "abc":
        scope.spawn(stubborn(name), name)
    await asyncio.sleep(0)
    assert len(scope) == 3
    await scope.close()
    assert ended == ["a", "b", "c"]
    assert len(scope) == 0
    await scope.close()
    with pytest.raises(RuntimeError, match="closed"):
        scope.spawn(stubborn("d"), "d")


def test_what_is_spawned_without_a_loop_is_closed() -> None:
    """As where a coroutine is closed whose loop has ended, and its `finally` begins something."""

    async def work() -> None: ...

    coro = work()
    with pytest.raises(RuntimeError, match="no running event loop"):
        TaskScope("test").spawn(coro, "work")
    assert inspect.getcoroutinestate(coro) == inspect.CORO_CLOSED


async def test_a_task_may_close_its_own_scope() -> None:
    scope = TaskScope("test")

    async def closer() -> str:
        await scope.close()
        return "done"

    other = scope.spawn(asyncio.Event().wait(), "other")
    assert await scope.spawn(closer(), "closer") == "done"
    assert other.cancelled()


async def test_a_failed_task_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[BaseException] = []

    async def fail() -> None:
        raise ValueError("on purpose")

    async with TaskScope("test", errors.append) as scope:
        task = scope.spawn(fail(), "fail")
        with caplog.at_level(logging.ERROR, "buckram.tasks"):
            await asyncio.wait([task])
            await asyncio.sleep(0)
    assert [str(error) for error in errors] == ["on purpose"]
    assert caplog.text.count("test:fail") == 1


async def test_an_error_of_a_disk_is_told_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise OSError(5, "/data/x: cannot write: the device fails")

    async with TaskScope("test") as scope:
        await asyncio.wait([scope.spawn(fail(), "fail")])
    assert "the device fails" in caplog.text
    assert "Traceback" not in caplog.text


# -- statistics -------------------------------------------------------------------------------------------


def test_memory_stats() -> None:
    stats = MemoryStats()
    stats.counter("a_total", "help", op="read", wire="2").inc(3)
    stats.counter("a_total", "help", wire="2", op="read").inc()
    stats.gauge("b_bytes", "help").set(2.5)
    stats.histogram("c_seconds", "help", op="x").observe(0.5)
    stats.histogram("c_seconds", "help", op="x").observe(0.25)
    assert stats.values() == {
        'a_total{op="read",wire="2"}': 4,
        "b_bytes": 2.5,
        'c_seconds_count{op="x"}': 2,
        'c_seconds_sum{op="x"}': 0.75,
        'c_seconds_max{op="x"}': 0.5,
    }
    with pytest.raises(InvalidArgument, match="MemoryGauge"):
        stats.counter("b_bytes", "help")


def test_prometheus_stats() -> None:
    stats = PrometheusStats()
    stats.counter("a_total", "what a is", op="read").inc(3)
    stats.counter("a_total", "what a is", op="add").inc()
    stats.gauge("b_bytes", "what b is").set(7)
    stats.histogram("c_seconds", "what c is").observe(0.003)
    text = stats.render().decode()
    assert '# HELP a_total what a is\n# TYPE a_total counter\na_total{op="read"} 3.0\na_total{op="add"} 1.0\n' in text
    assert "b_bytes 7.0\n" in text
    assert 'c_seconds_bucket{le="0.005"} 1.0\n' in text
    assert 'c_seconds_bucket{le="0.0025"} 0.0\n' in text
    with pytest.raises(InvalidArgument, match="labels"):
        stats.counter("a_total", "what a is", other="x")
    assert b"a_total" not in PrometheusStats().render()


def test_prometheus_metrics_are_one_for_each_name_and_labels() -> None:
    stats = PrometheusStats()
    for place in ("a", "b", "a"):
        stats.histogram("took_seconds", "how long", place=place, kind="x").observe(0.0001)  # a bound is in its bucket
    stats.histogram("took_seconds", "how long", kind="x", place="b").observe(1e9)
    stats.gauge("full", "whether").set(True)
    text = stats.render().decode()
    assert 'took_seconds_bucket{kind="x",le="0.0001",place="a"} 2.0\n' in text
    assert 'took_seconds_bucket{kind="x",le="10.0",place="b"} 1.0\n' in text
    assert 'took_seconds_bucket{kind="x",le="+Inf",place="b"} 2.0\n' in text
    assert 'took_seconds_count{kind="x",place="b"} 2.0\n' in text
    assert 'took_seconds_sum{kind="x",place="a"} 0.0002\n' in text
    assert "full 1.0\n" in text
    assert "_created" not in text
    with pytest.raises(InvalidArgument, match="GaugeFamily"):
        stats.counter("full", "whether")


def test_null_stats_and_runtime() -> None:
    stats = NullStats()
    stats.counter("a_total", "h").inc()
    stats.gauge("a", "h").set(1)
    stats.histogram("a", "h").observe(1)
    assert production_runtime(5).rng.random() == production_runtime(5).rng.random()
    memory = MemoryStats()
    assert production_runtime(stats=memory).stats is memory
    assert SystemClock().wall_us() > 1_700_000_000_000_000


# -- TCP --------------------------------------------------------------------------------------------------


class Echo(asyncio.Protocol):
    def __init__(self) -> None:
        self.got = b""
        self.transport: asyncio.BaseTransport | None = None
        self.changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.changed.set()

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.changed.set()


async def _options() -> list[int]:
    accepted = Echo()
    listener = await TcpNetwork(local=False).listen("127.0.0.1", 0, lambda: accepted)
    with pytest.raises(OSError, match=f"127.0.0.1:{listener.port}: the address is in use; .* choose another port"):
        await TcpNetwork(local=False).listen("127.0.0.1", listener.port, Echo)
    with pytest.raises(OSError, match=r"192\.0\.2\.1:0: not an address of this machine"):
        await TcpNetwork(local=False).listen("192.0.2.1", 0, Echo)  # reserved for documentation
    transport, _ = await TcpNetwork(local=False).connect("127.0.0.1", listener.port, Echo)
    await asyncio.wait_for(accepted.changed.wait(), 5)
    await listener.close()
    transport.write(b"still open")
    while accepted.got != b"still open":
        accepted.changed.clear()
        await asyncio.wait_for(accepted.changed.wait(), 5)
    with pytest.raises(OSError):  # noqa: PT011 - the text is the platform's
        await TcpNetwork(local=False).connect("127.0.0.1", listener.port, Echo)
    assert accepted.transport is not None
    values = []
    for end in (transport, accepted.transport):
        sock = end.get_extra_info("socket")
        values += [
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        ]
        end.abort() if isinstance(end, asyncio.WriteTransport) else end.close()
    await asyncio.sleep(0)
    return values


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_tcp(loop: str) -> None:
    if loop == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        values = uvloop.run(_options())
    else:
        values = asyncio.run(_options())
    assert all(values), values


async def test_what_follows_something_begins_anew_when_it_failed(caplog: pytest.LogCaptureFixture) -> None:
    begun, woken, errors = list[int](), list[int](), list[BaseException]()
    with caplog.at_level(logging.ERROR, "buckram.tasks"):
        async with TaskScope("test", errors.append) as scope:

            async def follow() -> None:
                begun.append(len(woken))
                if len(begun) == 1:
                    raise ValueError("nobody expected it")

            kept = scope.keep(follow, "follow", wake=lambda: woken.append(len(begun)))
            await asyncio.wait([kept])
    assert begun == [0, 1], "it ends by itself the second time"
    assert woken == [1], "it was told to look at once"
    assert [str(error) for error in errors] == ["nobody expected it"]
    assert "test:follow failed" in caplog.text


async def test_what_was_kept_ends_with_its_scope() -> None:
    async with TaskScope("test") as scope:
        kept = scope.keep(asyncio.Event().wait, "wait")  # type: ignore[arg-type]
        await asyncio.sleep(0)
    assert kept.cancelled()

"""Clients and handles where they cannot work: copied, in another event loop, among green threads, out of memory."""

from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.state.machine.kit import Inventory

import buckram
import buckram.sync
from buckram.errors import ClusterNotInitialised, WrongEventLoop
from buckram.testing import ThreadedCluster


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with ThreadedCluster(bookies=3) as running:
        yield running.uri


async def opened(uri: str) -> dict[str, Any]:
    """One of each handle."""
    client = await buckram.connect(uri)
    ns = client.namespace()
    if not await ns.exists("s"):
        await ns.create("s")
    ledger = await client.create()
    await ledger.append(b"x")
    writer = await ns.writer("s", takeover=True)
    await writer.append(b"x")
    reader = ns.read("s")
    await reader.next_batch()
    database = await ns.database("bank")
    await database.lead(takeover=True)
    objects = await client.objects()
    await objects.put("a", b"1")
    machine = await ns.machine("m", Inventory)
    bulk = await ns.bulk("s", application="a", version=0)
    read = await client.open(ledger.ledger_id)
    return {
        "client": client, "ns": ns, "namespaces": client.namespaces, "ledger": ledger, "read": read, "writer": writer,
        "reader": reader, "database": database, "objects": objects, "machine": machine, "bulk": bulk,
        "tail": read.tail(), "opening": client.create(),
    }  # fmt: skip


async def closed(of: dict[str, Any]) -> None:
    for name in ("machine", "objects", "writer", "ledger"):
        await of[name].close()
    await of["database"].aclose()
    await of["client"].close()


def calls(of: dict[str, Any]) -> dict[str, Callable[[], Awaitable[Any]]]:
    return {
        "create": lambda: of["client"].create(), "open": lambda: of["client"].open(of["ledger"].ledger_id),
        "metadata": lambda: of["client"].metadata(0), "list": lambda: anext(of["client"].list()),
        "repair": lambda: of["client"].repair(0), "delete": lambda: of["client"].delete(0),
        "client.objects": lambda: of["client"].objects(), "client.close": lambda: of["client"].close(),
        "append": lambda: of["ledger"].append(b"y"), "append_many": lambda: of["ledger"].append_many([b"y"]),
        "flush": lambda: of["ledger"].flush(), "close": lambda: of["ledger"].close(),
        "get": lambda: of["read"].get(0), "lac": lambda: of["read"].read_last_confirmed(),
        "read.close": lambda: of["read"].close(), "ns.list": lambda: of["ns"].list(),
        "ns.info": lambda: of["ns"].info("s"), "ns.get": lambda: of["ns"].get("s", 0),
        "ns.writer": lambda: of["ns"].writer("t"), "ns.read": lambda: of["ns"].read("s").next_batch(),
        "writer.append": lambda: of["writer"].append(b"y"), "writer.flush": lambda: of["writer"].flush(),
        "writer.append_many": lambda: of["writer"].append_many([b"y"]), "writer.close": lambda: of["writer"].close(),
        "writer.roll": lambda: of["writer"].roll(), "next_batch": lambda: of["reader"].next_batch(),
        "seek": lambda: of["reader"].seek(0), "reader.close": lambda: of["reader"].close(),
        "execute": lambda: of["database"].execute("CREATE TABLE t (a)"), "lead": lambda: of["database"].lead(),
        "select": lambda: of["database"].execute("SELECT 1"), "aclose": lambda: of["database"].aclose(),
        "objects.get": lambda: of["objects"].get("a"), "put": lambda: of["objects"].put("b", b"1"),
        "objects.list": lambda: of["objects"].list(), "objects.close": lambda: of["objects"].close(),
        "machine.lead": lambda: of["machine"].lead(), "machine.close": lambda: of["machine"].close(),
        "create_ledger": lambda: of["bulk"].create_ledger(),
    }  # fmt: skip


def check_refused(of: dict[str, Any], said: str) -> None:
    for name, call in calls(of).items():

        async def again(call: Callable[[], Awaitable[Any]] = call) -> None:
            async with asyncio.timeout(5):
                await call()

        print(name)  # pytest shows the last one, which was not refused
        with pytest.raises(WrongEventLoop, match=said):
            asyncio.run(again())


@pytest.mark.filterwarnings("ignore:the writer of")
def test_a_client_in_a_second_asyncio_run_says_why_it_cannot(uri: str) -> None:
    of: dict[str, Any] = {}

    async def first() -> None:
        of.update(await opened(uri))

    asyncio.run(first())
    check_refused(of, r"an event loop that has ended, as asyncio\.run\(\).*connect in this one, or use buckram\.sync")


def test_a_client_in_the_loop_of_another_thread_says_so(uri: str) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        of = asyncio.run_coroutine_threadsafe(opened(uri), loop).result(60)
        check_refused(of, "was connected in another event loop, and its connections belong to that")
        # The append there has ended the ledger's writer, as the turn that was to send it was in the wrong loop.
        asyncio.run_coroutine_threadsafe(of["client"].close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


COPIES: list[Callable[[Any], object]] = [pickle.dumps, copy.copy, copy.deepcopy]


async def test_handles_are_neither_pickled_nor_copied(uri: str) -> None:
    of = await opened(uri)
    for handle in [*of.values(), of["client"].services]:
        for copied in COPIES:
            with pytest.raises(TypeError, match=rf"{type(handle).__name__} has connections .*pass the URI .* connect"):
                copied(handle)
    await closed(of)


def test_handles_without_async_are_neither_pickled_nor_copied(uri: str) -> None:
    with buckram.sync.connect(uri) as client, client.objects() as objects, client.create() as ledger:
        ns = client.namespace()
        with ns.writer("sync") as writer:
            writer.append(b"x")
            handles = [client, ns, client.namespaces, objects, ledger, writer, ns.read("sync")]
            handles += [client.open(ledger.ledger_id), ns.bulk("sync", application="a", version=0)]
            for handle in handles:
                for copied in COPIES:
                    with pytest.raises(TypeError, match=rf"{type(handle).__name__} has connections .*pass the URI"):
                        copied(handle)


@pytest.mark.parametrize(
    ("library", "patch"),
    [
        ("gevent", "from gevent import monkey; monkey.patch_all()"),
        ("gevent", "from gevent import monkey; monkey.patch_socket()"),
        ("eventlet", "import eventlet; eventlet.monkey_patch()"),
    ],
)
def test_green_threads_are_refused_at_once(uri: str, library: str, patch: str) -> None:
    pytest.importorskip(library)
    program = f"{patch}\nimport buckram.sync\nbuckram.sync.connect({uri!r})"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"ConfigError: {library} has patched" in done.stderr
    assert "--worker-class gthread" in done.stderr


def test_green_threads_that_patch_nothing_are_fine(uri: str) -> None:
    pytest.importorskip("gevent")
    program = f"import gevent.monkey, buckram.sync\nwith buckram.sync.connect({uri!r}) as c: c.create().close()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_memory_of_another_process_is_told_from_a_cluster_that_never_was() -> None:
    with pytest.raises(ClusterNotInitialised, match=r"lives in the process that made it.*metadata='sqlite'"):
        buckram.sync.connect("memory:elsewhere")

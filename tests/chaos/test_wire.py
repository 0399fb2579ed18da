"""Bookies in network namespaces of their own, joined by TCP with a delay: the basis of `make bench NET=1`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.polling import wait_until

from chaos.machines import Link, NoNetwork
from chaos.wire import Wire

ROOT = Path(__file__).parents[2]
DELAY_US = 2000
NEITHER = "import socket; print(len(socket.if_nameindex()))"
ECHO = """
import socket
with socket.create_server(("0.0.0.0", 9000)) as listening:
    print("up", flush=True)
    connection, peer = listening.accept()
    received = 0
    while received < 4_000_001:
        piece = connection.recv(1 << 20)
        received += len(piece)
        if received == 1 or received == 4_000_001:
            connection.sendall(b"x")
    print(peer[0], flush=True)
"""
ASK = """
import socket, time
with socket.create_connection(("10.77.0.12", 9000)) as connection:
    began = time.monotonic()
    connection.sendall(b"x")
    connection.recv(1)
    print(time.monotonic() - began)
    connection.sendall(bytes(4_000_000))
    connection.recv(1)
"""
CASE = """
from bench.cases import _written
from bench.harness import cluster
from bench.machines import network
import socket
with network(True), cluster() as bench:
    hosts = [bookie.ready.host for bookie in bench.bookies]
    figures = _written(bench, ledgers=1, rate=500, seconds=1)
    print(hosts, figures["errors"], figures["degraded"], figures["p50_ms"])
    for bookie in bench.bookies:
        with socket.socket() as near:
            assert near.connect_ex(("127.0.0.1", bookie.ready.port)) != 0
"""


def allowed() -> str:
    """Why network namespaces cannot be made here; empty where they can."""
    try:
        with Wire() as wire:
            done = subprocess.run([*wire.launcher(11), "true"], cwd=ROOT, capture_output=True, text=True, check=False)
            return done.stderr
    except NoNetwork as error:
        return str(error)


@pytest.fixture(autouse=True, scope="module")
def may_make_networks() -> None:
    if why := allowed():
        pytest.skip(why)


def test_simulated_machines_share_only_a_delayed_network() -> None:
    with Wire(DELAY_US) as wire:
        command = [*wire.launcher(12), sys.executable, "-c", ECHO]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "up\n"
            ask = [*wire.launcher(11), sys.executable, "-c", ASK]
            done = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
            assert server.stdout.readline() == "10.77.0.11\n"
        assert float(done.stdout) >= 2 * DELAY_US / 1e6
        devices = subprocess.run(
            [*wire.launcher(13), sys.executable, "-c", NEITHER], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert devices.stdout == "2\n"  # the loopback and the wire


def test_a_case_runs_with_each_bookie_on_a_machine_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "BENCH_DIR": str(tmp_path), "NET_DELAY_US": str(DELAY_US)}
    command = [sys.executable, "-c", CASE]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    hosts, _, rest = done.stdout.rpartition("]")
    errors, degraded, p50_ms = rest.split()
    assert hosts == "['10.77.0.11', '10.77.0.12', '10.77.0.13'"
    assert (errors, degraded) == ("0", "False")
    assert float(p50_ms) >= 2 * DELAY_US / 1e3


def test_a_machine_that_ends_and_comes_back_is_reached_again() -> None:
    ready = "import socket; s = socket.create_server(('0.0.0.0', 9000)); print('up', flush=True); s.accept()"
    reach = "import socket; socket.create_connection(('10.77.0.12', 9000), timeout=20).close()"
    with Wire(100) as wire:
        for _ in range(2):
            command = [*wire.launcher(12), sys.executable, "-c", ready]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
                assert server.stdout is not None
                assert server.stdout.readline() == "up\n"
                subprocess.run([*wire.launcher(11), sys.executable, "-c", reach], cwd=ROOT, check=True, timeout=60)


def test_a_link_that_is_cut_in_one_direction_loses_what_goes_that_way() -> None:
    answer = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('0.0.0.0', 9000));"
        "print('up', flush=True); print(s.recvfrom(99)[0].decode(), flush=True)"
    )
    send = (
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        "s.sendto(sys.argv[1].encode(), ('10.77.0.12', 9000))"
    )
    with Wire(100) as wire:
        command = [*wire.launcher(12), sys.executable, "-c", answer]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "up\n"
            wire.set_links([Link(11, 12, loss=1.0), Link(12, 11, delay_us=1000)])
            for source, word in ((11, "cut"), (13, "whole")):
                subprocess.run([*wire.launcher(source), sys.executable, "-c", send, word], cwd=ROOT, check=True)
            assert server.stdout.readline() == "whole\n"


def _register(wire: Wire, machine: int, device: socket.socket) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(wire.control))
        socket.send_fds(connection, [struct.pack(">I", machine)], [device.fileno()])
        return connection.recv(2)


def test_a_machine_that_starts_again_while_packets_of_the_old_one_wait_does_not_end_the_wire() -> None:
    """Any datagram socket does for a device here."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3)]
    with Wire() as wire, contextlib.ExitStack() as stack:
        for one in (one for pair in pairs for one in pair):
            stack.enter_context(one)
        assert _register(wire, 11, pairs[0][0]) == b"ok"
        os.kill(wire.pid, signal.SIGSTOP)
        state = Path(f"/proc/{wire.pid}/stat")
        wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "the wire does not stop")
        pairs[0][1].send(bytes(40))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(wire.control))
            socket.send_fds(connection, [struct.pack(">I", 11)], [pairs[1][0].fileno()])
            os.kill(wire.pid, signal.SIGCONT)  # the old device and the new one are ready in one look
            assert connection.recv(2) == b"ok"
        assert _register(wire, 12, pairs[2][0]) == b"ok", "the wire has ended"

"""Relays on loopback: who connects is known, each direction is cut or slow by itself, no byte is lost or changed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from chaos.machines import Link
from chaos.relay import Owners, Relays

PORT, SERVER = 9000, 10
ASK = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 9000)) as connection:
    connection.settimeout(float(sys.argv[2]))
    began = time.monotonic()
    connection.sendall(b"x")
    try:
        answer = connection.recv(1)
    except TimeoutError:
        print("silence")
    else:
        print(time.monotonic() - began if answer else "the end")
"""


@pytest.fixture
def relays() -> Iterator[Relays]:
    with Relays() as made:
        made.reached(SERVER, PORT)
        yield made


@contextlib.contextmanager
def echo(relays: Relays) -> Iterator[list[int]]:
    """A server of machine 10 that sends back what it gets; yields how many bytes of each connection it got."""
    received: list[int] = []

    def answer(connection: socket.socket, number: int) -> None:
        with connection, contextlib.suppress(OSError):
            while piece := connection.recv(1 << 16):
                received[number] += len(piece)
                connection.sendall(piece)

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                received.append(0)
                threading.Thread(target=answer, args=(connection, len(received) - 1), daemon=True).start()

    with socket.create_server((relays.listens(SERVER), PORT)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield received
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def ask(relays: Relays, machine: int, within_s: float = 20.0) -> str:
    """What a process of this machine is told: "silence" after `within_s`, or the seconds that an answer took."""
    command = [sys.executable, "-c", ASK, relays.reached(SERVER), str(within_s)]
    environment = {**os.environ, **relays.environment(machine)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_a_cut_in_either_direction_silences_one_machine_and_no_other(relays: Relays) -> None:
    with echo(relays) as received:
        relays.set_links([Link(11, SERVER, 1.0)])
        assert ask(relays, 11, 1.0) == "silence"
        assert not any(received), "what was sent came through the cut"
        relays.set_links([Link(SERVER, 11, 1.0)])
        assert ask(relays, 11, 1.0) == "silence"
        assert sum(received) >= 1, "the other direction is cut, too"
        assert float(ask(relays, 12)) < 20
        relays.set_links([])
        assert float(ask(relays, 11)) < 20


def test_a_slow_link_delays_each_direction_by_its_own_time(relays: Relays) -> None:
    with echo(relays):
        relays.set_links([Link(11, SERVER, 0.0, 300_000), Link(SERVER, 11, 0.0, 200_000)])
        assert float(ask(relays, 11)) >= 0.5


def test_what_is_sent_during_a_cut_arrives_after_it(relays: Relays) -> None:
    """This process has no machine's number, so it is machine 0."""
    with echo(relays), socket.create_connection((relays.reached(SERVER), PORT)) as connection:
        connection.settimeout(0.3)
        relays.set_links([Link(0, SERVER, 1.0)])
        connection.sendall(b"held")
        with pytest.raises(TimeoutError):
            connection.recv(4)
        relays.set_links([])
        connection.settimeout(20)
        assert connection.recv(4) == b"held"


def test_no_byte_is_lost_or_changed_on_a_lossy_link(relays: Relays) -> None:
    """A connection that a lossy link ended is no loss: its sender is told."""
    data = os.urandom(1 << 20)
    whole = 0
    with echo(relays):
        relays.set_links([Link(0, SERVER, 0.05), Link(SERVER, 0, 0.05)])
        for _ in range(20):
            with socket.create_connection((relays.reached(SERVER), PORT)) as connection:
                found = hashlib.sha256()
                sender = threading.Thread(target=_send, args=(connection, data))
                sender.start()
                with contextlib.suppress(ConnectionError):
                    while piece := connection.recv(1 << 16):
                        found.update(piece)
                    assert found.digest() == hashlib.sha256(data).digest()
                    whole += 1
                sender.join()
            if whole >= 2:
                return
    pytest.fail(f"{whole} of 20 connections came through")


def _send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


def test_a_server_that_does_not_run_ends_the_connection(relays: Relays) -> None:
    with (
        contextlib.suppress(ConnectionResetError),  # it may come while Python still looks whether it is connected
        socket.create_connection((relays.reached(SERVER), PORT), timeout=20) as connection,
    ):
        assert connection.recv(1) == b""


def test_nobody_owns_a_socket_that_does_not_exist() -> None:
    assert Owners((1, 1)).machine_of("127.1.2.3", 4) == 0

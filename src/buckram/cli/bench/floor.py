"""Lower bounds measured on this machine: copying, checking, sending and syncing an entry's bytes.

CPU microseconds per entry, each operation alone, to compare with what `buckram bench --profile` measures.
"""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import google_crc32c

from buckram.runtime.disk.syncing import sync_data, sync_file

CHUNK = 64 * 1024
"""Bytes of one send; what a loop turn under load has for a connection."""
GROUP = 1024 * 1024
"""Bytes of one write and sync; a group commit under load."""
SECONDS = 0.3


def _cost(step: Callable[[], int]) -> float:
    """Return CPU seconds of this process for each byte; `step` returns how many it processed."""
    step()
    done, cpu, end = 0, time.process_time(), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        done += step()
    return (time.process_time() - cpu) / done


def _copying() -> Callable[[], int]:
    source, target = bytes(GROUP), bytearray(GROUP)

    def step() -> int:
        target[:] = source
        return GROUP

    return step


def _checking(size: int) -> Callable[[], int]:
    body, extend = bytes(size), google_crc32c.extend

    def step() -> int:
        for _ in range(1000):
            extend(0, body)
        return 1000 * size

    return step


def _sending() -> float:
    """Return CPU seconds for each byte through a TCP connection of this machine, both ends together."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    body, buffer = bytes(CHUNK), bytearray(CHUNK)

    def drain() -> None:
        while receiver.recv_into(buffer):
            pass

    with sender, receiver:
        thread = threading.Thread(target=drain, daemon=True)
        thread.start()

        def step() -> int:
            sender.sendall(body)
            return CHUNK

        cost = _cost(step)
        sender.shutdown(socket.SHUT_WR)
        thread.join()
    return cost


def _syncing(folder: Path) -> tuple[float, float]:
    """Return CPU seconds for each byte written past the page cache and synced, and seconds that one such group
    takes."""
    size = 16 * GROUP
    with tempfile.NamedTemporaryFile(dir=folder, prefix="floor-") as file:
        file.write(bytes(size))
        file.flush()
        sync_file(file.fileno())
        try:
            target = os.open(file.name, os.O_WRONLY | getattr(os, "O_DIRECT", 0))
        except OSError:  # a file system without it
            target = os.open(file.name, os.O_WRONLY)
        # An anonymous mapping begins at a page, as direct writes want it.
        with mmap.mmap(-1, GROUP) as body:
            at, groups, began = 0, 0, time.perf_counter()

            def step() -> int:
                nonlocal at, groups
                os.pwrite(target, body, at)
                sync_data(target)
                at, groups = (at + GROUP) % size, groups + 1
                return GROUP

            try:
                cost = _cost(step)
                return cost, (time.perf_counter() - began) / groups
            finally:
                os.close(target)


def measure(size: int, folder: Path) -> dict[str, float]:
    """Return microseconds of CPU for an entry of `size` bytes; `folder` is on the device to measure. The result also
    has the milliseconds of syncing a group of one megabyte, which is elapsed time, not CPU."""
    entry = max(1, size)
    write, group = _syncing(folder)
    return {
        "copy_us": round(_cost(_copying()) * entry * 1e6, 4),
        "checksum_us": round(_cost(_checking(entry)) * entry * 1e6, 4),
        "send_and_receive_us": round(_sending() * entry * 1e6, 4),
        "write_and_sync_us": round(write * entry * 1e6, 4),
        "sync_of_1_mb_ms": round(group * 1e3, 3),
    }

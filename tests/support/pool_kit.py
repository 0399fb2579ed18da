"""Helpers that the tests of the connection pool share. Not here: their fixtures (`tests/runtime/net/conftest.py`)."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.net_kit import DIGEST, Peer

from buckram.config import NetConfig
from buckram.runtime.net.pool import BookiePool

QUICK = NetConfig(connect_timeout_s=0.3, request_timeout_s=0.2, sweep_interval_s=0.05)
Make = Callable[..., BookiePool]


def store(peer: Peer, ledger: int, count: int) -> None:
    for entry in range(count):
        peer.entries[ledger, entry] = DIGEST.seal(ledger, entry, entry - 1, 1, b"x")

"""The parts of one client that others share, as one value. `Client` makes it and closes what is in it.

One of them is the free space of bookies, for placements with weights: it is asked before a ledger is made, at most once
a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from buckram.client.cluster.bookie_changes import BookieChange
from buckram.client.cluster.bookies import BookieWatcher
from buckram.client.cluster.clocks import Clocks
from buckram.client.cluster.identities import Identities
from buckram.client.cluster.slow_bookies import SlowMembers
from buckram.client.shared.encryption import EncryptionKeys
from buckram.client.shared.handles import NotCopied
from buckram.client.shared.lac_batcher import LacBatcher
from buckram.client.shared.lagging_replicas import Copies, LaggingLedgers
from buckram.client.shared.send_batcher import SendBatcher
from buckram.config import ClientConfig, NetConfig
from buckram.core.wire.messages import FREE_DISK_SPACE, BookieInfoReply, GetBookieInfo
from buckram.errors import BuckramError, Code
from buckram.runtime.net.pool import BookiePool
from buckram.seams import MetadataStore, Runtime
from buckram.types import BookieId

# -- free space of bookies ------------------------------------------------------------------------------------

_FRESH_S = 60.0

_ANSWERS_S = 1.0
"""Time bookies get to answer, seconds; one that does not keeps the weight it had, or gets the smallest."""


class Weights:
    """The age of the known weights, and their refresh."""

    def __init__(self) -> None:
        self._asked_at: float | None = None

    async def refresh(self, services: Services) -> None:
        now = asyncio.get_running_loop().time()
        if self._asked_at is not None and now - self._asked_at < _FRESH_S:
            return
        self._asked_at = now
        await asyncio.gather(*(_ask(services, bookie) for bookie in sorted(services.bookies.bookies.writable)))


async def _ask(services: Services, bookie: BookieId) -> None:
    with suppress(BuckramError):
        reply = await services.pool.call(bookie, GetBookieInfo(FREE_DISK_SPACE), timeout_s=_ANSWERS_S)
        if isinstance(reply, BookieInfoReply) and reply.code is Code.OK and reply.free_bytes is not None:
            services.bookies.free_bytes[bookie] = reply.free_bytes


# -- the shared parts -----------------------------------------------------------------------------------------

Guard = Callable[[], None]
"""Check that the client may be used. Raises HandleClosed or ForkedClient if not."""

StopHandle = Callable[[], Awaitable[None]]
"""Stops a handle whose client is closed first."""


def _anywhere() -> None:
    """Accept any event loop: the check of a client that is used where it was made."""


@dataclass(frozen=True, slots=True)
class Services(NotCopied):
    """The parts of one client. `guard` is called before each use of the client."""

    runtime: Runtime
    config: ClientConfig
    net: NetConfig
    store: MetadataStore
    bookies: BookieWatcher
    identities: Identities
    pool: BookiePool
    guard: Guard
    clocks: Clocks
    lagging: LaggingLedgers
    slow: SlowMembers
    weights: Weights = field(default_factory=Weights)
    encryption: EncryptionKeys = field(default_factory=EncryptionKeys)
    batcher: SendBatcher = field(default_factory=SendBatcher)
    lacs: LacBatcher = field(default_factory=LacBatcher)
    check_loop: Guard = _anywhere
    """Raises WrongEventLoop in another event loop than the client's, as `guard` does; also for handles that close."""
    handles: dict[int, StopHandle] = field(default_factory=dict)
    """Callbacks that stop each open handle (by its `id()`) when the client is closed."""
    pending_copies: dict[Copies, None] = field(default_factory=dict)
    """Complete ledgers with copies that are still on their way."""
    batch_unsupported: dict[BookieId, int] = field(default_factory=dict)
    """Number of times in a row that a bookie hung up on a batch read; a bookie that goes on doing so does not know
    them."""
    remote_bookies: dict[BookieId, None] = field(default_factory=dict)
    """Bookies whose files this process cannot read, so that they are asked for places once."""

    apart: dict[tuple[BookieId, BookieId], float] = field(default_factory=dict)
    """Pairs of bookies of which the second cannot read the files of the first, and the loop time until when it is not
    asked for it."""

    def forget_changed(self, change: BookieChange) -> None:
        """Forget what bookies could not do that came back or moved: they may be of another release, or on this machine.

        For `BookieWatcher.on_change`.
        """
        for bookie in (*change.appeared, *change.moved, *change.reborn):
            self.batch_unsupported.pop(bookie, None)
            self.remote_bookies.pop(bookie, None)

    def adopt(self, handle: object, stop: StopHandle) -> None:
        """Have `stop` called when the client is closed, unless `forget` comes first. Raises as `guard` does if it is
        closed already."""
        self.guard()
        self.handles[id(handle)] = stop

    def forget(self, handle: object) -> None:
        self.handles.pop(id(handle), None)

    @property
    def hedge_s(self) -> float | None:
        """Wait before a read also goes to the next replica; None: never."""
        return self.config.speculative_read_ms / 1000 or None

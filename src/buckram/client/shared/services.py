"""The parts of one client that others share, as one value. `Client` makes it and closes what is in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from buckram.client.cluster.bookie_changes import BookieChange
from buckram.client.cluster.bookies import BookieWatcher
from buckram.client.cluster.clocks import Clocks
from buckram.client.cluster.identities import Identities
from buckram.client.cluster.slow_bookies import SlowMembers
from buckram.client.shared.copies import Copies
from buckram.client.shared.encryption import EncryptionKeys
from buckram.client.shared.free_space import Weights
from buckram.client.shared.handles import NotCopied
from buckram.client.shared.lagging_replicas import LaggingLedgers
from buckram.client.shared.send_batcher import SendBatcher
from buckram.config import ClientConfig, NetConfig
from buckram.runtime.net.pool import BookiePool
from buckram.seams import MetadataStore, Runtime
from buckram.types import BookieId

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

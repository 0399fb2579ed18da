"""Protocols of what can be swapped or simulated: network, disk, clock, randomness, metadata, statistics.

Production implementations live in runtime/ and metadata/; simulated ones in simulator/. Code above this
layer sees these protocols only. Monotonic time is the running event loop's `time()`, so a simulated
loop gives virtual time; only wall time needs a clock.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from buckram.errors import MalformedRecord
from buckram.types import (
    BookieId,
    BookieInfo,
    BookieSet,
    Buffer,
    CheckVersion,
    EntryId,
    History,
    KeyOp,
    KeyValue,
    LedgerId,
    LedgerMetadata,
    Versioned,
)

Notify = Callable[[], None]
Deliver = Callable[[Notify], None]
"""Hands a notification of a change in the metadata store to its session. It is called inside the change, so that it
must only schedule the Notify."""
OnWritten = Callable[[OSError | None], None]
"""Called on the loop when writes have ended: with None, or with the error of the first that failed."""
OnRead = Callable[[list[bytes] | OSError], None]
"""Called when reads have ended, maybe at once: with the bytes of each, or with the error of the first that failed."""
ProtocolFactory = Callable[[], asyncio.Protocol]
"""Makes the protocol of a new connection."""
T = TypeVar("T")


class Network(Protocol):
    """TCP or its simulation; transports and protocols are asyncio's own."""

    async def connect(
        self, host: str, port: int, factory: ProtocolFactory
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection; OSError when refused or unreachable. Timeouts belong to the caller."""
        ...

    async def listen(self, host: str, port: int, factory: ProtocolFactory) -> Listener:
        """Accept connections; port 0 picks one; OSError when the port is in use."""
        ...


class Listener(Protocol):
    @property
    def port(self) -> int: ...
    async def close(self) -> None:
        """Stop accepting; open connections stay."""
        ...


class File(Protocol):
    """One open file of a Disk. Offsets and lengths in bytes."""

    name: str

    def size(self) -> int: ...
    def read(self, offset: int, length: int) -> bytes:
        """Blocking; short at the end of the file. For start-up, compaction and other work off the hot path."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Write:
    """Buffers to lay down one after another from `offset` on."""

    file: File
    offset: int
    buffers: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class Read:
    file: File
    offset: int
    length: int


PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Space:
    total_bytes: int
    free_bytes: int


class Disk(Protocol):
    """One directory of one device. Names are plain file names.

    `write` takes a batch and calls `done(None)` exactly once when all of it is durable (or merely handed
    to the operating system with sync=False), or `done(error)`. An inline disk may call `done` before it
    returns, a thread or simulated one later; callers must not depend on which. Batches submitted one after
    another become durable in that order or are lost as a suffix only if each is submitted after the one
    before was done; otherwise any subset of unsynced bytes may survive a crash, also torn.
    A failed sync is never retried: the caller stops.
    """

    alignment: int
    """Offsets and total lengths of a Write to a file opened with direct=True are multiples of this."""
    open_files: int
    """Maximum number of files that may be kept open for readers."""

    def open(self, name: str, *, create: bool = False, size: int = 0, direct: bool = False) -> File:
        """Open; with create the file must not exist and gets `size` bytes reserved (contents undefined)."""
        ...

    def extend(self, file: File, size: int) -> None:
        """Reserve at least `size` bytes for a file, durably; its content stays. Blocking."""
        ...

    def shrink(self, file: File, size: int) -> None:
        """Free the space of a file behind `size`, which others may use then. Blocking."""
        ...

    def names(self) -> list[str]: ...
    def rename(self, old: str, new: str) -> None:
        """Replace `new` atomically; durable after sync_names()."""
        ...

    def remove(self, name: str) -> None: ...
    def sync_names(self) -> None:
        """Make creations, renames and removals durable (directory sync). Blocking."""
        ...

    def write_now(self, writes: Sequence[Write], *, sync: bool = True) -> None:
        """Write as `write` does, blocking, for start-up and for jobs that run in `offload`."""
        ...

    def write(self, writes: Sequence[Write], done: OnWritten, *, sync: bool = True) -> None: ...
    def read(self, reads: Sequence[Read], done: OnRead) -> None: ...
    async def offload(self, job: Callable[[], T]) -> T:
        """Run a blocking job away from the loop; it may use every method of this disk that does not call back.

        When the caller is cancelled it still waits for the job: its files are in use until then.
        """
        ...

    def map_page(self, name: str) -> memoryview:
        """Map the first PAGE_BYTES of a file that has them as memory: bytes put there survive this process without a
        call. It is not defined when they reach the device: after a loss of power each sector is as it was at some time
        since it was mapped, or later. Never while the file is written otherwise.
        """
        ...

    def space(self) -> Space: ...
    def identity(self) -> str:
        """Return an identity that differs for every copy of the directory and every boot of the machine; "" if
        unknown.
        """
        ...

    def directory(self) -> str:
        """Return the directory in which other processes of the machine find the synced files; "" if they cannot."""
        ...

    def lock(self) -> None:
        """Hold the directory for this process; OSError if another process holds it."""
        ...

    def close(self) -> None: ...


class FileRange(NamedTuple):
    """A range of bytes in a file."""

    name: str
    offset: int
    length: int


class FileData(NamedTuple):
    """The bytes of a range: data[at:at + length], or fewer if the file ends before."""

    data: bytes | bytearray
    at: int


class LocalDirectory(Protocol):
    """Read-only access to the files of a bookie on this machine, which the bookie may remove or rewrite at any time."""

    def read(self, places: Sequence[FileRange]) -> asyncio.Future[list[FileData]]:
        """Start reading immediately. Raises OSError. Ranges past the end of the file return arbitrary bytes."""
        ...

    def give_back(self, pieces: Sequence[FileData]) -> None:
        """Return data that the caller no longer needs, so that its memory can be reused."""
        ...


class LocalFiles(Protocol):
    def open(self, directory: str, identity: str) -> LocalDirectory | None:
        """Return access to what Disk.directory() and Disk.identity() name; None if that is on another machine."""
        ...


class Clock(Protocol):
    def wall_us(self) -> int:
        """Microseconds since the epoch, UTC. May jump; never used for correctness."""
        ...


class Counter(Protocol):
    value: int
    """What was counted. Who counts for each request adds here: a call of `inc` would cost more than the addition."""

    def inc(self, amount: int = 1) -> None: ...


class Gauge(Protocol):
    def set(self, value: float) -> None: ...


class Histogram(Protocol):
    def observe(self, value: float) -> None: ...


class Stats(Protocol):
    """Names carry the unit (`_bytes`, `_seconds`, `_total`); labels are few and bounded."""

    def counter(self, name: str, help: str, **labels: str) -> Counter: ...
    def gauge(self, name: str, help: str, **labels: str) -> Gauge: ...
    def histogram(self, name: str, help: str, **labels: str) -> Histogram: ...


class JobQueue(Protocol):
    """Jobs for threads, in order; None ends one thread."""

    def put(self, item: Any, /) -> None: ...
    def get(self) -> Any:
        """Wait for the next job. Only threads call this, not the loop."""
        ...

    def get_nowait(self) -> Any:
        """Return the next job. Raises queue.Empty."""
        ...


class Signal(Protocol):
    """Event for which a thread waits, once."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self) -> bool:
        """Wait for `set`. Only threads call this, not the loop."""
        ...


class StartedThread(Protocol):
    def is_alive(self) -> bool: ...


class Threads(Protocol):
    """Threads that work beside the loop and wait for it. They share nothing but these values with it."""

    def queue(self) -> JobQueue: ...
    def event(self) -> Signal: ...
    def start(self, run: Callable[[], None], name: str) -> StartedThread: ...
    def now(self) -> float:
        """Return monotonic seconds. Any thread."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for so long. Only threads call this, not the loop."""
        ...


class SystemThreads:
    """Threads of the operating system."""

    def queue(self) -> JobQueue:
        return SimpleQueue[Any]()

    def event(self) -> Signal:
        return threading.Event()

    def start(self, run: Callable[[], None], name: str) -> StartedThread:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


THREADS = SystemThreads()


class Span(Protocol):
    """A step of a trace. Nothing of it raises, and nothing waits."""

    @property
    def context(self) -> bytes:
        """Return the context, TRACE_SIZE bytes, with which another process continues the trace."""
        ...

    def child(self, name: str, attributes: Mapping[str, str | int]) -> Span:
        """Begin a step within this one."""
        ...

    def note(self, name: str, value: str | int) -> None:
        """Add an attribute to the step."""
        ...

    def end(self, error: str = "") -> None:
        """End the step; `error`: why it failed."""
        ...


class AppendSpan(Protocol):
    """An append that is followed, with a step for each bookie that gets it. Nothing of it raises, and nothing waits."""

    def sent(self, bookies: Sequence[BookieId]) -> Sequence[bytes]:
        """Begin a step to each of these; return the context with which each of them continues the trace (TRACE_SIZE
        bytes).
        """
        ...

    def answered(self, place: int, error: str = "") -> None:
        """End the step to the bookie at this place; `error`: why it failed."""
        ...

    def end(self, error: str = "") -> None:
        """End the append, perhaps before some of its steps; `error`: why it failed."""
        ...


class Traces(Protocol):
    """Sampled traces, for OpenTelemetry (`runtime/telemetry/`).

    Without it nothing is traced.
    """

    within: Callable[[], object]
    """Function whose result is falsy if the caller is certainly within no span. Costs next to nothing."""

    def gap(self) -> int:
        """Return how many candidates are left out before the next one that begins a trace."""
        ...

    def append(self, ledger: LedgerId, entry: EntryId, entries: int, size: int, *, chosen: bool) -> AppendSpan | None:
        """Return the span of an append of `size` bytes that begins now; None: it is not traced.

        It is traced within the caller's span if that is traced. `chosen`: it may begin a trace if the caller is in
        none.
        """
        ...

    def continued(self, name: str, context: bytes, attributes: Mapping[str, str | int]) -> Span | None:
        """Begin a step within a span of another process; None: it is not traced, as too many are."""
        ...

    def request(self, name: str, parent: str) -> AbstractContextManager[Span | None]:
        """Trace a request within this context, or not (None). `parent`: its header traceparent, unchecked."""
        ...


@dataclass(frozen=True, slots=True)
class Runtime:
    """The outside world as one value; production builds it in runtime/production, the simulator in simulator/."""

    network: Network
    clock: Clock
    rng: random.Random
    stats: Stats
    files: LocalFiles | None = None
    """Access to files of bookies on this machine; None: none can be read."""
    threads: Threads = THREADS
    traces: Traces | None = None
    """Traces of OpenTelemetry; None: nothing is traced."""


MAX_VALUE_BYTES = 512 * 1024
MAX_MULTI_BYTES = 900 * 1024
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""Bytes of values that end a page of children: the child that reaches the limit is the last one."""


class KeyStore(Protocol):
    """A session on a tree of versioned keys ("/a/b/c"). The rules are those that ZooKeeper can keep, too:

    * A created key has version 0, each set adds one. Every mutation names the version it expects (never -1).
    * Parents need not exist: they appear as ordinary empty keys. A key with children is not deleted
      (KeyNotEmpty); an ephemeral key has none. Ephemeral keys vanish when their session ends.
    * Watches fire once, on the loop, after a change or when the session is lost; they may fire without a
      change. A function that is set twice on one key fires once. A children watch fires when a direct
      child appears or goes, not when a value changes; a value watch ignores children.
    * Errors: errors.MetadataError and its children; MetadataUnavailable leaves open whether a mutation happened.
    """

    async def prepare(self) -> None:
        """Set the store up for its first use (files, root); idempotent. Until then stores raise
        ClusterNotInitialised.
        """
        ...

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int: ...
    async def get(self, key: str, watch: Notify | None = None) -> KeyValue:
        """Return the value and version. Raises NoSuchKey if absent; the watch is then set too and fires when the key
        appears.
        """
        ...

    async def set(self, key: str, value: bytes, version: int) -> int: ...
    async def delete(self, key: str, version: int) -> None: ...
    async def children(
        self, parent: str, *, after: str = "", limit: int = 1000, watch: Notify | None = None
    ) -> list[str]:
        """Return names of direct children in order, those greater than `after`; empty when there are no more."""
        ...

    async def children_with_values(
        self, parent: str, *, after: str = "", limit: int = 1000
    ) -> list[tuple[str, KeyValue]]:
        """Return direct children with their values, in one request if the store can do that. A page may have fewer than
        `limit` (MAX_PAGE_BYTES of values end it), and is empty only when there are no more.
        """
        ...

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        """Carry out all or nothing, in order, each seeing the ones before; the error is that of the first that
        fails.
        """
        ...

    async def sync(self) -> None:
        """Wait until reads that begin afterwards see everything that was complete before this call, by any client."""
        ...

    def on_session_lost(self, notify: Notify) -> None:
        """Call `notify` on the loop each time the session and its ephemeral keys were lost; a new one serves from then
        on.
        """
        ...

    async def close(self) -> None:
        """End the session: its ephemeral keys go, its watches never fire again. Idempotent."""
        ...


class MetadataStore(Protocol):
    """Ledger metadata, registration, cookies, id allocation; `keys` for everything else.

    Mutations are conditional. `MetadataUnavailable` from a mutation means "may or may not have happened".
    """

    uri: str

    @property
    def keys(self) -> KeyStore: ...
    @property
    def own(self) -> str:
        """Return the key below which Buckram's own keys of this cluster are."""
        ...

    @property
    def root(self) -> str:
        """Return the key below which the keys of this cluster are that Apache knows, too."""
        ...

    async def initialise(self) -> str:
        """Set up a new cluster, or find the existing one; return its instance id."""
        ...

    async def instance_id(self) -> str:
        """Return the cluster's id (a UUID). Raises ClusterNotInitialised if nothing was set up here yet."""
        ...

    async def identity_required(self, watch: Notify | None = None) -> bool:
        """Return whether clients must refuse bookies without an identity; the watch fires when that may change."""
        ...

    async def require_identity(self, required: bool) -> None:
        """Set whether clients must require identities; idempotent."""
        ...

    async def sync(self) -> None:
        """Wait as KeyStore.sync does. A read without it may be stale: a lagging server does not know new ledgers."""
        ...

    async def history(self, watch: Notify | None = None) -> History:
        """Return the history of the store, as of now and not of a lagging server. Epoch 0 if none was recorded."""
        ...

    async def begin_history(self) -> History:
        """Record a first epoch if there is none; only for callers that never saw a higher one."""
        ...

    async def reopen(self) -> None:
        """Continue, after StoreReplaced, with the store that has the name now. The caller compares histories before
        use.
        """
        ...

    async def allocate_ledger_id(self) -> LedgerId: ...
    async def next_ledger_id(self) -> LedgerId:
        """Return an id such that neither it nor any higher one was ever allocated. Allocates none."""
        ...

    async def raise_next_id(self, above: LedgerId) -> None:
        """Raise the next id so that none up to `above` is allocated: for a store that was restored to an older
        state.
        """
        ...

    async def create_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> Versioned:
        """Create the record. Raises LedgerExists unless the existing one carries the same non-zero creator_token (a
        lost reply).
        """
        ...

    async def ledger_key(self, ledger_id: LedgerId) -> str:
        """Return the key of a ledger's record, which may be absent. Raises NoSuchLedger for an id that no ledger can
        have.
        """
        ...

    async def read_ledger(self, ledger_id: LedgerId, watch: Notify | None = None) -> Versioned: ...
    async def write_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> Versioned: ...
    async def delete_ledger(self, ledger_id: LedgerId, version: int) -> None: ...
    async def list_ledgers(self, *, after: LedgerId = -1, limit: int = 1000) -> list[LedgerId]:
        """Return ids above `after`, ascending; empty means the end. A failure raises, never looks like the end."""
        ...

    async def read_ledgers(
        self, *, after: LedgerId = -1, limit: int = 1000
    ) -> list[tuple[LedgerId, Versioned | MalformedRecord]]:
        """Return the records of ledgers above `after`, ascending, in few requests; the error where one cannot be read.
        A page may have fewer than `limit`; empty means the end. A failure raises, never looks like the end.
        """
        ...

    async def register(self, info: BookieInfo, *, readonly: bool, when: Sequence[CheckVersion] = ()) -> None:
        """Register (or switch, or refresh) this session's bookie; a live foreign registration is an error. A new key is
        made only while the keys of `when` have these versions, in one step (VersionConflict, NoSuchKey)."""
        ...

    async def unregister(self, bookie_id: BookieId) -> None: ...
    async def bookies(self, watch: Notify | None = None) -> BookieSet: ...
    async def known_bookies(self) -> list[BookieId]:
        """Return every bookie that has a cookie, alive or not."""
        ...

    async def read_cookie(self, bookie_id: BookieId) -> KeyValue: ...
    def cookie_key(self, bookie_id: BookieId) -> str: ...
    async def write_cookie(
        self, bookie_id: BookieId, cookie: bytes, version: int | None, also: Sequence[KeyOp] = ()
    ) -> int:
        """Create (version None; KeyExists) or update by version, and carry out `also` in the same step."""
        ...

    async def delete_cookie(self, bookie_id: BookieId, version: int) -> None: ...
    def on_session_lost(self, notify: Notify) -> None:
        """Call `notify` on the loop each time ephemeral registrations were lost; register again then."""
        ...

    def session_ticket(self) -> str:
        """Return a ticket with which another process can end this session by `end_session`; "" if sessions of dead
        processes end by themselves.
        """
        ...

    async def end_session(self, ticket: str) -> None:
        """End the session of a process that is certainly dead, so that nobody waits for it. Raises
        MetadataUnavailable.
        """
        ...

    async def close(self) -> None: ...

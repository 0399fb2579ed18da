"""connect() and Client: the entry point of programs to a cluster, with ledgers, streams, objects, machines and
databases.

Ledgers are in `client/ledger_client.py`, namespaces in `namespace.py`. Rooms below this file take a `LedgerClient`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from buckram.client.ledger_client import LedgerClient, connecting
from buckram.client.shared.handles import Opening
from buckram.config import ClientConfig, EncryptionConfig, NetConfig, TelemetryConfig, TlsConfig
from buckram.seams import MetadataStore, Runtime

# What only some programs use is imported when they use it: a command is to start quickly.
if TYPE_CHECKING:
    from buckram.namespace import Namespace
    from buckram.state.machine.settings import MachineSettings
    from buckram.state.objects.objects import Objects
    from buckram.streams.shared.namespaces import Namespaces


def connect(
    metadata: str | MetadataStore | None = None,
    *,
    config: ClientConfig | None = None,
    net: NetConfig | None = None,
    tls: TlsConfig | None = None,
    token: str = "",
    encryption: EncryptionConfig | None = None,
    telemetry: TelemetryConfig | None = None,
    runtime: Runtime | None = None,
) -> Opening[Client]:
    """Connect to the cluster that `metadata` names: `await connect(uri)` or `async with connect(uri) as client`.

    `metadata` is a URI (sqlite:///abs/path, memory:, ...) or an open store, which the caller closes. None means the
    cluster that BUCKRAM_METADATA names, or else the one that `buckram up` made in this directory. Without `config`,
    `net` and `tls` the defaults hold, with what BUCKRAM_CLIENT_*, BUCKRAM_NET_* and BUCKRAM_TLS_* (or BUCKRAM_CA) in
    the environment change. `token` says who this is, as `buckram token create` made it; without it BUCKRAM_TOKEN or
    BUCKRAM_AUTH_* say so. `encryption` says where the keys of namespaces are; without it BUCKRAM_ENCRYPTION_* do.
    `telemetry` says where traces and metrics go; without it BUCKRAM_TELEMETRY_* do, and without those nowhere.

    Errors: ClusterNotInitialised (nothing was set up there), ConfigError, WrongLedgerManager, WrongCluster,
    AccessRefused, MetadataUnavailable, StoreWentBack.
    """

    return connecting(
        Client,
        metadata,
        config=config,
        net=net,
        tls=tls,
        token=token,
        encryption=encryption,
        telemetry=telemetry,
        runtime=runtime,
    )


class Client(LedgerClient):
    """One connection to a cluster, shared by all its handles; use connect().

    Belongs to one event loop and one process. `async with` or close(). Errors of every call: InvalidArgument,
    ForkedClient (in a child process), WrongEventLoop (in another asyncio.run), HandleClosed (after close()),
    MetadataUnavailable, StoreReplaced, WrongCluster, MalformedRecord (the metadata store holds what does not parse).
    InvariantViolation is a bug: please report it.
    """

    _namespaces: Namespaces | None = None

    def namespace(self, name: str = "default") -> Namespace:
        """Return a namespace of streams: `async with client.namespace("shop").writer("orders") as writer: ...`."""
        from buckram.namespace import Namespace

        return Namespace(self, name)

    def objects(
        self, namespace: str = "default", *, process: str = "", settings: MachineSettings | None = None, **policy: Any
    ) -> Opening[Objects]:
        """Open the objects of a namespace: `async with client.objects("shop") as objects: await objects.list()`.

        Their index is a replicated machine, made at the first use; `settings` and `policy` are passed on to it.
        `process` is the name that others see while this process leads the index. Errors: NoSuchNamespace,
        NotMachineLog.
        """
        from buckram.state.machine.settings import MachineSettings
        from buckram.state.objects.objects import Objects

        async def start() -> Objects:
            self._guard()
            opened = Objects(self, self.namespace(namespace), self.services.forget)
            await opened.start(process=process, settings=settings or MachineSettings(), policy=policy)
            self.services.adopt(opened, opened.abandon)
            return opened

        return Opening(start, "client.objects()")

    @property
    def namespaces(self) -> Namespaces:
        """Return the registry of namespaces, which creates, lists, changes and deletes them."""
        self._guard()
        if self._namespaces is None:
            from buckram.streams.shared.metadata import StreamStore
            from buckram.streams.shared.namespaces import Namespaces

            self._namespaces = Namespaces(StreamStore(self.services.store))
        return self._namespaces

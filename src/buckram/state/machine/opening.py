"""Opening a machine: its log is made if it does not exist, and this process becomes a replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from buckram.core.streams.names import check_writer_name
from buckram.core.streams.policy import Policy, merged
from buckram.errors import StreamExists
from buckram.state.machine.machine import ClassState, Machine, StateMachine, process_name
from buckram.state.machine.replica import Candidacy, Replica, open_replica
from buckram.state.machine.settings import MachineSettings
from buckram.streams.shared.namespaces import Namespaces

if TYPE_CHECKING:
    from buckram.client.ledger_client import LedgerClient
    from buckram.core.machine.fold import Replicated
    from buckram.core.streams.names import StreamName
    from buckram.streams.namespace import StreamNamespace

M = TypeVar("M", bound=StateMachine)


async def open_machine(
    client: LedgerClient,
    ns: StreamNamespace,
    name: StreamName,
    factory: Callable[[], M],
    *,
    create: bool,
    stand: bool,
    process: str,
    settings: MachineSettings,
    policy: Mapping[str, Any],
    mirror_of: str = "",
) -> Machine[M]:
    """Open a machine whose state is what `factory` makes; the arguments are those of Namespace.machine.

    `mirror_of`: this process keeps the machine as a mirror of the one whose log has this uid.
    """
    check_writer_name(process)
    state = ClassState(factory)
    replica = await open_on_log(
        client,
        ns,
        name,
        state,
        create=create,
        candidacy=Candidacy(stand, process or process_name(), mirror_of),
        settings=settings,
        policy=policy,
    )
    machine = Machine(str(name), replica, state, client.services.forget)
    try:
        client.services.adopt(machine, machine.close)
    except BaseException:
        await machine.close()
        raise
    return machine


async def open_on_log(
    client: LedgerClient,
    ns: StreamNamespace,
    name: StreamName,
    state: Replicated,
    *,
    create: bool,
    candidacy: Candidacy,
    settings: MachineSettings,
    policy: Mapping[str, Any],
) -> Replica:
    """Open a replica of anything on the log `name`, which `create` makes with this stream policy."""
    if create and not await ns.exists(name.stream):
        with suppress(StreamExists):
            await ns.create_machine_log(name.stream, **policy)
    space = await Namespaces(ns.store).get(name.namespace)
    head = (await ns.store.read(name)).head
    in_force: Policy = merged(space.policy, head.policy)
    return await open_replica(client, ns.store, name, in_force, state, settings, candidacy)

"""`buckram namespace`: commands that create, list, show, set and delete namespaces.

The checks that --force overrides are here, too, for `stream create` as well: they refuse names that shells split, and
ensembles that this cluster cannot have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from buckram.cli.shared import completion, values
from buckram.cli.shared.options import cluster_options, confirm_loss, connected, prefix_option, run_async, yes_option
from buckram.cli.shared.output import emit, remark
from buckram.core.ledgers.quorum import Quorum
from buckram.core.streams.names import StreamName
from buckram.errors import InvalidArgument

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.core.tenants.quotas import Quotas
    from buckram.streams.shared.namespaces import NamespaceInfo

    Shown: TypeAlias = tuple[NamespaceInfo, Quotas]
    """A namespace's record, and its quotas."""

F = TypeVar("F", bound=Callable[..., Any])


def policy_option(command: F) -> F:
    """Settings of a namespace or a stream."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=completion.policy_keys,
        help="Policy; repeatable. Keys: ensemble, digest, placement, roll_bytes, roll_s, retention_s, "
        "retention_bytes, retention_cursors, retention_consumed, offload_to, offload_after_s, offload_bytes, "
        "backup_every_s, backup_to, backup_keep, compression, max_producers, producer_s, max_uploads. "
        "Durations as 7d, sizes as 10GiB; none takes a setting back.",
    )(command)


def quota_option(command: F) -> F:
    """Add the option --quota, which sets quotas of a namespace."""
    return click.option(
        "--quota",
        "limits",
        multiple=True,
        metavar="KEY=VALUE",
        help="Quota; repeatable, for administrators. Keys: stored_bytes (all copies), in_bytes_per_s, "
        "in_entries_per_s, out_bytes_per_s, ledgers, streams, databases, connections. Sizes as "
        "10GiB; none takes a quota back.",
    )(command)


_force_option = click.option("--force", is_flag=True, help="Allow an ensemble of more bookies than exist.")


@click.group()
def namespace() -> None:
    """Create and manage namespaces of streams, and their policies. `default` always exists."""


@namespace.command("create")
@click.argument("name")
@policy_option
@quota_option
@_force_option
@cluster_options
def create(
    name: str, settings: tuple[str, ...], limits: tuple[str, ...], force: bool, uri: str | None, as_json: bool
) -> None:
    """Create a namespace.

    \b
    Example:
      buckram namespace create shop --set retention_s=7d --set ensemble=3/3/2
    """
    from buckram.core.tenants.quotas import NONE

    chosen, quotas = values.policy(settings), values.quotas(limits)

    async def main() -> Shown:
        async with connected(uri) as client:
            if not force:
                await refuse_too_large(client, chosen)
            made = await client.namespaces.create(name, **chosen)
            return made, await client.namespaces.set_quotas(name, **quotas) if quotas else NONE

    _show(name, run_async(main()), as_json, "created")


@namespace.command("list")
@prefix_option
@cluster_options
def list_namespaces(prefix: str, uri: str | None, as_json: bool) -> None:
    """List all namespaces in which you may read something, in order.

    \b
    Example:
      buckram namespace list
    """

    from buckram.errors import AccessRefused
    from buckram.streams.shared.namespaces import all_namespaces

    async def main() -> list[str]:
        async with connected(uri) as client:
            with suppress(AccessRefused):  # Who may not use it lists his own.
                await client.namespaces.get("default")
            return [name async for name in all_namespaces(client.namespaces, prefix)]

    names = run_async(main())
    if as_json:
        emit({"namespaces": names})
    else:
        print("\n".join(names), end="\n" if names else "")


@namespace.command("show")
@click.argument("name", shell_complete=completion.namespaces)
@cluster_options
def show(name: str, uri: str | None, as_json: bool) -> None:
    """Show what is set for a namespace and holds for its streams.

    \b
    Example:
      buckram namespace show shop
    """

    async def main() -> Shown:
        async with connected(uri) as client:
            return await client.namespaces.get(name), await client.namespaces.quotas(name)

    _show(name, run_async(main()), as_json, "")


@namespace.command("set")
@click.argument("name", shell_complete=completion.namespaces)
@policy_option
@quota_option
@_force_option
@cluster_options
def set_policy(
    name: str, settings: tuple[str, ...], limits: tuple[str, ...], force: bool, uri: str | None, as_json: bool
) -> None:
    """Change settings of a namespace. Open writers see them when they are opened again; quotas apply at once.

    \b
    Example:
      buckram namespace set shop --set retention_s=none --set roll_bytes=256MiB
      buckram namespace set shop --quota stored_bytes=10GiB --quota in_entries_per_s=5000
    """
    from buckram.metadata.records.pending_audit_events import leave_note

    chosen, quotas = values.policy(settings), values.quotas(limits)

    async def main() -> Shown:
        async with connected(uri) as client:
            if not force:
                await refuse_too_large(client, chosen)
            changed = await client.namespaces.set(name, **chosen)
            if not quotas:
                return changed, await client.namespaces.quotas(name)
            found = await client.namespaces.set_quotas(name, **quotas)
            await leave_note(client.services.store, "quota", f"namespace {name}", name, " ".join(limits))
            await _remark_if_over(client, name, found)
            return changed, found

    _show(name, run_async(main()), as_json, "")


@namespace.command("delete")
@click.argument("name", shell_complete=completion.namespaces)
@yes_option
@cluster_options
def delete(name: str, yes: bool, uri: str | None, as_json: bool) -> None:
    """Delete a namespace; refused while it has streams.

    \b
    Example:
      buckram namespace delete shop --yes
    """
    confirm_loss(f"Delete namespace {name}?", yes, f"namespace {name} is not deleted")

    async def main() -> None:
        async with connected(uri) as client:
            await client.namespaces.delete(name)

    run_async(main())
    if as_json:
        emit({"namespace": name, "deleted": True})
    else:
        print(f"namespace {name} deleted")


async def _remark_if_over(client: Client, name: str, quotas: Quotas) -> None:
    """Remark that a quota below the stored bytes deletes nothing and stops writes."""
    from buckram.core.tenants.quotas import NOTHING
    from buckram.metadata.records.tenants import TenantStore

    stored = (await TenantStore(client.services.store).published()).total.get(name, NOTHING).stored_bytes
    if quotas.stored_bytes is not None and stored > quotas.stored_bytes:
        remark(
            f"namespace {name} stores {stored} bytes, the quota is {quotas.stored_bytes}: nothing is deleted, it can "
            "be read, and writes are refused until there is space"
        )


def _show(name: str, found: Shown, as_json: bool, done: str) -> None:
    from buckram.core.streams.policy import merged

    info, quotas = found
    overrides = info.policy
    whole = dataclasses.asdict(merged(overrides))
    if as_json:
        emit({"namespace": name, "overrides": dict(overrides), "policy": whole, "quotas": quotas.limits()})
        return
    print(f"namespace {name}{' ' + done if done else ''}")
    for key, value in whole.items():
        print(f"  {key} = {values.shown_setting(key, value)}{_origin(info, key)}")
    for key, limit in quotas.limits().items():
        print(f"  quota {key} = {values.shown_setting(key, limit)}")


def _origin(info: NamespaceInfo, key: str) -> str:
    """Return the remark behind a setting that says where its value comes from; empty for the default."""
    if key == "ensemble" and info.fitted:
        return "  (as few bookies as there are; `buckram up` with more widens it)"
    return "  (set here)" if key in info.policy else ""


# -- checks that --force overrides ------------------------------------------------------------------------


def has_blanks(name: StreamName) -> bool:
    """Return whether the name contains blanks, so that it has to be quoted in shells."""
    return any(c.isspace() for c in str(name))


def refuse_blanks(name: StreamName, otherwise: str = "give --force") -> None:
    """Raise InvalidArgument for a name with blanks; `otherwise` tells how to use it all the same."""
    if has_blanks(name):
        raise InvalidArgument(
            f"stream name {str(name)!r} has a blank in it: choose another, such as "
            f"{'-'.join(str(name).split())!r}, or {otherwise}"
        )


async def refuse_too_large(client: Client, policy: Mapping[str, Any]) -> None:
    """Raise InvalidArgument when the policy asks for more bookies than the cluster has ever known."""
    if policy.get("ensemble") is None:
        return
    from buckram.client.write.create import fitting

    wanted = Quorum.parse(policy["ensemble"])
    store = client.services.store
    current = await store.bookies()
    known = len({*await store.known_bookies(), *current.writable, *current.readonly})
    if wanted.ensemble_size > known:
        fits = f"ensemble={fitting(known, wanted)} fits" if known else "start bookies"
        raise InvalidArgument(
            f"ensemble={wanted} needs {wanted.ensemble_size} bookies and this cluster has {known}: {fits}, or start "
            "more bookies, or give --force"
        )

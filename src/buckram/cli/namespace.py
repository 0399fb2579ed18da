"""`buckram namespace`: create, list, show, set, delete."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from buckram.cli import completion, values
from buckram.cli.confirm import confirm_loss
from buckram.cli.fitting import refuse_too_large
from buckram.cli.options import connected, json_option, metadata_option, run_async, yes_option
from buckram.cli.output import emit

F = TypeVar("F", bound=Callable[..., Any])
_PAGE = 1000


def policy_option(command: F) -> F:
    """Settings of a namespace or a stream."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=completion.policy_keys,
        help="Policy; repeatable. Keys: ensemble, digest, placement, roll_bytes, roll_s, retention_s, "
        "retention_bytes, retention_cursors, retention_consumed, compression, max_producers, producer_s. "
        "Durations as 7d, sizes as 10GiB; none takes a setting back.",
    )(command)


_force_option = click.option("--force", is_flag=True, help="Also with an ensemble of more bookies than exist.")


@click.group()
def namespace() -> None:
    """Namespaces of streams and their policies. `default` always exists."""


@namespace.command("create")
@click.argument("name")
@policy_option
@_force_option
@metadata_option
@json_option
def create(name: str, settings: tuple[str, ...], force: bool, uri: str | None, as_json: bool) -> None:
    """Create a namespace.

    \b
    Example:
      buckram namespace create shop --set retention_s=7d --set ensemble=3/3/2
    """
    chosen = values.policy(settings)

    async def main() -> Mapping[str, Any]:
        async with connected(uri) as client:
            if not force:
                await refuse_too_large(client, chosen)
            return (await client.namespaces.create(name, **chosen)).policy

    _show(name, run_async(main()), as_json, "created")


@namespace.command("list")
@click.option("--prefix", default="", help="Only names that begin so.")
@metadata_option
@json_option
def list_namespaces(prefix: str, uri: str | None, as_json: bool) -> None:
    """All namespaces, in order.

    \b
    Example:
      buckram namespace list
    """

    async def main() -> list[str]:
        async with connected(uri) as client:
            await client.namespaces.get("default")
            found: list[str] = []
            while page := await client.namespaces.list(prefix=prefix, after=found[-1] if found else "", limit=_PAGE):
                found += page
            return found

    names = run_async(main())
    if as_json:
        emit({"namespaces": names})
    else:
        print("\n".join(names), end="\n" if names else "")


@namespace.command("show")
@click.argument("name", shell_complete=completion.namespaces)
@metadata_option
@json_option
def show(name: str, uri: str | None, as_json: bool) -> None:
    """What is set for a namespace, and what holds for its streams.

    \b
    Example:
      buckram namespace show shop
    """

    async def main() -> Mapping[str, Any]:
        async with connected(uri) as client:
            return (await client.namespaces.get(name)).policy

    _show(name, run_async(main()), as_json, "")


@namespace.command("set")
@click.argument("name", shell_complete=completion.namespaces)
@policy_option
@_force_option
@metadata_option
@json_option
def set_policy(name: str, settings: tuple[str, ...], force: bool, uri: str | None, as_json: bool) -> None:
    """Change settings of a namespace. Writers that are open see them when they are opened again.

    \b
    Example:
      buckram namespace set shop --set retention_s=none --set roll_bytes=256MiB
    """
    chosen = values.policy(settings)

    async def main() -> Mapping[str, Any]:
        async with connected(uri) as client:
            if not force:
                await refuse_too_large(client, chosen)
            return (await client.namespaces.set(name, **chosen)).policy

    _show(name, run_async(main()), as_json, "")


@namespace.command("delete")
@click.argument("name", shell_complete=completion.namespaces)
@yes_option
@metadata_option
@json_option
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


def _show(name: str, overrides: Mapping[str, Any], as_json: bool, done: str) -> None:
    from buckram.core.streams.policy import merged

    whole = dataclasses.asdict(merged(overrides))
    if as_json:
        emit({"namespace": name, "overrides": dict(overrides), "policy": whole})
        return
    print(f"namespace {name}{' ' + done if done else ''}")
    for key, value in whole.items():
        print(f"  {key} = {values.shown_setting(key, value)}{'  (set here)' if key in overrides else ''}")

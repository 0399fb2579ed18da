"""Shell completion: names of streams, namespaces and bookies, and keys of policies. Errors yield no completions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.shared.options import connected, run_async
from buckram.errors import BuckramError

if TYPE_CHECKING:
    from buckram.cluster import Client

WITHIN_S = 2.0
MOST = 200


def streams(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """Bare names of namespace default; NAMESPACE/ for others, and their streams once one has its slash."""

    async def found(client: Client) -> list[str]:
        space, slash, bare = begun.partition("/")
        if slash:
            return [f"{space}/{name}" for name in await client.namespace(space).list(prefix=bare, limit=MOST)]
        spaces = await client.namespaces.list(prefix=begun, limit=MOST)
        return [*await client.namespace("default").list(prefix=begun, limit=MOST), *(f"{name}/" for name in spaces)]

    return _asked(context, found)


def namespaces(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    async def found(client: Client) -> list[str]:
        return await client.namespaces.list(prefix=begun, limit=MOST)

    return _asked(context, found)


def bookies(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """Return the bookies, including those that are down."""

    async def found(client: Client) -> list[str]:
        store = client.services.store
        there = await store.bookies()
        known = {*await store.known_bookies(), *there.writable, *there.readonly}
        return sorted(name for name in known if name.startswith(begun))

    return _asked(context, found)


def policy_keys(_context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    from buckram.core.streams.policy import FIELDS

    return [f"{key}=" for key in FIELDS if key.startswith(begun)]


def _asked(context: click.Context, ask: Any) -> list[str]:
    """Return what the cluster answers within WITHIN_S seconds, or an empty list on errors: a completion cannot report
    them."""

    async def main() -> list[str]:
        async with asyncio.timeout(WITHIN_S), connected(context.params.get("uri")) as client:
            found: Coroutine[Any, Any, list[str]] = ask(client)
            return await found

    try:
        return run_async(main())
    except (BuckramError, OSError, TimeoutError):
        return []

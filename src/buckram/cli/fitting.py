"""Checks of `stream create` and `namespace set` that --force overrides.

They refuse names that shells split, and ensembles that this cluster cannot have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from buckram.core.ledgers.quorum import Quorum
from buckram.core.streams.names import StreamName
from buckram.errors import InvalidArgument

if TYPE_CHECKING:
    from buckram.cluster import Client


def has_blanks(name: StreamName) -> bool:
    """Return whether the name contains blanks, so that it has to be quoted in shells."""
    return any(c.isspace() for c in str(name))


def refuse_blanks(name: StreamName, otherwise: str = "say --force") -> None:
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
            "more bookies, or say --force"
        )

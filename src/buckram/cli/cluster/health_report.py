"""One look at the health of a command's cluster, and how its findings are printed: the same for all commands.

Imported by commands that look; what the look needs is imported when they do.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from buckram.cli.shared.output import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from buckram.core.health.findings import Finding
    from buckram.health.gathering import Gatherer, Health
    from buckram.metadata.tree.store import TreeStore


@asynccontextmanager
async def gathering(uri: str) -> AsyncIterator[tuple[TreeStore, Gatherer]]:
    """Yield the store of a cluster and a gatherer that examines it. Raises MetadataUnavailable where the store cannot
    be opened."""
    from buckram.cli.cluster.metadata_backup import open_tree
    from buckram.client.ledger_client import secured_world
    from buckram.config import load
    from buckram.health.gathering import Gatherer, opened
    from buckram.runtime.production import production_runtime

    store = await opened(open_tree(uri))
    try:
        net, _ = load("net", None, os.environ)
        gatherer = Gatherer(store, secured_world(production_runtime(), uri), net)
        try:
            yield store, gatherer
        finally:
            await gatherer.close()
    finally:
        await store.close()


async def look_once(uri: str) -> Health:
    """Return the present health of the cluster, also if its metadata store cannot be reached. Raises
    ClusterNotInitialised."""
    from buckram.errors import AccessRefused, MetadataUnavailable
    from buckram.health.gathering import refused, unreachable

    try:
        async with gathering(uri) as (_, gatherer):
            return await gatherer.look()
    except AccessRefused as error:
        return refused(uri, error)
    except MetadataUnavailable as error:
        return unreachable(uri, error)


def lines_of(finding: Finding) -> list[str]:
    """Return a finding for people: state, place and reason, then what to do, then the place in the runbook."""
    state = finding.state
    return [
        f"{state.severity.value} {state.name} {finding.where}: {finding.why}",
        f"  {finding.do}",
        f"  {state.runbook}",
    ]


def last_line(found: Sequence[Finding]) -> str:
    """Return the line with the number of findings by severity."""
    from buckram.core.health.findings import summary

    return f"{counted(len(found), 'problem')}: {summary(found)}" if found else "nothing is wrong"

"""States of the metadata store: whether it answers, takes changes, and is believed by the bookies. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from buckram.core.health.facts import Facts, Noted


def of_metadata(facts: Facts) -> Iterator[Noted]:
    if facts.unreachable:
        yield Noted("metadata-unreachable", facts.uri, facts.unreachable)
        return
    if facts.accepted is False:
        if facts.moved:
            yield Noted("metadata-moved", facts.uri, facts.moved)
        else:
            yield Noted("restore-not-accepted", facts.uri, "it was restored, and bookies and clients wait")
    for one in facts.suspects if facts.accepted is not False else ():
        yield Noted("metadata-went-back", one.bookie, f"it does not believe this store: {one.why}", bookie=one.bookie)
    said = {one.id: one.report.metadata_refusal for one in facts.bookies if one.report is not None}
    refused = {bookie: why for bookie, why in said.items() if why}
    if facts.refusal:
        yield Noted("metadata-read-only", facts.uri, f"it can be read and takes no change: {facts.refusal}")
    elif refused:
        bookie, why = next(iter(refused.items()))
        yield Noted(
            "metadata-read-only", facts.uri, f"{len(refused)} bookies cannot change it, such as {bookie}: {why}"
        )


__all__ = ["of_metadata"]

"""What the two metadata stores hold, at each change: heads, cursors, progress, links; for the truth and the rules."""

from __future__ import annotations

import json
from collections.abc import Mapping

from buckram.core.streams.metadata.head import decode_head
from buckram.core.streams.replication_links import decode_link, parse_progress
from buckram.types import KeyValue
from simulator.replication.stage import NAMESPACE, Place, Stage


class HeadWatch:
    """A MetadataObserver (`simulator/engine/metadata.py`) of one cluster's store."""

    def __init__(self, stage: Stage, place: Place) -> None:
        self._stage, self._place = stage, place.name

    def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
        self._look(key, new, restored=False)
        self._stage.changed(who)

    def key_conflict(self, who: str, key: str) -> None:
        """Do nothing: the judge counts these."""

    def reply_lost(self, who: str, key: str) -> None:
        """Do nothing: the judge counts these."""

    def unread_version(self, who: str, key: str, version: int) -> None:
        """Do nothing: the judge checks this."""

    def restored(self, keys: Mapping[str, KeyValue]) -> None:
        """The store holds these keys now, by a restore."""
        truth, rules = self._stage.truth, self._stage.rules
        for place, name in list(truth.present):
            if place == self._place:
                truth.head_is(place, name, None)
        rules.link_restored(self._place, None)
        for key in sorted(keys):
            self._look(key, keys[key], restored=True)

    def _look(self, key: str, new: KeyValue | None, *, restored: bool) -> None:
        _, found, rest = key.partition("/streams/")
        parts = rest.split("/")
        if not found:
            return
        if parts[0] == "heads" and len(parts) == 3 and parts[1] == NAMESPACE:
            self._head(parts[2], new, restored=restored)
        elif parts == ["replication", NAMESPACE]:
            link = None if new is None else decode_link(key, new.value, new.version)
            if restored:
                self._stage.rules.link_restored(self._place, link)
            else:
                self._stage.rules.link_changed(self._place, link)
        elif parts[0] == "data" and len(parts) > 2 and new is not None:
            self._beside(parts[1], parts[2:], new)

    def _head(self, name: str, new: KeyValue | None, *, restored: bool) -> None:
        truth = self._stage.truth
        before = truth.present.get((self._place, name))
        head = None if new is None else decode_head(f"{NAMESPACE}/{name}", new.value)
        known = truth.streams.get(head.uid) if head is not None else None
        last = before if head is not None and before is not None and before.uid == head.uid else None
        facts = truth.head_is(self._place, name, head)
        if head is None or facts is None:
            return
        if restored and known is not None:
            facts.marks[:] = [] if head.mirror is None else [head.mirror]
        elif not restored:
            self._stage.rules.head_changed(facts, last, head)

    def _beside(self, uid: str, rest: list[str], new: KeyValue) -> None:
        rules = self._stage.rules
        if rest[0] == "cursors" and len(rest) == 2:
            rules.beside(uid, f"cursor {rest[1]}", int(json.loads(new.value)["offset"]))
        elif rest == ["progress"]:
            rules.beside(uid, "progress", parse_progress(uid, new.value).copied)


__all__ = ["HeadWatch"]

"""I28: only the newest incarnation of an id is registered, and only while the id has a cookie."""

from __future__ import annotations

from collections.abc import Mapping

from buckram.core.cluster.store_history import parse_statement
from buckram.core.ledgers.service_info import decode_bookie
from buckram.errors import MalformedRecord
from buckram.metadata.tree.layout import WITNESSES, ClusterLayout
from buckram.types import BookieId, KeyValue
from simulator.engine.checkers.report import Report


class Membership:
    """Compares each registration, at the moment when it appears, with the witness key and the cookie of its id."""

    def __init__(self, report: Report, layout: ClusterLayout) -> None:
        self._report, self._layout = report, layout
        self._named: dict[BookieId, str] = {}
        self._cookies: dict[BookieId, None] = {}

    def restored(self, keys: Mapping[str, KeyValue]) -> None:
        """Forget what was known, and learn what the store holds now."""
        self._named.clear()
        self._cookies.clear()
        for key, value in keys.items():
            self.learn(key, value)

    def key_changed(self, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
        self.learn(key, new)
        folder, _, name = key.rpartition("/")
        listed = [self._layout.registrations(readonly=readonly) for readonly in (False, True)]
        if new is None or old is not None or folder not in listed or name not in self._named:
            return
        incarnation = decode_bookie(name, new.value).incarnation
        self._report.check(
            "I28",
            incarnation == self._named[name] and name in self._cookies,
            "{} is registered as incarnation {}, the id is that of {}, with a cookie: {}",
            name,
            incarnation,
            self._named[name],
            name in self._cookies,
        )

    def learn(self, key: str, value: KeyValue | None) -> None:
        """Note what the store holds under a key now, without judging it."""
        folder, _, name = key.rpartition("/")
        if folder == self._layout.cookies:
            if value is None:
                self._cookies.pop(name, None)
            else:
                self._cookies[name] = None
        elif folder == f"{self._layout.own}/{WITNESSES}" and value is not None:
            try:
                self._named[name] = parse_statement(key, value.value).incarnation
            except MalformedRecord:
                self._named.pop(name, None)

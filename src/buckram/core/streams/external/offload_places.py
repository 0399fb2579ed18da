"""Places where servers may follow a policy to history, as the operator lists them.

So an operator lists locations by namespaces. A stream's files are in NAMESPACE/STREAM/UID below one of them and nowhere
else, whatever its policy, its segment list or its intents say. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from buckram.core.streams.external.history import check_location
from buckram.core.streams.names import check_name
from buckram.errors import ConfigError, InvalidArgument

SETTING = "[janitor] offload_places"
EVERY = "*"
"""Stands for every namespace."""


@dataclass(frozen=True, slots=True)
class OffloadPlaces:
    """Locations by namespace; those under EVERY hold for all namespaces."""

    listed: Mapping[str, tuple[str, ...]]

    def of(self, namespace: str) -> tuple[str, ...]:
        """Return the locations that streams of a namespace may use."""
        return (*self.listed.get(namespace, ()), *self.listed.get(EVERY, ()))

    def check_policy(self, namespace: str, location: str) -> None:
        """Raise InvalidArgument for an offload_to that the operator has not listed for the namespace."""
        if location not in self.of(namespace):
            known = ", ".join(self.of(namespace)) or "none"
            raise InvalidArgument(
                f"its policy has offload_to = {location!r}, which is no place for namespace {namespace} (they are: "
                f"{known}): an operator adds {namespace}={location} to {SETTING}, or the policy names another place"
            )

    def why_not(self, directory: str, namespace: str, uid: str) -> str:
        """Return why this directory may not hold files of the stream with this uid; "" if it may. An empty namespace
        means that the stream is gone and its namespace unknown: every listed location is accepted then.
        """
        roots = [f"{root}/{namespace}" for root in self.of(namespace)] if namespace else self._all()
        for root in roots:
            below = directory.removeprefix(f"{root}/").split("/") if directory.startswith(f"{root}/") else []
            if below and below[-1] == uid and not {"", ".", ".."} & set(below) and "::" not in directory[len(root) :]:
                return ""
        return f"{directory} is no directory for the history of this stream: {SETTING} lists where it may be"

    def why_not_read(self, directory: str) -> str:
        """Return why files in a directory may not be read; "" if they may. The reader has already compared the
        directory's last names with those of the stream.
        """
        root, *names = directory.rsplit("/", 3)
        if len(names) == 3 and root in self.of(names[0]):
            return ""
        return f"{directory} is at no place for history: {SETTING} of this server lists where it may be"

    def _all(self) -> list[str]:
        return [root for roots in self.listed.values() for root in roots]


def parse_offload_places(text: str) -> OffloadPlaces:
    """Parse NAMESPACE=LOCATION pairs between spaces; `*` stands for every namespace. Raises ConfigError."""
    found: dict[str, tuple[str, ...]] = {}
    for word in text.split():
        namespace, equals, location = word.partition("=")
        try:
            if not equals:
                raise InvalidArgument(f"{word!r}: needs NAMESPACE=LOCATION, or *=LOCATION for every namespace")
            if namespace != EVERY:
                check_name("namespace", namespace)
            found[namespace] = (*found.get(namespace, ()), check_location(location, namespace))
        except InvalidArgument as error:
            raise ConfigError(f"{SETTING}: {error}") from None
    return OffloadPlaces(found)


__all__ = ["EVERY", "SETTING", "OffloadPlaces", "parse_offload_places"]

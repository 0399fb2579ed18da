"""The host that a bookie runs on, as it tells the cluster, so that no two copies of an entry are put there.

Not an address: containers have one each, and 127.0.0.1 is every machine's. Not the machine id in /etc: containers of
one image have the image's or none, and so have machines that were cloned. The running kernel has an id of its own that
all containers on it see, and that no two machines have.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path

from buckram.core.placement.policy import parse_location
from buckram.core.placement.topology import HOST_PROPERTY, LOCATION_PROPERTY, Location
from buckram.errors import ConfigError, InvalidArgument
from buckram.runtime.process.clock import BOOT_ID

_DIGITS = 12
"""Number of hexadecimal digits of the boot id that are kept: enough to tell a million hosts apart, yet readable."""


def running_host(boot_id: Path = BOOT_ID) -> str:
    """Return the id of the running kernel; without one the machine's name; empty if that is no usable name."""
    try:
        text = boot_id.read_text("ascii").strip().replace("-", "")
    except (OSError, UnicodeDecodeError):
        text = ""
    if re.fullmatch("[0-9a-f]{32}", text) and text.strip("0"):
        return f"boot-{text[:_DIGITS]}"
    name = socket.gethostname()
    return "" if name.partition(".")[0] in ("", "localhost") or not _is_name(name) else name


def place_properties(location: str, host_id: str) -> dict[str, str]:
    """Return the registration properties for a location and a host id; empty ones are left out. Raises ConfigError if
    one is malformed."""
    parse_location("[bookie] location", location)
    found = {LOCATION_PROPERTY: location} if location else {}
    return found | ({HOST_PROPERTY: check_host_id(host_id, location)} if host_id else {})


def check_host_id(host_id: str, location: str) -> str:
    """Return the host id. Raises ConfigError if it is no name, or if the bookie's location names another host."""
    if not _is_name(host_id):
        raise ConfigError(
            f"[bookie] host_id {host_id[:80]!r}: needs a name without spaces, slashes and =, of at most 200 characters"
        )
    named = Location.parse(location).host if location else None
    if named is not None and named != host_id:
        raise ConfigError(
            f"[bookie] host_id {host_id!r}: the location {location} says that it is {named!r}: give one of the two"
        )
    return host_id


def _is_name(text: str) -> bool:
    try:
        return len(text) <= 200 and "=" not in text and Location.parse(f"/host={text}").host == text
    except InvalidArgument:
        return False


__all__ = ["BOOT_ID", "check_host_id", "place_properties", "running_host"]

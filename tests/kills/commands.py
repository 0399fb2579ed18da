"""All commands that are killed, by name."""

from __future__ import annotations

from tests.kills import bookies, metadata, streams
from tests.kills.world import Command

COMMANDS: dict[str, Command] = {**metadata.COMMANDS, **bookies.COMMANDS, **streams.COMMANDS}

"""All commands that are killed, by name."""

from __future__ import annotations

from tests.kills import bookies, databases, leaving, metadata, mirrors, streams
from tests.kills.world import Command

COMMANDS: dict[str, Command] = {
    **metadata.COMMANDS,
    **bookies.COMMANDS,
    **leaving.COMMANDS,
    **streams.COMMANDS,
    **databases.COMMANDS,
    **mirrors.COMMANDS,
}

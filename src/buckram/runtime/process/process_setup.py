"""Event loop of a process, for all that start loops: the command line, bookies, the sync client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from buckram.errors import ConfigError

LOOP_VARIABLE = "BUCKRAM_LOOP"
LOOPS = ("uvloop", "asyncio")


def loop_factory(environment: Mapping[str, str]) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory for asyncio.Runner: uvloop if installed, unless BUCKRAM_LOOP=asyncio; None is asyncio's
    default.

    Raises ConfigError for an unknown value, and for BUCKRAM_LOOP=uvloop where it is not installed.
    """
    wanted = environment.get(LOOP_VARIABLE, "")
    if wanted and wanted not in LOOPS:
        raise ConfigError(f"{LOOP_VARIABLE} = {wanted!r}: must be one of {', '.join(LOOPS)}, or not set")
    if wanted == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if wanted:
            raise ConfigError(f"{LOOP_VARIABLE} = 'uvloop': it is not installed; pip install uvloop") from None
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory

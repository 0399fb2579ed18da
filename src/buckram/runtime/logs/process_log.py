"""Turns the log of a process on, for as long as a context lasts. Used by commands that run for long."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from buckram.config import LogConfig
from buckram.runtime.logs.handler import LineHandler
from buckram.runtime.logs.levels import set_levels
from buckram.runtime.logs.writing import LineWriter

DEBUG_VARIABLE = "BUCKRAM_DEBUG"
log = logging.getLogger("buckram.log")


class Log:
    """The log that runs."""

    def __init__(self, handler: LineHandler, default: str) -> None:
        self._handler, self._default = handler, default

    def name_process(self, **fields: int | str) -> None:
        """Fields of every line from now on."""
        self._handler.process_fields.update(fields)

    def configure(self, config: LogConfig) -> None:
        """Put the levels of a configuration into force that was read again. ConfigError changes nothing."""
        set_levels(config.level or self._default, "[log] level")


@contextmanager
def logging_to(
    stream: TextIO, config: LogConfig, environment: Mapping[str, str], default: str = "info"
) -> Iterator[Log]:
    """Send log lines to `stream` during the block, in the place of all earlier handlers.

    `default` is the level if the configuration names none; BUCKRAM_DEBUG makes it debug. Raises ConfigError for an
    unknown level.
    """
    root = logging.getLogger()
    before, level_before = root.handlers[:], root.level
    log_default = "debug" if environment.get(DEBUG_VARIABLE) else default
    set_levels(config.level or log_default, "[log] level")
    writer = LineWriter(stream)
    handler = LineHandler(writer.put, config.format, config.lines_per_minute)
    root.handlers = [handler]
    try:
        yield Log(handler, log_default)
    except Exception as error:
        if config.format == "json":  # for people the command line says it by itself
            log.error("it ends: %s", error)
        raise
    finally:
        root.handlers = before
        handler.say_rest(time.time())
        handler.close()
        writer.close()
        set_levels("warning")
        root.setLevel(level_before)

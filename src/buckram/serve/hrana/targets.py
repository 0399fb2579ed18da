"""Targets of requests: the database, the consistency of its reads, the principal.

Not here: which databases are served.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from buckram.serve.http.application import Principal
from buckram.serve.http.problems import HttpProblem
from buckram.state.machine.machine import Consistency

TOKEN, AFTER = "buckram-token", "buckram-after"
"""Headers of a request: under which token it is done once, and below which offset a read has to see everything."""
_READING = re.compile(r"(?P<name>.*)@(?P<how>leader|stale)(?:=(?P<seconds>\d{1,5}(?:\.\d{1,6})?))?")


class Reading(NamedTuple):
    """A database, and the consistency of reads from it."""

    database: str
    """As it is written in the request, or its full name."""
    consistency: Consistency = "linearizable"
    at_most_s: float | None = None

    @property
    def address(self) -> str:
        """The path of the database at a leader."""
        return quote(f"{self.database}@leader" if self.consistency == "leader" else self.database)

    def key(self, may_write: bool) -> str:
        """Return the key that a stream belongs to: a baton is valid only for the database and consistency it was made
        for.
        """
        return f"{self.database}@{self.consistency}={self.at_most_s}/{may_write}"


def parse_reading(wanted: str) -> Reading:
    """shop/main, shop/main@leader, shop/main@stale or shop/main@stale=2."""
    found = _READING.fullmatch(wanted)
    if found is None:
        return Reading(wanted)
    if found["how"] == "leader":
        return Reading(found["name"], "leader")
    return Reading(found["name"], "stale", None if found["seconds"] is None else float(found["seconds"]))


class Target(NamedTuple):
    """The parsed target of an HTTP request."""

    reading: Reading
    principal: Principal
    may_write: bool
    path: str
    """The version and the operation: v3/pipeline."""
    token: str | None
    """Token under which the request's changes are made at most once; None without one."""
    after: int | None
    """Offset that a replica has to reach before it answers a read; None without one."""
    over: Callable[[], str] = lambda: ""
    """Returns why a long answer has to end, because of the token or the grants; empty while it may go on."""

    @classmethod
    def of(
        cls,
        reading: Reading,
        principal: Principal,
        may_write: bool,
        path: str,
        headers: Mapping[str, str],
        over: Callable[[], str] = lambda: "",
    ) -> Target:
        """Return the target of a request with these headers. Raises HttpProblem 400 for an invalid header."""
        after = headers.get(AFTER)
        if after is not None and not (after.isascii() and after.isdecimal() and len(after) < 20):
            raise HttpProblem(400, "ARGS_INVALID", f"Buckram-After: {after[:40]!r} is no offset, such as 1200")
        offset = None if after is None else int(after)
        return cls(reading, principal, may_write, path, headers.get(TOKEN), offset, over)

    @property
    def key(self) -> str:
        """The key that the request's stream belongs to."""
        return self.reading.key(self.may_write)

"""What a request is for: the database, how its reads are served, who asks. Not here: which databases are served."""

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
    """A database, and how its reads are served."""

    database: str
    """As it is written in the request, or its full name."""
    consistency: Consistency = "linearizable"
    at_most_s: float | None = None

    @property
    def address(self) -> str:
        """The path of the database at a leader."""
        return quote(f"{self.database}@leader" if self.consistency == "leader" else self.database)

    def key(self, may_write: bool) -> str:
        """What a stream belongs to: a baton is good for the database and the kind of reads it was made for."""
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
    """What a request over HTTP is for."""

    reading: Reading
    principal: Principal
    may_write: bool
    path: str
    """The version and the operation: v3/pipeline."""
    token: str | None
    """Under which it is done once."""
    after: int | None
    """The offset below which a read of a replica sees everything."""
    over: Callable[[], str] = lambda: ""
    """For an answer that takes long: says why it has to end, because of the token or of grants; empty otherwise."""

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
        """What a request with these headers is for. HttpProblem 400 for a header that is wrong."""
        after = headers.get(AFTER)
        if after is not None and not (after.isascii() and after.isdecimal() and len(after) < 20):
            raise HttpProblem(400, "ARGS_INVALID", f"Buckram-After: {after[:40]!r} is no offset, such as 1200")
        offset = None if after is None else int(after)
        return cls(reading, principal, may_write, path, headers.get(TOKEN), offset, over)

    @property
    def key(self) -> str:
        """What its stream belongs to."""
        return self.reading.key(self.may_write)


__all__ = ["AFTER", "TOKEN", "Reading", "Target", "parse_reading"]

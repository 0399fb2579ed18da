"""Request that a log line belongs to: a context variable that follows tasks and calls on other loops."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

REQUEST: ContextVar[str] = ContextVar("buckram_request", default="")
_GOOD = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_numbers = itertools.count(1)


@contextmanager
def about_request(asked: str = "") -> Iterator[str]:
    """Mark log lines of the block as being about one request; yield its id. `asked` is the id that its sender gave,
    used if it is a short word."""
    name = asked if _GOOD.fullmatch(asked) else f"http-{next(_numbers)}"
    before = REQUEST.set(name)
    try:
        yield name
    finally:
        REQUEST.reset(before)

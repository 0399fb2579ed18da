"""Requests that come again because their answers were lost with a gateway: how who sends them says so.

Hadoop's own client says nothing of this and has only its renames recognised (`files.py`). `spark/relay.py` says it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

ATTEMPT = "buckram-attempt"
"""A header of CREATE's second step: a name that nobody else uses, the same whenever it is sent."""
REPEATED = "buckram-repeated"
"""A header of any request: `true` if it was sent before, and nobody knows whether it was done."""
_NAME = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)


class Repeat(NamedTuple):
    """What a request says of itself. Without `attempt` its file is not known again."""

    attempt: str = ""
    repeated: bool = False


def repeat_of(headers: Mapping[str, str]) -> Repeat:
    """What the headers of a request say. A name that is none counts as none."""
    name = headers.get(ATTEMPT, "")
    return Repeat(name if _NAME.fullmatch(name) else "", headers.get(REPEATED, "") == "true")


__all__ = ["ATTEMPT", "REPEATED", "Repeat", "repeat_of"]

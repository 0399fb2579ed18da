"""Headers that mark repeated requests, whose answers were lost with a gateway.

Hadoop's own client sends none and has only its renames recognised (`files.py`). `spark/relay/server.py` sends them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

ATTEMPT = "buckram-attempt"
"""Header of CREATE's second step: a unique id of the request, the same in every repetition."""
REPEATED = "buckram-repeated"
"""Header of any request: `true` if it was sent before and its outcome is unknown."""
_NAME = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)


class Repeat(NamedTuple):
    """Marks of repetition in a request. Without `attempt` a file that it created is not recognised."""

    attempt: str = ""
    repeated: bool = False


def repeat_of(headers: Mapping[str, str]) -> Repeat:
    """Read the marks from the headers of a request; an `attempt` that is no valid name is ignored."""
    name = headers.get(ATTEMPT, "")
    return Repeat(name if _NAME.fullmatch(name) else "", headers.get(REPEATED, "") == "true")


__all__ = ["ATTEMPT", "REPEATED", "Repeat", "repeat_of"]

"""Asks HTTP servers of tests."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple


class Said(NamedTuple):
    """An answer, whatever its status."""

    status: int
    text: str
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(address: str, method: str, path: str, body: str | None = None, **headers: str) -> Said:
    """`address` is HOST:PORT."""
    sent = None if body is None else body.encode()
    request = urllib.request.Request(f"http://{address}{path}", data=sent, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as page:
            return Said(page.status, page.read().decode(), dict(page.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Said(error.code, error.read().decode(), dict(error.headers))

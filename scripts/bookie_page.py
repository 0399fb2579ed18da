"""The table of paths in docs/reference/http.md, from the operations that a bookie serves (generate_docs.py)."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from buckram.serve.admin.bookie_pages import BookiePages
from buckram.serve.admin.cluster_pages import AdminClusterPages
from buckram.serve.admin.job_pages import AdminJobPages
from buckram.serve.admin.ledger_pages import AdminLedgerPages
from buckram.serve.operations.registry import ANY, Registry

PAGE = "reference/http.md"
BEGIN = "<!-- paths of src/buckram/serve/admin: `make regenerate` writes this table -->\n"
END = "<!-- end of paths -->\n"
_NO: Any = None
"""Placeholder for arguments that a group needs only when it answers a request."""


def page(text: str) -> str:
    """Return the page with its table of operations replaced; the rest is written by hand."""
    operations = Registry(
        (BookiePages(_NO, _NO, _NO), AdminLedgerPages(_NO), AdminClusterPages(_NO, _NO), AdminJobPages(_NO))
    )
    lines = ["", "| path | methods | answer |", "|---|---|---|"]
    for path, some in groupby((one for one in operations if one.method != ANY), lambda one: one.path):
        rows = list(some)
        shown = path.replace("{job:path}", "{job}")
        lines.append(f"| `{shown}` | {', '.join(one.method for one in rows)} | {'; '.join(one.what for one in rows)} |")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    return head + begin + "\n".join([*lines, "", ""]) + end + tail

"""What removes data is advised by the table of health alone, which knows who answers and whether a restore is accepted.

Other texts have no such knowledge: those that name such a command are listed here, each with the reason why it may.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "buckram"
PACKAGES = (
    "bookie",
    "client",
    "core",
    "runtime/disk",
    "errors",
    "serve/exporter",
    "serve/gateway",
    "healing",
    "health",
    "metadata",
    "runtime/net",
    "streams",
)
_REMOVING = re.compile(
    r"(bookie|cluster|ledger|stream|doctor) (forget|decommission|collect|salvage|nuke|delete|orphans --delete|--fix)\b"
    r"|--force\b|--yes\b"
)
ALLOWED = {
    "bookie/garbage/gc_limits.py": "what a metric counts",
    "core/cluster/cookie.py": "how a bookie came to be out of the cluster, not what to do",
    "core/streams/metadata/purposes.py": "an answer to whoever deletes what is not for records: the command that does",
    "core/health/state_table.py": "the table itself: a test of its own looks at its cures",
    "client/maintain/salvage.py": "an answer to `cluster salvage`, which brings back",
    "errors/streams.py": "which of the reader's own streams it is",
    "healing/operations/operator_calls.py": "an answer to whoever removes a stopped bookie: copies come first",
    "healing/operations/decommission.py": "an answer to whoever takes a bookie out",
    "metadata/etcd/store.py": "an answer to `cluster nuke`",
    "metadata/zookeeper/cluster.py": "an answer to `cluster nuke`",
    "streams/maintain/delete.py": "an answer to whoever deletes a stream",
}
"""By file: why its texts may name a command that removes data."""


def texts(path: Path) -> list[str]:
    """All text of a file but its docstrings."""
    source = path.read_text()
    if not _REMOVING.search(source):  # most name none, and parsing all of them takes seconds
        return []
    tree = ast.parse(source)
    of_docs = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [str(node.value) for node in found if id(node) not in of_docs]


def test_no_text_but_the_tables_advises_what_removes_data() -> None:
    named = set[str]()
    for package in PACKAGES:
        for path in sorted((SOURCE / package).rglob("*.py")):
            if any(_REMOVING.search(text) for text in texts(path)):
                named.add(str(path.relative_to(SOURCE)))
    assert named - ALLOWED.keys() == set(), "an advice that removes data belongs into the table of health"
    assert ALLOWED.keys() - named == set(), "these name no such command any more"

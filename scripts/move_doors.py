"""Rewrite imports from `buckram.client.client`: `python scripts/move_doors.py`. For branches from before it went.

Rooms below `cluster.py` take `LedgerClient` and `StreamNamespace`, which are renamed in their code; everybody else gets
`Client`, `connect` and `Namespace` from where programs have them. A tree without such imports stays as it is.
"""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from pathlib import Path

LOWER = ("client", "streams", "machine", "objects", "db", "state", "healing", "admin", "serve/admin", "health", "views",
         "serve/views")  # fmt: skip
ABOVE = ("serve/views/databases.py",)
CLIENT = re.compile(r"^(\s*)from buckram\.client\.client import (.+)$", re.MULTILINE)
NAMESPACE = re.compile(r"^(\s*)from buckram\.streams\.namespace import Namespace$", re.MULTILINE)
TOOLS = {"client_config", "secured_world"}
OWN = ("scripts/move_doors.py", "scripts/move_rooms.py")


def main() -> None:
    for name in subprocess.run(
        ["git", "ls-files", "*.py", "*.md"], capture_output=True, text=True, check=True
    ).stdout.split():
        path = Path(name)
        old = path.read_text(encoding="utf-8")
        new = old if name in OWN else rewritten(name, old)
        if new != old:
            path.write_text(new, encoding="utf-8")
            print(name)


def rewritten(name: str, text: str) -> str:
    below = name.startswith(tuple(f"src/buckram/{room}/" for room in LOWER)) and not name.endswith(ABOVE)
    renamed: dict[str, str] = {}

    def of_client(found: re.Match[str]) -> str:
        above: list[str] = []
        under: list[str] = []
        for one in (part.strip() for part in found[2].split(",")):
            if one in TOOLS:
                under.append(one)
            elif below and one == "Client":
                under.append("LedgerClient")
                renamed["Client"] = "LedgerClient"
            elif below and one == "connect":
                under.append("connecting")
                print(f"BY HAND: {name}: connect(...) becomes connecting(LedgerClient, ...)")
            else:
                above.append(one)
        lines = [f"{found[1]}from buckram.cluster import {', '.join(above)}"] if above else []
        lines += [f"{found[1]}from buckram.client.ledger_client import {', '.join(sorted(under))}"] if under else []
        return "\n".join(lines)

    def of_namespace(found: re.Match[str]) -> str:
        if not below:
            return f"{found[1]}from buckram.namespace import Namespace"
        renamed["Namespace"] = "StreamNamespace"
        return f"{found[1]}from buckram.streams.namespace import StreamNamespace"

    text = NAMESPACE.sub(of_namespace, CLIENT.sub(of_client, text))
    for old, new in renamed.items() if name.endswith(".py") else ():
        text = with_name(text, old, new)
    return text


def with_name(text: str, old: str, new: str) -> str:
    """Rename in code, not in strings and comments."""
    lines = text.splitlines(keepends=True)
    places = [
        token.start
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.NAME and token.string == old
    ]
    for row, column in reversed(places):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + new + line[column + len(old) :]
    return "".join(lines)


if __name__ == "__main__":
    main()

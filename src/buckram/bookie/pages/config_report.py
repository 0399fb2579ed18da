"""Rows and text of `buckram bookie config`: each value in force and where it came from. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from buckram.config import Sourced


def rows(sourced: Iterable[Sourced]) -> list[dict[str, Any]]:
    """Return one mapping per key, for JSON: section, key, value, source, meaning."""
    return [
        {"section": s.section, "key": s.key, "value": s.value, "source": s.source, "meaning": s.meaning}
        for s in sourced
    ]


def text(sourced: Iterable[Sourced]) -> str:
    """Return TOML that can be used as a configuration file; comments give each value's origin and meaning."""
    lines: list[str] = []
    section = ""
    for s in sourced:
        if s.section != section:
            lines.extend(([""] if lines else []) + [f"[{s.section}]"])
            section = s.section
        lines.append(f"{f'{s.key} = {_toml(s.value)}':<44} # {s.source}: {s.meaning}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if not isinstance(value, str):
        return f"{value}"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

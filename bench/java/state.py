"""Saved measurements, so that an interrupted comparison goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

FOLDER = Path(".bench/java")
SOURCES = ("src", "bench", "javakit")


def version() -> str:
    """Return a version of the measured and measuring sources: a hash of the committed ones, plus a mark for changes.
    Pages are left out."""
    names = [f"HEAD:{folder}" for folder in SOURCES]
    trees = subprocess.run(["git", "rev-parse", *names], capture_output=True, text=True, check=False)
    changed = subprocess.run(["git", "diff", "HEAD", "--", *SOURCES], capture_output=True, check=False).stdout
    mark = f"+{hashlib.sha256(changed).hexdigest()[:8]}" if changed.strip() else ""
    known = hashlib.sha256(trees.stdout.encode()).hexdigest()[:12] if trees.returncode == 0 else "unknown"
    return known + mark


class State:
    """Measurements by round, numbered from 0, in one file that is replaced after each."""

    def __init__(self, folder: Path, version: str, *, anew: bool = False, any_version: bool = False) -> None:
        """Open the saved measurements; those of another version are discarded, unless `any_version`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "state.json"
        kept: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() and not anew else {}
        if kept.get("version") != version and not any_version:
            kept = {}
        self.version = version
        self.rounds: list[dict[str, dict[str, Any]]] = kept.get("rounds", [])

    def known(self, number: int, key: str) -> bool:
        return number < len(self.rounds) and key in self.rounds[number]

    def put(self, number: int, key: str, figures: dict[str, Any]) -> None:
        while len(self.rounds) <= number:
            self.rounds.append({})
        self.rounds[number][key] = figures
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps({"version": self.version, "rounds": self.rounds}, indent=1) + "\n")
        draft.replace(self.path)

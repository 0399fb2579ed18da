"""Shared state of the actors of a life of databases."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from buckram.state.db.database import Database
from simulator.database.rules import Rules
from simulator.database.serving import Servers
from simulator.machine.stage import ReplicaStage


@dataclass(slots=True)
class Stage(ReplicaStage[Database]):
    """The shared state of a life of databases."""

    rules: Rules
    directory: Path
    """The directory of the replicas' files."""
    slow: set[str] = field(default_factory=set, kw_only=True)
    """Hosts at which a slow statement runs."""
    servers: Servers | None = field(default=None, kw_only=True)
    """The servers at the hosts of replicas; None: nobody serves."""


__all__ = ["Stage"]

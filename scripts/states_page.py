"""The page of all states of health, docs/howto/runbooks/states.md, and their alert rules, from core/health's table.

What stands before the first section, and in each section after the mark, is written by hand and stays.
"""

from __future__ import annotations

import re

from buckram.core.health.state_table import TABLE
from buckram.core.health.states import Severity, State

BY_HAND = "<!-- by hand from here to the next heading -->\n"
LASTING = {Severity.ERROR: "2m", Severity.WARNING: "10m"}
"""Time that a state has to last before its alert fires, unless the table names another one."""
LEVELS = {Severity.ERROR: "critical", Severity.WARNING: "warning"}
"""Severities as Prometheus' people call them."""


def page(present: str) -> str:
    """Return the page, with the texts that people wrote into the present one."""
    head = present.partition("\n## ")[0].rstrip()
    by_hand = dict(re.findall(rf"^## (\S+)\n(?:(?!^## ).*\n)*?{re.escape(BY_HAND)}((?:(?!^## ).*\n)*)", present, re.M))
    sections = (_section(state) + by_hand.get(state.name, "\n") for state in TABLE.values())
    return f"{head}\n\n{''.join(sections)}".rstrip() + "\n"


def _section(state: State) -> str:
    resort = f"* As the last resort: {_shown(state.last_resort)}.\n" if state.last_resort else ""
    head = f"## {state.name}\n\n**{state.severity.value}**: {state.title}.\n\n"
    return f"{head}* What to do: {_shown(state.cure)}.\n{resort}{BY_HAND}"


def _shown(text: str) -> str:
    """Return the cure with capital letters for values."""
    return re.sub(r"{(\w+)}", lambda found: found[1].upper(), text)


def alert_of(state: State) -> str:
    """Return the name of a state's alert."""
    return f"Buckram{state.name.title().replace('-', '')}"


def alerts() -> str:
    """Return the rules of all states that are an error or a warning."""
    rules = "".join(_rule(state) for state in TABLE.values() if state.severity in LEVELS)
    return f"""# Alert rules of the states of health, from src/buckram/core/health; `make regenerate` writes them.
groups:
  - name: buckram-health
    rules:
{rules}"""


def _rule(state: State) -> str:
    title = state.title.replace('"', "'")
    return f"""      - alert: {alert_of(state)}
        expr: 'max by (state) (buckram_cluster_findings{{state="{state.name}"}}) > 0'
        for: {state.lasting or LASTING[state.severity]}
        labels:
          severity: {LEVELS[state.severity]}
        annotations:
          summary: "{{{{ $value }}}} x {state.name}: {title}; `buckram status` says where and what to do"
          runbook: {state.runbook}
"""


__all__ = ["alert_of", "alerts", "page"]

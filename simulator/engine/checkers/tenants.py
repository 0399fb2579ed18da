"""A8: what a client without the permission learns of a ledger, and changes of it: nothing."""

from __future__ import annotations

from buckram.errors import Code
from simulator.engine.checkers.base import Checker
from simulator.engine.checkers.wire import Answer

_READS = ("read", "batch", "poll", "read_lac", "list")
_TELLING = (Code.OK, Code.NO_ENTRY, Code.NO_LEDGER, Code.FENCED)
"""Answer codes that reveal something about a ledger, so that a client without permission must not get them."""


class Isolation(Checker):
    """Checks what bookies answer to clients of other tenants (`Facts.strangers`) about ledgers."""

    def answer_sent(self, answer: Answer) -> None:
        request = answer.request
        granted = None if request is None else self.facts.strangers.get(request.client)
        if request is None or granted is None or request.ledger not in self.facts.ledgers:
            return
        needed = "read" if request.kind in _READS and not request.fence else "append"
        self.report.check(
            "A8",
            needed in granted or answer.code not in _TELLING,
            "{} answers {} to a {} of ledger {} by {}, which has no permission `{}`",
            request.bookie,
            answer.code.name,
            "fence" if request.fence else request.kind,
            request.ledger,
            request.client,
            needed,
        )
        if needed not in granted:
            self.report.situation("a stranger was refused")
        elif answer.code is Code.OK:
            self.report.situation("a stranger read what it may")


__all__ = ["Isolation"]
